"""Predictions from one recording: a replay with edits, and its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import estimates
from tracer.analysis.causality.paths import Causality
from tracer.analysis.interval import Interval
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.base import STILL_TRACED, TRACED, Base, Figures
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.edits import Edit
from tracer.analysis.whatif.margin import together
from tracer.analysis.whatif.timeline import changed_trace
from tracer.errors import EmptyTraceError
from tracer.model.trace import Trace

Ints = NDArray[np.int64]

WITHOUT_RATE: Final = (
    "without the rate the prediction includes the profiler: give --untraced-tokens-per-s, the token steps per second "
    "of the engine's own benchmark, or `measured` in run.json"
)
UNMEASURED: Final = "no such change was ever measured, so there is no model margin and the error is unknown"
UNLIKE: Final = (
    "the device idles mainly because of the host or another device; no such case was checked, so there is no model "
    "margin"
)
TOO_FEW: Final = f"there are fewer than {estimates.FEWEST} steps that follow others, too few for an interval"
NO_MARGIN: Final = (UNMEASURED, UNLIKE, TOO_FEW)
"""Notes that say why a prediction has no model margin."""
NO_GAP: Final = (
    "the share of the gap in the idle time that the rate leaves is unknown: recorded shares and replay differ"
)

_MOST_STEPS: Final = 2000  # that are resampled


@dataclass(frozen=True)
class Prediction:
    """A predicted recording.

    Attributes:
        label: the edits.
        speedup: of the token rate, with the model margin: the variation between steps, and the model's error on
            programs that it was not fitted to (`margin`); without bounds if no such case was measured or if it includes
            the profiler (`state`).
        of_steps: the same without the model's part.
        recorded, corrected: the recording itself, and without its profiler; the second is None for an untraced
            recording, or if the engine's own rate is unknown.
        predicted: with the edits; to be compared with `before`.
        state: one of `base.PLAIN`, `base.CORRECTED`, `base.TRACED`.
        notes: the assumptions.
        trace: the new timeline, without the profiler if there is a rate; empty if it was not asked for.
    """

    label: str
    speedup: Interval
    of_steps: Interval
    recorded: Figures
    corrected: Figures | None
    predicted: Figures
    state: str
    notes: list[str]
    trace: Trace = field(repr=False)

    @property
    def before(self) -> Figures:
        """The figures that the prediction is compared with."""
        return self.corrected or self.recorded

    @property
    def of_engine(self) -> Interval | None:
        """The speed-up of the engine; None if, without a rate, it is that of the engine under its profiler."""
        return None if self.state == TRACED else self.speedup


def predict(
    causality: Causality,
    steps: Steps,
    edits: Sequence[Edit],
    untraced_tokens_per_s: float | None = None,
    within: str | None = None,
) -> Prediction:
    """Replay a recording with edits, in this order.

    Args:
        causality: dependencies of the recording, or of its light pass if it has one.
        steps: its token steps.
        edits: the changes. Without any, the result is the recording itself, corrected if there is a rate.
        untraced_tokens_per_s: token steps per second without a profiler. The host's times of a traced recording are
            scaled to that rate. Default: the rate in run.json.
        within: the NVTX range that contains the steps; run.json may have a rate for it.

    Raises:
        UsageError, UnsafePlanError: an edit is impossible, or unsafe.
        EmptyTraceError: no step is followed by another, or the steps take no time.
        TraceError: an untraced step would be shorter than the recorded work of the device.
    """
    return predict_from(Base.of(causality, steps, untraced_tokens_per_s, within), edits)


def predict_from(base: Base, edits: Sequence[Edit], *, timeline: bool = True) -> Prediction:
    """Like `predict`, but given what several predictions have in common; without `timeline`, its trace is empty."""
    changes = Changes(base.causality, base.assumed)
    notes = list(dict.fromkeys(note for edit in edits for note in edit.apply(changes, base.steps)))
    time = changes.dag().replayed()[0]
    of_steps = _of_steps(base.times.periods(base.time), base.times.periods(time))
    label = ", ".join(edit.label for edit in edits) or "no changes"
    trace = changed_trace(changes, time, label) if timeline else Trace({})
    half = together([edit.half_margin(of_steps.estimate, base.level, base.fits) for edit in edits])
    if base.state == TRACED:
        trace.metadata[STILL_TRACED], half = True, None
    elif half is None:
        notes.append(UNMEASURED)
    elif edits and not base.is_checked:
        notes, half = [*notes, UNLIKE], None
    elif of_steps.bounds is None:
        notes.append(TOO_FEW)
    if base.fits.caution:
        notes.append(base.fits.caution)
    if not base.before.gap_us:
        notes.append(NO_GAP)
    return Prediction(
        label=label,
        speedup=Interval(of_steps.estimate) if half is None else of_steps.log().widened(half).exp(),
        of_steps=of_steps,
        recorded=base.recorded,
        corrected=base.corrected,
        predicted=base.figures(time, of_steps.estimate),
        state=base.state,
        notes=notes,
        trace=trace,
    )


def _of_steps(before: Ints, after: Ints) -> Interval:
    """Ratio of the median periods, with an interval from resampled blocks of steps."""
    medians = [float(np.median(periods)) for periods in (before, after)]
    if min(medians) <= 0:
        raise EmptyTraceError("no speed-up: the period of a token is zero, or would become zero")
    chosen = np.linspace(0, len(before) - 1, min(len(before), _MOST_STEPS)).astype(np.int64)
    both = np.maximum(np.column_stack([before, after])[chosen], 1).astype(np.float64)
    logs = estimates.medians(both).log()
    (found,) = logs.of(slice(0, 1)).minus(logs.of(slice(1, 2)), paired=True).intervals()
    moved = float(np.log(medians[0] / medians[1])) - found.estimate
    ends = (None if end is None else end + moved for end in (found.low, found.high))
    return replace(found, estimate=found.estimate + moved, low=next(ends), high=next(ends)).exp()
