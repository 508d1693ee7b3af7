"""From a path to the runs of its recording: by reading and analysing it, or from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from dashboard.cache import Cache
from dashboard.run import Recording, Run
from dashboard.timeline.align import Tokens
from dashboard.timeline.pyramid import Level, Pyramid
from dashboard.timeline.rows import Row
from tracer import formats
from tracer.analysis.distortion import Estimate
from tracer.analysis.gaps import GapReport
from tracer.analysis.summary import Summary, analyse
from tracer.analysis.tokens import Steps, find_steps
from tracer.errors import TraceError
from tracer.graph_json import GRAPH_FILE
from tracer.schema import DEVICE_DOMAINS
from tracer.trace import Trace

_MOST_RANGES: Final = 20
_SUFFIXES: Final = frozenset({".sqlite", ".json", ".nsys-rep"})
_KEPT: Final = (Summary, Estimate, Steps, GapReport, Tokens, Row, Level)


def read_runs(path: Path, cache: Cache | None = None) -> list[Run]:
    """The runs of one recording; of one that cannot be read, a run that says why.

    With a cache the runs come from it, or go there first: then their arrays are on disk, and no trace stays in memory.
    """
    kept = None if cache is None else _from_cache(cache, path)
    if kept is not None:
        return kept
    runs = _analysed(path)
    if cache is None or runs[0].recording is None or not cache.save(path, [_kept(run) for run in runs]):
        return runs
    del runs
    pa.default_memory_pool().release_unused()
    return _from_cache(cache, path) or _analysed(path)


def name_of(path: Path) -> str:
    """What a recording is called, and its key."""
    name = path.stem if path.suffix in _SUFFIXES else path.name
    return f"{path.parent.name} · {name}" if is_pass(path) else name


def is_pass(path: Path) -> bool:
    """Whether a recording is a traced pass inside the run directory of another."""
    return formats.is_trace(path.parent)


def _analysed(path: Path) -> list[Run]:
    name, recording = name_of(path), Recording(path)
    try:
        trace = recording.trace
    except TraceError as problem:
        return [Run(name, name, Summary(name, problem=str(problem)), path=path)]
    try:
        steps = find_steps(trace)
    except TraceError:
        return [_run(name, name, recording, None, None)]
    parts = _parts(trace, steps)
    if not parts:
        return [_run(name, name, recording, None, steps)]
    return [_run(f"{name}~{text}", f"{name} · {text}", recording, text, None) for text in parts]


def _run(key: str, name: str, recording: Recording, within: str | None, steps: Steps | None) -> Run:
    found = analyse(recording.trace, name, within, steps=steps)
    graph = _graph_file(recording.path)
    run = Run(key, name, found.summary, recording, found.steps, graph, recording.path, within)
    run.__dict__.update(gaps=found.gaps, syncs=found.syncs)
    return run


def _kept(run: Run) -> dict[str, Any]:
    """What the cache keeps of a run."""
    return {
        "key": run.key,
        "name": run.name,
        "within": run.within,
        "summary": run.summary,
        "steps": run.steps,
        "made": {"gaps": run.gaps, "tokens": run.tokens, "waits": run.waits, "event_pairs": run.event_pairs},
        "rows": [(row, list(row.pyramid.levels)) for row in run.rows],
    }


def _from_cache(cache: Cache, path: Path) -> list[Run] | None:
    recording, graph = Recording(path), _graph_file(path)

    def restored(kept: dict[str, Any]) -> Run:
        run = Run(kept["key"], kept["name"], kept["summary"], recording, kept["steps"], graph, path, kept["within"])
        for row, levels in kept["rows"]:
            row.__dict__["pyramid"] = Pyramid(row.start, row.end, tuple(levels))
        run.__dict__.update(kept["made"], rows=[row for row, _ in kept["rows"]])
        return run

    return cache.load(path, _KEPT, lambda found: [restored(kept) for kept in found])


def _graph_file(path: Path) -> Path | None:
    """The graph in a run directory, which its traced passes share."""
    file = (path.parent if is_pass(path) else path) / GRAPH_FILE
    return file if file.is_file() else None


def _parts(trace: Trace, steps: Steps) -> list[str]:
    """NVTX texts whose ranges each hold several token steps: the runs of a recording of more than one."""
    if steps.source != "nvtx" or steps.table["group"].nunique() < 2:
        return []
    nvtx = trace["nvtx"]
    ranges = nvtx[(nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(DEVICE_DOMAINS)]
    starts, ends = (np.sort(steps.table[c].to_numpy()) for c in ("start", "end"))
    held = np.searchsorted(ends, ranges["end"], side="right") - np.searchsorted(starts, ranges["start"], side="left")
    holders = ranges[(held >= 2) & (held < len(steps))]
    texts = list(pd.unique(holders["text"].astype("str")))
    return texts if 2 <= len(texts) <= _MOST_RANGES and len(texts) == len(holders) else []
