"""The starting point of predictions: the recording, without its profiler if the engine's own rate is known.

A profiler adds host time: to graph launches, for which it prepares records, a known share; to everything else in
proportion, so that the duration of a token matches the rate. Device activities keep their durations: whole graphs are
traced without being stretched, while node-level tracing stretches kernels a little, so that the remaining host time is
a lower bound. Without a rate, a traced recording describes the engine under its profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.analysis.causes import PARTS
from tracer.analysis.gaps import GapReport, measured_rate
from tracer.analysis.idle import statistics
from tracer.analysis.path.paths import Causality
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import steps_of_frame, steps_per_s, tokens_per_step
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Assumed, Changes
from tracer.analysis.whatif.step_times import StepTimes
from tracer.errors import TraceError
from tracer.model.collectives import collectives
from tracer.model.columns import positions, spread
from tracer.model.fits import Fits, fits_for
from tracer.model.intervals import Ints
from tracer.model.trace import Trace

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


@dataclass(frozen=True)
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
            TraceError: an untraced step would be shorter than the recorded work of the device.
        """
        steps = recording.steps
        if steps.different:
            raise TraceError(
                f"no prediction: hosts of different rates, as of several engines: {steps.different}; record one of them"
            )
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
        idle_us = self.report.idle.untraced_us(self.untraced)
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
        table, left = self.report.table, self.fits.launch_left(self.report.graph_trace) if self.profiled else 1.0
        waits_for_work = table[_AT_WORK].to_numpy().sum() > table["gap"].sum() / 2
        parts = self.report.idle.parts.sum()
        of_launches = parts[list(PARTS["launch"])].drop("launch_queued").sum()
        everything = parts.drop("launch_queued").sum() - of_launches * (1 - left)
        return bool(not waits_for_work and parts[list(PARTS["host"])].sum() <= everything / 2)

    @cached_property
    def communicates(self) -> bool:
        """Whether its steps contain collectives, which wait for other ranks."""
        kernels = self.causality.trace["kernels"]
        return bool((steps_of_frame(self.causality.trace, self.steps, kernels[collectives(kernels)]) >= 0).any())

    def figures(self, time: Ints, speedup: float) -> Figures:
        """The figures of a replay with this speed-up. In a corrected one, the idle time is what remains of the period,
        as in `IdleReport.untraced_us`.
        """
        rate = self.before.steps_per_s * speedup
        tokens = self._tokens(rate)
        period_us = float(np.median(self.times.periods(time))) / 1e3
        idle = np.maximum(self.times.idle_ns(time) - self._not_idle, 0)
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
        found = self.times.gap_us(time)
        if self.state != CORRECTED:
            return found
        shares, replayed = self.report.untraced_gap_us, self.times.gap_us(self.time)
        if shares is None:
            return {}
        one, other = shares["p50"], replayed["p50"]
        if abs(one - other) > max(_SAME_GAP * max(one, other), _SAME_GAP_US):
            return {}
        return {name: max(found[name] + us - replayed[name], 0.0) for name, us in shares.items()}

    @cached_property
    def _not_idle(self) -> Ints:
        """What `StepTimes.idle_ns` counts, as recorded, in addition to the idle time: communication and compute of
        others.
        """
        spans, steps = self.times.followed, self.report.idle.steps
        mine = [spans.device, np.asarray(self.steps.table.step)[spans.at]]
        at = positions(mine, [np.asarray(steps.device), np.asarray(steps.step)])
        found = self.times.idle_ns(self.causality.dag.time)
        return np.where(at >= 0, found - spread(np.asarray(steps.idle), at, 0), 0)


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
