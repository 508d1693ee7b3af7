"""The inter-token gap and its causes.

Gap of step n on a device: start of the first compute activity of step n+1 minus end of the last compute activity of
step n; 0 if they overlap. Copies are not compute. Causes and their parts (`tracer.analysis.causes`) add up to it
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.calls import of_graph_launches
from tracer.analysis.causes import CAUSES, PARTS, IdleSpans, Near, calls_in, split
from tracer.analysis.distortion import of_another_run, untraced_causes
from tracer.analysis.idle import MOST_RUNS, IdleReport, idle_report, statistics
from tracer.analysis.idle import Gaps as Gaps
from tracer.analysis.interval import Interval
from tracer.analysis.step_work import Compute, all_compute, of_steps, step_spans
from tracer.analysis.tokens import Steps
from tracer.analysis.waits import poll_loops
from tracer.engines.engine import PREFILL
from tracer.errors import EmptyTraceError, TraceError
from tracer.model import run_json
from tracer.model.calls import POLL
from tracer.model.columns import numbers, positions, runs, spread
from tracer.model.fits import Fits, fits_of
from tracer.model.intervals import Bools, Ints
from tracer.model.trace import RUN, Trace

if TYPE_CHECKING:
    import pandas as pd

_WAITED_NS: Final = 10_000
"""The least duration of a call in which the host waited: one that finds the work done takes less."""
_COPY_NS, _BYTES_PER_NS = 20_000, 4
"""A light recording does not tell how long a copy takes: at most so long, and longer by its size."""
_TOLD, _TOLD_US = 0.1, 1.0  # the accepted error of the gap at a rate
TRACED: Final = "recorded under a profiler: its idle time and gap include what the profiler adds"
GIVE_RATE: Final = (
    "give --untraced-tokens-per-s with the engine's own benchmark figure to correct them, or record a light pass "
    "(intertoken record)"
)
STRETCHED: Final = (
    "node-level tracing stretched the CUDA graphs by an amount that is known only roughly: the median gap without it "
    "is {}; a graph-level recording determines it more precisely"
)


@dataclass(frozen=True)
class GapReport:
    """The gaps of a trace.

    Attributes:
        gaps: one row per gap.
        gap_us: p50, p90 and mean, µs; corrected if `corrected`.
        causes_us: cause's name -> mean, µs; they add up to the mean gap.
        parts_us: cause's name -> its parts' columns (`causes.PARTS`) -> mean, µs; they add up to the cause.
        graph_trace: "node", "graph" or "none": how CUDA graphs were traced.
        period_us: median time from a step's first compute to that of the next step, traced.
        compute_us: median time from a step's first compute to the end of its last, traced.
        idle: the idle time of the steps, which includes the gaps.
        untraced_steps_per_s: the rate on which the untraced figures are based; None if there is no valid one.
        distortion: traced period / untraced period, None if the untraced one is unknown.
        untraced_idle_us: p50 and mean of 1 / rate - busy time of the device; None as below, or if only
            `estimated_idle` is known.
        untraced_gap_us: p50 and mean as they would be without tracing: the gap's part of the idle time that the
            untraced rate leaves (1 / rate - busy time). No p90, because a rate is a mean and says nothing about
            individual steps. None if unknown, if the device is busy for longer, or if it also idles elsewhere and the
            rate does not determine the gap's part, or if the interval of `estimated` is wide.
        estimated: its median with its 95 % interval for node-level recordings, where the device's work is known only up
            to the amount by which tracing stretched it (`tracer.analysis.distortion`).
        estimated_idle: likewise the median idle time, where its interval is so wide that there is no figure.
        middle_gap_us: `untraced_gap_us`, even where its interval is wide: for the difference from a gap of a recording
            that tracing stretched in the same way.
        refused: why the rate cannot belong to this recording and is ignored; None if it can.
        warning: the caveat for a reader, or None.
        unknown: the number of gaps that have no row because it is unknown when they begin.
    """

    gaps: Gaps
    gap_us: dict[str, float]
    causes_us: dict[str, float]
    parts_us: dict[str, dict[str, float]]
    graph_trace: str
    period_us: float
    compute_us: float
    idle: IdleReport
    untraced_steps_per_s: float | None
    distortion: float | None
    untraced_idle_us: dict[str, float] | None
    untraced_gap_us: dict[str, float] | None
    estimated: Interval | None
    estimated_idle: Interval | None
    middle_gap_us: dict[str, float] | None
    refused: str | None
    warning: str | None
    unknown: int = 0

    @cached_property
    def table(self) -> pd.DataFrame:
        """The gaps as a DataFrame."""
        return self.gaps.frame()

    @property
    def left_out(self) -> str | None:
        """What of a light recording has no figure, in words; None if nothing is left out."""
        without_idle = self.unknown + self.idle.left_out
        each = ((self.unknown, len(self.gaps), "gaps"), (without_idle, len(self.idle.periods), "idle times"))
        named = [f"{left:,} of {left + kept:,} {what}" for left, kept, what in each if left]
        if not named:
            return None
        return f"without {' and '.join(named)}: when eager kernels ran in these steps is not known"

    @property
    def fits(self) -> Fits:
        """The constants for the recording's GPU."""
        return fits_of(self.idle.gpu)

    def at(self, untraced_steps_per_s: float | None) -> GapReport:
        """The report at another untraced rate; None removes the rate. An untraced recording needs none."""
        if self.warning is None:
            return self
        rate, idle = untraced_steps_per_s, self.idle
        refused = of_another_run(self.period_us, rate) if rate else None
        known = None if refused else rate
        left, unknown = None, refused or GIVE_RATE
        if known and len(idle.periods):
            left = idle.untraced_us(known) if np.median(idle.untraced_ns(known)) > 0 else None
            unknown = f"the device is busy for {idle.busy_us or 0:.1f} µs a step, longer than the untraced rate allows"
        by_rate = None if left is None or known is None else _Told.of(self.gaps, idle, known, self.graph_trace)
        wide = _wide_idle(idle, known, self.graph_trace) if left and known else None
        return replace(
            self,
            untraced_steps_per_s=known,
            distortion=self.period_us * known / 1e6 if known else None,
            untraced_idle_us=None if wide else left,
            untraced_gap_us=by_rate.figure_us if by_rate else None,
            estimated=by_rate.interval if by_rate else None,
            estimated_idle=wide,
            middle_gap_us=by_rate.gap_us if by_rate else None,
            refused=refused,
            warning=_warning(unknown, left, wide, by_rate, self.fits),
        )

    @property
    def is_undetermined(self) -> bool:
        """Whether the rate leaves idle time, but does not determine the gap's part of it, or only within a wide
        interval."""
        leaves_idle = self.untraced_idle_us is not None or self.estimated_idle is not None
        return leaves_idle and self.untraced_gap_us is None

    def corrected(self, *, roughly: bool = False) -> GapReport:
        """The report with `gap_us`, `causes_us` and `parts_us` as they would be without tracing.

        See `distortion.untraced_causes` for how much tracing adds to each cause.

        Args:
            roughly: by `middle_gap_us`.

        Raises:
            TraceError: the untraced rate leaves no time for a gap in addition to the recorded compute, or belongs to
                another run.
        """
        if self.warning is None:  # nothing was traced, so these are the untraced figures
            return self
        if self.refused is not None:
            raise TraceError(f"cannot correct the recording: {self.refused}")
        gap_us = self.middle_gap_us if roughly else self.untraced_gap_us
        if gap_us is None and self.is_undetermined:
            raise TraceError(f"cannot correct the gap: {self.warning}")
        if gap_us is None:
            raise TraceError(
                f"cannot correct the gap: the device is busy for {self.idle.busy_us or 0:.1f} µs a step, longer than "
                "the untraced rate allows; tracing stretched the kernels (least at graph level), or the figure "
                "belongs to another run"
            )
        parts = self.gaps.split
        launch_us = float(((parts.part("launch_call") + parts.part("launch_latency")) * self.gaps.graph_launch).mean())
        launch_left = self.fits.launch_left(self.graph_trace)
        causes = untraced_causes(self.causes_us, launch_us / 1e3, launch_left, gap_us["mean"])
        left = {
            cause: {part: us * (causes[cause] / self.causes_us[cause] if us else 0.0) for part, us in inner.items()}
            for cause, inner in self.parts_us.items()
        }
        warning = STRETCHED.format(self.estimated) if self.estimated else None
        return replace(self, gap_us=gap_us, causes_us=causes, parts_us=left, warning=warning)


