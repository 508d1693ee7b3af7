"""Chrome JSON as a stream: the events one by one, and the metadata before and after them.

Both forms are read, `{"traceEvents": [...], ...}` and a plain list, gzipped or not. At most one event and a megabyte of
text are held in memory, however large the file is.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Final

import ijson
from ijson.common import JSONError

from tracer.errors import FormatError
from tracer.files.bounded import Pieces, check_unpacked, parsed
from tracer.files.gunzip import Gunzip

EVENTS: Final = "traceEvents"
_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 1 << 20  # bytes in which the list of events must begin
_TAIL: Final = 1 << 16  # bytes at the end that are searched for metadata
_MOST_TRIES: Final = 100  # to find the start of the events; each parses the text before it
_ACCEPTED: Final = 64 << 20  # bytes of text, at any ratio
_NO_LISTS: Final = {
    "start_map": "an object", "null": "null", "boolean": "true or false", "number": "a number", "string": "a text",
}  # fmt: skip


class EventStream:
    """The events of an open file.

    Attributes:
        metadata: the other members of the outer object; available after the events were read.
        truncated: whether the file ended early; known after the events were read.
    """

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path = path
        self._raw = file
        self._is_gzip = file.read(2) == _GZIP
        file.seek(0)
        self._file = Gunzip(file) if self._is_gzip else file
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes = 0
        self._tail = b""
        self.truncated = False
        self._checked = Pieces()
        self._head = b""
        while len(self._head) < _HEAD and (more := self._more(_HEAD)):
            self._head += more
        self._unread = self._head
        self.metadata: dict[str, Any] = {}
        self._is_list = self._head.lstrip()[:1] == b"["

    @property
    def looks_right(self) -> bool:
        """Whether the first megabyte is the beginning of a list of trace events."""
        start = self._head.lstrip()[:1]
        return (start == b"{" and f'"{EVENTS}"'.encode() in self._head) or (start == b"[" and b'"ph"' in self._head)

    @property
    def bytes_read(self) -> int:
        """The position in the file, in compressed bytes if it is gzipped."""
        return self._raw.tell()

    def __iter__(self) -> Iterator[Any]:
        """The events, numbers with a fraction as Decimal.

        Raises:
            FormatError: not JSON, no list of events, damaged, or a gzip bomb. A truncated file raises nothing.
        """
        if not self._is_list and (found := _instead_of_list(self._head)):
            raise FormatError(f'{self._path}: "{EVENTS}" holds {found}, not a list of events')
        self.metadata = _before_events(self._head)
        prefix = "item" if self._is_list else f"{EVENTS}.item"
        try:
            yield from ijson.items(self, prefix)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._path}: a text contains an unpaired surrogate") from error
        except ArithmeticError as error:
            raise FormatError(f"{self._path}: contains a number whose exponent is out of range") from error
        except JSONError as error:
            if "premature EOF" not in str(error) and "incomplete" not in str(error).lower():
                raise FormatError(f"{self._path}: not valid JSON: {_reason(error)}") from error
            self.truncated = True
        self.metadata |= _after_events(self._tail)

    def read(self, size: int = -1) -> bytes:
        """The next bytes as UTF-8, for the parser; invalid bytes become replacement characters."""
        if not self._unread:
            self._unread = self._more(max(size, 1 << 16)) if size else b""
        size = len(self._unread) if size < 0 else size
        chunk, self._unread = self._unread[:size], self._unread[size:]
        return chunk

    def _check_unpacked(self) -> None:
        try:
            check_unpacked(self._bytes, self._raw.tell(), _ACCEPTED)
        except FormatError as problem:
            raise FormatError(f"{self._path}: {problem}") from None

    def _more(self, size: int) -> bytes:
        while True:
            try:
                chunk = self._file.read1(size)
            except EOFError:
                self.truncated, chunk = True, b""
            except zlib.error as error:
                raise FormatError(f"{self._path}: its gzip data is damaged: {error}") from error
            except FormatError as problem:
                raise FormatError(f"{self._path}: {problem}") from None
            self._bytes += len(chunk)
            if self._is_gzip:
                self._check_unpacked()
            text = self._decoder.decode(chunk, final=not chunk).encode()
            self._tail = (self._tail + text)[-_TAIL:]
            try:
                self._checked.check(text)
            except ValueError as error:
                raise FormatError(f"{self._path}: {error}, so it is not a trace") from error
            if text or not chunk:
                return text


@contextmanager
def open_events(path: Path) -> Iterator[EventStream]:
    """The events of a file, which is closed when the block exits.

    Raises:
        FormatError: the beginning of the file is damaged or not a trace.
    """
    with path.open("rb") as file:
        yield EventStream(path, file)


def _instead_of_list(head: bytes) -> str | None:
    """What the outer object has in place of the list of events; None for a list, or if the text ends first."""
    try:
        found = next(event for at, event, _ in ijson.parse(head) if at == EVENTS)
    except (JSONError, UnicodeDecodeError, ArithmeticError):  # reading on reports this, or that it is truncated
        return None
    except StopIteration:
        return "nothing at its top level"
    return None if found == "start_array" else _NO_LISTS[found]


def _before_events(head: bytes) -> dict[str, Any]:
    """The members of the outer object before its events."""
    key = re.compile(f'"{EVENTS}"'.encode())
    for place in islice(key.finditer(head), _MOST_TRIES):
        if (found := _object(head[: place.start()].rstrip().removesuffix(b",") + b"}")) is not None:
            return found
    return {}


def _after_events(tail: bytes) -> dict[str, Any]:
    """The members after the events: the text after the first `],` that parses as an object up to the end."""
    parts = tail.rstrip()
    at = parts.find(b"]")
    while at >= 0:
        rest = parts[at + 1 :].lstrip()
        if rest.startswith(b",") and (found := _object(b"{" + rest[1:])) is not None:
            return found
        at = parts.find(b"]", at + 1)
    return {}


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = parsed(text.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reason(error: Exception) -> str:
    """The first line of the parser's message, which may quote bytes of the file."""
    return "".join(c if c.isprintable() else "?" for c in (str(error).splitlines() or [""])[0].strip())
