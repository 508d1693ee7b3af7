"""Pairs of runs on one stream and on several, from which the cost of overlapping kernels is learned.

Both are run directories in the same folder, with the same configuration except for concurrency and allocator. The run
on one stream has graph.json and a recording with every kernel in `node/`; the run on several has graph.json.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracer.analysis.fits import gpu_of
from tracer.analysis.step_work import step_spans
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.overlap import StepKernels, assign
from tracer.analysis.whatif.recorded_step import RecordedStep
from tracer.analysis.whatif.streams import Learned, Pair, learned
from tracer.batch import find_reports
from tracer.errors import IntertokenError, TraceError, UsageError
from tracer.formats import read
from tracer.formats.nsys_parquet import RUN_FILE, read_run
from tracer.model.graph_json import GRAPH_FILE, read_graph
from tracer.model.trace import Trace
from tracer.stored.run_directory import NODE

_ONE, _SEVERAL = "sequential", "branches"
_MAY_DIFFER: Final = ("concurrency", "allocator", "repeats")


@dataclass(frozen=True)
class RunPair:
    """The run directories on one stream and on several, and the work that they share, see `work_of`."""

    one: Path
    several: Path
    work: str


def work_of(configuration: Mapping[str, Any]) -> str:
    """The work of a run regardless of streams: its configuration without the keys that may differ, as JSON."""
    return json.dumps({k: v for k, v in configuration.items() if k not in _MAY_DIFFER}, sort_keys=True)


def find_pairs(directories: Sequence[Path]) -> list[RunPair]:
    """The pairs among the run directories below the given directories, sorted by path.

    Raises:
        FormatError: a run.json is damaged.
        OSError: a directory cannot be listed.
    """
    runs = {run.absolute() for directory in directories for run in find_reports(directory) if _has(run, RUN_FILE)}
    found: dict[tuple[Path, str], dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs):
        configuration = read_run(run / RUN_FILE).get("configuration")
        if isinstance(configuration, dict) and _has(run, GRAPH_FILE):
            found[run.parent, work_of(configuration)][str(configuration.get("concurrency"))].append(run)
    return [
        RunPair(one, several, work)
        for (_, work), by in found.items()
        for one in by[_ONE]
        for several in by[_SEVERAL]
        if (one / NODE).is_dir()
    ]


def _has(run: Path, name: str) -> bool:
    return (run / name).is_file()


def compute_ns(trace: Trace) -> float:
    """Median time from the start of a step's first kernel to the end of its last."""
    spans = step_spans(trace, find_steps(trace))
    return float((spans["end"] - spans["start"]).median())


def pair_of(one: Path, streams: int, relative: float) -> Pair:
    """A pair from the run directory on one stream.

    Args:
        one: the directory.
        streams: number of streams of the other run.
        relative: see `Pair.relative`.

    Raises:
        UsageError, TraceError: the recording lacks the kernels of the graph, or cannot be read.
    """
    node = read(one / NODE, whole=False)
    kernels = StepKernels.of(read_graph(one / GRAPH_FILE), RecordedStep.of(node, find_steps(node)))
    return Pair(kernels, tuple(assign(kernels.needs, streams)), relative)


def read_pair(one: Path, several: Path) -> Pair:
    """Read a pair from both light passes and the node pass.

    Raises:
        UsageError, TraceError: a recording cannot be used; the message names it.
    """
    try:
        relative = compute_ns(read(several, whole=False)) / compute_ns(read(one, whole=False))
        if not (np.isfinite(relative) and relative > 0):
            raise UsageError("the compute of a step has zero duration")
        return pair_of(one, read_graph(several / GRAPH_FILE).streams, relative)
    except IntertokenError as error:
        text = str(error)
        named = any(text.startswith(str(path)) for path in (one, several))
        raise type(error)(text if named else f"{one}: {text}") from error


def learn_from(directories: Sequence[Path], configuration: Mapping[str, Any], gpu: str) -> Learned:
    """Learn from the pairs below the given directories for a run; its own pair is excluded.

    Args:
        directories: see `find_pairs`.
        configuration: configuration of the run.
        gpu: the GPU of the run; only pairs on the same GPU are used.

    Raises:
        UsageError: there is no such pair, or one cannot be read.
    """
    own = work_of(configuration)
    try:
        others = [found for found in find_pairs(directories) if found.work != own]
        pairs = [read_pair(p.one, p.several) for p in others if gpu_of(read(p.one, whole=False)) == gpu]
    except TraceError as error:  # not about the run's own recording
        raise UsageError(f"--learn-from: {error}") from error
    if not pairs:
        where = ", ".join(map(str, directories))
        raise UsageError(
            f"{where}: no pair of other runs on {gpu or 'such a device'} to learn from; record one with --concurrency "
            f"{_ONE} (with {GRAPH_FILE} and {NODE}/), and in the same folder one with {_SEVERAL}"
        )
    return learned(pairs, gpu)
