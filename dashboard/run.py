"""One run as the page knows it: its figures at hand, its analyses made when first used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pandas as pd

from dashboard.executions import Executions, executions_of
from dashboard.timeline.align import Tokens, tokens_of
from dashboard.timeline.flows import event_pairs
from dashboard.timeline.holes import HoleRow, hole_rows
from dashboard.timeline.marks import NO_WAITS, waits_of
from dashboard.timeline.minimap import Busy, busy_of
from dashboard.timeline.rows import Row, rows_of
from tracer import formats
from tracer.analysis.comparable import MUST_AGREE, SHOULD_AGREE
from tracer.analysis.gaps import GapReport, gap_report, measured_rate
from tracer.analysis.step_work import step_spans
from tracer.analysis.summary import Summary
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import Steps
from tracer.errors import FormatError, TraceError
from tracer.graph_json import GRAPH_FILE, RunGraph, read_graph
from tracer.trace import Trace

Report = TypeVar("Report")

SAME: Final = (*MUST_AGREE, *SHOULD_AGREE, "concurrency", "launch")
"""Conditions that are the same for runs that differ in their strategy alone."""


class Recording:
    """A trace, read when first asked for unless it is given.

    Args:
        path: where it is.
        trace: the trace, if it is there already.
        read: reads it.
    """

    def __init__(self, path: Path, trace: Trace | None = None, read: Callable[[Path], Trace] | None = None) -> None:
        self.path = path
        self._read = read or partial(formats.read, whole=False)
        self._lock = threading.Lock()  # one for each: before Python 3.12 a cached_property has one for all
        self._trace = trace

    @property
    def trace(self) -> Trace:
        """The trace.

        Raises:
            TraceError: it cannot be read.
        """
        with self._lock:
            if self._trace is None:
                self._trace = self._read(self.path)
            return self._trace


@dataclass(eq=False)
class Run:
    """One run: a recording, or the part of one inside an NVTX range. Analyses are made when first used.

    Attributes:
        key: what links call it; unique in its store.
        name: what readers call it.
        summary: its figures; `problem` says what could not be had.
        recording: where its trace is, None if that could not be read.
        steps: its token steps, None if none were found.
        graph_file: the graph that was run, None if the run directory has none.
        path: where the recording is, readable or not; None before it was looked at.
        within: the NVTX range that the run is, None for the whole recording.
        predicted: whether it is what a what-if says, recorded by nobody.
    """

    key: str
    name: str
    summary: Summary
    recording: Recording | None = field(default=None, repr=False)
    steps: Steps | None = field(default=None, repr=False)
    graph_file: Path | None = None
    path: Path | None = None
    within: str | None = None
    predicted: bool = False

    @property
    def trace(self) -> Trace | None:
        """The recording; None if it could not be read.

        Raises:
            TraceError: it cannot be read any more.
        """
        return None if self.recording is None else self.recording.trace

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
        if self.steps is None:
            return executions_of(None, None, self.graph)
        return executions_of(self.trace, self.steps.table, self.graph)

    @cached_property
    def gaps(self) -> GapReport | None:
        """The gaps as the recording shows them, with the untraced ones beside, or None where it has none."""

        def report(trace: Trace, steps: Steps) -> GapReport:
            return gap_report(trace, steps, measured_rate(trace, steps, self.within))

        return None if self.steps is None else _unless_it_fails(report, self.trace, self.steps)

    @cached_property
    def holes(self) -> list[HoleRow]:
        """Where its devices idle, for the timeline to shade."""
        return [] if self.gaps is None else hole_rows(self.gaps.idle)

    @cached_property
    def syncs(self) -> SyncReport | None:
        """What its steps do between host and device, or None where the recording does not say."""
        return None if self.steps is None else _unless_it_fails(sync_report, self.trace, self.steps)

    @cached_property
    def tokens(self) -> Tokens | None:
        """Where its tokens are; None if there is nothing to align at."""
        if self.trace is None or self.steps is None:
            return None
        gaps = None if self.gaps is None else self.gaps.table
        return tokens_of(step_spans(self.trace, self.steps), gaps, self.trace["api"])

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Its syncs and what they waited for; see `timeline.marks.waits_of`."""
        return waits_of(self.syncs.calls) if self.syncs is not None else NO_WAITS

    @cached_property
    def event_pairs(self) -> pd.DataFrame:
        """Its waits for CUDA events and the records they are for; see `timeline.flows.event_pairs`."""
        return event_pairs(self.trace if self.trace is not None else Trace({}))

    @cached_property
    def busy(self) -> Busy | None:
        """How busy it is from its first token to its last; None if it has none."""
        return (
            None if self.tokens is None else busy_of(self.rows, int(self.tokens.start[0]), int(self.tokens.end.max()))
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """What runs share that differ in their strategy alone; one that does not tell a condition is like its kind."""
        of, tool = self.summary, self.summary.source.partition(" ")[0]
        known = of.tokens_per_s is None, not of.traced
        return (*map(of.conditions.get, SAME), of.model, of.graph_trace, tool, self.phases, *known)

    @property
    def phases(self) -> frozenset[str]:
        """What its steps are, of `engines.engine.PHASES`."""
        return frozenset() if self.steps is None else frozenset(self.steps.table["phase"])

    @property
    def of_known_speed(self) -> bool:
        """Whether it is known how fast it is without a profiler, so that it can be compared."""
        rated = self.summary.tokens_per_s is not None and (self.steps is None or self.steps.decode_alone)
        return not self.summary.traced or rated

    @property
    def inflated(self) -> bool:
        """Whether its timeline comes from a traced pass, which lengthens the gap."""
        return self.summary.traced and not self.predicted

    @cached_property
    def rows(self) -> list[Row]:
        """The timeline's rows."""
        if self.trace is None or self.steps is None:
            return []
        table = self.steps.table
        return rows_of(self.trace, int(table["start"].min()), int(table["end"].max()))


def same_work(one: Run, other: Run) -> bool:
    """Whether two runs did the same work on the same device, as far as they tell (`comparable.MUST_AGREE`)."""
    mine, theirs = one.summary.conditions, other.summary.conditions
    unlike = [key for key in MUST_AGREE if key in mine and key in theirs and mine[key] != theirs[key]]
    return not unlike and one.phases == other.phases


def _unless_it_fails(analysis: Callable[[Trace, Steps], Report], trace: Trace | None, steps: Steps) -> Report | None:
    try:
        return None if trace is None else analysis(trace, steps)
    except TraceError:
        return None