def gap_report(
    trace: Trace, steps: Steps, untraced_steps_per_s: float | None = None, *, device: int | None = None,
    every: Compute | None = None,
) -> GapReport:  # fmt: skip
    """Measure the gaps between the steps and split them by cause.

    Args:
        untraced_steps_per_s: without a profiler, from the engine's own benchmark or from
            run.json. It determines distortion and untraced gap; `gap_us` stays as traced. Ignored if nothing was
            traced, or if the rate belongs to another run (`GapReport.refused`).

    Raises:
        EmptyTraceError: no two steps of one group follow each other on a device, or of most it is unknown when their
            last work ended, or any work of theirs.
    """
    if steps.hidden:
        raise EmptyTraceError(f"no gap and no idle time: {steps.hidden}, so that it is unknown when the device worked")
    every = all_compute(trace, steps) if every is None else every
    compute = of_steps(every)
    near = Near.of(trace, steps, compute)
    gaps = find_gaps(trace, steps, compute, near)
    if device is not None:
        compute, gaps = compute[compute.device == device], gaps[gaps.device == device]
        if not len(gaps):
            raise EmptyTraceError(f"no gap on device {device}")
    if not len(gaps):
        if steps.rows.phase.rows(PREFILL).all() and len(steps) > 1:
            raise EmptyTraceError(
                f"no gap: {len(steps)} prompts, before each of which the device may have waited for a request"
            )
        raise EmptyTraceError(f"no gap: {steps.counted}, no two consecutive ones with kernels; {HOW_TO_TELL}")
    ended = _ended_at_known_times(trace, gaps, compute)
    if 2 * ended.sum() < len(gaps):
        raise EmptyTraceError(
            f"no gap: in {(~ended).sum()} of {len(gaps)} steps it is unknown when the last run of eager launches ended"
            "; record for longer, so that each of their kernels is sampled"
        )
    unknown = int((~ended).sum())
    gaps = gaps[ended] if unknown else gaps
    is_light = trace.is_untraced
    of_part = {part: float(ns.mean()) / 1e3 for part, ns in gaps.split.parts.items()}
    recorded = GapReport(
        gaps=gaps,
        gap_us=statistics(gaps.gap),
        causes_us={name: float(gaps.split.cause(column).mean()) / 1e3 for column, name in CAUSES.items()},
        parts_us={CAUSES[cause]: {p: of_part.get(p, 0.0) for p in parts} for cause, parts in PARTS.items()},
        graph_trace=graph_trace_level(compute, trace),
        period_us=float(np.median(gaps.next_start - gaps.this_start) / 1e3),
        compute_us=float(np.median(gaps.start - gaps.this_start) / 1e3),
        idle=idle_report(trace, steps, gaps, every, near),
        untraced_steps_per_s=None,
        distortion=1.0 if is_light else None,
        untraced_idle_us=None,
        untraced_gap_us=None,
        estimated=None,
        estimated_idle=None,
        middle_gap_us=None,
        refused=None,
        warning=None if is_light else f"{TRACED}; {GIVE_RATE}",
        unknown=unknown,
    )
    return recorded.at(untraced_steps_per_s)


