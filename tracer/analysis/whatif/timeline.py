"""The predicted timeline: the tables of the recording, with every event at its predicted time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import by_thread
from tracer.analysis.causality.paths import Causality
from tracer.analysis.whatif.changes import Changes
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import Trace

Ints = NDArray[np.int64]
_HOST_TABLES = ("api", "nvtx", "syncs")


def changed_trace(changes: Changes, time: Ints, label: str) -> Trace:
    """The predicted timeline.

    Host events between two calls of a thread are moved in proportion; events of removed calls are removed.

    Args:
        changes: changes to the recording.
        time: time of every point in the replay of the changed graph.
        label: description of the changes, for the notes.
    """
    causality, removed, timetable = changes.causality, changes.removed, changes.timetable
    recording = causality.trace
    gone_activities = removed[len(causality.segments.calls) :].copy()
    if timetable is not None:
        gone_activities[timetable.activities] = True
    moved = {name: _device_table(causality, time, gone_activities, name) for name in DEVICE_TABLES}
    moved |= {name: _host_table(causality, time, removed, name) for name in _HOST_TABLES}
    if timetable is not None:
        moved |= timetable.tables(causality, time, moved)
    gone = _gone_calls(causality, removed)
    events = recording["cuda_events"]
    moved["cuda_events"] = events[~_belongs(events, gone)]
    notes = [*recording.notes, f"a prediction, not a recording: {label}"]
    metadata = recording.metadata | {"whatif": label}
    if isinstance(run := metadata.get("run"), dict):  # what was measured is not of this
        metadata["run"] = {key: value for key, value in run.items() if key not in ("measured", "passes")}
    return Trace(recording.tables | moved, metadata, notes)


def _device_table(causality: Causality, time: Ints, gone: NDArray[np.bool_], name: str) -> pd.DataFrame:
    """A device table at its predicted times, without removed activities."""
    segments, frame = causality.segments, causality.trace[name]
    of_table = np.flatnonzero((segments.activities["table"] == name).to_numpy())
    rows = segments.activities["row"].to_numpy()[of_table]
    point = segments.starts(of_table)
    start, end = np.empty(len(frame), np.int64), np.empty(len(frame), np.int64)
    stays = np.ones(len(frame), bool)
    start[rows], end[rows] = time[point], time[point + 1]
    stays[rows] = ~gone[of_table]
    return frame.assign(start=start, end=end)[stays]


def _host_table(causality: Causality, time: Ints, removed: NDArray[np.bool_], name: str) -> pd.DataFrame:
    """A host table moved with its threads."""
    frame, calls = causality.trace[name], causality.segments.calls
    frame = frame[~_belongs(frame, _gone_calls(causality, removed))] if "correlation" in frame else frame
    process = frame["process"].to_numpy()
    thread = frame["thread"].to_numpy() if "thread" in frame else _threads(causality, frame)
    moved = frame[["start", "end"]].to_numpy(np.int64).copy()
    for of_process, of_thread, rows in by_thread(calls):
        on_thread = (process == of_process) & (thread == of_thread)
        points = (2 * rows[:, None] + np.array([0, 1])).reshape(-1)
        moved[on_thread] = _interpolated(moved[on_thread], causality.dag.time[points], time[points])
    return frame.assign(start=moved[:, 0], end=np.maximum(moved[:, 0], moved[:, 1]))


def _threads(causality: Causality, syncs: pd.DataFrame) -> Ints:
    """The thread on which each sync was called; MISSING where the trace lacks the call."""
    calls = causality.segments.calls_of(causality.trace, syncs)
    threads = causality.segments.calls["thread"].to_numpy()
    return np.where(calls >= 0, threads[calls], MISSING) if len(threads) else calls


def _interpolated(times: Ints, before: Ints, after: Ints) -> Ints:
    """Interpolate times between the points of a thread; times outside keep their distance to its first or last one."""
    origin = before[0]
    inside = np.interp(times - origin, before - origin, (after - origin).astype(np.float64))
    found = origin + np.round(inside).astype(np.int64)
    found = np.where(times < before[0], times + (after[0] - before[0]), found)
    return np.asarray(np.where(times > before[-1], times + (after[-1] - before[-1]), found))


def _gone_calls(causality: Causality, removed: NDArray[np.bool_]) -> pd.DataFrame:
    calls = causality.segments.calls
    return calls.loc[removed[: len(calls)], ["process", "correlation"]].drop_duplicates()


def _belongs(frame: pd.DataFrame, calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows have the process and correlation of one of the calls."""
    keys = frame[["process", "correlation"]].merge(calls.assign(gone=True), how="left", on=["process", "correlation"])
    return np.asarray(keys["gone"].notna() & (frame["correlation"].to_numpy() >= 0))
