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

Here: the file and its tracks; then the lines of its events (`events`), built column by column in Arrow. Source of the
categories, names and `args`: Kineto's own writers (libkineto, `CuptiActivity.cpp` and `output_json.cpp`, as of 2026).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.files.output import appearing
from tracer.formats.tracks import STREAM, SYNC_NAMES, THREAD, Tracks, arrows, no_place_for, spans, tracks_of
from tracer.model.calls import plain
from tracer.model.intervals import Ints
from tracer.model.schema import DEVICE_TABLES, MISSING, PROFILER_DOMAINS
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
    """Write a trace, gzipped if the path ends in .gz; returns notes on what the file lacks or states differently. At
    most the text of 65,536 events is held in memory. Raises TraceError if the path exists or cannot be written."""
    tracks, is_zipped = tracks_of(trace), path.name.lower().endswith(".gz")
    with (
        appearing(path) as partial,
        gzip.open(partial, "wb", compresslevel=6) if is_zipped else partial.open("wb") as file,
    ):
        file.write(json.dumps(_head(trace)).removesuffix("}").encode() + b', "traceEvents": [\n')
        begun = False
        for lines in _lines(trace, tracks):
            file.write(lines if begun else lines[_SEPARATOR:])
            begun = True
        file.write(b"\n]}\n")
    moved = int((tracks.table["lane"].to_numpy()[tracks.of["nvtx"]] > 0).sum())
    notes = [f"NVTX ranges on separate tracks, because they overlap others: {moved}"] if moved else []
    return notes + no_place_for(trace)


def _head(trace: Trace) -> dict[str, Any]:
    """The members of the outer object before the events."""
    known = {"display_time_unit": "ms"} | trace.metadata
    head = {"schemaVersion": _SCHEMA_VERSION} | {_KEPT[ours]: known[ours] for ours in _KEPT.keys() & known.keys()}
    base = known.get("base_time_ns", known.get("start_utc_ns"))
    if isinstance(base, int):
        head["baseTimeNanoseconds"] = base
    if len(trace["devices"]):
        head["deviceProperties"] = [
            {theirs: device[ours] for ours, theirs in _PROPERTIES.items() if device[ours] != MISSING}
            | {"name": str(device["name"])}
            for device in trace["devices"].to_dict("records")
        ]
    return head | {OURS: {SOURCE: str(known.get("source", "")), "notes": trace.notes} | own_members(known)}


def own_members(given: dict[str, Any]) -> dict[str, Any]:
    """Those of `OWN_MEMBERS` that are there."""
    return {name: given[name] for name, kind in OWN_MEMBERS.items() if isinstance(given.get(name), kind)}


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
            lines = events(name, frame.iloc[part], ids.pids[at], ids.tids[at], domains_are_categories=from_chrome)
            yield _bytes(lines)
    yield from _arrows(trace, tracks, ids)


def _arrows(trace: Trace, tracks: Tracks, ids: _Ids) -> Iterator[memoryview]:
    drawn = arrows(trace)
    calls = drawn.assign(table="api", row=drawn["call"])
    for phase, ends, names in (("s", calls, ("api",)), ("f", drawn, DEVICE_TABLES)):
        for name in names:
            shown = ends[ends["table"] == name]
            for part in _parts(len(shown)):
                rows = shown["row"].to_numpy()[part]
                at, times = tracks.of[name][rows], trace[name]["start"].to_numpy()[rows]
                yield _bytes(flows(phase, shown["id"].to_numpy()[part], ids.pids[at], ids.tids[at], times))


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
    free = wanted if wanted >= 0 and wanted not in used else next(i for i in count(_FREE_IDS) if i not in used)
    used.add(free)
    return free


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


Texts: TypeAlias = "pa.Array | str"
"""One text per row, or one for all rows."""

_THOUSAND: Final = pa.array([f"{i:03}" for i in range(1000)])


