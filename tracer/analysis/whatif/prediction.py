"""Predictions from one recording: replay it with edits, and say how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer import run_json
from tracer.analysis.causality.paths import Causality, StepEnds
from tracer.analysis.tokens import Steps, activity_steps
from tracer.analysis.whatif.changes import Assumed, Changes
from tracer.analysis.whatif.edits import Edit
from tracer.analysis.whatif.timeline import changed_trace
from tracer.errors import TraceError
from tracer.schema import COMPUTE_TABLES
from tracer.trace import Trace

Ints = NDArray[np.int64]

LEAST_VANISHING: Final = 0.5
"""At least so much of what usually lies behind a call goes with it."""

DOUBT: Final = 0.25
"""How far off, relatively, the time saved may be; see benchmarks/whatif_prediction.py for how far off it was."""

_RESAMPLES: Final = 2000
_MOST_STEPS: Final = 2000  # that are resampled
_SEARCH: Final = 14


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """What a recording would have been.

    Attributes:
        label: the edits.
        speedup: of the token rate, over the recording without a profiler.
        tokens_per_s, base_tokens_per_s: predicted and as it was (of all sequences, if run.json tells how many).
        gap_us, base_gap_us: p50, p90, mean.
        period_us, base_period_us: median from token to token.
        notes: what is taken for granted.
        untraced: whether the base is without the profiler's part: measured so, or corrected by a rate.
        trace: the new timeline, at the speed it would have without the profiler if that is known.
    """

    label: str
    speedup: Interval
    tokens_per_s: float
    base_tokens_per_s: float
    gap_us: dict[str, float]
    base_gap_us: dict[str, float]
    period_us: float
    base_period_us: float
    notes: list[str]
    untraced: bool
    trace: Trace = field(repr=False)


def predict(
    causality: Causality,
    steps: Steps,
    edits: Sequence[Edit],
    untraced_tokens_per_s: float | None = None,
    within: str | None = None,
) -> Prediction:
    """Replay a recording with edits, in this order.

    Args:
        causality: of the recording; of its light pass, if it has one.
        steps: its token steps.
        edits: what is different. Without any, the recording comes out.
        untraced_tokens_per_s: token steps per second without a profiler. The host's times of a traced recording are
            scaled so that it would have had that rate.
        within: the NVTX range that the steps were taken from, for what run.json says of it.

    Raises:
        UsageError, UnsafePlanError: an edit cannot be made, or must not.
        EmptyTraceError: no step is followed by another.
        TraceError: the untraced rate leaves no time for what the recording shows of the device.
    """
    trace, times = causality.trace, StepTimes.of(causality, steps)
    is_light = trace.metadata.get("source") == "host"
    rate = untraced_tokens_per_s or run_json.steps_per_s(trace, within)
    assumed = Assumed()
    if not is_light and rate is not None:
        assumed = Assumed(host=_host_factor(causality, times, 1e9 / rate))
    changes, notes = _edited(causality, steps, edits, assumed)
    new = changes.dag().replayed()[0]
    base = Changes(causality, assumed).dag().replayed()[0] if assumed != Assumed() else causality.dag.time
    other = _edited(causality, steps, edits, replace(assumed, vanishing=LEAST_VANISHING))[0].dag().replayed()[0]
    before, after, least = (times.periods(t) for t in (base, new, other))
    speedup = _speedup(before, after, least)
    label = ", ".join(edit.label for edit in edits) or "as recorded"
    base_rate = _base_rate(trace, rate, before, within)
    return Prediction(
        label=label,
        speedup=speedup,
        tokens_per_s=base_rate * speedup.estimate,
        base_tokens_per_s=base_rate,
        gap_us=times.gap_us(new),
        base_gap_us=times.gap_us(base),
        period_us=float(np.median(after)) / 1e3,
        base_period_us=float(np.median(before)) / 1e3,
        notes=notes,
        untraced=is_light or rate is not None,
        trace=changed_trace(causality, new, changes.removed, label),
    )


def _edited(causality: Causality, steps: Steps, edits: Sequence[Edit], assumed: Assumed) -> tuple[Changes, list[str]]:
    changes = Changes(causality, assumed)
    notes = [note for edit in edits for note in edit.apply(changes, steps)]
    return changes, notes


def _base_rate(trace: Trace, rate: float | None, periods: Ints, within: str | None) -> float:
    """Tokens per second as recorded: measured, given, or one token a step."""
    steps_per_s = rate or 1e9 / float(np.median(periods))
    measured, of_steps = run_json.tokens_per_s(trace, within), run_json.steps_per_s(trace, within)
    return steps_per_s * (measured / of_steps if measured and of_steps else 1.0)


@dataclass(frozen=True)
class StepTimes:
    """When steps compute, for any times of the points.

    Attributes:
        ends: their last compute.
        spans: one row per (device, step) with compute: first and last position in `points`, and whether the row
            before is the step before on the same device.
        points: where compute activities start, by (device, step).
    """

    ends: StepEnds
    spans: pd.DataFrame
    points: Ints

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepTimes:
        """Find them; raises as `StepEnds.of`."""
        activities = causality.segments.activities
        rows = np.flatnonzero(activities["table"].isin(COMPUTE_TABLES))
        table = activities.iloc[rows][["device"]].assign(row=rows)
        table["at"] = activity_steps(causality.trace, steps, activities.iloc[rows])
        table = table[table["at"] >= 0]
        table["group"] = steps.table["group"].to_numpy()[table["at"]]
        table = table.sort_values(["device", "group", "at"], kind="stable", ignore_index=True)
        keys = table[["device", "group", "at"]]
        first = ~keys.duplicated()
        spans = keys[first].assign(first=np.flatnonzero(first))
        ordinal = steps.table.groupby("group").cumcount().to_numpy()[spans["at"]]
        same = (spans[["device", "group"]] == spans[["device", "group"]].shift()).all(axis=1).to_numpy()
        spans["follows"] = same & (ordinal == np.append(0, ordinal[:-1]) + 1)
        return cls(StepEnds.of(causality, steps), spans, causality.segments.starts(table["row"].to_numpy()))

    def periods(self, time: Ints) -> Ints:
        """From the last compute of each step to that of the next, ns."""
        table = self.ends.followed
        return np.asarray(time[table["point"]] - time[table["previous"]])

    def gap_us(self, time: Ints) -> dict[str, float]:
        """p50, p90 and mean of the gaps, as the gap is defined."""
        first = self.spans["first"].to_numpy()
        start, end = np.minimum.reduceat(time[self.points], first), np.maximum.reduceat(time[self.points + 1], first)
        follows = np.flatnonzero(self.spans["follows"])
        gaps = np.maximum(start[follows] - end[follows - 1], 0) / 1e3
        return {"p50": float(np.median(gaps)), "p90": float(np.percentile(gaps, 90)), "mean": float(gaps.mean())}


def _host_factor(causality: Causality, times: StepTimes, period_ns: float) -> float:
    """By how much the host's times shrink without the profiler, so that a token takes `period_ns`; by bisection."""

    def period(factor: float) -> float:
        replayed = Changes(causality, Assumed(host=factor)).dag().replayed()[0]
        return float(np.median(times.periods(replayed)))

    if period(1.0) <= period_ns:
        return 1.0
    if (least := period(0.0)) > period_ns:
        raise TraceError(
            f"cannot correct the recording: without any time of the host a token takes {least / 1e3:.1f} µs, longer "
            f"than the {period_ns / 1e3:.1f} µs that the untraced rate leaves it; tracing stretched the kernels "
            "(graph level does so least), or the figure is of another run"
        )
    low, high = 0.0, 1.0
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if period(middle) > period_ns else (middle, high)
    return high


def _speedup(before: Ints, after: Ints, least: Ints) -> Interval:
    """Ratio of the median periods; its interval from resampled steps, and from what the model may be off by."""
    estimate = float(np.median(before) / np.median(after))
    random = np.random.default_rng(0)
    chosen = np.linspace(0, len(before) - 1, min(len(before), _MOST_STEPS)).astype(np.int64)
    sample = chosen[random.integers(0, len(chosen), (_RESAMPLES, len(chosen)))]
    ratios = np.median(before[sample], axis=1) / np.median(after[sample], axis=1)
    low, high = np.quantile(ratios / estimate, [0.025, 0.975])
    other = float(np.median(before) / np.median(least))
    models = [other, estimate, 1 + (estimate - 1) * (1 - DOUBT), 1 + (estimate - 1) * (1 + DOUBT)]
    return Interval(estimate, min(models) * float(low), max(models) * float(high))
