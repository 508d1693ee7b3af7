"""The inter-token gap and its causes.

Gap of step n on a device: start of the first compute activity of step n+1 minus end of the last compute activity of
step n; 0 if they overlap. Copies are not compute. Causes and their parts (`tracer.analysis.causes`) add up to it
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.calls import of_graph_launches
from tracer.analysis.causes import CAUSES, PART_COLUMNS, PARTS, Near
from tracer.analysis.distortion import of_another_run, untraced_causes
from tracer.analysis.idle import IdleReport, idle_report, statistics
from tracer.analysis.interval import Interval
from tracer.analysis.run_ends import ended_at_known_times
from tracer.analysis.step_work import all_compute, of_steps, step_spans
from tracer.analysis.tokens import Steps
from tracer.analysis.windows import split_windows
from tracer.engines.engine import PREFILL
from tracer.errors import EmptyTraceError, TraceError
from tracer.model import run_json
from tracer.model.fits import Fits, fits_of
from tracer.model.rows import groups_of, runs_of
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

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
        table: one row per gap: step device start end gap and the columns of `windows.split_windows`, ns: causes add up
            to gap, parts to their cause. start is the end of the step's last compute.
        gap_us: p50, p90 and mean, µs; corrected if `corrected`.
        causes_us: cause's name -> mean, µs; they add up to the mean gap.
        parts_us: cause's name -> its parts' columns (`causes.PARTS`) -> mean, µs; they add up to the cause.
        graph_trace: "node", "graph" or "none": how CUDA graphs were traced.
        period_us: median time from a step's first compute to that of the next step, traced.
        compute_us: median time from a step's first compute to the end of its last, traced.
        idle: the idle time of the steps, which includes the gaps.
        untraced_steps_per_s: the rate on which the untraced figures are based; None if there is no valid one.
        distortion: traced period / untraced period, None if the untraced one is unknown.
        untraced_idle_us: p50 and mean of 1 / rate - busy time of the device; None as below.
        untraced_gap_us: p50 and mean as they would be without tracing: the gap's part of the idle time that the
            untraced rate leaves (1 / rate - busy time). No p90, because a rate is a mean and says nothing about
            individual steps. None if unknown, if the device is busy for longer, or if it also idles elsewhere and the
            rate does not determine the gap's part.
        estimated: its median with its 95 % interval for node-level recordings, where the device's work is known only up
            to the amount by which tracing stretched it (`tracer.analysis.distortion`).
        refused: why the rate cannot belong to this recording and is ignored; None if it can.
        warning: the caveat for a reader, or None.
        unknown: the number of gaps that have no row because it is unknown when they begin.
    """

    table: pd.DataFrame
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
    refused: str | None
    warning: str | None
    unknown: int = 0

    @property
    def left_out(self) -> str | None:
        """What of a light recording has no figure, in words; None if nothing is left out."""
        without_idle = self.unknown + self.idle.left_out
        each = ((self.unknown, len(self.table), "gaps"), (without_idle, len(self.idle.steps), "idle times"))
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
        if known and len(idle.steps):
            left = idle.untraced_us(known) if np.median(idle.untraced_ns(known)) > 0 else None
            unknown = f"the device is busy for {idle.busy_us or 0:.1f} µs a step, longer than the untraced rate allows"
        by_rate = None if left is None or known is None else _Told.of(self.table, idle, known, self.graph_trace)
        return replace(
            self,
            untraced_steps_per_s=known,
            distortion=self.period_us * known / 1e6 if known else None,
            untraced_idle_us=left,
            untraced_gap_us=by_rate.gap_us if by_rate else None,
            estimated=by_rate.interval if by_rate else None,
            refused=refused,
            warning=_warning(unknown, left, by_rate, self.fits),
        )

    def corrected(self) -> GapReport:
        """The report with `gap_us`, `causes_us` and `parts_us` as they would be without tracing.

        See `distortion.untraced_causes` for how much tracing adds to each cause.

        Raises:
            TraceError: the untraced rate leaves no time for a gap in addition to the recorded compute, or belongs to
                another run.
        """
        if self.warning is None:  # nothing was traced, so these are the untraced figures
            return self
        if self.refused is not None:
            raise TraceError(f"cannot correct the recording: {self.refused}")
        if self.untraced_gap_us is None and self.untraced_idle_us is not None:
            raise TraceError(f"cannot correct the gap: {self.warning}")
        if self.untraced_gap_us is None:
            raise TraceError(
                f"cannot correct the gap: the device is busy for {self.idle.busy_us or 0:.1f} µs a step, longer than "
                "the untraced rate allows; tracing stretched the kernels (least at graph level), or the figure "
                "belongs to another run"
            )
        launch_us = float(
            (self.table[["launch_call", "launch_latency"]].sum(axis=1) * self.table["graph_launch"]).mean()
        )
        launch_left = self.fits.launch_left(self.graph_trace)
        causes = untraced_causes(self.causes_us, launch_us / 1e3, launch_left, self.untraced_gap_us["mean"])
        parts = {
            cause: {part: us * (causes[cause] / self.causes_us[cause] if us else 0.0) for part, us in inner.items()}
            for cause, inner in self.parts_us.items()
        }
        warning = STRETCHED.format(self.estimated) if self.estimated else None
        return replace(self, gap_us=self.untraced_gap_us, causes_us=causes, parts_us=parts, warning=warning)


