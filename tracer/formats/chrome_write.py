"""Trace -> Chrome JSON with Kineto's conventions, for chrome://tracing, Perfetto's UI and HolisticTraceAnalysis.

Where Kineto has no convention or loses information:
- A graph launch has an arrow to each of its nodes, each with its own id. Kineto uses the call's correlation as the id
  of all of them, and viewers draw only one.
- A whole-graph execution (graph-level tracing) is a `kernel` named "graph 5", so that other tools count its time;
  `args` identify it.
- `args` contain the process of device activities, because each process counts its own correlations.
- Events that would overlap other slices of their track, and waits of the host for a stream, are on a separate track;
  `args` still contain the stream.
- Event records have no timestamps; they are placed at the start of the call.
- The domain of a range is in `args`, unless it is a category of Kineto's or the trace was read from such a file.
- The source of the trace and its run.json are in the outer object.

Times in the file are exact to the nanosecond. Viewers store them as doubles, which are exact to 1 ns up to 2**43 µs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from tracer.files.output import appearing
from tracer.formats import chrome_lines
from tracer.formats.tracks import STREAM, THREAD, Tracks, arrows, no_place_for, spans, tracks_of
from tracer.model.intervals import Ints
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import PAUSES, Trace
from tracer.progress import tell

FROM_CHROME: Final = ("PyTorch profiler", "Chrome JSON")
"""Prefixes of `metadata["source"]` in traces that were read from such a file."""

_CHUNK: Final = 1 << 16
_SEPARATOR: Final = len(",\n")
_DEVICE_SORT_INDEX: Final = 5_000_000  # after all processes, as Kineto sorts them
_FREE_IDS: Final = 1 << 22  # above the largest process and thread id of Linux
OURS: Final = "intertoken"
"""The member of the outer object that marks a file as written by us."""

SOURCE: Final = "source"
RUN: Final = "run"
OWN_MEMBERS: Final = {RUN: dict, PAUSES: list}
"""Members of that member, the others with their types: metadata that analyses need to interpret the figures."""

_SCHEMA_VERSION: Final = 1  # Kineto's
_KEPT: Final = {
    "distributed": "distributedInfo", "display_time_unit": "displayTimeUnit",
    "cuda_runtime_version": "cuda_runtime_version", "cuda_driver_version": "cuda_driver_version",
}  # fmt: skip
_PROPERTIES: Final = {"device": "id", "sm_count": "numSms", "total_memory": "totalGlobalMem"}


def write(trace: Trace, path: Path) -> list[str]:
    """Write a trace, gzipped if the path ends in .gz. At most the text of 65,536 events is held in memory.

    Returns:
        Notes on what the file lacks or states differently.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    tracks = tracks_of(trace)
    with appearing(path) as partial, _opened(partial, zipped=path.name.lower().endswith(".gz")) as file:
        file.write(json.dumps(_head(trace)).removesuffix("}").encode() + b', "traceEvents": [\n')
        begun = False
        for lines in _lines(trace, tracks):
            file.write(lines if begun else lines[_SEPARATOR:])
            begun = True
        file.write(b"\n]}\n")
    moved = int((tracks.table["lane"].to_numpy()[tracks.of["nvtx"]] > 0).sum())
    notes = [f"NVTX ranges on separate tracks, because they overlap others: {moved}"] if moved else []
    return notes + no_place_for(trace)


def _opened(path: Path, *, zipped: bool) -> BufferedIOBase:
    return cast(BufferedIOBase, gzip.open(path, "wb", compresslevel=6) if zipped else path.open("wb"))


def _head(trace: Trace) -> dict[str, Any]:
    """The members of the outer object before the events."""
    known = {"display_time_unit": "ms"} | trace.metadata
    head = {"schemaVersion": _SCHEMA_VERSION} | {_KEPT[ours]: known[ours] for ours in _KEPT.keys() & known.keys()}
    base = known.get("base_time_ns", known.get("start_utc_ns"))
    if isinstance(base, int):
        head["baseTimeNanoseconds"] = base
    if len(trace["devices"]):
        head["deviceProperties"] = [_properties(device) for device in trace["devices"].to_dict("records")]
    return head | {OURS: {SOURCE: str(known.get("source", "")), "notes": trace.notes} | own_members(known)}


def own_members(given: dict[str, Any]) -> dict[str, Any]:
    """Those of `OWN_MEMBERS` that are there."""
    return {name: given[name] for name, kind in OWN_MEMBERS.items() if isinstance(given.get(name), kind)}


def _properties(device: dict[Any, Any]) -> dict[str, Any]:
    numbers = {theirs: device[ours] for ours, theirs in _PROPERTIES.items() if device[ours] != MISSING}
    return numbers | {"name": str(device["name"])}


