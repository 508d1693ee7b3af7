"""The starting point of predictions: the recording, without its profiler if the engine's own rate is known.

A profiler adds host time: to graph launches, for which it prepares records, a known share; to everything else in
proportion, so that the duration of a token matches the rate. Device activities keep their durations: whole graphs are
traced without being stretched, while node-level tracing stretches kernels a little, so that the remaining host time is
a lower bound. Without a rate, a traced recording describes the engine under its profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from tracer.analysis.causes import PART_COLUMNS, PARTS
from tracer.analysis.gaps import GapReport, measured_rate
from tracer.analysis.idle import IdleReport, statistics
from tracer.analysis.path.paths import Causality, StepEnds, work_at
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import steps_per_s, tokens_per_step
from tracer.analysis.tokens import Steps
from tracer.errors import CannotTellError, TraceError
from tracer.model.columns import NEVER, Columns, grouped, positions, several, spread
from tracer.model.fits import Fits, fits_for
from tracer.model.intervals import Bools, Ints, covered
from tracer.model.schema import MISSING
from tracer.model.trace import Trace
from tracer.whatif.changes import Assumed, Changes

_AT_WORK: Final = ["host_compute", "communication_device", "other_device", "other_process"]  # of `causes.PARTS`
_SEARCH: Final = 16
_SAME_GAP: Final = 0.1
_SAME_GAP_US: Final = 2.0
_MOST_HOST: Final = 4.0  # untraced over traced; where the rate is of a slower run than the recorded one

PLAIN: Final = "plain"
CORRECTED: Final = "corrected"
TRACED: Final = "traced"
"""The subject of a prediction: an engine recorded without a profiler, one whose profiler was removed by means of its
own rate, or the engine under its profiler, because no rate is known.
"""

STILL_TRACED: Final = "whatif_traced"
"""Metadata of a predicted timeline that is `TRACED`."""


class Spans(Columns):
    """The compute of steps on devices, by device, group and step.

    Attributes:
        device, group, at: of the step, which is at this position in the steps.
        first: the position of its first compute in `StepTimes.points`.
        follows: whether the preceding row is the preceding step on the same device.
    """

    device: Ints
    group: Ints
    at: Ints
    first: Ints
    follows: Bools


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The compute times of steps, for any times of the points.

    Attributes:
        ends: their last compute.
        spans: one row per device and step with compute.
        points: the points at which compute activities start, in the order of `spans`.
    """

    ends: StepEnds
    spans: Spans
    points: Ints

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepTimes:
        """Find the steps' compute; errors are those of `StepEnds.of`."""
        work, of_step = causality.segments.activities, causality.once(work_at, steps)
        groups = steps.rows.group
        rows = np.flatnonzero(work.computes & (of_step >= 0))
        rows = rows[np.lexsort((of_step[rows], groups[of_step[rows]], work.device[rows]))]
        at, device = of_step[rows], work.device[rows]
        first = np.flatnonzero(np.append(True, (at[1:] != at[:-1]) | (device[1:] != device[:-1])))[: len(rows)]
        at, device = at[first], device[first]
        group, ordinal = groups[at], steps.rows.ordinal[at]
        follows = np.zeros(len(first), bool)
        follows[1:] = (device[1:] == device[:-1]) & (group[1:] == group[:-1]) & (ordinal[1:] == ordinal[:-1] + 1)
        spans = Spans(device, group, at, first, follows)
        return cls(StepEnds.of(causality, steps), spans, causality.segments.starts(rows))

    def known(self, idle: IdleReport, steps: Steps) -> StepTimes:
        """Without the steps in which it is unknown when the device computed, and without what follows them.

        Raises:
            CannotTellError: that applies to most steps.
        """
        if not len(idle.periods):
            raise CannotTellError(
                f"in most of the {len(steps):,} steps it is unknown when the device computed: the recording has only "
                "the start and end of runs of launches, which depend on the host; record with --passes light,node"
            )
        spans, ends = self.spans, self.ends
        theirs = [idle.periods.device, idle.periods.step]
        is_known = positions([spans.device, steps.rows.step[spans.at]], theirs) >= 0
        follows = spans.follows & is_known & np.append(False, is_known[:-1])
        unknown = np.zeros(len(steps), bool)
        unknown[spans.at[~is_known]] = True
        left = unknown[ends.at]
        for _, own in grouped(ends.group):
            left[own[1:]] |= unknown[ends.at[own[:-1]]]
        previous = np.where(left, MISSING, ends.previous)
        return replace(self, spans=spans.changed(follows=follows), ends=ends.changed(previous=previous))

    @property
    def followed(self) -> Spans:
        """The rows of `spans` that are followed by another step's."""
        return self.spans[self._follows - 1]

    @cached_property
    def _follows(self) -> Ints:
        return np.flatnonzero(self.spans.follows)

    @cached_property
    def _chains(self) -> list[tuple[int, int]]:
        """First and last row + 1 in `spans` of each group on each device."""
        device, group = self.spans.device, self.spans.group
        begins = np.flatnonzero((device[1:] != device[:-1]) | (group[1:] != group[:-1])) + 1
        return [*pairwise([0, *begins.tolist(), len(device)])]

    def periods(self, time: Ints) -> Ints:
        """From the last compute of each step to that of the next, ns."""
        ends = self.ends.followed
        return np.asarray(time[ends.point] - time[ends.previous])

    def gap_us(self, time: Ints) -> dict[str, float]:
        """p50, p90 and mean of the gaps, as defined in `gaps`."""
        start, end = self._starts_and_ends(time)
        return statistics(np.maximum(start[self._follows] - end[self._follows - 1], 0))

    def idle_ns(self, time: Ints) -> Ints:
        """How long no compute of these steps runs, for each of `followed`: inside the step and in the gap after it.

        Communication, and compute of others on the device, count as idle here.
        """
        begin, until = self._windows(time)
        idle, edges = until - begin, np.append(self.spans.first, len(self.points))
        for first, last in self._chains:
            low, high = np.searchsorted(self._follows, (first, last)).tolist()
            points = self.points[edges[first] : edges[last]]
            idle[low:high] -= covered(time[points], time[points + 1], begin[low:high], until[low:high])
        return idle

    def rounds(self, time: Ints) -> Ints:
        """From the beginning of each of `followed` to that of the following step, ns."""
        begin, until = self._windows(time)
        return until - begin

    def _windows(self, time: Ints) -> tuple[Ints, Ints]:
        """When each of `followed` and the step after it begin, ns: with their first compute, but not before the
        preceding steps have ended. A replay may start a part of a step on a stream of its own long before."""
        start, end = self._starts_and_ends(time)
        ended = np.full(len(end), -NEVER)
        for first, last in self._chains:
            ended[first + 1 : last] = np.maximum.accumulate(end[first:last])[:-1]
        begin = np.maximum(start, ended)
        return begin[self._follows - 1], begin[self._follows]

    def _starts_and_ends(self, time: Ints) -> tuple[Ints, Ints]:
        """The first start and the last end of the compute of each of `spans`, ns."""
        first = self.spans.first
        return np.minimum.reduceat(time[self.points], first), np.maximum.reduceat(time[self.points + 1], first)