def gap_report(
    trace: Trace, steps: Steps, untraced_tokens_per_s: float | None = None, *, device: int | None = None,
    every: pd.DataFrame | None = None,
) -> GapReport:  # fmt: skip
    """Measure the gaps between the steps and split them by cause.

    Args:
        trace: the recording.
        steps: its token steps.
        untraced_tokens_per_s: token steps per second without a profiler, from the engine's own benchmark or from
            run.json. It determines distortion and untraced gap; `gap_us` stays as traced. Ignored if nothing was
            traced, or if the rate belongs to another run (`GapReport.refused`).
        device: only the gaps of this one.
        every: their `all_compute`, if available.

    Raises:
        EmptyTraceError: no two steps of one group follow each other on a device, or of most it is unknown when their
            last work ended, or any work of theirs.
    """
    if steps.hidden:
        raise EmptyTraceError(f"no gap and no idle time: {steps.hidden}, so that it is unknown when the device worked")
    every = all_compute(trace, steps) if every is None else every
    compute = of_steps(every)
    near = Near.of(trace, steps, compute)
    table = gap_table(trace, steps, compute, near)
    if device is not None:
        compute = compute[compute["device"] == device]
        table = table[table["device"] == device].reset_index(drop=True)
        if not len(table):
            raise EmptyTraceError(f"no gap on device {device}")
    if not len(table):
        if (steps.table["phase"] == PREFILL).all() and len(steps) > 1:
            raise EmptyTraceError(
                f"no gap: {len(steps)} prompts, before each of which the device may have waited for a request"
            )
        raise EmptyTraceError(f"no gap: {steps.counted}, no two consecutive ones with kernels; {HOW_TO_TELL}")
    ended = ended_at_known_times(trace, table, compute)
    if 2 * ended.sum() < len(table):
        raise EmptyTraceError(
            f"no gap: in {(~ended).sum()} of {len(table)} steps it is unknown when the last run of eager launches ended"
            "; record for longer, so that each of their kernels is sampled"
        )
    unknown = int((~ended).sum())
    table = table[ended].reset_index(drop=True)
    period_us = float((table["next_start"] - table["this_start"]).median() / 1e3)
    is_light = trace.is_untraced
    level = graph_trace_level(compute, trace)
    mean_us = table[[*CAUSES, *PART_COLUMNS]].mean() / 1e3
    recorded = GapReport(
        table=table.drop(columns=["this_start", "next_start"]),
        gap_us=statistics(table["gap"].to_numpy()),
        causes_us={name: float(mean_us[column]) for column, name in CAUSES.items()},
        parts_us={CAUSES[cause]: {p: float(mean_us[p]) for p in parts} for cause, parts in PARTS.items()},
        graph_trace=level,
        period_us=period_us,
        compute_us=float((table["start"] - table["this_start"]).median() / 1e3),
        idle=idle_report(trace, steps, table, every, near),
        untraced_steps_per_s=None,
        distortion=1.0 if is_light else None,
        untraced_idle_us=None,
        untraced_gap_us=None,
        estimated=None,
        refused=None,
        warning=None if is_light else f"{TRACED}; {GIVE_RATE}",
        unknown=unknown,
    )
    return recorded.at(untraced_tokens_per_s)


