"""CUPTI's activity records: their layout, raw buffers to an array per kind, and these to the tables of a trace.

Newer versions append to a record and never move a field, so sizes depend on the version and offsets do not
(`cupti_layout.toml`).

A buffer holds records of different sizes back to back, so the start of a record is known only from the previous one.
All buffers are walked in lockstep: one NumPy operation advances every buffer by one record. The cost per record falls
with the number of buffers (of 256 KiB each), and there is no Python loop over records.

Records hold names as pointers to C strings, mangled names of kernels, and ids of API calls, which `Sources` resolves.
NVTX ranges are MARKER records, or those that `tracer.annotate` has noted (`OwnRanges`).
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.errors import RecordError
from tracer.files.bounded import toml_of
from tracer.model.schema import MEMCPY_KINDS, MEMORY_KINDS, MISSING, NO_ID, NVTX_KINDS, SYNC_TYPES
from tracer.model.trace import Trace
from tracer.recorders.symbols import demangled, named, renamed, short_name

Positions = NDArray[np.int64]
Records = dict[int, NDArray[np.void]]

_WORD: Final = 4  # bytes; a record begins with its kind in one word, and all sizes are whole words
_ALIGNMENT: Final = 8
_STRIDE: Final = 128  # records per buffer between checks which buffers are done

MEMCPY, MEMSET, DRIVER, RUNTIME, DEVICE, CONTEXT, KERNEL = 1, 2, 4, 5, 8, 9, 10
MARKER, MARKER_DATA, OVERHEAD, MEMCPY_PEER = 12, 13, 17, 22
CUDA_EVENT, STREAM, SYNCHRONIZATION, GRAPH_TRACE = 36, 37, 38, 51

KINDS: Final[dict[str, tuple[int, ...]]] = {
    "kernels": (KERNEL,),
    "memcpys": (MEMCPY, MEMCPY_PEER),
    "memsets": (MEMSET,),
    "api": (RUNTIME, DRIVER),
    "syncs": (SYNCHRONIZATION,),
    "cuda_events": (CUDA_EVENT,),
    "nvtx": (MARKER, MARKER_DATA),
    "overhead": (OVERHEAD,),
    "descriptions": (DEVICE, CONTEXT, STREAM),
}
"""Our kind of activity -> CUPTI's activity kinds. Graph-level tracing adds GRAPH_TRACE to the kernels."""

SETS: Final[dict[str, tuple[str, ...]]] = {
    "all": tuple(KINDS),
    "lean": ("kernels", "api", "overhead", "descriptions"),
}
"""Named sets of kinds. The kinds that `lean` omits cause most of the tracing overhead apart from kernels: a device copy
takes 1.4 us longer when it is recorded (H200, benchmarks/cupti_overhead.py), and a loop like ours has seven per token.
With `lean`, copies and syncs still appear as API calls, and the ranges of `tracer.annotate` do not need CUPTI."""

_LAYOUT: Final = toml_of(Path(__file__).with_name("cupti_layout.toml")).values()
FIELDS: Final = {of["kind"]: {name: (at, type) for name, (at, type) in of["fields"].items()} for of in _LAYOUT}
"""Kind -> our column -> (byte offset, NumPy type)."""
_SIZES: Final = {of["kind"]: {int(since): size for since, size in of["bytes"].items()} for of in _LAYOUT}
"""Kind -> first CUPTI API version with a size -> bytes."""

OLDEST: Final = 18
NEWEST: Final = 130599
_MAJOR: Final = 10_000
_MOST_BYTES: Final = 4096  # of a record

_MEMORY_WORDS: Final = (
    "unknown", "pageable", "pinned", "device", "array", "managed", "device static", "managed static",
)  # fmt: skip
"""CUpti_ActivityMemoryKind in its order, which differs from nsys's."""

OVERHEADS: Final = {
    1: "driver compiler", 1 << 16: "buffer flush", 2 << 16: "instrumentation", 3 << 16: "resource",
    4 << 16: "module loading", 5 << 16: "lazy function loading", 6 << 16: "command buffer full",
    7 << 16: "activity buffer request", 8 << 16: "UVM initialisation",
}  # fmt: skip
"""CUpti_ActivityOverheadKind."""

