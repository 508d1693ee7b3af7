"""Chrome JSON (.json, .json.gz) as PyTorch's profiler, Kineto, and others write it, read as a stream.

Events that have no table become ranges in `nvtx`: annotations without a domain, all others (cpu_op, overhead)
with their category as the domain. gpu_user_annotation, which repeats the host's annotations over device time, has no
thread. Asynchronous ranges are start/end ranges. python_function events are left out unless requested, and the notes
count them. Times are the file's own `ts`, in whole ns, counted from `metadata["base_time_ns"]` if the file gives it.
Kineto gives only the sum of static and dynamic shared memory, which is stored in `dynamic_shared`.

Here: the format and its metadata; then the file as a stream of events (`EventStream`). What the events mean is in
`chrome_events` and `chrome_tables`. Both forms are read, `{"traceEvents": [...], ...}` and a plain list, gzipped or
not. At most one event and a megabyte of text are held in memory, however large the file is.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from zipfile import BadZipFile

from tracer.errors import FormatError
from tracer.files.bounded import Gunzip, Pieces, check_unpacked, parsed
from tracer.files.json_repair import Repair
from tracer.formats import Format
from tracer.model.schema import DEVICE_TABLES, MISSING, OTHER_DOMAINS
from tracer.model.trace import LACKS, Given, Trace
from tracer.progress import tell

if TYPE_CHECKING:
    from tracer.formats.chrome_events import Tables
    from tracer.formats.chrome_tables import Pids


CHROME: Final = "Chrome JSON"
"""`metadata["source"]` of recordings of any other program."""

PYTORCH: Final = "PyTorch profiler"
"""The prefix of `metadata["source"]` in PyTorch's recordings."""

_ASCEND: Final = "Ascend Hardware"
"""The process under which torch_npu writes the device's rows, which have no category."""

_TELL_AFTER: Final = 1 << 14  # events
SUFFIXES: Final = (".json", ".json.gz")
_METADATA: Final = {
    "schemaVersion": "schema_version", "baseTimeNanoseconds": "base_time_ns", "distributedInfo": "distributed",
    "displayTimeUnit": "display_time_unit", "cuda_runtime_version": "cuda_runtime_version",
    "cuda_driver_version": "cuda_driver_version",
}  # fmt: skip
"""The metadata that is kept; not the host's name or the path of the file."""


def sniff(path: Path) -> bool:
    """Whether the file begins as a list of trace events, or has the suffix but is damaged."""
    if not path.is_file():
        return False
    try:
        with open_events(path) as events:
            return events.looks_right
    except FormatError:
        return path.name.lower().endswith(SUFFIXES)


def rank_of(path: Path) -> int | None:
    """The rank that the metadata before the events tell. Raises FormatError like `open_events`."""
    with open_events(path) as events:
        distributed = _before_events(events.head).get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return rank if type(rank) is int and 0 <= rank < 2**31 else None


def read(path: Path, python_functions: bool = False) -> Trace:
    """Read a recording. From a truncated one, read the events before its end and add a note. If a file holds several
    ranks, each keeps its own processes and devices, and a note lists them. `python_functions`: keep python_function
    events (with_stack=True) as ranges of that domain.

    JSON that its writer did not escape is read again, repaired (`tracer.files.json_repair`), and a note says so.

    Raises:
        FormatError: not JSON, without a list of events, damaged, or a gzip bomb.
    """
    try:
        with open_events(path) as events:
            return read_events(path, events, python_functions)
    except NotJsonError:
        with open_events(path, repair=True) as events:
            return read_events(path, events, python_functions)


def read_events(path: Path, events: EventStream, python_functions: bool = False) -> Trace:
    """Read the events of an open file, see `read`. Raises NotJsonError, too."""
    from tracer.formats.chrome_events import NO_EVENT, Tables

    tables = Tables(python_functions)
    read, size = 0, path.stat().st_size
    for event in events:
        tables.add(event)
        read += 1
        if read % _TELL_AFTER == 0:
            tell(events.bytes_read, size)
    if events.truncated and not read:
        raise FormatError(f"{path}: truncated before its first event")
    if read and tables.left_out[NO_EVENT] == read:
        raise FormatError(f"{path}: holds a list of {read} entries, none of which is an event")
    said = []
    if events.truncated:
        said.append(f"the file is truncated: only the {read} events before its end were read")
    if repaired := events.repaired:
        told = ", ".join(f"{count} {what}" for what, count in sorted(repaired.items()))
        said.append(f"its JSON is not valid and was repaired: {told}")
    return trace_of_tables(tables, events.metadata, said)


