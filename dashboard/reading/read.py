"""Returns the runs of the recording at a path: reads and analyses it, or takes them from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from dashboard.reading.run import LazyTrace, Run, run_of
from dashboard.timeline.align import Tokens
from dashboard.timeline.holes import HoleRow
from dashboard.timeline.pyramid import Level, Pyramid
from dashboard.timeline.rows import Row, without_functions
from tracer import formats
from tracer.analysis.gaps import GapReport
from tracer.analysis.idle import IdleReport
from tracer.analysis.interval import Interval
from tracer.analysis.recording import Recording
from tracer.analysis.steps import Regime
from tracer.analysis.summary import Summary
from tracer.analysis.syncs import FetchLag
from tracer.analysis.tokens import ALL_STEPS, Steps, choose_steps
from tracer.errors import TraceError
from tracer.model.graph_json import GRAPH_FILE
from tracer.model.schema import DEVICE_DOMAINS
from tracer.model.trace import Trace
from tracer.stored.cache import FUNCTIONS, TRACE, Cache, kept_trace

if TYPE_CHECKING:  # they import this module, in processes of their own
    from dashboard.reading.readers import Readers

Found = TypeVar("Found")
PYTHON: Final = "python_functions"
_MOST_RANGES: Final = 20
_SUFFIXES: Final = frozenset({".sqlite", ".json", ".nsys-rep"})
_KEPT: Final = (Summary, FetchLag, Interval, Steps, Regime, GapReport, IdleReport, Tokens, Row, HoleRow, Level)


def read_runs(path: Path, cache: Cache | None = None, readers: Readers | None = None) -> list[Run]:
    """The runs of one recording; if it cannot be read, a run that gives the reason.

    With a cache, the runs come from it or are stored there first: their arrays are then on disk, and no trace stays in
    memory. With readers, these read the recording, and this process only maps the result, in this cache or in theirs.
    """
    if readers is not None:
        return _read_elsewhere(path, [readers.cache] if cache is None else [cache, readers.cache], readers)
    kept = None if cache is None else _from_cache(cache, path)
    if kept is not None:
        return kept
    runs = _analysed(path, [] if cache is None else [cache])
    if cache is None or runs[0].recording is None or not cache.save(path, [_kept(run) for run in runs]):
        return runs
    del runs
    pa.default_memory_pool().release_unused()
    return _from_cache(cache, path) or _analysed(path)


def keep_runs(path: Path, caches: Sequence[Cache]) -> None:
    """Read a recording's runs and store them in the first cache that accepts them.

    Raises:
        TraceError: it cannot be read or stored.
    """
    runs = _analysed(path, caches)
    if runs[0].recording is None:
        raise TraceError(runs[0].summary.problem)
    _keep(caches, path, [_kept(run) for run in runs], "runs")


def keep_trace(path: Path, caches: Sequence[Cache]) -> None:
    """Read a recording's trace and store it in the first cache that accepts it."""
    _keep(caches, path, formats.read(path, whole=False), TRACE)


def read_functions(path: Path, cache: Cache | None, readers: Readers | None) -> Trace | None:
    """The trace of a recording with its Python functions, read in the same process as by `read_runs`; None if it has no
    others.

    Raises:
        TraceError: it cannot be read any more.
    """
    if not formats.functions_of(path):
        return None
    caches = [one for one in (cache, readers.cache if readers is not None else None) if one is not None]
    kept = _first(kept_trace(path, one, FUNCTIONS) for one in caches)
    if kept is not None:
        return kept
    if readers is None:
        trace = formats.read(path, whole=False, **formats.functions_of(path))
        if cache is not None:
            cache.save(path, trace, FUNCTIONS)
        return trace
    readers.do(path, keep_functions, caches)
    return _first(kept_trace(path, one, FUNCTIONS) for one in caches)


def keep_functions(path: Path, caches: Sequence[Cache]) -> None:
    """Read a recording with its Python functions and store it in the first cache that accepts it.

    Raises:
        TraceError: it cannot be read or stored.
    """
    _keep(caches, path, formats.read(path, whole=False, **formats.functions_of(path)), FUNCTIONS)


def write_copy(path: Path, target: Path) -> None:
    """Write a recording as a parquetdir, with all of its data.

    Raises:
        TraceError: it can no longer be read, or cannot be written.
    """
    formats.write(formats.read(path), target)


def name_of(path: Path) -> str:
    """The name of a recording, and its key."""
    name = path.stem if path.suffix in _SUFFIXES else path.name
    return f"{path.parent.name} · {name}" if is_pass(path) else name


def is_pass(path: Path) -> bool:
    """Whether a recording is a traced pass inside the run directory of another."""
    return formats.is_trace(path.parent)