def events(table: str, rows: pd.DataFrame, pids: Ints, tids: Ints, *, domains_are_categories: bool = False) -> pa.Array:
    """One line per row of a table, each with the comma before it.

    Args:
        rows: some of its rows, as returned by `tracks.spans`.
        pids: the process of each row's track; for devices Kineto uses the device's number.
        tids: the thread of each row's track; for devices Kineto uses the stream's number.
        domains_are_categories: whether the ranges were read from such a file, where the domain is the category.
    """
    if table == "nvtx":
        category, name, args = _range(rows, domains_are_categories)
    else:
        category, name, args = _DESCRIBE[table](rows)
    start = rows["start"].to_numpy()
    length = _join(', "dur": ', _us(rows["end"].to_numpy() - start))
    phase: Texts = "X"
    if table == "nvtx" and (is_mark := _is(rows["kind"], "mark")).true_count:
        phase, length = pc.if_else(is_mark, "i", "X"), pc.if_else(is_mark, ', "s": "t"', length)
    where = _track(pids, tids, start)
    return _join(
        ',\n{"ph": "', phase, '", "cat": ', category, ', "name": ', name, where, length, ', "args": {', args, "}}"
    )


def flows(phase: str, ids: Ints, pids: Ints, tids: Ints, times: Ints) -> pa.Array:
    """The ends of arrows (ac2g, from a call to what it launched): phase "s" at the call, "f" at the activity."""
    binding = ', "bp": "e"' if phase == "f" else ""
    begin = f',\n{{"ph": "{phase}", "cat": "ac2g", "name": "ac2g", "id": '
    return _join(begin, _numbers(ids), _track(pids, tids, times), binding + "}")


def _track(pids: Ints, tids: Ints, times: Ints) -> pa.Array:
    return _join(', "pid": ', _numbers(pids), ', "tid": ', _numbers(tids), ', "ts": ', _us(times))


WHOLE_GRAPH: Final = "whole graph"
"""The member of a kernel's `args` that marks the execution of a whole graph."""
PROCESS: Final = "process"
"""The member of a device activity's `args` that gives its process; Kineto records only one process."""
DOMAIN: Final = "domain"
"""The member of an annotation's `args` that gives its NVTX domain, if that is not a category of Kineto's."""

_CATEGORY_OF: Final = {"": "user_annotation", "trace": "Trace"}

Described = tuple[Texts, Texts, Texts]
"""Category and name in quotes, and the members of `args`."""


def _kernel(rows: pd.DataFrame) -> Described:
    full, short = _texts(rows["name"]), _texts(rows["short_name"])
    shared = rows[["static_shared", "dynamic_shared"]]
    total = shared.clip(lower=0).sum(axis=1).where((shared != MISSING).any(axis=1), MISSING)
    args = _join(
        _on_stream(rows),
        _optional("registers per thread", rows["registers"]),
        _optional("shared memory", total),
        _three("grid", rows),
        _three("block", rows),
        _optional("graph id", rows["graph"]),
        _optional("graph node id", rows["graph_node"]),
    )
    return '"kernel"', pc.if_else(pc.equal(full, '""'), short, full), args


def _graph_launch(rows: pd.DataFrame) -> Described:
    graph = _optional("graph id", rows["graph"])
    args = _join(_on_stream(rows), graph, _optional("graph exec id", rows["graph_exec"]), f', "{WHOLE_GRAPH}": 1')
    name = pc.if_else(_known(rows["graph"]), _join('"graph ', _numbers(rows["graph"].to_numpy()), '"'), '"graph"')
    return '"kernel"', name, args


def _copy(rows: pd.DataFrame) -> Described:
    ends = [_texts(rows[column], str.title, quoted=False) for column in ("src_kind", "dst_kind")]
    kind = _texts(rows["kind"], lambda word: "Unknown" if word == "unknown" else word, quoted=False)
    peers = [_optional("fromDevice", rows["src_device"]), _optional("toDevice", rows["dst_device"])]
    name = _join('"Memcpy ', kind, " (", ends[0], " -> ", ends[1], ')"')
    return '"gpu_memcpy"', name, _join(_on_stream(rows), *peers, _size_of(rows), _graph_node(rows))


def _fill(rows: pd.DataFrame) -> Described:
    name = _join('"Memset (', _texts(rows["mem_kind"], str.title, quoted=False), ')"')
    return '"gpu_memset"', name, _join(_on_stream(rows), _size_of(rows), _graph_node(rows))


def _call(rows: pd.DataFrame) -> Described:
    category = pc.if_else(_is(rows["layer"], "driver"), '"cuda_driver"', '"cuda_runtime"')
    name = _texts(rows["name"], plain)
    return category, name, _join('"correlation": ', _numbers(rows["correlation"].to_numpy()))


def _sync(rows: pd.DataFrame) -> Described:
    name = _texts(rows["type"], SYNC_NAMES.__getitem__)
    event = _optional("wait_on_cuda_event_id", rows["event"])
    return '"cuda_sync"', name, _join('"cuda_sync_kind": ', name, ", ", _on_stream(rows), event)


