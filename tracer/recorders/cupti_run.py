"""Records any program and its children through CUPTI, which our library sets up inside them (`native/cupti.h`), and
reads the files that it wrote in each process (`native/cupti.c`) into one trace.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from tracer.errors import FormatError, RecordError
from tracer.model.devices import numbered_by_gpu
from tracer.model.trace import Trace
from tracer.recorders import cupti_library, light
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti_library import hint
from tracer.recorders.cupti_records import OwnRanges, Parsed, Sources, build, device_uuids, parse
from tracer.recorders.light import Outcome, library, read_rings
from tracer.recorders.light_ring import SETTINGS, Ring, beside, has_rings, nvtx_table
from tracer.recorders.window import WHOLE, TimeRange, Window, profiler_spans, within

KINDS: Final = tuple(kind for kind in activity.SETS["all"] if kind != "nvtx")
"""The kinds of activity to record. The library itself receives the NVTX ranges, because the Python package `nvtx` finds
the default domain disabled if CUPTI does."""

SKIPPED: Final = """
    cudaGetDevice cudaGetDeviceCount cudaDeviceGetAttribute cudaDeviceGetStreamPriorityRange cudaGetLastError
    cudaPeekAtLastError cudaFuncGetAttributes cudaPointerGetAttributes cudaStreamIsCapturing cudaStreamGetCaptureInfo
    cudaStreamGetPriority cudaStreamGetId cudaOccupancyMaxActiveBlocksPerMultiprocessor
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags __cudaPushCallConfiguration __cudaPopCallConfiguration
    cuCtxGetCurrent cuCtxGetDevice cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDevicePrimaryCtxGetState
    cuFuncGetAttribute cuKernelGetAttribute cuKernelGetFunction cuGetProcAddress cuPointerGetAttribute
    cuPointerGetAttributes cuStreamIsCapturing cuStreamGetCaptureInfo cuStreamGetCtx cuKernelGetName
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
"""
"""Calls that only query, of which PyTorch makes hundreds per token, and those with which C++ prepares a launch."""

_BYTES: Final = "INTERTOKEN_LIGHT_BYTES"
_LIMIT: Final = 4 << 30

_HEAD: Final = struct.Struct("<IIQ")
_VERSION, _RECORDS, _TEXT, _CALL, _FAILED, _SIZE = range(1, 7)  # CuptiBlock in native/cupti.h
_TIMES: Final = ("start", "end")
_NO_RANGES: Final = pd.DataFrame({"thread": np.empty(0, np.int64)})


def record(command: Sequence[str], graph_trace: str, rings: Path, window: Window = WHOLE) -> Outcome:
    """Run a command in the foreground and read the files that it and its children left in a folder; `graph_trace` is
    "node" or "graph".

    Raises:
        RecordError: there is no library for this machine, no libcupti, another profiler, or the command cannot be
            started.
    """
    cupti_library.refuse_other_profilers()
    (rings / SETTINGS).touch(mode=0o600)
    (rings / SETTINGS).write_text(settings(graph_trace, cupti_library.find()))
    # The program's own window is cut out of the whole afterwards.
    switching = WHOLE if window.is_programs else window
    given = environment(library(), rings)
    begun = time.time_ns()
    code = light.run(command, given, rings, switching)
    failures: list[str] = []
    trace = read_folder(rings, failures)
    if trace is None:
        return Outcome(None, code, _why_nothing(rings, failures))
    if not window.is_all:
        trace = within(trace, _spans(trace, window, begun))
        if not len(trace):
            return Outcome(None, code, "nothing was recorded while the window was open")
    return Outcome(trace, code)


def settings(graph_trace: str, libcupti: str) -> str:
    """The library's configuration: the libcupti to load if the program has none, the newest version whose records have
    known sizes, the kinds of activity in the order in which to enable them, and the calls to skip."""
    kinds = [kind for name in KINDS for kind in activity.KINDS[name]]
    if graph_trace == "graph":
        kinds.insert(0, activity.GRAPH_TRACE)
    lines = [f"library {libcupti}", f"known {activity.NEWEST}", *(f"kind {kind}" for kind in kinds)]
    return "\n".join([*lines, *(f"skip {name}" for name in SKIPPED.split()), ""])


def environment(ours: Path, rings: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the program to record: the library is preloaded, so that each program is known, and injected
    by the driver, even if LD_PRELOAD is cleared. Raises RecordError if the library's path cannot be preloaded."""
    return {_BYTES: str(_LIMIT), **light.environment(ours, rings, base), cupti_library.PROFILER: str(ours)}