_DRIVER_DOMAIN, _RUNTIME_DOMAIN = 1, 2
_LOW: Final = (1 << 32) - 1

Frame = dict[str, Any]

_INSTANT, _START, _END = 1, 2, 4  # CUPTI_ACTIVITY_FLAG_MARKER_*
_NO_COLOR: Final = 1  # CUPTI_ACTIVITY_FLAG_MARKER_COLOR_NONE
_DOUBLE, _UINT64, _INT64 = 0, 1, 4  # CUpti_MetricValueKind
_PROCESS: Final = 1  # CUPTI_ACTIVITY_OBJECT_PROCESS: the owner of start/end ranges

_RANGE_COLUMNS: Final = ("start", "end", "thread", "text", "domain", "color", "payload")
STAND_IN: Final = "intertoken.default"
"""The name of the default domain while recording."""


def sizes(version: int, stated: Callable[[int], int | None] = lambda _kind: None) -> dict[int, int]:
    """Record kind -> bytes, for a CUPTI API version as returned by `cuptiGetVersion`.

    Args:
        stated: record kind -> its bytes as the library states them, None if it does not. Used for a version newer than
            those whose layout is known, if it has the same major number.

    Raises:
        RecordError: the layout of this version's records is unknown.
    """
    known = {
        kind: bytes_at[max((since for since in bytes_at if since <= version), default=min(bytes_at))]
        for kind, bytes_at in _SIZES.items()
    }
    if OLDEST <= version <= NEWEST:
        return known
    told = {kind: size for kind in known if (size := stated(kind)) is not None}
    grown = all(known[kind] <= size <= _MOST_BYTES and size % _ALIGNMENT == 0 for kind, size in told.items())
    if version // _MAJOR != NEWEST // _MAJOR or not told or not grown:
        raise RecordError(f"CUPTI API version {version} is not supported; use the libcupti of CUDA 12.0 to 13.5")
    return known | told


def of_version(version: int) -> list[str]:
    """A note on a version of CUPTI that is newer than those whose layout is known."""
    if version <= NEWEST:
        return []
    last = version_name(NEWEST // 100 * 100)
    return [
        f"CUPTI {version_name(version)} is newer than {last}, the last whose records are known: their sizes are as it "
        "states them, and the fields are taken to lie where they did"
    ]


def version_name(version: int) -> str:
    """The CUDA release of a CUPTI API version.

    Example:
        >>> version_name(130001), version_name(28)
        ('13.0.1', '12.9')
    """
    if version < 100_000:
        return f"12.{min(version - 18, 9)}" if version < 28 else "12.9"
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def recorded(version: int, graph_trace: str, kinds: Iterable[str]) -> dict[str, Any]:
    """What the metadata of a trace say about its recording."""
    return {"source": f"cupti {version_name(version)}", "graph_trace": graph_trace, "kinds": list(kinds)}


def record_type(kind: int, size: int) -> np.dtype[np.void]:
    """The NumPy dtype of a record of that kind and size, with the fields that fit."""
    fields = {name: field for name, field in FIELDS[kind].items() if field[0] + np.dtype(field[1]).itemsize <= size}
    offsets, formats = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})


@dataclass(slots=True)
class Parsed:
    """The contents of the buffers.

    Attributes:
        records: kind -> its records in the order of the buffers, as `record_type`.
        unknown: unknown kind -> the number of buffers in which it ended the reading.
        unread_bytes: the bytes from an unknown record on, and of records truncated at the end of their buffer.
    """

    records: Records = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)
    unread_bytes: int = 0


