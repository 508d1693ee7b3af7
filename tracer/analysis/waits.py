"""The work that a host sync, blocking copy or polling loop waits for, and the polling loops.

A host that repeatedly queries whether work has completed waits for it, as in a sync.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import outer_calls
from tracer.model.calls import BLOCKING_COPY, POLL, letters_of
from tracer.model.intervals import Ints
from tracer.model.rows import THREAD, grouped, groups_of, last_at, match_rows, taken
from tracer.model.schema import DEVICE_TABLES, MISSING, MOST_NS
from tracer.model.trace import Trace

UNKNOWN: Final = "unknown"
"""Placeholder for the target of a wait that the trace does not name."""

_ON_EVERY_STREAM: Final = re.compile(r"(?:Device|Ctx|Thread)Synchronize")
_ON_A_STREAM: Final = re.compile(r"stream(?:Synchronize|Query)", re.IGNORECASE)
_PLACE: Final = ["device", "context", "stream"]
MANY: Final = 3
"""Minimum number of queries in a loop whose results are unknown; two may be an allocator that queries two events."""

_COLUMNS: Final = ["start", "end", "process", "thread", "correlation", "name"]
_ENDED: Final = 0  # what a query returns once the work has completed; cudaErrorNotReady and hipErrorNotReady are 600


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

    A stream sync waits for that stream, a device or context sync for all its streams, an event sync for the work issued
    to the event's stream before the event was last recorded, and a blocking copy for its stream. If the trace has no
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
    place = {c: np.append(trace["syncs"][c].to_numpy(), MISSING)[rows] for c in [*_PLACE, "event"]}
    copies = match_rows(trace["memcpys"], waits)
    is_copy = (waits["letter"] == BLOCKING_COPY).to_numpy()
    has_row = is_copy & (copies >= 0)
    for column in _PLACE if has_row.any() else ():
        place[column][has_row] = trace["memcpys"][column].to_numpy()[copies[has_row]]
    silent = (type_codes == type_of[UNKNOWN]) & ~is_copy
    every = (type_codes == type_of["context"]) | (silent & _named(waits["name"], silent, _ON_EVERY_STREAM))
    place["stream"][every] = MISSING
    alone = silent & _named(waits["name"], silent, _ON_A_STREAM)
    if alone.any():
        place["stream"][alone] = _only_stream(trace, waits["process"].to_numpy()[alone])
    until, by_event = start.copy(), np.zeros(len(waits), bool)
    of_event = np.flatnonzero((type_codes == type_of["event"]) & (place["event"] != MISSING))
    if len(of_event) and len(trace["cuda_events"]):
        recorded, last = _last_record(trace, waits, place["event"], of_event)
        for column in _PLACE:
            place[column][recorded] = last[column]
        until[recorded], by_event[recorded] = last["recorded"], True
    known = every | (place["stream"] != MISSING)
    return Targets(pd.DataFrame({name: place[name] for name in _PLACE} | {"until": until}), known, by_event)


def _named(names: pd.Series, chosen: NDArray[np.bool_], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which of the chosen calls have a name that contains the pattern; each distinct name is searched once."""
    found = np.zeros(len(names), bool)
    codes, words = pd.factorize(names[chosen])
    found[chosen] = np.array([pattern.search(str(word)) is not None for word in words], bool)[codes]
    return found


def _only_stream(trace: Trace, processes: Ints) -> Ints:
    """The stream of each process that uses only one, else MISSING."""
    distinct, number = np.unique(processes, return_inverse=True)
    return np.array([_stream_of(trace, process) for process in distinct.tolist()], np.int64)[number]


def _stream_of(trace: Trace, process: int) -> int:
    places = set()
    for frame in (trace[name] for name in DEVICE_TABLES):
        mine = frame["process"].to_numpy() == process
        values = [frame[column].to_numpy()[mine] for column in _PLACE]
        if any((each != each[0]).any() for each in values if len(each)):
            return MISSING
        places.update([tuple(int(each[0]) for each in values)] if mine.any() else [])
    return places.pop()[-1] if len(places) == 1 else MISSING


def _last_record(trace: Trace, waits: pd.DataFrame, event: Ints, asked: Ints) -> tuple[Ints, pd.DataFrame]:
    """Those of the waits asked for (positions) whose event was recorded before they began, and for each of them on
    which stream it was last recorded, and when."""
    api, events = trace["api"], trace["cuda_events"]
    call = match_rows(api, events)
    records = taken(events, call >= 0, ["process", "event", *_PLACE])
    records["recorded"] = api["start"].to_numpy()[call[call >= 0]]
    asking = pd.DataFrame({"process": waits["process"].to_numpy()[asked], "event": event[asked]})
    last = last_at(asking, waits["start"].to_numpy()[asked] - 1, records, "recorded", ["process", "event"])
    return asked[last >= 0], records.iloc[last[last >= 0]]