@dataclass(frozen=True)
class Figures:
    """The main figures of a recording.

    Attributes:
        steps_per_s: by wall-clock time, or as measured by the engine's benchmark.
        tokens_per_s: of all sequences; None if the number of tokens per step is unknown.
        period_us: median from the last compute of a step to that of the next.
        idle_us: p50 and, if known, p90 and mean per step; empty if no step has a period.
        gap_us: the same; empty if the rate does not determine which part of the remaining idle time is the gap.
    """

    steps_per_s: float
    tokens_per_s: float | None
    period_us: float
    idle_us: dict[str, float]
    gap_us: dict[str, float]


@dataclass(frozen=True, eq=False)
class Base:
    """The starting point of predictions.

    Attributes:
        causality, steps, times: those of the recording.
        report: its gaps and idle time, as recorded.
        assumed: how its times are interpreted.
        time: time of every point under that interpretation.
        untraced: steps per second, measured without a profiler; None if unknown.
        state: state of the predictions, one of `PLAIN`, `CORRECTED` and `TRACED`.
        tokens_per_step: see `step_work.tokens_per_step`; None if unknown.
    """

    causality: Causality
    steps: Steps
    times: StepTimes
    report: GapReport
    assumed: Assumed
    time: Ints
    untraced: float | None
    state: str
    tokens_per_step: float | None

    @classmethod
    def of(cls, causality: Causality, recording: Recording) -> Base:
        """Find the starting point.

        Args:
            causality: dependencies of the recording, or of its light pass if it has one.
            recording: its steps, and the rate without a profiler, to which the host's times of a traced recording are
                scaled.

        Raises:
            EmptyTraceError: no step is followed by another.
            TraceError: the steps are of several engines, or an untraced step would be shorter than the recorded work of
                the device.
        """
        steps = recording.steps.of_one_engine()
        trace, times = causality.trace, StepTimes.of(causality, steps)
        is_given = bool(recording.rates) and not trace.is_untraced  # if nothing was traced, its own rate is the one
        rate = recording.rate if is_given else measured_rate(trace, steps, recording.within)
        report = recording.gaps_at_rate
        times = times.known(report.idle, steps) if report.idle.left_out else times
        if report.refused is not None and is_given:
            raise TraceError(f"cannot correct the recording: {report.refused}")
        rate = None if report.refused else rate
        state = _state(trace, rate, given=is_given)
        assumed = _untraced(causality, times, rate, report.graph_trace) if state == CORRECTED and rate else Assumed()
        time = Changes(causality, assumed).dag().replayed()[0] if assumed != Assumed() else causality.dag.time
        return cls(
            causality, steps, times, report, assumed, time, rate, state, tokens_per_step(trace, steps, recording.within)
        )

    @cached_property
    def recorded(self) -> Figures:
        """The figures as recorded; an untraced recording has the rate of its benchmark, if there was one."""
        time = self.causality.dag.time
        rate = (
            self.untraced
            if self.state == PLAIN and self.untraced
            else steps_per_s(self.causality.trace, self.steps) or 0.0
        )
        period_us = float(np.median(self.times.periods(time))) / 1e3
        return Figures(rate, self._tokens(rate), period_us, self.report.idle.idle_us, self.report.gap_us)

    @cached_property
    def corrected(self) -> Figures | None:
        """The figures without the profiler; None if the recording is untraced or no rate is known."""
        if self.state != CORRECTED or self.untraced is None:
            return None
        period_us = float(np.median(self.times.periods(self.time))) / 1e3
        idle_us = {} if self.report.is_stretched else self.report.idle.untraced_us(self.untraced)
        return Figures(self.untraced, self._tokens(self.untraced), period_us, idle_us, self._gap_us(self.time))

    @property
    def before(self) -> Figures:
        """The figures that predictions are compared with."""
        return self.corrected or self.recorded

    @property
    def profiled(self) -> bool:
        """Whether the recording was made under a profiler."""
        return not self.causality.trace.is_untraced

    @property
    def level(self) -> str | None:
        """How a profiler traced CUDA graphs; None without a profiler."""
        return self.report.graph_trace if self.profiled else None

    @property
    def fits(self) -> Fits:
        """The constants for the recording's GPU."""
        return fits_for(self.causality.trace)

    @cached_property
    def is_checked(self) -> bool:
        """Whether its steps idle like those of the cases behind the model margins: not mainly because of another
        process or thread, nor mainly because of plain host code, as in an engine that plans its next step in Python.

        Holes between kernels that were launched before the device became idle do not count: recordings of whole graphs
        do not show those inside graphs, so that the same program would be judged differently by each of its passes.
        """
        gaps, left = self.report.gaps, self.fits.launch_left(self.report.graph_trace) if self.profiled else 1.0
        waits_for_work = sum(gaps.split.part(name).sum() for name in _AT_WORK) > gaps.gap.sum() / 2
        parts = dict(zip(PART_COLUMNS, self.report.idle.sums.sum(axis=0).tolist(), strict=True))
        del parts["launch_queued"]
        of_launches = sum(parts.get(name, 0) for name in PARTS["launch"])
        everything = sum(parts.values()) - of_launches * (1 - left)
        return bool(not waits_for_work and sum(parts[name] for name in PARTS["host"]) <= everything / 2)

    @cached_property
    def communicates(self) -> bool:
        """Whether its steps contain collectives, which wait for other ranks, or may do so unseen: inside graphs that
        were recorded whole, where the program communicates elsewhere or its steps are of several processes.
        """
        work, inside = self.causality.segments.activities, self.causality.once(work_at, self.steps) >= 0
        hides = bool((work.is_graph & inside).any())
        seen = work.collective if hides else work.collective & inside
        return bool(seen.any() or (hides and several(self.steps.rows.process)))

    def figures(self, time: Ints, speedup: float) -> Figures:
        """The figures of a replay with this speed-up. In a corrected one, the idle time is what remains of the period,
        as in `IdleReport.untraced_us`.
        """
        rate = self.before.steps_per_s * speedup
        tokens = self._tokens(rate)
        period_us = float(np.median(self.times.periods(time))) / 1e3
        idle = np.maximum(self.times.idle_ns(time) - self._not_idle, 0)
        if self.corrected is not None and not self.corrected.idle_us:
            return Figures(rate, tokens, period_us, {}, self._gap_us(time))
        if self.corrected is None or not len(idle):
            return Figures(rate, tokens, period_us, statistics(idle), self._gap_us(time))
        busy_us = self._busy_us(time) - self._busy_us(self.time)  # as the edits change it
        busy_us += self.corrected.period_us - self.corrected.idle_us["p50"]
        return Figures(rate, tokens, period_us, {"p50": max(period_us - busy_us, 0.0)}, self._gap_us(time))

    def _tokens(self, steps_per_s: float) -> float | None:
        return None if self.tokens_per_step is None else steps_per_s * self.tokens_per_step

    def _busy_us(self, time: Ints) -> float:
        """Median time per step that the device is busy in a replay, over the steps that are followed by another, µs."""
        idle = np.maximum(self.times.idle_ns(time) - self._not_idle, 0)
        return float(np.median(self.times.rounds(time) - idle)) / 1e3

    def _gap_us(self, time: Ints) -> dict[str, float]:
        """The gap of a replay, given that of `corrected`.

        There are two ways to divide the idle time that a rate leaves: by recorded shares, as in the correction of a
        gap, and by a replay with a faster host, whose work may be hidden by that of the device. If they differ, the gap
        is unknown.
        """
        gap_us = self.times.gap_us(time)
        if self.state != CORRECTED:
            return gap_us
        shares, replayed = self.report.middle_gap_us, self.times.gap_us(self.time)
        if shares is None or self.report.untraced_gap_us is None:
            return {}
        one, other = shares["p50"], replayed["p50"]
        if abs(one - other) > max(_SAME_GAP * max(one, other), _SAME_GAP_US):
            return {}
        return {name: max(gap_us[name] + us - replayed[name], 0.0) for name, us in shares.items()}

    @cached_property
    def _not_idle(self) -> Ints:
        """What `StepTimes.idle_ns` counts, as recorded, in addition to the idle time: communication and compute of
        others.
        """
        spans, theirs = self.times.followed, self.report.idle.periods
        at = positions([spans.device, self.steps.rows.step[spans.at]], [theirs.device, theirs.step])
        idle_ns = self.times.idle_ns(self.causality.dag.time)
        return np.where(at >= 0, idle_ns - spread(theirs.idle, at, 0), 0)