def trace_of_tables(tables: Tables, metadata: dict[str, Any], said: Sequence[str] = ()) -> Trace:
    """The trace of all events of a file, with the other members of its outer object, and notes on what was read."""
    from tracer.formats.chrome_events import RPD, link_rpd, notes_of_rpd
    from tracer.formats.chrome_tables import Pids, frames
    from tracer.formats.chrome_write import OURS
    from tracer.formats.xla import SOURCE as XLA

    collected = tables.collected()
    if tables.rpd:
        link_rpd(collected)
    pids = Pids(collected, list(tables.pids))
    columns = frames(collected, pids, list(tables.codes), ours=OURS in metadata)
    if devices := _devices(metadata.get("deviceProperties"), pids):
        columns["devices"] = devices
    trace = Trace.from_columns(_metadata(metadata, len(pids.ranks)), **columns)
    if tables.rpd:
        trace.metadata["source"] = RPD
        trace.notes += notes_of_rpd(True in tables.rpd)
    if tables.xla.has_devices:
        trace.metadata["source"] = XLA
    trace.notes += [*said, *pids.notes()]
    trace.notes += _not_understood(trace)
    if not any(len(trace[name]) for name in DEVICE_TABLES) and (lacks := _of_another_tool(trace)):
        trace.metadata[LACKS] = lacks
    if tables.unclosed:
        trace.notes.append(f"{tables.unclosed} ranges were never closed; they end with the recording")
    trace.notes += [f"{count} {what} are left out" for what, count in tables.left_out.items()]
    return trace


def write(trace: Trace, path: Path) -> list[str]:
    """Write a trace, see `chrome_write.write`."""
    from tracer.formats import chrome_write

    return chrome_write.write(trace, path)


def _not_understood(trace: Trace) -> list[str]:
    """A note that counts the rows of accelerators other than CUDA's and HIP's."""
    domains = trace["nvtx"]["domain"].value_counts()
    counts = {str(name): int(count) for name, count in domains.items() if name in OTHER_DOMAINS and count}
    ascend = trace["processes"].loc[trace["processes"]["name"] == _ASCEND, "process"]
    if rows := int(trace["nvtx"]["process"].isin(ascend).sum()):
        counts[_ASCEND] = rows
    if not counts:
        return []
    rows_of = ", ".join(f"{count} {name}" for name, count in counts.items())
    return [f"rows of an unsupported accelerator are kept as plain ranges ({rows_of}): its work is not analysed"]


_UNSUPPORTED: Final = "its work ran on an accelerator that is not supported"
_ROCPROF: Final = re.compile(r"(\d+ )?(CPU HIP API|CPU HSA API|GPU\d+|COPY)")
"""The processes of rocprof's first version."""


def _of_another_tool(trace: Trace) -> str | None:
    """Why a file without work on a device has none, if it is one of another tool."""
    domains, processes = set(trace.nvtx.domain), set(map(str, trace["processes"]["name"]))
    if "gpu_op" in domains:
        return f"{_UNSUPPORTED} (Intel's, recorded with unitrace)"
    if _ASCEND in processes:
        return f"{_UNSUPPORTED} ({_ASCEND})"
    if {"cuda", "cuda_api"} <= domains:
        return "it is of nsys2json, which leaves out what launched a kernel; give the .nsys-rep or its SQLite export"
    if any(_ROCPROF.fullmatch(name) for name in processes):
        return "it is of rocprof (v1), which leaves out what launched a kernel; record with rocprofv3 --runtime-trace"
    return None