def last_awaited(trace: Trace, waits: pd.DataFrame, asked: Targets) -> pd.DataFrame:
    """What each wait waited for last.

    Args:
        trace: the recording.
        waits: start end (ns) process; `asked` says what they wait for.

    Returns:
        Per wait the table, the row and the end (ns) of a device's work; "", -1 and -`MOST_NS` if that had ended before.
    """
    first = np.cumsum([0, *(len(trace[name]) for name in DEVICE_TABLES)])  # of each table, one behind the other
    found, ended = np.full(len(waits), -1, dtype=np.int64), np.full(len(waits), -MOST_NS)
    start, end = waits["start"].to_numpy(), waits["end"].to_numpy()
    until = asked.table["until"].to_numpy()
    keys = asked.table[_PLACE].assign(process=waits["process"].to_numpy(), by_event=asked.of_event)[asked.known]
    asking, tables = np.flatnonzero(asked.known), [name for name in DEVICE_TABLES if len(trace[name])]
    for (process, *place, by_event), index in grouped(keys, ["process", *_PLACE, "by_event"]) if tables else ():
        here, at = {name: _at(trace[name], process, place) for name in tables}, asking[index]
        for names in (tables,) if by_event else zip(tables):
            rows = np.concatenate([first[DEVICE_TABLES.index(name)] + here[name] for name in names])
            ends = np.concatenate([trace[name]["end"].to_numpy()[here[name]] for name in names])
            if not len(rows):
                continue
            order = slice(None) if (ends[1:] >= ends[:-1]).all() else np.argsort(ends, kind="stable")
            rows, ends = rows[order], ends[order]
            last = np.searchsorted(ends, end[at], side="right") - 1
            if by_event:  # a stream completes its work in the order in which it was enqueued
                begun = np.concatenate([_issued(trace, trace[name].iloc[here[name]]) for name in names])
                issued = np.maximum.accumulate(begun[order])
                last = np.minimum(last, np.searchsorted(issued, until[at], side="left") - 1)
            waited = (last >= 0) & (ends[last] > start[at]) & (ends[last] >= ended[at])
            found[at[waited]], ended[at[waited]] = rows[last[waited]], ends[last[waited]]
    table = np.searchsorted(first, found, side="right") - 1
    return pd.DataFrame({
        "table": np.array([*DEVICE_TABLES, ""], dtype=object)[table],
        "row": np.where(found >= 0, found - first[table], -1),
        "end": ended,
    })  # fmt: skip


def _at(frame: pd.DataFrame, process: int, place: list[int]) -> Ints:
    """The rows of a process at a device, context and stream; MISSING stands for all of them."""
    chosen = frame["process"].to_numpy() == process
    for column, value in zip(_PLACE, place, strict=True):
        if value != MISSING:
            chosen &= frame[column].to_numpy() == value
    return np.flatnonzero(chosen)


def _issued(trace: Trace, activities: pd.DataFrame) -> Ints:
    """When each activity's call began; before everything else if the trace lacks that call."""
    call = match_rows(trace["api"], activities)
    return np.append(trace["api"]["start"].to_numpy(), np.iinfo(np.int64).min)[call]


def poll_loops(trace: Trace) -> pd.DataFrame:
    """Find polling loops: two or more queries by one thread, of the same stream or event, without another call between.

    If the trace records return values, a loop ends with the query that finds the work completed. A single query is not
    a wait. Neither are several queries that may refer to different events: allocators query which blocks they can
    reuse. If a trace has neither return values nor events, a loop needs at least `MANY` queries, and work of the
    process must end between the last two.

    Returns:
        Columns start (of the first query) end (of the last) process thread correlation name (both of the last) letter
        (`POLL`) and queries (their number), sorted by (process, thread, start).
    """
    api = trace["api"]
    queried = letters_of(api["name"]) == POLL
    if not queried.any():
        return taken(api, queried, _COLUMNS).assign(letter=POLL, queries=0)
    thread, count = groups_of(api, THREAD)
    polling = np.bincount(thread[queried], minlength=count) > 0
    calls = outer_calls(taken(api, polling[thread], [*_COLUMNS, "return_value"]))
    poll, returned = letters_of(calls["name"]) == POLL, calls["return_value"].to_numpy()
    event, stream = _asked(trace, calls)
    again = np.zeros(len(calls) + 1, dtype=bool)
    again[1:-1] = poll[1:] & poll[:-1] & (returned[:-1] != _ENDED)
    for values in (*(calls[c].to_numpy() for c in THREAD), calls["name"].cat.codes.to_numpy(), event, stream):
        again[1:-1] &= values[1:] == values[:-1]
    first, last = np.flatnonzero(poll & ~again[:-1]), np.flatnonzero(poll & ~again[1:])  # of each loop
    first, last = first[last > first], last[last > first]
    start, found = calls["start"].to_numpy(), calls[_COLUMNS].iloc[last]
    recorded = (event[last] != MISSING) | (stream[last] != MISSING) | (returned[last] != MISSING)
    ended = _work_ended(trace, found["process"].to_numpy(), start[last - 1], found["end"].to_numpy())
    found = found.assign(start=start[first], letter=POLL, queries=last - first + 1)
    return pd.DataFrame(found[recorded | ((last - first + 1 >= MANY) & ended)].reset_index(drop=True))


def _asked(trace: Trace, calls: pd.DataFrame) -> tuple[Ints, Ints]:
    """The event and the stream that each call queries, as far as the trace records them."""
    rows = match_rows(trace["syncs"], calls)
    event, stream = (np.append(trace["syncs"][c].to_numpy(), MISSING)[rows] for c in ("event", "stream"))
    return event, stream


def _work_ended(trace: Trace, process: Ints, since: Ints, until: Ints) -> NDArray[np.bool_]:
    """Whether work of these processes ended in these times, ns."""
    ended = np.zeros(len(process), dtype=bool)
    for one in np.unique(process):
        tables = (trace[name] for name in DEVICE_TABLES)
        ends = np.sort(np.concatenate([each["end"].to_numpy()[each["process"].to_numpy() == one] for each in tables]))
        ended |= (process == one) & (np.searchsorted(ends, until) > np.searchsorted(ends, since))
    return ended
