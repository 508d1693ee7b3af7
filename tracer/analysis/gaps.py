"""The inter-token gap and its causes.

Gap of step n on a device: start of the first compute activity of step n+1 minus end of the last compute activity of
step n; 0 if they overlap. Copies are not compute. Causes and their parts (`tracer.analysis.causes`) add up to it
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.calls import of_graph_launches
from tracer.analysis.causes import CAUSES, PARTS, IdleSpans, Near, calls_in, split
from tracer.analysis.distortion import is_always_busy, of_another_run, untraced_causes
from tracer.analysis.idle import MOST_RUNS, IdleReport, idle_report, statistics
from tracer.analysis.idle import Gaps as Gaps
from tracer.analysis.interval import Interval
from tracer.analysis.rates import PRECISION
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

BY_RATE: Final = (
    "the mean gap without a profiler is {mean:,.1f} µs; as a rate is a mean, the median is known only to be {median}"
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
        distortion: mean traced period / untraced period, None if the untraced one is unknown.
        untraced_idle_us: p50 and mean without tracing (`IdleReport.between_us`); None each where its interval is wide.
            None if the rate is unknown, or if the device is busy for longer than it allows.
        untraced_gap_us: p50 and mean as they would be without tracing: the gap's part of the idle time that the
            untraced rate leaves. No p90, because a rate is a mean and says nothing about individual steps. None if
            unknown, if the device is always busy or busy for longer, or if it also idles elsewhere and the rate does
            not determine the gap's part, or if the interval of the mean is wide; no p50 where its own is wide.
        estimated: its median with its 95 % interval where that is wide, and for all node-level recordings, where the
            device's work is known only up to the amount by which tracing stretched it (`tracer.analysis.distortion`).
        estimated_idle: the median idle time with its interval, where that is wide.
        between: 95 % intervals of what the rate determines: "idle_us p50", "idle_us mean", "gap_us p50", "gap_us
            mean".
        always_busy: whether the rate leaves no idle time that it could tell from none.
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
    untraced_idle_us: dict[str, float | None] | None
    untraced_gap_us: dict[str, float | None] | None
    estimated: Interval | None
    estimated_idle: Interval | None
    middle_gap_us: dict[str, float] | None
    refused: str | None
    warning: str | None
    unknown: int = 0
    between: dict[str, Interval] = field(default_factory=dict)
    always_busy: bool = False

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

    def at(self, untraced_steps_per_s: float | None, error: float = PRECISION) -> GapReport:
        """The report at another untraced rate; None removes the rate. An untraced recording needs none.

        Args:
            error: half the 95 % interval of its logarithm.
        """
        if self.warning is None:
            return self
        rate, idle = untraced_steps_per_s, self.idle
        mean_period_us = float((self.gaps.next_start - self.gaps.this_start).mean()) / 1e3
        refused = of_another_run(mean_period_us, rate) if rate else None
        known = None if refused else rate
        told, mean_us = None, 0.0
        if known and len(idle.periods):
            mean_us = idle.mean_untraced_us(known)
            told = _Told.of(self.gaps, idle, known, error, self.graph_trace)
        busy = known is not None and told is not None and is_always_busy(mean_us, known, error)
        by_rate = told if mean_us > 0 and not busy else None
        leaves = by_rate is not None or busy
        return replace(
            self,
            untraced_steps_per_s=known,
            distortion=mean_period_us * known / 1e6 if known else None,
            untraced_idle_us=told.idle_us if told and leaves else None,
            untraced_gap_us=by_rate.figure_us if by_rate else None,
            estimated=by_rate.interval if by_rate else None,
            estimated_idle=told.idle if told and leaves and told.idle.is_wide else None,
            between=told.between if told and leaves else {},
            always_busy=busy,
            middle_gap_us=by_rate.gap_us if by_rate else None,
            refused=refused,
            warning=_warning(self, refused, known, error, by_rate, always_busy=busy),
        )

    @property
    def is_stretched(self) -> bool:
        """Whether node-level tracing alone, at an exact rate, leaves only a wide interval of the idle time."""
        if self.graph_trace != "node" or self.untraced_steps_per_s is None or not len(self.idle.periods):
            return False
        exact = self.idle.between_us(self.untraced_steps_per_s, 0.0, (-1, 0, 1))["mean"]
        return exact.is_wide

    @property
    def is_undetermined(self) -> bool:
        """Whether the rate belongs to the recording, but does not determine the gap, or only within a wide interval."""
        return self.untraced_idle_us is not None and self.untraced_gap_us is None

    def corrected(self, *, roughly: bool = False) -> GapReport:
        """The report with `gap_us` (as far as known), `causes_us` and `parts_us` as they would be without tracing.

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
        figures = self.untraced_gap_us or {}
        gap_us = self.middle_gap_us if roughly else {name: us for name, us in figures.items() if us is not None} or None
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
        warning = _of_median(self.graph_trace, self.estimated, gap_us["mean"]) if self.estimated else None
        return replace(self, gap_us=gap_us, causes_us=causes, parts_us=left, warning=warning)


