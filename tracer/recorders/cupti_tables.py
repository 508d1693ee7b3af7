"""CUPTI's records and the ranges of `annotate` -> the tables of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.schema import MEMCPY_KINDS, MEMORY_KINDS, MISSING, SYNC_TYPES
from tracer.model.trace import Trace
from tracer.recorders import cupti_activity as activity
from tracer.recorders.cupti_activity import Parsed, Records, ints
from tracer.recorders.cupti_names import Sources, demangled, named, renamed, short_name
from tracer.recorders.cupti_nvtx import OwnRanges, nvtx_table

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


def build(
    parsed: Parsed, sources: Sources, own: OwnRanges, last: int, dropped: int = 0, ranges: pd.DataFrame | None = None
) -> Trace:
    """Build the trace of a recording.

    Args:
        parsed: the contents of its buffers.
        sources: origin, process and names.
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
    """Build all tables except nvtx, threads and processes.

    Args:
        records: kind -> records.
        sources: origin, process and names.
        notes: receives a note if device activities have no times.
    """
    frames = {
        "kernels": _kernels(records, sources),
        "memcpys": _memcpys(records, sources),
        "memsets": _memsets(records, sources),
        "graph_launches": _from(records, activity.GRAPH_TRACE),
    }
    untimed = {name: int((frame["start"] == 0).sum()) for name, frame in frames.items() if len(frame.get("start", ()))}
    for name, count in untimed.items():
        if count:
            keep = frames[name]["start"] != 0
            frames[name] = {column: values[keep] for column, values in frames[name].items()}
            notes.append(f"{count} of the {name} have no times (CUPTI could not collect them) and are left out")
    frames |= {
        "api": _api(records, sources),
        "syncs": _syncs(records),
        "cuda_events": _from(records, activity.CUDA_EVENT),
        "devices": _devices(records, sources),
    }
    device_of = _device_of(records, frames)
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
    rows = records.get(activity.OVERHEAD)
    if rows is None:
        return {}
    spent = (rows["end"] - rows["start"]).astype(np.int64)
    found: dict[str, dict[str, int]] = {}
    for kind in np.unique(rows["overhead_kind"]).tolist():
        of_kind = spent[rows["overhead_kind"] == kind]
        found[OVERHEADS.get(kind, f"kind {kind}")] = {"count": len(of_kind), "ns": int(of_kind.sum())}
    return found


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
    frame = _in_graph(_from(records, activity.KERNEL))
    if frame:
        frame["name"] = renamed(named(frame["name"], sources.text), demangled)
        frame["short_name"] = renamed(frame["name"], short_name)
    return frame


def _memcpys(records: Records, sources: Sources) -> Frame:
    frame = _in_graph(_joined(_from(records, activity.MEMCPY), _from(records, activity.MEMCPY_PEER)))
    if frame:
        frame["kind"] = _words(frame["kind"], tuple(MEMCPY_KINDS), MEMCPY_KINDS)
        for column in ("src_kind", "dst_kind"):
            frame[column] = _words(frame[column], _MEMORY_WORDS, MEMORY_KINDS)
    return frame


def _memsets(records: Records, sources: Sources) -> Frame:
    frame = _in_graph(_from(records, activity.MEMSET))
    if frame:
        frame["mem_kind"] = _words(frame["mem_kind"], _MEMORY_WORDS, MEMORY_KINDS)
    return frame


def _api(records: Records, sources: Sources) -> Frame:
    parts = []
    for kind, domain in ((activity.RUNTIME, _RUNTIME_DOMAIN), (activity.DRIVER, _DRIVER_DOMAIN)):
        frame = _from(records, kind)
        if frame:
            frame["call"] = frame.pop("cbid") << 2 | domain
            parts.append(frame)
    frame = _joined(*parts)
    if frame:
        call = frame.pop("call")
        frame["name"] = named(call, lambda key: sources.call_name(key & 3, key >> 2))
        codes = np.asarray(call & 3 == _DRIVER_DOMAIN, np.int8)
        frame["layer"] = pd.Categorical.from_codes(codes, categories=pd.Index(["runtime", "driver"]))
    return frame


def _syncs(records: Records) -> Frame:
    frame = _from(records, activity.SYNCHRONIZATION)
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
    frame = _from(records, activity.DEVICE)
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


def _device_of(records: Records, frames: Mapping[str, Frame]) -> pd.Series[Any]:
    """Context -> device, from descriptions of contexts and from their activities."""
    known = [_from(records, activity.CONTEXT), *(frames[name] for name in ("kernels", "memcpys", "graph_launches"))]
    context, device = _pairs(known, "context", "device")
    return pd.Series(device, index=context)[~pd.Index(context).duplicated()]


def _streams(records: Records, frames: Mapping[str, Frame]) -> Frame:
    """Described streams, and streams created before the recording, which are known only from their activities."""
    described = _from(records, activity.STREAM)
    worked = [frames[name] for name in ("kernels", "memcpys", "memsets", "graph_launches", "syncs")]
    context, stream = _pairs(worked, "context", "stream")
    used = [pd.DataFrame({"context": context, "stream": stream})] if len(context) else []
    parts = ([pd.DataFrame(described)] if described else []) + used
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