def _event_record(rows: pd.DataFrame) -> Described:
    return '"cuda_event"', '"cudaEvent"', _join(_on_stream(rows), _optional("event_id", rows["event"]))


def _range(rows: pd.DataFrame, domains_are_categories: bool) -> Described:
    domain, payload = _texts(rows["domain"]), rows["payload"].to_numpy()
    category = _texts(rows["domain"], lambda each: _CATEGORY_OF.get(each, each))
    is_category = pc.is_in(domain, pa.array([json.dumps(each) for each in ("", *PROFILER_DOMAINS)]))
    if domains_are_categories:
        return category, _texts(rows["text"]), ""
    value = _join('"payload": ', pa.array(payload).cast(pa.string()))
    value = pc.if_else(pa.array(np.isfinite(payload)), value, "")
    comma = pc.if_else(pc.or_(is_category, pc.equal(value, "")), "", ", ")
    named = pc.if_else(is_category, "", _join(f'"{DOMAIN}": ', domain))
    return pc.if_else(is_category, category, '"user_annotation"'), _texts(rows["text"]), _join(named, comma, value)


_DESCRIBE: Final[dict[str, Callable[[pd.DataFrame], Described]]] = {
    "kernels": _kernel, "graph_launches": _graph_launch, "memcpys": _copy, "memsets": _fill, "api": _call,
    "syncs": _sync, "cuda_events": _event_record,
}  # fmt: skip


def _on_stream(rows: pd.DataFrame) -> pa.Array:
    columns = ("device", "context", "stream", "correlation")
    numbers = (part for c in columns for part in (f'{", " * (c != columns[0])}"{c}": ', _numbers(rows[c].to_numpy())))
    return _join(*numbers, _optional(PROCESS, rows["process"]))


def _three(label: str, rows: pd.DataFrame) -> Texts:
    sizes = [rows[f"{label}_{axis}"].to_numpy() for axis in "xyz"]
    x, y, z = (_numbers(size) for size in sizes)
    known = pa.array((np.array(sizes) != MISSING).any(axis=0))
    return pc.if_else(known, _join(f', "{label}": [', x, ", ", y, ", ", z, "]"), "")


def _size_of(rows: pd.DataFrame) -> Texts:
    size, length = rows["bytes"].to_numpy(), (rows["end"] - rows["start"]).to_numpy()
    rate = pa.array(size / np.maximum(length, 1)).cast(pa.string())  # bytes per ns are GB/s
    text = pc.if_else(pa.array(length > 0), rate, '"N/A"')
    speed = pc.if_else(_known(rows["bytes"]), _join(', "memory bandwidth (GB/s)": ', text), "")
    return _join(_optional("bytes", rows["bytes"]), speed)


def _graph_node(rows: pd.DataFrame) -> Texts:
    return _optional("graph node id", rows["graph_node"])


def _optional(label: str, values: pd.Series) -> Texts:
    if not (known := _known(values)).true_count:
        return ""
    return pc.if_else(known, _join(f', "{label}": ', _numbers(values.to_numpy())), "")


def _known(values: pd.Series) -> pa.BooleanArray:
    return pa.array(values.to_numpy() != MISSING)


def _is(words: pd.Series, word: str) -> pa.BooleanArray:
    return pa.array((words == word).to_numpy())


def _texts(values: pd.Series, change: Callable[[str], str] = str, *, quoted: bool = True) -> pa.Array:
    """A categorical's texts. Each distinct text is changed, and encoded as JSON if `quoted`, only once."""
    codes, used = pd.factorize(values.cat.codes.to_numpy())
    changed = [change(str(word)) for word in values.cat.categories[np.asarray(used)]]
    return pa.array([json.dumps(text) if quoted else text for text in changed], pa.string()).take(pa.array(codes))


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _us(ns: Ints) -> pa.Array:
    """Nanoseconds as microseconds with three decimals, exactly."""
    us, rest = np.divmod(np.abs(ns), 1000)
    sign = pc.if_else(pa.array(ns < 0), "-", "") if (ns < 0).any() else ""
    return _join(sign, _numbers(us), ".", _THOUSAND.take(pa.array(rest)))


def _join(*parts: Texts) -> Any:
    """The concatenated texts of each row; a single text if all parts are single texts."""
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return pc.binary_join_element_wise(*parts, "")