def _read_elsewhere(path: Path, caches: Sequence[Cache], readers: Readers) -> list[Run]:
    def trace(path: Path) -> Trace:
        kept = _first(kept_trace(path, cache) for cache in caches)
        if kept is None:
            readers.do(path, keep_trace, caches)
            kept = _first(kept_trace(path, cache) for cache in caches)
        if kept is None:
            raise TraceError(f"{path}: has changed while it was read")
        return kept

    kept, problem = _first(_from_cache(cache, path, trace) for cache in caches), None
    if kept is None:
        try:
            readers.do(path, keep_runs, caches)
            kept = _first(_from_cache(cache, path, trace) for cache in caches)
        except TraceError as error:
            problem = str(error)
    name = name_of(path)
    problem = problem or f"{path}: has changed while it was read"
    return kept or [Run(name, name, Summary(name, problem=problem), path=path)]


def _first(found: Iterable[Found | None]) -> Found | None:
    return next((one for one in found if one is not None), None)


def _keep(caches: Sequence[Cache], path: Path, value: Any, part: str) -> None:
    if not any(cache.save(path, value, part) for cache in caches):
        raise TraceError(f"{path}: there is not enough disk space to cache it")


def _analysed(path: Path, caches: Sequence[Cache] = ()) -> list[Run]:
    name = name_of(path)
    try:
        trace, functions = _trace(path, caches)
    except TraceError as problem:
        return [Run(name, name, Summary(name, problem=str(problem)), path=path)]
    recording = LazyTrace(path, trace)
    try:
        steps = choose_steps(trace, None, ALL_STEPS)
    except TraceError:
        return [_run(name, name, recording, None, None, functions)]
    parts = _parts(trace, steps)
    if not parts:
        return [_run(name, name, recording, None, steps, functions)]
    return [_run(f"{name}~{text}", f"{name} · {text}", recording, text, None, functions) for text in parts]


def _trace(path: Path, caches: Sequence[Cache]) -> tuple[Trace, pd.DataFrame]:
    """The trace without its Python functions, and these: from the cache of the commands, or else from the file."""
    has_functions = PYTHON in formats.functions_of(path)
    part = FUNCTIONS if has_functions else TRACE
    kept = _first(kept_trace(path, cache, part) for cache in caches)
    trace = formats.read(path, whole=False, **{PYTHON: has_functions}) if kept is None else kept
    return trace, without_functions(trace)


def _run(
    key: str, name: str, recording: LazyTrace, within: str | None, steps: Steps | None, functions: pd.DataFrame
) -> Run:
    found = recording_of(recording.trace, name, within, steps=steps)
    return run_of(found, recording, key=key, functions=functions, graph_file=_graph_file(recording.path))


def recording_of(trace: Trace, name: str, within: str | None, *, steps: Steps | None) -> Recording:
    """The recording of a run, with its steps if these are known."""
    if steps is None:
        return Recording(trace, name, within=within)
    return Recording.of_steps(trace, steps, name, within=within)


def _kept(run: Run) -> dict[str, Any]:
    """The parts of a run that the cache stores."""
    return {
        "key": run.key,
        "name": run.name,
        "within": run.within,
        "summary": run.summary,
        "steps": run.steps,
        "made": {
            "gaps": run.gaps,
            "tokens": run.tokens,
            "waits": run.waits,
            "event_pairs": run.event_pairs,
            "phases_beside": run.phases_beside,
            "node_kernels_note": run.node_kernels_note,
        },
        "rows": [(row, list(row.pyramid.levels)) for row in run.rows],
        "holes": [(row, list(row.pyramid.levels)) for row in run.holes],
    }


def _from_cache(cache: Cache, path: Path, read: Callable[[Path], Trace] | None = None) -> list[Run] | None:
    recording, graph = LazyTrace(path, read=read), _graph_file(path)

    def restored(kept: dict[str, Any]) -> Run:
        run = Run(kept["key"], kept["name"], kept["summary"], recording, kept["steps"], graph, path, kept["within"])
        for row, levels in (*kept["rows"], *kept["holes"]):
            row.__dict__["pyramid"] = Pyramid(row.start, row.end, tuple(levels))
        run.__dict__.update(kept["made"], **{name: [row for row, _ in kept[name]] for name in ("rows", "holes")})
        return run

    return cache.load(path, _KEPT, lambda found: [restored(kept) for kept in found])


def _graph_file(path: Path) -> Path | None:
    """The graph in a run directory, shared by its traced passes."""
    file = (path.parent if is_pass(path) else path) / GRAPH_FILE
    return file if file.is_file() else None


def _parts(trace: Trace, steps: Steps) -> list[str]:
    """NVTX texts whose ranges each contain several token steps: the runs of a recording of several runs."""
    if steps.source != "nvtx" or steps.table["group"].nunique() < 2:
        return []
    nvtx = trace["nvtx"]
    ranges = nvtx[(nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(DEVICE_DOMAINS)]
    starts, ends = (np.sort(steps.table[c].to_numpy()) for c in ("start", "end"))
    held = np.searchsorted(ends, ranges["end"], side="right") - np.searchsorted(starts, ranges["start"], side="left")
    holders = ranges[(held >= 2) & (held < len(steps))]
    texts = list(pd.unique(holders["text"].astype("str")))
    return texts if 2 <= len(texts) <= _MOST_RANGES and len(texts) == len(holders) else []