def is_folder_of_ours(rings: Path) -> bool:
    """Whether the processes of a folder were recorded through CUPTI."""
    return (rings / SETTINGS).is_file()


def read_folder(rings: Path, failures: list[str] | None = None) -> Trace | None:
    """Read the recording in a folder; None if it is empty. `failures` receives why processes are missing."""
    missing = [] if failures is None else failures
    is_graph = f"kind {activity.GRAPH_TRACE}\n" in (rings / SETTINGS).read_text(errors="replace")
    recorded = read_rings(rings, missing)
    trace = cupti_trace(recorded, "graph" if is_graph else "node", KINDS, missing)
    if trace is not None:
        trace.notes += light.without_room(rings)
    return trace


def _spans(trace: Trace, window: Window, begun: int) -> list[TimeRange]:
    """The parts of the recording that a window shows."""
    if window.is_programs:
        return profiler_spans(trace)
    since = begun - trace.metadata["clock"]["origin_ns"] + round(window.after * 1e9)
    end = trace.span[1] + 1
    return [TimeRange(since, end if window.seconds is None else since + round(window.seconds * 1e9))]


def _why_nothing(rings: Path, failures: Sequence[str]) -> str:
    """Which programs ran, and why nothing was recorded."""
    if has_rings(rings):
        return "; ".join([*failures, "no CUDA program did any work that CUPTI reports"])
    return light.why_nothing(
        rings, f"made no CUDA call, or set {cupti_library.PROFILER} themselves, or the driver is older than CUDA 11"
    )