def _metadata(given: dict[str, Any], ranks: int) -> dict[str, Any]:
    from tracer.formats.chrome_write import OURS, SOURCE, own_members

    kept = {ours: given[theirs] for theirs, ours in _METADATA.items() if theirs in given}
    own = given.get(OURS)
    if isinstance(own, dict) and isinstance(own.get(SOURCE), str) and own[SOURCE]:
        return {"source": own[SOURCE]} | kept | own_members(own)
    source = PYTORCH if "schemaVersion" in given else CHROME
    distributed = given.get("distributedInfo")
    numbers = [distributed.get(key) for key in ("rank", "world_size")] if isinstance(distributed, dict) else [None]
    if ranks == 1 and all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        source += f", rank {numbers[0]} of {numbers[1]}"
    return {"source": source} | kept


def _devices(given: Any, pids: Pids) -> Given | None:
    """The devices that the file describes, renumbered if ranks use the same numbers for different devices."""
    rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    described = {row["id"]: row for row in rows if type(row.get("id")) is int and 0 <= row["id"] < 2**63}
    counted = {ours: theirs for ours, (_, theirs) in pids.devices.items()}
    if len(pids.ranks) == 1:
        counted = {id: id for id in described}
    rows = [described[theirs] for theirs in counted.values() if theirs in described]
    if not rows:
        return None

    def numbers(name: str) -> list[int]:
        return [row[name] if type(row.get(name)) is int and 0 <= row[name] < 2**63 else MISSING for row in rows]

    return {
        "device": [ours for ours, theirs in counted.items() if theirs in described],
        "name": [str(row.get("name", "")) for row in rows],
        "sm_count": numbers("numSms"),
        "total_memory": numbers("totalGlobalMem"),
    }


EVENTS: Final = "traceEvents"
_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 1 << 20  # bytes in which the list of events must begin
_TAIL: Final = 1 << 16  # bytes at the end that are searched for metadata
_MOST_TRIES: Final = 100  # to find the start of the events; each parses the text before it
_ACCEPTED: Final = 64 << 20  # bytes of text, at any ratio
_CUT: Final = re.compile(
    rb'\s*\{\s*"schemaVersion":\s*\d+,\s*"'
    rb"(deviceProperties|distributedInfo|displayTimeUnit|baseTime|cuda_|record_shapes|traceName)"
)
"""How Kineto's files begin, which may end before their events do."""
_NO_LISTS: Final = {
    "start_map": "an object", "null": "null", "boolean": "true or false", "number": "a number", "string": "a text",
}  # fmt: skip


class NotJsonError(FormatError):
    """Text that no JSON is; a repair may help."""