def _lines(trace: Trace, tracks: Tracks) -> Iterator[memoryview]:
    ids = _Ids.of(trace, tracks)
    descriptions = [f",\n{json.dumps(event)}" for event in _descriptions(trace, tracks, ids)]
    if descriptions:
        yield memoryview("".join(descriptions).encode())
    from_chrome = str(trace.metadata.get("source", "")).startswith(FROM_CHROME)
    done, total = 0, sum(map(len, tracks.of.values()))
    for name, of in tracks.of.items():
        frame = spans(trace, name)
        for part in _parts(len(frame)):
            at = of[part]
            done += len(at)
            tell(done, total)
            yield _bytes(chrome_lines.events(
                name, frame.iloc[part], ids.pids[at], ids.tids[at], domains_are_categories=from_chrome
            ))  # fmt: skip
    yield from _arrows(trace, tracks, ids)


def _arrows(trace: Trace, tracks: Tracks, ids: _Ids) -> Iterator[memoryview]:
    found = arrows(trace)
    calls = found.assign(table="api", row=found["call"])
    for phase, ends, names in (("s", calls, ("api",)), ("f", found, DEVICE_TABLES)):
        for name in names:
            shown = ends[ends["table"] == name]
            for part in _parts(len(shown)):
                rows = shown["row"].to_numpy()[part]
                at, times = tracks.of[name][rows], trace[name]["start"].to_numpy()[rows]
                yield _bytes(chrome_lines.flows(phase, shown["id"].to_numpy()[part], ids.pids[at], ids.tids[at], times))


def _parts(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, rows)) for start in range(0, rows, _CHUNK))


def _bytes(lines: pa.Array) -> memoryview:
    """All texts of an array, without copying."""
    _, offsets, text = lines.buffers()
    return memoryview(text)[: int(np.frombuffer(offsets, np.int32)[len(lines)])]


@dataclass(frozen=True)
class _Ids:
    """The ids of the tracks in the file: `pids` and `tids` by track, `devices` device -> pid.

    As in Kineto, a device's pid is its number and a stream's tid is its number, unless a process or another stream
    uses it. Threads keep their ids; API calls keep them on every lane, because nothing else gives their thread.
    """

    pids: Ints
    tids: Ints
    devices: dict[int, int]

    @classmethod
    def of(cls, trace: Trace, tracks: Tracks) -> _Ids:
        table = tracks.table
        on_thread = (table["kind"] == THREAD).to_numpy()
        processes = {*table["process"], *trace["threads"]["process"], *trace["processes"]["process"]}
        numbers = sorted({*table["device"][~on_thread], *trace["devices"]["device"]})
        devices = {device: _free(processes, device) for device in map(int, numbers) if device != MISSING}
        devices |= {MISSING: MISSING} if MISSING in numbers else {}  # no device, and read back as such
        pids = np.where(on_thread, table["process"], [devices.get(device, MISSING) for device in table["device"]])
        used: dict[int, set[int]] = {int(pid): set() for pid in pids}
        for process, thread, _ in _rows(trace["threads"]):
            used.setdefault(process, set()).add(thread)
        tids = np.full(len(table), MISSING, np.int64)
        has_call = np.isin(np.arange(len(table)), tracks.of["api"])
        first = (table["lane"] == 0).to_numpy()
        own = on_thread & (first | has_call)
        tids[own] = table["thread"][own]
        for pid, tid in zip(pids[own], tids[own], strict=True):
            used[pid].add(int(tid))
        is_stream = (table["kind"] == STREAM).to_numpy() & first
        for at in (*np.flatnonzero(is_stream), *np.flatnonzero(~is_stream & ~own)):
            tids[at] = _free(used[pids[at]], int(table["stream"][at]) if is_stream[at] else MISSING)
        return cls(pids, tids, devices)


def _free(used: set[int], wanted: int) -> int:
    """Reserve the wanted id, or the first free one above those that systems assign."""
    found = wanted if wanted >= 0 and wanted not in used else next(i for i in count(_FREE_IDS) if i not in used)
    used.add(found)
    return found


def _descriptions(trace: Trace, tracks: Tracks, ids: _Ids) -> Iterator[dict[str, Any]]:
    """The metadata events that name and sort the tracks."""
    for process, name in _rows(trace["processes"]):
        yield _description("process_name", process, 0, name=str(name))
    for process, thread, name in _rows(trace["threads"]):
        yield _description("thread_name", process, thread, name=str(name))
    models = dict(zip(trace["devices"]["device"], trace["devices"]["name"].astype("str"), strict=True))
    for device, pid in ids.devices.items():
        label = f"GPU {device}" if device != MISSING else "GPU"
        yield _description("process_name", pid, 0, name=models.get(device) or label)
        yield _description("process_labels", pid, 0, labels=label)
        yield _description("process_sort_index", pid, 0, sort_index=_DEVICE_SORT_INDEX + device)
    for at, (name, lane) in enumerate(zip(tracks.names(), tracks.table["lane"], strict=True)):
        where = int(ids.pids[at]), int(ids.tids[at])
        if name:
            yield _description("thread_name", *where, name=name + (f" ({lane + 1})" if lane else ""))
            yield _description("thread_sort_index", *where, sort_index=at)
        elif lane:
            yield _description("thread_name", *where, name=f"overlapping ranges of thread {tracks.table['thread'][at]}")


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    return frame.itertuples(index=False, name=None)


def _description(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