def parse(buffers: Sequence[bytes], sizes: Mapping[int, int]) -> Parsed:
    """Parse the records of all buffers (the valid part of each); `sizes` as the function returns them."""
    parsed, buffers = Parsed(), [buffer for buffer in buffers if buffer]
    if not buffers:
        return parsed
    words, starts, ends = _in_words(buffers, max(sizes.values()))
    steps = np.zeros(max(sizes) + 2, np.int64)  # in words, by kind; kinds beyond the last are unknown, too
    steps[list(sizes)] = [size // _WORD for size in sizes.values()]
    positions, stops = _walk(words, starts, steps)
    positions = _without_cut_records(positions, stops, words, ends, steps)
    early = stops < ends
    for kind in words[stops[early]].tolist():
        parsed.unknown[kind] = parsed.unknown.get(kind, 0) + 1
    whole = _last_ends(positions, starts, ends, words, steps)
    parsed.unread_bytes = int((ends - whole).sum()) * _WORD
    kinds = words[positions]
    for kind in np.flatnonzero(np.bincount(kinds, minlength=1)).tolist():
        parsed.records[kind] = _gather(words, positions[kinds == kind], record_type(kind, sizes[kind]))
    return parsed


def _in_words(buffers: Sequence[bytes], largest: int) -> tuple[NDArray[np.uint32], Positions, Positions]:
    """All buffers as words, each padded with more zeros than a truncated record can skip; their starts and ends."""
    pieces: list[bytes] = []
    lengths = np.array([len(buffer) for buffer in buffers])
    padding = largest + _ALIGNMENT + -lengths % _ALIGNMENT
    for buffer, zeros in zip(buffers, padding.tolist(), strict=True):
        pieces += (buffer, bytes(zeros))
    starts = np.concatenate(([0], np.cumsum(lengths + padding)[:-1])) // _WORD
    return np.frombuffer(b"".join(pieces), np.uint32), starts, starts + lengths // _WORD


def _walk(words: NDArray[np.uint32], starts: Positions, steps: Positions) -> tuple[Positions, Positions]:
    """The sorted starts of all records, and where each buffer's walk stopped (at a kind without a size)."""
    walked: list[Positions] = []
    stops = starts.copy()
    active = np.arange(len(starts))
    while len(active):
        at = stops[active]
        visited = np.empty((_STRIDE, len(active)), np.int64)
        kind = np.empty(len(active), np.uint32)
        step = np.empty(len(active), np.int64)
        for row in visited:
            row[:] = at
            words.take(at, out=kind, mode="clip")
            steps.take(kind, out=step, mode="clip")
            at += step
        stops[active] = at
        walked.append(visited.ravel())
        active = active[step > 0]
    positions = np.concatenate(walked)
    positions = positions[steps.take(words[positions], mode="clip") > 0]
    positions.sort()
    return positions, stops


def _without_cut_records(
    positions: Positions, stops: Positions, words: NDArray[np.uint32], ends: Positions, steps: Positions
) -> Positions:
    """Drop records that extend past the end of their buffer."""
    if not (stops > ends).any():
        return positions
    ends_of = ends[np.searchsorted(ends, positions, side="right")]
    return positions[positions + steps[words[positions]] <= ends_of]


def _last_ends(
    positions: Positions, starts: Positions, ends: Positions, words: NDArray[np.uint32], steps: Positions
) -> Positions:
    """The end of the last complete record of each buffer; the buffer's start if it has none."""
    before = np.searchsorted(positions, ends) - 1
    if not len(positions):
        return starts
    last = positions[before]
    return np.where((before >= 0) & (last >= starts), last + steps[words[last]], starts)


def _gather(words: NDArray[np.uint32], positions: Positions, type: np.dtype[np.void]) -> NDArray[np.void]:
    opaque: Any = np.dtype((np.void, type.itemsize))
    reachable = len(words) - type.itemsize // _WORD + 1
    overlapping = np.ndarray((reachable,), opaque, words.data, strides=(_WORD,))
    return overlapping[positions].view(type)


def ints(values: NDArray[Any]) -> NDArray[np.int64]:
    """Integers of any type as int64; invalid ids (all 32 bits set) are MISSING."""
    wide = values.astype(np.int64)
    if values.dtype == np.uint32:
        wide[wide == NO_ID] = MISSING
    return wide


def build(
    parsed: Parsed, sources: Sources, own: OwnRanges, last: int, dropped: int = 0, ranges: pd.DataFrame | None = None
) -> Trace:
    """Build the trace of a recording.

    Args:
        own: the ranges of `annotate`.
        last: the end of the recording, in CUPTI's clock (ns).
        dropped: the number of records dropped because there was no buffer.
        ranges: the nvtx table, if neither CUPTI nor `annotate` recorded the ranges.
    """
    notes: list[str] = []
    if dropped:
        notes.append(f"{dropped} activity records were dropped: there was no buffer or no space for them")
    for kind, count in parsed.unknown.items():
        notes.append(f"unknown records of kind {kind}: {count} of CUPTI's buffers were read only up to the first one")
    if parsed.unread_bytes:
        notes.append(f"{parsed.unread_bytes} bytes of CUPTI's buffers could not be read")
    frames = _tables(parsed.records, sources, notes)
    nvtx = nvtx_table(parsed.records, own, sources, last, notes) if ranges is None else ranges
    calling = frames["api"]["thread"] if "api" in frames else np.empty(0, np.int64)
    host = _host(calling, nvtx["thread"].to_numpy(np.int64), sources)
    metadata: dict[str, Any] = {
        "clock": {"name": "CLOCK_REALTIME", "origin_ns": sources.origin},
        "start_utc_ns": sources.origin,
        "overhead": _overheads(parsed.records),
    }
    trace = Trace.from_columns(metadata, **frames, nvtx=nvtx, **host)
    trace.notes += notes
    return trace


def _host(calling: NDArray[np.int64], annotating: NDArray[np.int64], sources: Sources) -> dict[str, pd.DataFrame]:
    process, threads = sources.process, pd.unique(np.concatenate([calling, annotating])).tolist()
    names = [sources.threads.get(thread, "") for thread in threads]
    return {
        "threads": pd.DataFrame({"process": process, "thread": threads, "name": names}),
        "processes": pd.DataFrame({"process": [process], "name": [sources.program]}),
    }


def _tables(records: Records, sources: Sources, notes: list[str]) -> dict[str, Frame]:
    """Build all tables except nvtx, threads and processes; a note is added if device activities have no times."""
    frames = {
        "kernels": _kernels(records, sources),
        "memcpys": _memcpys(records, sources),
        "memsets": _memsets(records, sources),
        "graph_launches": _from(records, GRAPH_TRACE),
    }
    for name, frame in frames.items():
        keep = frame["start"] != 0 if frame else np.ones(0, bool)
        if count := int((~keep).sum()):
            frames[name] = {column: values[keep] for column, values in frame.items()}
            notes.append(f"{count} of the {name} have no times (CUPTI could not collect them) and are left out")
    frames |= {
        "api": _api(records, sources),
        "syncs": _syncs(records),
        "cuda_events": _from(records, CUDA_EVENT),
        "devices": _devices(records, sources),
    }
    known = [_from(records, CONTEXT), *(frames[name] for name in ("kernels", "memcpys", "graph_launches"))]
    context, device = _pairs(known, "context", "device")
    device_of = pd.Series(device, index=context)[~pd.Index(context).duplicated()]
    for name in ("syncs", "cuda_events"):
        if frames[name]:
            frames[name]["device"] = device_of.reindex(frames[name]["context"], fill_value=MISSING).to_numpy()
    frames["streams"] = _streams(records, frames)
    for frame in frames.values():
        for column in ("start", "end"):
            if column in frame:
                frame[column] = frame[column] - sources.origin
    frames = {name: frame for name, frame in frames.items() if frame}
    for name, frame in frames.items():
        if name != "devices" and "process" not in frame:
            frame["process"] = np.full(len(next(iter(frame.values()))), sources.process)
    return frames


def _overheads(records: Records) -> dict[str, dict[str, int]]:
    """CUPTI's own overhead by kind: count and total ns."""
    rows = records.get(OVERHEAD)
    if rows is None:
        return {}
    spent = (rows["end"] - rows["start"]).astype(np.int64)
    overheads: dict[str, dict[str, int]] = {}
    for kind in np.unique(rows["overhead_kind"]).tolist():
        of_kind = spent[rows["overhead_kind"] == kind]
        overheads[OVERHEADS.get(kind, f"kind {kind}")] = {"count": len(of_kind), "ns": int(of_kind.sum())}
    return overheads


def _from(records: Records, kind: int) -> Frame:
    """The columns of one kind's records, sorted by start; empty if there are none."""
    rows = records.get(kind)
    if rows is None or not len(rows):
        return {}
    frame = {name: ints(rows[name]) for name in rows.dtype.names or ()}
    start = frame.get("start")
    if start is None or bool((start[1:] >= start[:-1]).all()):
        return frame
    order = np.argsort(start, kind="stable")
    return {name: values[order] for name, values in frame.items()}


def _joined(*parts: Frame) -> Frame:
    """The rows of several frames in one; columns that a frame lacks are MISSING there."""
    filled = [part for part in parts if part]
    if len(filled) <= 1:
        return filled[0] if filled else {}
    names = dict.fromkeys(name for part in filled for name in part)
    length = [len(next(iter(part.values()))) for part in filled]
    return {
        name: np.concatenate([p.get(name, np.full(n, MISSING)) for p, n in zip(filled, length, strict=True)])
        for name in names
    }


def _in_graph(frame: Frame) -> Frame:
    for column in ("graph_node", "graph"):
        if column in frame:
            frame[column] = np.where(frame[column] == 0, MISSING, frame[column])
    return frame


def _kernels(records: Records, sources: Sources) -> Frame:
    frame = _in_graph(_from(records, KERNEL))
    if frame:
        frame["name"] = renamed(named(frame["name"], sources.text), demangled)
        frame["short_name"] = renamed(frame["name"], short_name)
    return frame


def _memcpys(records: Records, sources: Sources) -> Frame:
    frame = _in_graph(_joined(_from(records, MEMCPY), _from(records, MEMCPY_PEER)))
    if frame:
        frame["kind"] = _words(frame["kind"], tuple(MEMCPY_KINDS), MEMCPY_KINDS)
        for column in ("src_kind", "dst_kind"):
            frame[column] = _words(frame[column], _MEMORY_WORDS, MEMORY_KINDS)
    return frame


def _memsets(records: Records, sources: Sources) -> Frame:
    frame = _in_graph(_from(records, MEMSET))
    if frame:
        frame["mem_kind"] = _words(frame["mem_kind"], _MEMORY_WORDS, MEMORY_KINDS)
    return frame


def _api(records: Records, sources: Sources) -> Frame:
    parts = [_from(records, kind) for kind in (RUNTIME, DRIVER)]
    for part, domain in zip(parts, (_RUNTIME_DOMAIN, _DRIVER_DOMAIN), strict=True):
        if part:
            part["call"] = part.pop("cbid") << 2 | domain
    frame = _joined(*parts)
    if frame:
        call = frame.pop("call")
        frame["name"] = named(call, lambda key: sources.call_name(key & 3, key >> 2))
        codes = np.asarray(call & 3 == _DRIVER_DOMAIN, np.int8)
        frame["layer"] = pd.Categorical.from_codes(codes, categories=pd.Index(["runtime", "driver"]))
    return frame


def _syncs(records: Records) -> Frame:
    frame = _from(records, SYNCHRONIZATION)
    if frame:
        frame["type"] = _words(frame["type"], tuple(SYNC_TYPES), SYNC_TYPES)
    return frame


def device_uuids(records: Records) -> pd.Series[Any]:
    """Device, as this process numbers it -> the UUID of its GPU as a number, for each device of the table."""
    rows = _visible_devices(records)
    if not rows:
        return pd.Series(dtype=object)
    words = rows["uuid_low"].astype(np.uint64).astype(object), rows["uuid_high"].astype(np.uint64).astype(object)
    return pd.Series(words[0] | words[1] << 64, index=rows["device"], dtype=object).groupby(level=0).first()


def _visible_devices(records: Records) -> Frame:
    """The devices that the process can use. CUPTI describes the machine's others, too, with numbers after theirs."""
    frame = _from(records, DEVICE)
    return {name: values[frame["visible"] != 0] for name, values in frame.items() if name != "visible"}


def _devices(records: Records, sources: Sources) -> Frame:
    frame = _visible_devices(records)
    if frame:
        first = np.unique(frame["device"], return_index=True)[1]
        frame = {name: values[first] for name, values in frame.items() if not name.startswith("uuid")}
        frame["name"] = named(frame["name"], sources.text)
        frame["memory_bandwidth"] = frame["memory_bandwidth"] * 1000  # CUPTI: kBytes/s
        frame["clock_rate"] = frame["clock_rate"] * 1000  # CUPTI: kHz
    return frame


def _streams(records: Records, frames: Mapping[str, Frame]) -> Frame:
    """Described streams, and streams created before the recording, which are known only from their activities."""
    described = _from(records, STREAM)
    worked = [frames[name] for name in ("kernels", "memcpys", "memsets", "graph_launches", "syncs")]
    context, stream = _pairs(worked, "context", "stream")
    used = {"context": context, "stream": stream} if len(context) else {}
    parts = [pd.DataFrame(part) for part in (described, used) if part]
    if not parts:
        return {}
    streams = pd.concat(parts, ignore_index=True).drop_duplicates(["context", "stream"])
    streams = streams[streams["stream"] != MISSING].sort_values(["context", "stream"])
    return {str(name): streams[name].fillna(MISSING).to_numpy(np.int64) for name in streams}


def _pairs(frames: Iterable[Frame], first: str, second: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct pairs of two columns (of numbers below 2**31), the first frame's first."""
    keys = [np.unique(frame[first] << 32 | frame[second] & _LOW) for frame in frames if frame]
    different = list(dict.fromkeys(np.concatenate(keys).tolist())) if keys else []
    pairs = np.array(different, np.int64)
    return pairs >> 32, (pairs & _LOW).astype(np.uint32).astype(np.int32).astype(np.int64)


def _words(values: NDArray[np.int64], words: tuple[str, ...], enum: Mapping[str, int]) -> pd.Categorical[str]:
    """CUPTI's enum values as a categorical of the schema's enum; other values are "unknown"."""
    order = list(enum)
    codes = np.array([order.index(word) for word in words] + [order.index("unknown")], np.int8)
    return pd.Categorical.from_codes(codes[np.minimum(values, len(words))], categories=pd.Index(order))


class OwnRanges:
    """The ranges of `annotate`, on CUPTI's clock."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._threads = _Threads()

    def push(self, text: str, payload: float | None, domain: str, color: int, recording: bool) -> None:
        """Open a range on the calling thread; it leaves a row if it opens and closes while recording."""
        self._threads.open.append((time.time_ns() if recording else None, text, domain, color, payload))

    def pop(self, recording: bool) -> None:
        """Close the calling thread's innermost range."""
        end = time.time_ns()
        start, text, domain, color, payload = self._threads.open.pop()
        if start is not None and recording:
            number = math.nan if payload is None else float(payload)
            self.rows.append((start, end, self._threads.id, text, domain, color, number))


class _Threads(threading.local):
    """Per thread: its open ranges and its id."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, ...]] = []
        self.id = threading.get_native_id()


def nvtx_table(records: Records, own: OwnRanges, sources: Sources, last: int, notes: list[str]) -> pd.DataFrame:
    """The nvtx table; ranges still open at the end of the recording (`last`, in CUPTI's clock) end there, and `notes`
    receives their number."""
    noted = pd.DataFrame(own.rows, columns=list(_RANGE_COLUMNS)).assign(kind="push/pop", process=os.getpid())
    markers = _markers(records, sources, last, notes)
    ranges = pd.concat([frame for frame in (noted, markers) if len(frame)] or [noted], ignore_index=True)
    ranges[["start", "end"]] -= sources.origin
    ranges["category"] = ranges["category"].fillna(MISSING).astype(np.int64) if "category" in ranges else MISSING
    ranges["kind"] = pd.Categorical(ranges["kind"], categories=list(NVTX_KINDS))
    return ranges


def _markers(records: Records, sources: Sources, last: int, notes: list[str]) -> pd.DataFrame:
    rows = records.get(MARKER)
    if rows is None or not len(rows):
        return pd.DataFrame()
    opened = rows[rows["flags"] & (_START | _INSTANT) != 0]
    ends = rows[rows["flags"] & _END != 0]
    end_of = pd.Series(ends["timestamp"].astype(np.int64), index=ends["id"]).groupby(level=0).first()
    end = end_of.reindex(opened["id"]).to_numpy(np.float64, na_value=np.nan)
    instant = opened["flags"] & _INSTANT != 0
    start = opened["timestamp"].astype(np.int64)
    still_open = np.isnan(end) & ~instant
    if count := int(still_open.sum()):
        notes.append(f"{count} NVTX ranges were still open at the end; they end with the recording")
    exact = end_of.reindex(opened["id"], fill_value=last).to_numpy(np.int64)
    frame = pd.DataFrame(
        {
            "start": start,
            "end": np.where(instant, start, exact),
            "thread": ints(opened["thread"]),
            "process": ints(opened["process"]),
            "text": named(opened["name"], sources.text),
            "domain": renamed(named(opened["domain"], sources.text), lambda name: "" if name == STAND_IN else name),
            "kind": np.where(instant, "mark", np.where(opened["object_kind"] == _PROCESS, "start/end", "push/pop")),
        }
    )
    return frame.assign(**_data(records, opened["id"]))


def _data(records: Records, ids: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Payload, colour and category of the markers with those ids."""
    rows = records.get(MARKER_DATA)
    if rows is None or not len(rows):
        return {"payload": np.nan, "color": MISSING, "category": MISSING}
    bits = np.ascontiguousarray(rows["payload"])
    kind = rows["payload_kind"]
    payload = np.where(kind == _DOUBLE, bits.view(np.float64), bits.view(np.int64).astype(np.float64))
    payload = np.where(kind == _UINT64, bits.astype(np.float64), payload)
    none = (kind == _UINT64) & (bits == 0)  # how CUPTI represents a missing payload
    known = np.isin(kind, (_DOUBLE, _UINT64, _INT64)) & ~none
    data = pd.DataFrame(
        {
            "payload": np.where(known, payload, np.nan),
            "color": np.where(rows["flags"] & _NO_COLOR != 0, MISSING, rows["color"].astype(np.int64)),
            "category": np.where(rows["category"] == 0, MISSING, rows["category"].astype(np.int64)),
        },
        index=rows["id"],
    )
    data = data[~data.index.duplicated()].reindex(ids)
    return {
        "payload": data["payload"].to_numpy(),
        **{name: data[name].fillna(MISSING).to_numpy(np.int64) for name in ("color", "category")},
    }


@dataclass(frozen=True, slots=True)
class Sources:
    """What building tables needs beside the records.

    Attributes:
        origin: the time that becomes 0, in CUPTI's clock (ns of CLOCK_REALTIME).
        process: this process's id, which device records lack.
        text: address of a C string -> the string.
        call_name: (callback domain, callback id) -> name of the API call.
        program: the process's name.
        threads: the names of its threads, by id, as far as known.
    """

    origin: int
    process: int
    text: Callable[[int], str]
    call_name: Callable[[int, int], str]
    program: str = ""
    threads: Mapping[int, str] = field(default_factory=dict)


class CallNames:
    """Names of API calls from libcupti, or without it (tests) names that only contain the id."""

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library

    def __call__(self, domain: int, cbid: int) -> str:
        """The name with CUPTI's version suffix, such as "cudaMemcpyAsync_v3020"; domain 1 is the driver, 2 the runtime
        (`CUpti_CallbackDomain`)."""
        if self._library is not None:
            name = ctypes.c_char_p()
            if self._library.cuptiGetCallbackName(domain, cbid, ctypes.byref(name)) == 0 and name.value:
                return name.value.decode()
        return f"{'cuda' if domain == 2 else 'cu'} call {cbid}"

    def known(self, domain: int) -> dict[int, str]:
        """All calls of a domain: id -> name.

        Raises:
            RecordError: libcupti returns no names.
        """
        names = {cbid: self(domain, cbid) for cbid in range(1, 1200)}
        known = {cbid: name for cbid, name in names.items() if " call " not in name and name != "INVALID"}
        if not known:
            raise RecordError("libcupti returns no names of API calls")
        return known