def measured_rate(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """The untraced rate of the steps from run.json, which measures decode: of steps, or of tokens divided by the tokens
    per step; None if neither is known."""
    if not steps.decode_alone:
        return None
    tokens, gained = run_json.tokens_per_s(trace, within), steps.tokens_per_step
    return run_json.steps_per_s(trace, within) or (tokens / gained if tokens and gained else None)


def find_gaps(trace: Trace, steps: Steps, compute: Compute, near: Near) -> Gaps:
    """The gaps between consecutive steps, with their causes."""
    spans = step_spans(trace, steps, compute)
    spans = spans[runs(spans.device, spans.group, spans.step)[0]]
    chain, _ = numbers(spans.device, spans.group)
    first = np.flatnonzero((chain[1:] == chain[:-1]) & (np.diff(spans.ordinal) == 1))
    this, following = spans[first], spans[first + 1]
    idle = IdleSpans(
        this.end, np.maximum(following.start, this.end), this.device, following.correlation, following.process,
        following.step_process, following.step_thread,
    )  # fmt: skip
    return Gaps(
        this.step, this.device, idle.start, idle.end, this.start, following.start, split(trace, near, idle),
        *calls_in(trace, idle),
    )  # fmt: skip


def graph_trace_level(compute: Compute, trace: Trace) -> str:
    """How the compute of the steps was traced: whole graphs, graph nodes, or no CUDA graphs at all."""
    if compute.is_graph.any():
        return "graph"
    return "node" if of_graph_launches(trace).any() else "none"


# --- when the last run of eager launches ended, in light recordings ---
#
# The gap behind a run without stamps begins where the run ends. It lasts as long as it can: until the next work of its
# stream, so that the device may have been idle for any part of it, or until a wait returned. The end is known only if
# the host waited for the run in that call, and not merely for a copy that it had put behind it: then the run had ended
# at some time before.


def _ended_at_known_times(trace: Trace, gaps: Gaps, compute: Compute) -> Bools:
    """Of which gaps it is known when they begin; `compute` is that of the steps."""
    if not trace.has_runs:
        return np.ones(len(gaps), bool)
    of_runs = compute[compute.name.rows(RUN)]
    at = positions([gaps.device, gaps.start], [of_runs.device, of_runs.end])
    end, begun = gaps.start, spread(of_runs.start, at, 0)
    is_long = end - begun > MOST_RUNS * (gaps.next_start - gaps.this_start)
    return (at < 0) | (gaps.next_start > end) & ~(is_long & _came_late(trace, begun, end))


def _came_late(trace: Trace, begun: Ints, ended: Ints) -> Bools:
    """Whether each run may have ended long before: its end is the return of a wait that took no longer than finding it
    done, and than the copies called since the run begun, may take."""
    loops, queries = poll_loops(trace), trace.api[trace.api.letter == POLL]
    start, end = (
        np.concatenate([getattr(each, side) for each in (trace.syncs, loops, queries)]) for side in ("start", "end")
    )
    order = np.lexsort((start, end))
    start, end = start[order], end[order]
    at = np.searchsorted(end, ended)  # the longest of those that end then
    has_wait, since = spread(end, np.where(at < len(end), at, -1), -1) == ended, np.append(start, 0)[at]
    return has_wait & (ended - since < _WAITED_NS + _copied(trace, begun, since))


def _copied(trace: Trace, since: Ints, until: Ints) -> Ints:
    """How long the copies called between these times may take."""
    call = trace.api.of(trace.memcpys)
    known = np.flatnonzero(call >= 0)
    called = trace.api.start[call[known]]
    order = np.argsort(called, kind="stable")
    most = _COPY_NS + trace.memcpys.bytes[known[order]].clip(0) // _BYTES_PER_NS
    first, last = (np.searchsorted(called[order], each) for each in (since, until))
    total = np.append(0, np.cumsum(most))
    return total[np.maximum(first, last)] - total[first]


@dataclass(frozen=True)
class _Told:
    """What a rate shows about the gap.

    Attributes:
        gap_us: see `GapReport.middle_gap_us`.
        interval: see `GapReport.estimated`.
        bounds: of its median, if it is not determined.
    """

    gap_us: dict[str, float] | None
    interval: Interval | None
    bounds: tuple[float, float]

    @property
    def figure_us(self) -> dict[str, float] | None:
        """See `GapReport.untraced_gap_us`."""
        return None if self.interval and self.interval.is_wide else self.gap_us

    @classmethod
    def of(cls, gaps: Gaps, idle: IdleReport, steps_per_s: float, level: str) -> _Told:
        least, most = (float(np.median(ns)) / 1e3 for ns in idle.bounds_of_gaps(gaps, steps_per_s))
        gap_us = statistics(idle.untraced_gaps(gaps, steps_per_s))
        del gap_us["p90"]  # a rate is a mean
        low, high = (statistics(idle.untraced_gaps(gaps, steps_per_s, sign))["p50"] for sign in (-1, 1))
        if idle.hides_stretch:
            least, most = min(least, low), max(most, high)
        if most - least > max(_TOLD * gap_us["p50"], _TOLD_US):
            return cls(None, None, (least, most))
        if level != "node":
            return cls(gap_us, None, (least, most))
        return cls(gap_us, Interval(gap_us["p50"], low, high), (least, most))


def _wide_idle(idle: IdleReport, steps_per_s: float, level: str) -> Interval | None:
    """See `GapReport.estimated_idle`."""
    if level != "node":
        return None
    left = (np.maximum(idle.untraced_ns(steps_per_s, sign), 0) for sign in (-1, 0, 1))
    low, middle, high = (float(np.median(ns)) / 1e3 for ns in left)
    found = Interval(middle, low, high)
    return found if found.is_wide else None


def _warning(
    unknown: str, left: dict[str, float] | None, wide: Interval | None, by_rate: _Told | None, fits: Fits
) -> str:  # fmt: skip
    """The caveats for the recording, and the gap without tracing, or why that is unknown."""
    if left is None or by_rate is None:
        return f"{TRACED}; {unknown}"
    if by_rate.interval and by_rate.interval.is_wide:
        told = STRETCHED.format(by_rate.interval)
    elif by_rate.gap_us is not None:
        told = f"without it the gap is {by_rate.gap_us['p50']:,.1f} µs (p50)"
    else:
        idle = f"{left['p50']:,.1f}"
        if wide is not None and wide.bounds:
            idle = " to ".join(f"{bound:,.1f}" for bound in wide.bounds)
        told = (
            f"without it {idle} µs a step are idle (p50), of which {by_rate.bounds[0]:,.1f} to "
            f"{by_rate.bounds[1]:,.1f} µs are the gap; the rate does not determine how much"
        )
    return "; ".join(filter(None, (TRACED, fits.caution, told)))
