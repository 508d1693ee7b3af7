"""The work that a host sync, blocking copy or polling loop waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import BLOCKING_COPY, match_rows
from tracer.schema import DEVICE_TABLES, MISSING
from tracer.trace import Trace

UNKNOWN: Final = "unknown"
"""Placeholder for the target of a wait that the trace does not name."""

_ON_EVERY_STREAM: Final = re.compile(r"(?:Device|Ctx|Thread)Synchronize")
_ON_A_STREAM: Final = re.compile(r"stream(?:Synchronize|Query)", re.IGNORECASE)
_PLACE: Final = ["device", "context", "stream"]


@dataclass(frozen=True)
class Targets:
    """The targets of waiting calls, one entry per call.

    Attributes:
        table: device, context, stream (MISSING: any of the process) and until, ns: only work enqueued before then.
        known: whether the trace says; otherwise the row has no meaning.
        of_event: whether `until` is when an event was recorded, rather than when the call began.
    """

    table: pd.DataFrame
    known: NDArray[np.bool_]
    of_event: NDArray[np.bool_]


def targets(trace: Trace, waits: pd.DataFrame) -> Targets:
    """Determine the target of each waiting call.

    A stream sync waits for that stream, a device or context sync for all its streams, an event sync for the work that
    its stream had been given when the event was last recorded, and a blocking copy for its stream. If the trace has no
    row for the sync (Kineto without `cuda_sync`, HIP), only a device sync is known by its name, and a stream sync if
    its process uses no other stream.

    Args:
        trace: the recording.
        waits: start (ns) process correlation name letter.
    """
    start = waits["start"].to_numpy()
    rows = match_rows(trace["syncs"], waits)
    types = trace["syncs"]["type"].cat
    type_of = {str(word): code for code, word in enumerate(types.categories)}
    type_codes = np.append(types.codes.to_numpy(), type_of[UNKNOWN])[rows]
    place = pd.DataFrame({c: np.append(trace["syncs"][c].to_numpy(), MISSING)[rows] for c in [*_PLACE, "event"]})
    copies = match_rows(trace["memcpys"], waits)
    is_copy = (waits["letter"] == BLOCKING_COPY).to_numpy()
    has_row = is_copy & (copies >= 0)
    for column in _PLACE if has_row.any() else ():
        place.loc[has_row, column] = trace["memcpys"][column].to_numpy()[copies[has_row]]
    silent = (type_codes == type_of[UNKNOWN]) & ~is_copy
    every = (type_codes == type_of["context"]) | (silent & _named(waits["name"], silent, _ON_EVERY_STREAM))
    place.loc[every, "stream"] = MISSING
    alone = silent & _named(waits["name"], silent, _ON_A_STREAM)
    if alone.any():
        place.loc[alone, "stream"] = _only_stream(trace, waits["process"].to_numpy()[alone])
    of_event = type_codes == type_of["event"]
    until = start.copy()
    recorded = _last_record(trace, waits, place, of_event)
    place.loc[recorded.index, _PLACE] = recorded[_PLACE]
    until[recorded.index] = recorded["recorded"]
    by_event = np.zeros(len(waits), bool)
    by_event[recorded.index] = True
    return Targets(place[_PLACE].assign(until=until), every | (place["stream"] != MISSING).to_numpy(), by_event)


def _named(names: pd.Series, chosen: NDArray[np.bool_], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which of the chosen calls have a name that contains the pattern; each distinct name is searched once."""
    found = np.zeros(len(names), bool)
    codes, words = pd.factorize(names[chosen])
    found[chosen] = np.array([pattern.search(str(word)) is not None for word in words], bool)[codes]
    return found


def _only_stream(trace: Trace, processes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stream of each process that uses only one, else MISSING."""
    used = pd.concat([trace[name][["process", *_PLACE]] for name in DEVICE_TABLES]).drop_duplicates()
    alone = used.drop_duplicates("process", keep=False).set_index("process")["stream"]
    return np.asarray(alone.reindex(processes).fillna(MISSING).to_numpy(np.int64))


def _last_record(trace: Trace, waits: pd.DataFrame, place: pd.DataFrame, of_event: NDArray[np.bool_]) -> pd.DataFrame:
    """For waits for an event, by position: on which stream it was last recorded before the wait began, and when."""
    events, asked = trace["cuda_events"], np.flatnonzero(of_event & (place["event"] != MISSING).to_numpy())
    call = match_rows(trace["api"], events)
    events = events[["process", "event", *_PLACE]].assign(
        recorded=np.append(trace["api"]["start"].to_numpy(), MISSING)[call]
    )[call >= 0]
    asking = pd.DataFrame({
        "process": waits["process"].to_numpy()[asked], "event": place["event"].to_numpy()[asked],
        "start": waits["start"].to_numpy()[asked], "at": asked,
    })  # fmt: skip
    found = pd.merge_asof(
        asking.sort_values("start"), events.sort_values("recorded"),
        left_on="start", right_on="recorded", by=["process", "event"], allow_exact_matches=False,
    ).dropna(subset=["recorded"])  # fmt: skip
    return found.set_index("at")[[*_PLACE, "recorded"]].astype(np.int64)


def last_awaited(
    trace: Trace, activities: pd.DataFrame, waits: pd.DataFrame, asked: Targets
) -> NDArray[np.int64]:  # fmt: skip
    """For each wait, the position in `activities` of what it waited for last, or -1 if that had ended before.

    Args:
        trace: the recording.
        activities: process device context stream end (ns) correlation; only those that end inside a wait matter.
        waits: start end (ns) process; `asked` says what they wait for.
    """
    found = np.full(len(waits), -1, dtype=np.int64)
    process_of, end_of = activities["process"].to_numpy(), activities["end"].to_numpy()
    places = {column: activities[column].to_numpy() for column in _PLACE}
    start, end = waits["start"].to_numpy(), waits["end"].to_numpy()
    until = asked.table["until"].to_numpy()
    keys = asked.table[_PLACE].assign(process=waits["process"].to_numpy(), by_event=asked.of_event)[asked.known]
    for key, index in keys.groupby(["process", *_PLACE, "by_event"]).groups.items():
        process, *place, by_event = cast("tuple[int, ...]", key)
        in_process = process_of == process
        for column, value in zip(_PLACE, place, strict=True):
            in_process &= (places[column] == value) | (value == MISSING)
        rows, at = np.flatnonzero(in_process), np.asarray(index)
        rows = rows[np.argsort(end_of[rows], kind="stable")]
        last = np.searchsorted(end_of[rows], end[at], side="right") - 1
        if by_event:  # a stream completes its work in the order in which it was enqueued
            issued = np.maximum.accumulate(_issued(trace, activities.iloc[rows]))
            last = np.minimum(last, np.searchsorted(issued, until[at], side="left") - 1)
        waited = (last >= 0) & (end_of[rows][last] > start[at]) if len(rows) else last >= 0
        found[at[waited]] = rows[last[waited]]
    return found


def _issued(trace: Trace, activities: pd.DataFrame) -> NDArray[np.int64]:
    """When each activity's call began; before everything else if the trace lacks that call."""
    call = match_rows(trace["api"], activities)
    return np.append(trace["api"]["start"].to_numpy(), np.iinfo(np.int64).min)[call]
