"""Predictions from one recording: replay it with edits, and say how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer import run_json
from tracer.analysis.causality.paths import Causality
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Assumed, Changes
from tracer.analysis.whatif.edits import Edit
from tracer.analysis.whatif.step_times import StepTimes
from tracer.analysis.whatif.timeline import changed_trace
from tracer.analysis.whatif.untraced import untraced
from tracer.errors import EmptyTraceError
from tracer.trace import Trace

Ints = NDArray[np.int64]

LEAST_VANISHING: Final = 0.5
"""At least so much of what usually lies behind a call goes with it."""

DOUBT: Final = 1.25
DOUBT_TRACED: Final = 2.25
"""By which factor the time saved may be off, from a light pass and from a recording made under a profiler, which adds
to every call. Chosen in view of how far benchmarks/whatif_prediction.py was off, so how many of its rows lie inside
their interval is no independent check."""

_LEAST_DOUBT: Final = 0.001  # of a speed-up; less is never measured

_RESAMPLES: Final = 2000
_MOST_STEPS: Final = 2000  # that are resampled


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
        base: whether the base without the profiler is "measured", "estimated" or not known ("traced").
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
    base: str
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
        EmptyTraceError: no step is followed by another, or no time is left of them.
        TraceError: the untraced rate leaves no time for what the recording shows of the device.
    """
    trace, times = causality.trace, StepTimes.of(causality, steps)
    rate = untraced_tokens_per_s or run_json.steps_per_s(trace, within)
    assumed, known = untraced(causality, steps, times, rate)
    changes, notes = _edited(causality, steps, edits, assumed)
    new = changes.dag().replayed()[0]
    base = Changes(causality, assumed).dag().replayed()[0] if assumed != Assumed() else causality.dag.time
    other = _edited(causality, steps, edits, replace(assumed, vanishing=LEAST_VANISHING))[0].dag().replayed()[0]
    before, after, least = (times.periods(t) for t in (base, new, other))
    factor = DOUBT if trace.metadata.get("source") == "host" else DOUBT_TRACED
    speedup = _speedup(before, after, least, factor, max((edit.doubt for edit in edits), default=0.0))
    if edits:
        speedup = replace(speedup, low=max(speedup.low - _LEAST_DOUBT, 0.0), high=speedup.high + _LEAST_DOUBT)
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
        base=known,
        trace=changed_trace(changes, new, label),
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


def _speedup(before: Ints, after: Ints, least: Ints, factor: float, doubt: float) -> Interval:
    """Ratio of the median periods; its interval from resampled steps, and from what the model may be off by."""
    medians = [float(np.median(periods)) for periods in (before, after, least)]
    if min(medians) <= 0:
        raise EmptyTraceError("no speed-up: from token to token no time passes, or none is left of it")
    estimate, other = medians[0] / medians[1], medians[0] / medians[2]
    random = np.random.default_rng(0)
    chosen = np.linspace(0, len(before) - 1, min(len(before), _MOST_STEPS)).astype(np.int64)
    sample = chosen[random.integers(0, len(chosen), (_RESAMPLES, len(chosen)))]
    resampled = [np.maximum(np.median(periods[sample], axis=1), 1) for periods in (before, after)]
    ratios = resampled[0] / resampled[1]
    low, high = np.quantile(ratios / estimate, [0.025, 0.975])
    models = [other, estimate, *(_off_by(estimate, share) for share in (1 / factor, factor))]
    least_speedup, most_speedup = min(models) * min(float(low), 1.0), max(models) * max(float(high), 1.0)
    return Interval(estimate, max(least_speedup - doubt, 0.0), most_speedup + doubt)


def _off_by(speedup: float, factor: float) -> float:
    """The speed-up if what it gains, or costs, is `factor` times as much."""
    return 1 + (speedup - 1) * factor if speedup >= 1 else 1 / (1 + (1 / speedup - 1) * factor)
