"""Predictions from one recording: a replay with edits, its uncertainty, and the timeline that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis import estimates
from tracer.analysis.interval import SHOWN, Interval
from tracer.analysis.path.paths import Causality
from tracer.analysis.path.segments import OuterCalls
from tracer.errors import CannotTellError, EmptyTraceError
from tracer.model.columns import grouped, spread
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.tables import Api, Nvtx, Syncs
from tracer.model.trace import Trace
from tracer.whatif.base import STILL_TRACED, TRACED, Base, Figures
from tracer.whatif.changes import Changes, Edit

if TYPE_CHECKING:
    import pandas as pd

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
RANKS: Final = (
    "a rank of several: collectives take as long as recorded, with their waits for the others, and host code that "
    "waits for another rank counts as its own; no such case was checked, so there is no model margin"
)
NO_MARGIN: Final = (UNMEASURED, UNLIKE, TOO_FEW, RANKS)
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
            programs that it was not fitted to (`fits.Margin`); without bounds if no such case was measured or if it
            includes the profiler (`state`).
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


def predict(base: Base, edits: Sequence[Edit], *, timeline: bool = True) -> Prediction:
    """Replay a recording with edits, in this order.

    Args:
        base: the starting point; several predictions may share it.
        edits: the changes. Without any, the result is the recording itself, corrected if there is a rate.
        timeline: without it, the trace of the prediction is empty.

    Raises:
        UsageError, UnsafePlanError: an edit is impossible, or unsafe.
        CannotTellError: the recording does not tell what an edit concerns, and that makes a difference.
        EmptyTraceError: the steps take no time.
    """
    _check_told(base, edits)
    changes, notes, time = _edited(base, edits)
    of_steps = _of_steps(base.times.periods(base.time), base.times.periods(time))
    label = _label(edits)
    trace = _changed_trace(changes, time, label) if timeline else Trace({})
    half = _together([edit.half_margin(of_steps.estimate, base.level, base.fits) for edit in edits])
    if base.state == TRACED:
        trace.metadata[STILL_TRACED], half = True, None
    elif half is None:
        notes.append(UNMEASURED)
    elif edits and not base.is_checked:
        notes, half = [*notes, UNLIKE], None
    elif of_steps.bounds is None:
        notes.append(TOO_FEW)
    if edits and base.communicates:
        notes, half = [*notes, RANKS], None
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


def _check_told(base: Base, edits: Sequence[Edit]) -> None:
    """Raise CannotTellError if the steps may hold more kernels that edits concern than the recording names."""
    widest = [edit.widest(Changes(base.causality, base.assumed), base.steps) for edit in edits]
    if widest == list(edits):
        return
    before = base.times.periods(base.time)
    none, every = (_of_steps(before, base.times.periods(_edited(base, each)[2])).estimate for each in (edits, widest))
    if abs(log(every / none)) <= SHOWN:
        return
    between = "" if base.state == TRACED else f" lies between × {none:.4f} (none) and × {every:.4f} (all)"
    raise CannotTellError(
        f"{_label(edits)}: the recording has no names of the kernels inside the CUDA graphs of its steps, so which of "
        f"them this concerns is unknown, and the speed-up{between or ' with it'}; a node pass names them (intertoken "
        "record --passes node)"
    )


def _edited(base: Base, edits: Sequence[Edit]) -> tuple[Changes, list[str], Ints]:
    """A recording with edits: the changes, their assumptions, and the time of every point, ns."""
    changes = Changes(base.causality, base.assumed)
    notes = list(dict.fromkeys(note for edit in edits for note in edit.apply(changes, base.steps)))
    return changes, notes, changes.dag().replayed()[0]


def _label(edits: Sequence[Edit]) -> str:
    return ", ".join(edit.label for edit in edits) or "no changes"


def _together(half_widths: Sequence[float | None]) -> float | None:
    """The margin of several independent edits; None if one of them was never measured."""
    known = [half for half in half_widths if half is not None]
    return sqrt(sum(half**2 for half in known)) if len(known) == len(half_widths) else None


def _of_steps(before: Ints, after: Ints) -> Interval:
    """Ratio of the median periods, with an interval from resampled blocks of steps."""
    medians = [float(np.median(periods)) for periods in (before, after)]
    if min(medians) <= 0:
        raise EmptyTraceError("no speed-up: the period of a token is zero, or would become zero")
    chosen = np.linspace(0, len(before) - 1, min(len(before), _MOST_STEPS)).astype(np.int64)
    both = np.maximum(np.column_stack([before, after])[chosen], 1).astype(np.float64)
    logs = estimates.medians(both).log()
    (ratio,) = logs.of(slice(0, 1)).minus(logs.of(slice(1, 2))).intervals()
    moved = float(np.log(medians[0] / medians[1])) - ratio.estimate
    ends = (None if end is None else end + moved for end in (ratio.low, ratio.high))
    return replace(ratio, estimate=ratio.estimate + moved, low=next(ends), high=next(ends)).exp()


def _changed_trace(changes: Changes, time: Ints, label: str) -> Trace:
    """The predicted timeline: the tables of the recording, with every event at its predicted time.

    Host events between two calls of a thread are moved in proportion; events of removed calls are removed.

    Args:
        time: time of every point in the replay of the changed graph.
        label: description of the changes, for the notes.
    """
    causality, removed = changes.causality, changes.removed
    recording, calls = causality.trace, causality.segments.calls
    gone = calls[removed[: len(calls)]]
    moved = {name: _device_table(causality, time, removed[len(calls) :], name) for name in DEVICE_TABLES}
    for name, table in (("api", recording.api), ("syncs", recording.syncs), ("nvtx", recording.nvtx)):
        moved[name] = _host_table(causality, time, gone, recording[name], table)
    moved["cuda_events"] = recording["cuda_events"][gone.of(recording.cuda_events) < 0]
    notes = [*recording.notes, f"a prediction, not a recording: {label}"]
    metadata = recording.metadata | {"whatif": label}
    if isinstance(run := metadata.get("run"), dict):  # what was measured is not of this
        metadata["run"] = {key: value for key, value in run.items() if key not in ("measured", "passes")}
    return Trace(recording.tables | moved, metadata, notes)


def _device_table(causality: Causality, time: Ints, gone: Bools, name: str) -> pd.DataFrame:
    """A device table at its predicted times, without removed activities."""
    segments, frame = causality.segments, causality.trace[name]
    of_table = np.flatnonzero(segments.activities.table == DEVICE_TABLES.index(name))
    rows, point = segments.activities.row[of_table], segments.starts(of_table)
    start, end = np.empty(len(frame), np.int64), np.empty(len(frame), np.int64)
    stays = np.ones(len(frame), bool)
    start[rows], end[rows] = time[point], time[point + 1]
    stays[rows] = ~gone[of_table]
    return frame.assign(start=start, end=end)[stays]


def _host_table(
    causality: Causality, time: Ints, gone: OuterCalls, frame: pd.DataFrame, table: Api | Syncs | Nvtx
) -> pd.DataFrame:
    """A host table moved with its threads, without what belongs to calls that are gone."""
    calls = causality.segments.calls
    if not isinstance(table, Nvtx):
        stays = gone.of(table) < 0
        frame, table = frame[stays], table[stays]
    thread = _threads(causality, table) if isinstance(table, Syncs) else table.thread
    moved = np.column_stack([table.start, table.end])
    for (of_process, of_thread), rows in grouped(calls.process, calls.thread):
        on_thread = (table.process == of_process) & (thread == of_thread)
        points = (2 * rows[:, None] + np.array([0, 1])).reshape(-1)
        moved[on_thread] = _interpolated(moved[on_thread], causality.dag.time[points], time[points])
    return frame.assign(start=moved[:, 0], end=np.maximum(moved[:, 0], moved[:, 1]))


def _threads(causality: Causality, syncs: Syncs) -> Ints:
    """The thread on which each sync was called; MISSING where the trace lacks the call."""
    return spread(causality.segments.calls.thread, causality.segments.calls_of(syncs), MISSING)


def _interpolated(times: Ints, before: Ints, after: Ints) -> Ints:
    """Interpolate times between the points of a thread; times outside keep their distance to its first or last one."""
    origin = before[0]
    inside = np.interp(times - origin, before - origin, (after - origin).astype(np.float64))
    moved = origin + np.round(inside).astype(np.int64)
    moved = np.where(times < before[0], times + (after[0] - before[0]), moved)
    return np.asarray(np.where(times > before[-1], times + (after[-1] - before[-1]), moved))
