"""The recordings that a page may show: found once, read and analysed when first asked for, then kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import TypeAlias

import numpy as np
import pandas as pd

from dashboard.background import Background
from dashboard.executions import Executions, executions_of
from dashboard.timeline.align import Tokens, tokens_of
from dashboard.timeline.marks import WAIT_COLUMNS, waits_of
from dashboard.timeline.rows import Row, rows_of
from dashboard.view import MOST_RUNS
from tracer import formats
from tracer.analysis.gaps import GapReport, gap_report, measured_rate
from tracer.analysis.summary import Summary, summarise
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import Steps, find_steps, step_spans
from tracer.errors import FormatError, TraceError, UsageError
from tracer.graph_json import GRAPH_FILE, RunGraph, read_graph
from tracer.schema import DEVICE_DOMAINS
from tracer.trace import Trace

Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
DEEPEST = 2
"""Levels below a given directory that are searched."""
_MOST_RANGES = 20


@dataclass(eq=False)
class Run:
    """One run: a recording, or the part of one inside an NVTX range. Analyses are made when first used.

    Attributes:
        key: what links call it; unique in its store.
        name: what readers call it.
        summary: its figures; `problem` says what could not be had.
        trace: the recording, None if it could not be read.
        steps: its token steps, None if none were found.
        graph_file: the graph that was run, None if the run directory has none.
        path: where the recording is.
        within: the NVTX range that it is, None for the whole recording.
    """

    key: str
    name: str
    summary: Summary
    trace: Trace | None = field(default=None, repr=False)
    steps: Steps | None = field(default=None, repr=False)
    graph_file: Path | None = None
    path: Path | None = None
    within: str | None = None

    @cached_property
    def graph(self) -> RunGraph:
        """The graph that was run.

        Raises:
            FormatError: the run directory has none, or a damaged one.
        """
        if self.graph_file is None:
            raise FormatError(f"{self.name} has no {GRAPH_FILE}: only runs of `intertoken run` do")
        return read_graph(self.graph_file)

    @cached_property
    def executions(self) -> Executions:
        """The kernels of the graph's nodes.

        Raises:
            FormatError: there is no graph.
        """
        if self.trace is None or self.steps is None:
            return executions_of(None, None, self.graph)
        return executions_of(self.trace, self.steps.table, self.graph)

    @cached_property
    def gaps(self) -> GapReport | None:
        """The gaps as the recording shows them, with the untraced ones beside, or None where it has none."""
        if self.trace is None or self.steps is None:
            return None
        try:
            return gap_report(self.trace, self.steps, measured_rate(self.trace, self.steps, self.within))
        except TraceError:
            return None

    @cached_property
    def syncs(self) -> SyncReport | None:
        """What its steps do between host and device, or None where the recording does not say."""
        if self.trace is None or self.steps is None:
            return None
        try:
            return sync_report(self.trace, self.steps)
        except TraceError:
            return None

    @cached_property
    def tokens(self) -> Tokens | None:
        """Where its tokens are; None if there is nothing to align at."""
        if self.trace is None or self.steps is None:
            return None
        return tokens_of(step_spans(self.trace, self.steps), None if self.gaps is None else self.gaps.table)

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Its syncs and what they waited for; see `timeline.marks.waits_of`."""
        return waits_of(self.syncs.calls) if self.syncs is not None else pd.DataFrame(columns=list(WAIT_COLUMNS))

    @property
    def inflated(self) -> bool:
        """Whether its timeline comes from a traced pass, which inflates the gap."""
        predicted = self.trace is not None and "whatif" in self.trace.metadata
        return self.gaps is not None and self.gaps.warning is not None and not predicted

    @cached_property
    def rows(self) -> list[Row]:
        """The timeline's rows."""
        if self.trace is None or self.steps is None:
            return []
        table = self.steps.table
        return rows_of(self.trace, int(table["start"].min()), int(table["end"].max()))


class RunStore:
    """All runs below the given paths. Safe to use from several threads.

    Without `passes` the traced passes inside run directories are left out, unless a path names them. `inbox` is one
    more directory, for recordings that come by upload.
    """

    def __init__(self, paths: Iterable[Path | str], passes: bool = True, inbox: Path | None = None) -> None:
        self.given, self.inbox = [Path(p) for p in paths], inbox
        self._passes = passes
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._runs: dict[str, Run] | None = None
        self._stamps: dict[Path, Stamp] = {}
        self._counts = (0, 0)
        self.revision = 0

    @cached_property
    def background(self) -> Background:
        """Where answers about the runs that take seconds are worked out."""
        return Background()

    def runs(self) -> list[Run]:
        """Every run, in the order of the paths; the first call reads them."""
        with self._lock:
            if self._runs is None:
                self.refresh()
            return list((self._runs or {}).values())

    def refresh(self) -> None:
        """Read what has come or changed since it was last read, and forget what is gone; `revision` counts the changes.

        The runs of a recording that has not changed keep their keys, so that links to them hold.
        """
        with self._reading:
            before = self._runs or {}
            paths = find_traces(self.places, self._passes)
            stamps = {path: stamp_of(path) for path in paths}
            if self._runs is not None and list(stamps.items()) == list(self._stamps.items()):
                return
            kept = {path for path in paths if self._stamps.get(path) == stamps[path]}
            taken = {key: run for key, run in before.items() if run.path in kept}
            twins = {name for name, times in Counter(path.name for path in paths).items() if times > 1}
            found: dict[str, Run] = {}
            for number, path in enumerate(paths):
                self._counts = number, len(paths)
                runs = [run for run in taken.values() if run.path == path] if path in kept else _read(path)
                for run in runs:
                    if run.path is None:
                        run.path = path
                        if path.name in twins and not _is_pass(path):
                            run.name = f"{path.absolute().parent.name}/{run.name}"
                            run.key = f"{path.absolute().parent.name}/{run.key}"
                        run.key = _unused(run.key, taken | found)
                    found[run.key] = run
            self._counts = len(paths), len(paths)
            self._runs, self._stamps, self.revision = found, stamps, self.revision + 1

    @property
    def places(self) -> list[Path]:
        """All paths that are searched."""
        return [*self.given, *([self.inbox] if self.inbox else [])]

    def counts(self) -> tuple[int, int]:
        """How many recordings have been read, and how many there are as far as is known; reads nothing."""
        return self._counts

    def below(self, path: Path) -> list[Run]:
        """The runs of the recordings at a path and below it."""
        return [run for run in self.runs() if run.path is not None and run.path.is_relative_to(path)]

    def chosen(self, keys: Iterable[str]) -> list[Run]:
        """The runs of these keys that have tokens to show, in this order; keys nobody knows are left out."""
        self.runs()
        with self._lock:  # analyses are made here, one at a time
            known = self._runs or {}
            return [known[key] for key in keys if key in known and known[key].tokens is not None]