def _state(trace: Trace, rate: float | None, given: bool) -> str:
    if trace.is_untraced:
        return PLAIN
    if "whatif" in trace.metadata and not given:  # a prediction, which is as what it was made from
        return TRACED if trace.metadata.get(STILL_TRACED) else PLAIN
    return TRACED if rate is None else CORRECTED


def _untraced(causality: Causality, times: StepTimes, rate: float, level: str) -> Assumed:
    """Interpret the recording's times so that a step takes as long as it does at this rate.

    Raises:
        TraceError: the rate leaves no time for the recorded device work.
    """
    period_ns, least = 1e9 / rate, fits_for(causality.trace).launch_left(level)

    def assumed(part: float) -> Assumed:
        """From a host that takes no time (0), through launches without records (1) and as recorded (2), to a slower
        host.
        """
        if part <= 1:
            return Assumed(part, least)
        return Assumed(1.0, least + (1 - least) * (part - 1)) if part <= 2 else Assumed(part - 1)

    def period(part: float) -> float:
        replayed = Changes(causality, assumed(part)).dag().replayed()[0]
        return float(np.median(times.periods(replayed)))

    if (shortest := period(0.0)) > period_ns:
        raise TraceError(
            f"cannot correct the recording: even without host time a token takes {shortest / 1e3:.1f} µs, longer "
            f"than the {period_ns / 1e3:.1f} µs that the untraced rate allows; tracing stretched the kernels (least "
            "at graph level), or the figure belongs to another run"
        )
    return assumed(_root(period, period_ns))


def _root(period: Callable[[float], float], period_ns: float) -> float:
    low, high = (0.0, 2.0) if period(2.0) >= period_ns else (2.0, 1 + _MOST_HOST)
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if period(middle) > period_ns else (middle, high)
    return high if period(high) <= period_ns else low