@dataclass
class Activities:
    """The file of one process.

    Attributes:
        version: of CUPTI's interface, as `cuptiGetVersion` returns it; 0 if libcupti was not loaded.
        sizes: kind of activity -> bytes of its records, as far as the library states them.
        buffers: the filled buffers.
        texts: address in the process -> text.
        calls: (callback domain, callback id) -> name of the API call.
        failures: what failed, in words.
        cut_bytes: the bytes of an incomplete block at the end, of a process that was killed while writing.
    """

    version: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    buffers: list[bytes] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[tuple[int, int], str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    cut_bytes: int = 0

    def call_name(self, domain: int, cbid: int) -> str:
        """The name of an API call."""
        return self.calls.get((domain, cbid), f"{'cuda' if domain == 2 else 'cu'} call {cbid}")


def read_activities(ring: Path) -> Activities:
    """Read the file next to a ring; empty if there is none. Raises FormatError if it cannot be read, or is damaged."""
    path = beside(ring, ".cupti")
    if path is None:
        return Activities()
    try:
        content = memoryview(path.read_bytes())
    except OSError as problem:
        raise FormatError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    activities, at = Activities(), 0
    while at + _HEAD.size <= len(content):
        kind, size, about = _HEAD.unpack_from(content, at)
        if not _VERSION <= kind <= _SIZE:
            raise FormatError(f"{path}: damaged: a block of unknown kind {kind} at byte {at}")
        if at + _HEAD.size + size > len(content):
            break
        at += _HEAD.size
        _take(activities, kind, about, bytes(content[at : at + size]))
        at += size
    activities.cut_bytes = len(content) - at
    return activities


def _take(activities: Activities, kind: int, about: int, block: bytes) -> None:
    if kind == _VERSION:
        activities.version = about
    elif kind == _SIZE:
        activities.sizes[about >> 32] = about & 0xFFFFFFFF
    elif kind == _RECORDS:
        activities.buffers.append(block)
    elif kind == _TEXT:
        activities.texts[about] = block.decode(errors="replace")
    elif kind == _CALL:
        activities.calls[about >> 32, about & 0xFFFFFFFF] = block.decode(errors="replace")
    else:
        activities.failures.append(block.decode(errors="replace") + hint(about))


def cupti_trace(rings: Sequence[Ring], graph_trace: str, kinds: Sequence[str], failures: list[str]) -> Trace | None:
    """Build one trace from the files of all processes, which share a clock; their rings hold the NVTX ranges. Times
    count from the first event. None if nothing was recorded. `failures` receives why processes could not be recorded.
    """
    parts: list[Trace] = []
    gpus: list[pd.DataFrame] = []
    versions: list[int] = []
    earlier: Counter[int] = Counter()  # the last correlation of a process before it called exec
    origin = min((ring.start_utc_ns for ring in rings), default=0)
    for ring in rings:
        try:
            activities = read_activities(ring.path)
            failures += [f"{_who(ring)}: {failure}" for failure in activities.failures]
            part, uuids = _of_process(ring, activities, origin, earlier[ring.process])
        except (FormatError, RecordError) as problem:
            failures.append(f"{_who(ring)} is left out: {problem}")
            continue
        if not len(part):
            failures += part.notes
            continue
        earlier[ring.process] = max((int(t["correlation"].max()) for t in _correlated(part)), default=0)
        parts.append(part)
        numbers = part["devices"]["device"]
        gpus.append(pd.DataFrame({"process": ring.process, "cuda": numbers, "uuid": numbers.map(uuids)}))
        versions.append(activities.version)
    if not parts:
        return None
    trace = _joined(parts, pd.concat(gpus, ignore_index=True), origin)
    trace.metadata |= activity.recorded(versions[0], graph_trace, kinds)
    trace.notes += [*activity.of_version(max(versions)), *failures]
    return trace


def _of_process(ring: Ring, activities: Activities, origin: int, earlier: int) -> tuple[Trace, pd.Series[Any]]:
    """The trace of one process, with times since the origin and correlations after earlier ones; its GPUs' UUIDs."""
    sources = Sources(
        origin, ring.process, lambda address: activities.texts.get(address, ""), activities.call_name, ring.program
    )
    notes: list[str] = []
    ranges = nvtx_table(ring, notes)
    if len(ranges):
        shift = ring.start_utc_ns - ring.start_ns - origin
        ranges = ranges.assign(**{name: ranges[name] + shift for name in _TIMES})
    dropped = ring.counters.get("cupti_dropped", 0)
    version = activities.version
    parsed = parse(activities.buffers, activity.sizes(version, activities.sizes.get)) if version else Parsed()
    trace = build(parsed, sources, OwnRanges(), 0, dropped, ranges if len(ranges) else _NO_RANGES)
    for frame in _correlated(trace):
        frame["correlation"] += earlier
    trace.notes = [f"{_who(ring)}: {note}" for note in trace.notes + _ending(ring, activities)] + notes
    return trace, device_uuids(parsed.records)


def _ending(ring: Ring, activities: Activities) -> list[str]:
    """What the recording lacks because of how the process ended."""
    if not activities.version:
        return []
    if activities.cut_bytes:
        return ["it was killed while writing: the last buffer is incomplete, and up to the last second is missing"]
    if not ring.counters.get("cupti_ended"):
        return ["it was killed, called exec, or is still running: up to the last second of it is missing"]
    if left := ring.counters.get("cupti_buffers_left"):
        return [f"{left} of CUPTI's buffers were not returned: the program itself uses CUPTI (torch.profiler, for "
                "example), and what it did then is missing"]  # fmt: skip
    return []


def _joined(parts: Sequence[Trace], gpus: pd.DataFrame, origin: int) -> Trace:
    """One trace of the processes' traces, with times since its first event; `gpus` as for `numbered_by_gpu`."""
    timed = [table for part in parts for table in part.tables.values() if "start" in table and len(table)]
    first = min(int(table["start"].min()) for table in timed)
    tables = {name: _concatenated([part[name] for part in parts if len(part[name])]) for name in parts[0].tables}
    for frame in tables.values():
        for name in _TIMES:
            if name in frame:
                frame[name] = frame[name] - first
    notes = [note for part in parts for note in part.notes]
    if len(gpus):
        tables = numbered_by_gpu(tables, gpus, notes)
    for name, key in (("processes", ["process"]), ("threads", ["process", "thread"])):  # twice if a process called exec
        tables[name] = tables[name].drop_duplicates(key, keep="last") if len(tables[name]) else tables[name]
    overhead: dict[str, Counter[str]] = {}
    for part in parts:
        for kind, spent in part.metadata["overhead"].items():
            overhead.setdefault(kind, Counter()).update(spent)
    start = origin + first
    metadata: dict[str, Any] = {
        "clock": {"name": "CLOCK_REALTIME", "origin_ns": start},
        "start_utc_ns": start,
        "overhead": {kind: dict(spent) for kind, spent in overhead.items()},
    }
    trace = Trace.from_columns(metadata, **{name: frame for name, frame in tables.items() if len(frame)})
    trace.notes += notes
    return trace


def _concatenated(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of several frames with the same columns; names stay categorical."""
    if not frames:
        return pd.DataFrame()
    return pd.DataFrame({
        name: union_categoricals([frame[name] for frame in frames])
        if isinstance(frames[0][name].dtype, pd.CategoricalDtype)
        else np.concatenate([frame[name].to_numpy() for frame in frames])
        for name in frames[0]
    })  # fmt: skip


def _correlated(trace: Trace) -> list[pd.DataFrame]:
    return [frame for frame in trace.tables.values() if "correlation" in frame and len(frame)]


def _who(ring: Ring) -> str:
    return f"process {ring.process} ({ring.program})"