def measured_rate(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """The untraced rate of the steps from run.json, which measures decode: of steps, or of tokens divided by the tokens
    per step; None if neither is known."""
    if not steps.decode_alone:
        return None
    tokens, gained = run_json.tokens_per_s(trace, within), steps.tokens_per_step
    return run_json.steps_per_s(trace, within) or (tokens / gained if tokens and gained else None)


def gap_table(trace: Trace, steps: Steps, compute: pd.DataFrame, near: Near) -> pd.DataFrame:
    """One row per gap with its causes; see `GapReport.table`. Also this_start and next_start, the starts of both
    steps."""
    spans = step_spans(trace, steps, compute)
    spans = spans.iloc[runs_of(spans, ["device", "group", "step"])[0]]
    chain, _ = groups_of(spans, ["device", "group"])
    follows = (chain[1:] == chain[:-1]) & (np.diff(spans["ordinal"]) == 1)
    first, second = (part[follows].reset_index(drop=True) for part in (spans.iloc[:-1], spans.iloc[1:]))
    table = pd.DataFrame(
        {
            "step": first["step"],
            "device": first["device"],
            "start": first["end"],
            "end": np.maximum(second["start"], first["end"]),
            "this_start": first["start"],
            "next_start": second["start"],
        }
    )
    table["gap"] = table["end"] - table["start"]
    behind = second[["correlation", "process", "step_process", "step_thread"]]
    causes = split_windows(trace, near, pd.concat([table[["start", "end", "device"]], behind], axis=1))
    return pd.concat([table, causes], axis=1)


def graph_trace_level(compute: pd.DataFrame, trace: Trace) -> str:
    """How the compute of the steps was traced: whole graphs, graph nodes, or no CUDA graphs at all."""
    if (compute["table"] == "graph_launches").any():
        return "graph"
    has_nodes = (trace["kernels"]["graph_node"] != MISSING).any()
    return "node" if has_nodes or of_graph_launches(trace).any() else "none"


@dataclass(frozen=True)
class _Told:
    """What a rate shows about the gap.

    Attributes:
        gap_us: see `GapReport.untraced_gap_us`.
        interval: see `GapReport.estimated`.
        bounds: of its median, if it is not determined.
    """

    gap_us: dict[str, float] | None
    interval: Interval | None
    bounds: tuple[float, float]

    @classmethod
    def of(cls, table: pd.DataFrame, idle: IdleReport, steps_per_s: float, level: str) -> _Told:
        least, most = (float(np.median(ns)) / 1e3 for ns in idle.bounds_of_gaps(table, steps_per_s))
        gap_us = statistics(idle.untraced_gaps(table, steps_per_s))
        del gap_us["p90"]  # a rate is a mean
        low, high = (statistics(idle.untraced_gaps(table, steps_per_s, sign))["p50"] for sign in (-1, 1))
        if idle.hides_stretch:
            least, most = min(least, low), max(most, high)
        if most - least > max(_TOLD * gap_us["p50"], _TOLD_US):
            return cls(None, None, (least, most))
        if level != "node":
            return cls(gap_us, None, (least, most))
        return cls(gap_us, Interval(gap_us["p50"], low, high), (least, most))


def _warning(unknown: str, left: dict[str, float] | None, by_rate: _Told | None, fits: Fits) -> str:
    """The caveats for the recording, and the gap without tracing, or why that is unknown."""
    if left is None or by_rate is None:
        return f"{TRACED}; {unknown}"
    if by_rate.gap_us is not None:
        told = f"without it the gap is {by_rate.gap_us['p50']:,.1f} µs (p50)"
    else:
        told = (
            f"without it {left['p50']:,.1f} µs a step are idle (p50), of which {by_rate.bounds[0]:,.1f} to "
            f"{by_rate.bounds[1]:,.1f} µs are the gap; the rate does not determine how much"
        )
    return "; ".join(filter(None, (TRACED, fits.caution, told)))