def runs_to_compare(paths: Iterable[Path]) -> list[Run]:
    """The runs at these paths, without the traced passes inside run directories, in this order.

    Raises:
        UsageError: there are none, or more than fit on one page.
        TraceError: one of them cannot be read or has no token steps.
    """
    runs = RunStore(paths, passes=False).runs()
    if not 1 <= len(runs) <= MOST_RUNS:
        names = f": {', '.join(run.name for run in runs[:3])}, ..." if runs else ""
        raise UsageError(f"{len(runs)} runs at the given paths{names}; name one to {MOST_RUNS} of them")
    for run in runs:
        if run.tokens is None:
            problem = run.summary.problem or "no token steps"
            raise TraceError(problem if run.name in problem else f"{run.name}: {problem}")
    return runs


def find_traces(given: Iterable[Path], passes: bool = True) -> list[Path]:
    """The recordings among and below the given paths; a file that is none stays, to be shown with its problem.

    A run directory may hold the traced passes of the same run in directories of their own; they follow it if `passes`.
    """
    found: dict[Path, None] = {}
    for path in given:
        below = [trace for trace in _below(path, DEEPEST) if passes or trace == path or not _is_pass(trace)]
        found |= dict.fromkeys(below if below or path.is_dir() else [path])
    return list(found)


def stamp_of(path: Path) -> Stamp:
    """What tells whether a recording has changed: name, time of change (ns) and size of its file or files."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return tuple((file.name, at.st_mtime_ns, at.st_size) for file in files if S_ISREG((at := file.stat()).st_mode))
    except OSError:
        return ()


def _below(path: Path, depth: int) -> list[Path]:
    """The path, if it is a recording, and those down to so many levels below it."""
    try:
        found = [path] if formats.is_trace(path) else []
        if depth and path.is_dir():
            for inside in sorted(path.iterdir()):
                if not inside.name.startswith("."):
                    found += _below(inside, depth - 1)
    except OSError:  # unreadable: reading it later says why
        return [path]
    return found


def _is_pass(path: Path) -> bool:
    """Whether a recording is a traced pass inside the run directory of another."""
    return formats.is_trace(path.parent)


def _read(path: Path) -> list[Run]:
    """The runs of one recording."""
    name = path.stem if path.suffix in {".sqlite", ".json", ".nsys-rep"} else path.name
    if _is_pass(path):
        name = f"{path.parent.name} · {name}"
    try:
        trace = formats.read(path, whole=False)
    except TraceError as problem:
        return [Run(name, name, Summary(name, problem=str(problem)))]
    parts, graph = _parts(trace), _graph_file(path)
    if not parts:
        return [_run(name, name, trace, None, graph)]
    return [_run(f"{name}~{text}", f"{name} · {text}", trace, text, graph) for text in parts]


def _run(key: str, name: str, trace: Trace, within: str | None, graph: Path | None) -> Run:
    summary = summarise(trace, name, within=within)
    try:
        return Run(key, name, summary, trace, find_steps(trace, within=within), graph, within=within)
    except TraceError:
        return Run(key, name, summary, trace, graph_file=graph, within=within)


def _graph_file(path: Path) -> Path | None:
    """The graph in a run directory, which its traced passes share."""
    file = (path.parent if _is_pass(path) else path) / GRAPH_FILE
    return file if file.is_file() else None


def _parts(trace: Trace) -> list[str]:
    """NVTX texts whose ranges each hold several token steps: the runs of a recording of more than one."""
    try:
        steps = find_steps(trace)
    except TraceError:
        return []
    if steps.source != "nvtx" or steps.table["group"].nunique() < 2:
        return []
    nvtx = trace["nvtx"]
    ranges = nvtx[(nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(DEVICE_DOMAINS)]
    starts, ends = (np.sort(steps.table[c].to_numpy()) for c in ("start", "end"))
    held = np.searchsorted(ends, ranges["end"], side="right") - np.searchsorted(starts, ranges["start"], side="left")
    holders = ranges[(held >= 2) & (held < len(steps))]
    texts = list(pd.unique(holders["text"].astype("str")))
    return texts if 2 <= len(texts) <= _MOST_RANGES and len(texts) == len(holders) else []


def _unused(key: str, taken: dict[str, Run]) -> str:
    return key if key not in taken else next(k for i in range(2, len(taken) + 3) if (k := f"{key}-{i}") not in taken)