def gap_report(
    trace: Trace, steps: Steps, untraced_steps_per_s: float | None = None, *, error: float = PRECISION,
    device: int | None = None, every: Compute | None = None,
) -> GapReport:  # fmt: skip
    """Measure the gaps between the steps and split them by cause.

    Args:
        untraced_steps_per_s: without a profiler, from the engine's own benchmark or from
            run.json. It determines distortion and untraced gap; `gap_us` stays as traced. Ignored if nothing was
            traced, or if the rate belongs to another run (`GapReport.refused`).
        error: half the 95 % interval of that rate's logarithm.

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
    return recorded.at(untraced_steps_per_s, error)


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
    """What a rate shows about the idle time and the gap.

    Attributes:
        idle: the median idle time.
        gap_us: see `GapReport.middle_gap_us`.
        interval: see `GapReport.estimated`.
        bounds: of the median gap, if it is not determined.
        between: see `GapReport.between`.
    """

    idle: Interval
    gap_us: dict[str, float] | None
    interval: Interval | None
    bounds: tuple[float, float]
    between: dict[str, Interval]

    @property
    def idle_us(self) -> dict[str, float | None]:
        """See `GapReport.untraced_idle_us`."""
        return {name: self.between[f"idle_us {name}"].figure for name in ("p50", "mean")}

    @property
    def figure_us(self) -> dict[str, float | None] | None:
        """See `GapReport.untraced_gap_us`."""
        if self.gap_us is None or self.between["gap_us mean"].is_wide:
            return None
        return {"p50": self.between["gap_us p50"].figure, "mean": self.gap_us["mean"]}

    @classmethod
    def of(cls, gaps: Gaps, idle: IdleReport, steps_per_s: float, error: float, level: str) -> _Told:
        signs = (-1, 0, 1) if level == "node" else (0,)
        between = {f"idle_us {name}": of for name, of in idle.between_us(steps_per_s, error, signs).items()}
        p50 = between["idle_us p50"]
        least, most = (float(np.median(ns)) / 1e3 for ns in idle.bounds_of_gaps(gaps, steps_per_s))
        gap_us = statistics(idle.untraced_gaps(gaps, steps_per_s))
        del gap_us["p90"]  # a rate is a mean
        if idle.hides_stretch:
            hidden = [float(np.median(idle.untraced_gaps(gaps, steps_per_s, sign))) / 1e3 for sign in (-1, 1)]
            least, most = min(least, *hidden), max(most, *hidden)
        if most - least > max(_TOLD * gap_us["p50"], _TOLD_US):
            return cls(p50, None, None, (least, most), between)
        between |= {f"gap_us {name}": of for name, of in idle.between_us(steps_per_s, error, signs, gaps).items()}
        found = between["gap_us p50"]
        estimated = found if level == "node" or found.is_wide else None
        return cls(p50, gap_us, estimated, (least, most), between)


def _of_median(level: str, median: Interval, mean_us: float) -> str:
    """Why the median gap is known only roughly."""
    return STRETCHED.format(median) if level == "node" else BY_RATE.format(median=median, mean=mean_us)


def _warning(
    report: GapReport, refused: str | None, rate: float | None, error: float, told: _Told | None, *, always_busy: bool
) -> str:
    """The caveats for the recording, and the gap without tracing, or why that is unknown."""
    idle, fits = report.idle, report.fits
    if always_busy and rate:
        period, resolved = 1e6 / rate, error * 1e6 / rate
        return (
            f"{TRACED}; by its rate a step takes {period:,.1f} µs, for all of which the device is busy: the device "
            f"bounds this engine, and the host has nothing to give; a step idles for less than the {resolved:,.1f} µs "
            "that the rate resolves"
        )
    if told is None and rate and len(idle.periods):
        return (
            f"{TRACED}; the device is busy for {idle.busy_us or 0:.1f} µs a step, longer than the untraced rate allows"
        )
    if told is None:
        return f"{TRACED}; {refused or GIVE_RATE}"
    if told.interval and told.interval.is_wide:
        words = _of_median(report.graph_trace, told.interval, told.between["gap_us mean"].estimate)
    elif told.gap_us is not None:
        words = f"without it the gap is {told.gap_us['p50']:,.1f} µs (p50)"
    else:
        middle = told.idle.figure
        of_idle = f"{middle or 0.0:,.1f}"
        if middle is None and told.idle.bounds:
            of_idle = " to ".join(f"{bound:,.1f}" for bound in told.idle.bounds)
        words = (
            f"without it {of_idle} µs a step are idle (p50), of which {told.bounds[0]:,.1f} to "
            f"{told.bounds[1]:,.1f} µs are the gap; the rate does not determine how much"
        )
    return "; ".join(filter(None, (TRACED, fits.caution, words)))
