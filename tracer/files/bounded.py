"""Files read within bounds: only regular ones, of our JSON and TOML only small ones, and nothing that unpacks to more.

Opening a FIFO may wait forever for a writer, and a device may do anything. What our JSON and TOML contain is checked
against the annotations of a dataclass. No message contains the path.

JSON of unknown origin is checked piece by piece before the parser sees it: the streaming parser (yajl) takes time
quadratic in the depth and superlinear in the length of a string, and ends the process on an integer with more digits
than Python converts (4300).

`Gunzip` unpacks gzip data as it is read, with a limit on the number of its members. A gzip file may consist of any
number of them, each with a header and a sum of its own, and one of 20 bytes may hold nothing. Whoever unpacks them
works for each of them, so a small file of many would take much more time than its size says.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar, cast

import msgspec
import numpy as np

from tracer.errors import FormatError

DEEPEST: Final = 1000
"""Levels; events have about 5."""
MOST_DIGITS: Final = 100
"""Consecutive digits of a number; 64-bit integers have up to 20."""
LONGEST: Final = 1 << 20
"""Bytes of one string; kernel names have up to about 10,000."""

_SLICE: Final = 1 << 16  # bytes; a string within one slice is short enough
_DIGITS: Final = b"0123456789"
_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_ALL_DIGITS_AS_0: Final = bytes.maketrans(_DIGITS, b"0" * 10)
_TOO_MANY: Final = b"0" * (MOST_DIGITS + 1)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Figure = Annotated[float, msgspec.Meta(ge=0, le=1e300)]

_MOST_BYTES: Final = 8 * 2**20  # of our own files; the graph of an 8B model has 0.2 MB
_MOST_RATIO: Final = 200  # unpacked to packed; known recordings have at most 55, a bomb of gzip up to 1032


def check_regular(path: Path) -> None:
    """Raise FormatError if a path is neither a file nor a directory. Directories and missing files pass: the code that
    opens the path reports them."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FormatError("not a regular file")


def opened(path: Path, mode: str = "rb") -> BinaryIO:
    """Open a regular file, without waiting for a writer. Raises OSError if it cannot be opened, or is not a regular
    file."""
    file = open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return cast(BinaryIO, file)


def check_unpacked(size: int, packed: int, accepted: int = 256 << 20) -> None:
    """Raise FormatError if `packed` bytes take too many unpacked; up to `accepted` bytes are not too many."""
    if size > max(accepted, _MOST_RATIO * packed):
        raise FormatError(f"unpacks to more than {_MOST_RATIO} times its size; it is not read further")


def json_of(path: Path) -> Any:
    """Parse a JSON file of ours. Raises FormatError."""
    return _read(path, "JSON", parsed)