class EventStream:
    """The events of an open file.

    Attributes:
        head: the first megabyte of text.
        metadata: the other members of the outer object; available after the events were read.
        truncated: whether the file ended early; known after the events were read.
    """

    def __init__(self, path: Path, file: BinaryIO, packed: BinaryIO | None = None, repair: bool = False) -> None:
        """`packed`: the file in which `file` is packed, if it is a part of one."""
        self._path = path
        self._raw = packed or file
        self._is_gzip = file.read(2) == _GZIP
        self._is_packed = self._is_gzip or packed is not None
        file.seek(0)
        self._file: Any = Gunzip(file) if self._is_gzip else file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._repair = Repair() if repair else None
        self._bytes = 0
        self._tail = b""
        self.truncated = False
        self._checked = Pieces()
        self.head = b""
        while len(self.head) < _HEAD and (more := self._more(_HEAD)):
            self.head += more
        self._unread = self.head
        self.metadata: dict[str, Any] = {}
        self._is_list = self.head.lstrip()[:1] == b"["

    @property
    def looks_right(self) -> bool:
        """Whether the first megabyte is the beginning of a list of trace events."""
        start = self.head.lstrip()[:1]
        if start == b"[":
            return b'"ph"' in self.head
        return start == b"{" and (f'"{EVENTS}"'.encode() in self.head or _CUT.match(self.head) is not None)

    @property
    def repaired(self) -> Counter[str]:
        """What was repaired -> how often, so far."""
        return Counter() if self._repair is None else self._repair.count

    @property
    def bytes_read(self) -> int:
        """The position in the file, in compressed bytes if it is gzipped."""
        return self._raw.tell()

    def __iter__(self) -> Iterator[Any]:
        """The events, numbers with a fraction as Decimal.

        Raises:
            FormatError: not JSON, no list of events, damaged, or a gzip bomb. A truncated file raises nothing.
        """
        if not self._is_list and (instead := _instead_of_list(self.head)):
            raise FormatError(f'{self._path}: "{EVENTS}" holds {instead}, not a list of events')
        import ijson  # only here: other formats start faster without it
        from ijson.common import JSONError

        self.metadata = _before_events(self.head)
        prefix = "item" if self._is_list else f"{EVENTS}.item"
        try:
            yield from ijson.items(self, prefix)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self._path}: a text contains an unpaired surrogate") from error
        except ArithmeticError as error:
            raise FormatError(f"{self._path}: contains a number whose exponent is out of range") from error
        except JSONError as error:
            if "premature EOF" not in str(error) and "incomplete" not in str(error).lower():
                raise NotJsonError(f"{self._path}: not valid JSON: {_reason(error)}") from error
            self.truncated = True
        self.metadata |= _after_events(self._tail)

    def read(self, size: int = -1) -> bytes:
        """The next bytes as UTF-8, for the parser; invalid bytes become replacement characters."""
        if not self._unread:
            self._unread = self._more(max(size, 1 << 16)) if size else b""
        size = len(self._unread) if size < 0 else size
        chunk, self._unread = self._unread[:size], self._unread[size:]
        return chunk

    def _more(self, size: int) -> bytes:
        while True:
            chunk = b""
            try:
                chunk = self._file.read1(size)
                self._bytes += len(chunk)
                if self._is_packed:
                    check_unpacked(self._bytes, self._raw.tell(), _ACCEPTED)
            except EOFError:
                self.truncated = True
            except (zlib.error, BadZipFile) as error:
                how = "gzip" if self._is_gzip else "packed"
                raise FormatError(f"{self._path}: its {how} data is damaged: {error}") from error
            except FormatError as problem:
                raise FormatError(f"{self._path}: {problem}") from None
            text = self._decoder.decode(chunk, final=not chunk).encode()
            if self._repair is not None:
                text = self._repair.next(text, last=not chunk)
            self._tail = (self._tail + text)[-_TAIL:]
            try:
                self._checked.check(text)
            except ValueError as error:
                raise FormatError(f"{self._path}: {error}, so it is not a trace") from error
            if text or not chunk:
                return text


@contextmanager
def open_events(path: Path, repair: bool = False) -> Iterator[EventStream]:
    """The events of a file, which is closed when the block exits; `repair` its JSON. Raises FormatError if its
    beginning is damaged or not a trace."""
    with path.open("rb") as file:
        yield EventStream(path, file, repair=repair)


def _instead_of_list(head: bytes) -> str | None:
    """What the outer object has in place of the list of events; None for a list, or if the text ends first."""
    import ijson
    from ijson.common import JSONError

    try:
        first = next(event for at, event, _ in ijson.parse(head) if at == EVENTS)
    except (JSONError, UnicodeDecodeError, ArithmeticError):  # reading on reports this, or that it is truncated
        return None
    except StopIteration:
        return "nothing at its top level"
    return None if first == "start_array" else _NO_LISTS[first]


def _before_events(head: bytes) -> dict[str, Any]:
    """The members of the outer object before its events."""
    key = re.compile(f'"{EVENTS}"'.encode())
    for place in islice(key.finditer(head), _MOST_TRIES):
        if (members := _object(head[: place.start()].rstrip().removesuffix(b",") + b"}")) is not None:
            return members
    return {}


def _after_events(tail: bytes) -> dict[str, Any]:
    """The members after the events: the text after the first `],` that parses as an object up to the end."""
    parts = tail.rstrip()
    at = parts.find(b"]")
    while at >= 0:
        rest = parts[at + 1 :].lstrip()
        if rest.startswith(b",") and (members := _object(b"{" + rest[1:])) is not None:
            return members
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


FORMAT: Final = Format(
    "Chrome or Kineto JSON", ".json", sniff, read, write,
    aliases=(".json.gz",), options=frozenset({"python_functions"}), lossless=False,
    rank=rank_of,
)  # fmt: skip