def toml_of(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises FormatError."""
    return cast("dict[str, Any]", _read(path, "TOML", tomllib.loads))


def object_of(path: Path, schema: str, kind: type[T]) -> T:
    """A JSON file of ours as an instance of the dataclass `kind`, see `typed`. Raises FormatError if the file cannot be
    read, is too large, has a different schema, or does not contain a `kind`."""
    data = json_of(path)
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise FormatError(f"its schema is not {schema!r}")
    return typed(data, kind)


def typed(value: Any, kind: type[T]) -> T:
    """A value from JSON or TOML as `kind`, such as a dataclass; unknown keys are ignored. Raises FormatError if it is
    none; the message gives the position, such as `$.nodes[0].shape`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FormatError(str(error)) from error


def _read(path: Path, language: str, parse: Callable[[str], Any]) -> Any:
    check_regular(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FormatError(f"larger than the limit of {_MOST_BYTES >> 20} MiB")
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:  # also not UTF-8, or beyond Python's limits
        raise FormatError(f"not valid {language}: {error}") from error


def parsed(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: invalid JSON, an integer with too many digits, or a lone surrogate, which can be neither written
            nor shown.
        RecursionError: the JSON is nested too deeply.
    """
    value = json.loads(text, parse_int=_integer)
    if "\\ud" in text.casefold():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"contains a number with more than {MOST_DIGITS} digits")
    return int(text)


class Pieces:
    """Checks the pieces of one JSON document, in order."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._length = 0  # of the string that continues in the next piece
        self._digits = b""  # digits at the end of the last piece
        self._escape = b""

    def check(self, piece: bytes) -> None:
        """Check the next piece. Raises ValueError if the JSON is nested too deeply, or has a number or a string that is
        too long."""
        for start in range(0, len(piece), _SLICE):
            self._check(piece[start : start + _SLICE])

    def _check(self, piece: bytes) -> None:
        plain = self._escape + piece
        if b"\\" in plain:
            plain = plain.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        plain = plain[: len(plain) - len(self._escape)]
        begins_in_text = self._in_text
        self._check_depth(plain)
        self._check_texts(plain, begins_in_text)
        self._check_digits(plain, begins_in_text)

    def _check_depth(self, plain: bytes) -> None:
        parts = plain.translate(None, _STRUCTURE).split(b'"')
        brackets = np.frombuffer(b"".join(parts[self._in_text :: 2]), np.uint8)
        self._in_text ^= len(parts) % 2 == 0
        levels = self._depth + np.cumsum(np.where((brackets | 0x20) == ord("{"), 1, -1))
        if levels.max(initial=0) > DEEPEST:
            raise ValueError(f"is nested deeper than {DEEPEST} levels")
        self._depth = int(levels[-1]) if len(levels) else self._depth

    def _check_texts(self, plain: bytes, begins_in_text: bool) -> None:
        if begins_in_text:
            end = plain.find(b'"')
            self._length += len(plain) if end < 0 else end
            if self._length > LONGEST:
                raise ValueError(f"contains a string longer than {LONGEST >> 20} MiB")
            if end < 0:
                return
        self._length = len(plain) - plain.rfind(b'"') - 1

    def _check_digits(self, plain: bytes, begins_in_text: bool) -> None:
        plain = self._digits + plain
        if _TOO_MANY in plain.translate(_ALL_DIGITS_AS_0):
            numbers = b'"'.join(plain.split(b'"')[begins_in_text::2])
            if _TOO_MANY in numbers.translate(_ALL_DIGITS_AS_0):
                raise ValueError(f"contains a number with more than {MOST_DIGITS} digits")
        digits = b"" if self._in_text else plain[-MOST_DIGITS:]
        self._digits = digits[len(digits.rstrip(_DIGITS)) :]


MOST_MEMBERS: Final = 1_000
"""Members of any size; programs that write traces write one, whoever appends to a file one more each time."""
LEAST_BYTES: Final = 16 << 10
"""Unpacked bytes on average of more members than that; those of bgzip, which writes the smallest, hold 64 KiB."""
_READ: Final = 1 << 16  # packed bytes
_GZIP: Final = zlib.MAX_WBITS | 16


class Gunzip:
    """The unpacked data of a gzip file, which is at its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._members, self._size = 1, 0

    def read1(self, size: int) -> bytes:
        """The next bytes, at most `size` and none only at the end.

        Raises:
            EOFError: the file ends within a member.
            zlib.error: it is damaged.
            FormatError: it has too many members; without the name of the file.
        """
        data = b""
        while not data and self._has_more():
            data = self._member.decompress(self._packed, size)
            self._packed = self._member.unused_data or self._member.unconsumed_tail
            self._size += len(data)
        return data

    def _has_more(self) -> bool:
        """Whether anything follows; the next member is begun where one has ended."""
        ended = self._member.eof
        if ended:
            self._packed = self._packed.lstrip(b"\0")  # some programs pad
        while not self._packed:
            self._packed = self._file.read(_READ)
            if not self._packed:
                if ended:
                    return False
                raise EOFError
            if ended:
                self._packed = self._packed.lstrip(b"\0")
        if ended:
            self._begin()
        return True

    def _begin(self) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS and (self._members - 1) * LEAST_BYTES > self._size:
            raise FormatError(
                f"has more than {MOST_MEMBERS:,} gzip members that hold less than {LEAST_BYTES >> 10} KiB on average; "
                "it is not read further"
            )
        self._member = zlib.decompressobj(_GZIP)
