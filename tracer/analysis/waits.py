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

from tracer.analysis.calls import BLOCKING_COPY, POLL, letters_of, match_rows, outer_calls
from tracer.model.rows import grouped, taken
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
_THREAD: Final = ["process", "thread"]
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
        recorded = _last_record(trace, waits, place["event"], of_event)
        for column in _PLACE:
            place[column][recorded.index] = recorded[column]
        until[recorded.index] = recorded["recorded"]
        by_event[recorded.index] = True
    known = every | (place["stream"] != MISSING)
    return Targets(pd.DataFrame({name: place[name] for name in _PLACE} | {"until": until}), known, by_event)


def _named(names: pd.Series, chosen: NDArray[np.bool_], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which of the chosen calls have a name that contains the pattern; each distinct name is searched once."""
    found = np.zeros(len(names), bool)
    codes, words = pd.factorize(names[chosen])
    found[chosen] = np.array([pattern.search(str(word)) is not None for word in words], bool)[codes]
    return found


def _only_stream(trace: Trace, processes: NDArray[np.int64]) -> NDArray[np.int64]:
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


def _last_record(trace: Trace, waits: pd.DataFrame, event: NDArray[np.int64], asked: NDArray[np.int64]) -> pd.DataFrame:
    """On which stream the event of each wait asked for (positions) was last recorded before it began, and when; by
    position."""
    events = trace["cuda_events"]
    call = match_rows(trace["api"], events)
    events = events[["process", "event", *_PLACE]].assign(
        recorded=np.append(trace["api"]["start"].to_numpy(), MISSING)[call]
    )[call >= 0]
    asking = pd.DataFrame({
        "process": waits["process"].to_numpy()[asked], "event": event[asked],
        "start": waits["start"].to_numpy()[asked], "at": asked,
    })  # fmt: skip
    found = pd.merge_asof(
        asking.sort_values("start"), events.sort_values("recorded"),
        left_on="start", right_on="recorded", by=["process", "event"], allow_exact_matches=False,
    ).dropna(subset=["recorded"])  # fmt: skip
    return found.set_index("at")[[*_PLACE, "recorded"]].astype(np.int64)


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
    asking = np.flatnonzero(asked.known)
    for (process, *place, by_event), index in grouped(keys, ["process", *_PLACE, "by_event"]):
        here, at = {name: _at(trace[name], process, place) for name in DEVICE_TABLES}, asking[index]
        for names in (DEVICE_TABLES,) if by_event else zip(DEVICE_TABLES):
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


def _at(frame: pd.DataFrame, process: int, place: list[int]) -> NDArray[np.int64]:
    """The rows of a process at a device, context and stream; MISSING stands for all of them."""
    chosen = frame["process"].to_numpy() == process
    for column, value in zip(_PLACE, place, strict=True):
        if value != MISSING:
            chosen &= frame[column].to_numpy() == value
    return np.flatnonzero(chosen)


def _issued(trace: Trace, activities: pd.DataFrame) -> NDArray[np.int64]:
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
    threads = api.loc[queried, _THREAD].drop_duplicates()
    calls = outer_calls(api[[*_COLUMNS, "return_value"]].merge(threads, on=_THREAD))
    poll = letters_of(calls["name"]) == POLL
    event, stream = _asked(trace, calls)
    recorded = (event != MISSING) | (stream != MISSING) | (calls["return_value"] != MISSING).to_numpy()
    again = np.zeros(len(calls), dtype=bool)
    again[1:] = poll[1:] & poll[:-1] & (calls["return_value"].to_numpy()[:-1] != _ENDED)
    for values in (*(calls[c].to_numpy() for c in _THREAD), calls["name"].cat.codes.to_numpy(), event, stream):
        again[1:] &= values[1:] == values[:-1]
    last_start = calls["start"].shift(1, fill_value=0)
    queries = calls.assign(queries=1, recorded=recorded, before=last_start)[poll]
    loops = queries.groupby(np.cumsum(poll & ~again)[poll])
    of_last = dict.fromkeys([*_COLUMNS, "recorded", "before"], "last")
    found: pd.DataFrame = loops.agg(of_last | {"start": "first", "queries": "size"})
    sure = found["recorded"] | ((found["queries"] >= MANY) & _work_ended(trace, found))
    found = found[(found["queries"] > 1) & sure].assign(letter=POLL)
    return found[[*_COLUMNS, "letter", "queries"]].reset_index(drop=True)


def _asked(trace: Trace, calls: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The event and the stream that each call queries, as far as the trace records them."""
    rows = match_rows(trace["syncs"], calls)
    event, stream = (np.append(trace["syncs"][c].to_numpy(), MISSING)[rows] for c in ("event", "stream"))
    return event, stream


def _work_ended(trace: Trace, loops: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether work of the process ended between the start of the second-to-last query and the end of the last."""
    ended = np.zeros(len(loops), dtype=bool)
    for process in loops["process"].unique():
        ends = np.sort(
            np.concatenate([t.loc[t["process"] == process, "end"] for t in map(trace.__getitem__, DEVICE_TABLES)])
        )
        first, last = (np.searchsorted(ends, loops[column]) for column in ("before", "end"))
        ended |= (loops["process"] == process).to_numpy() & (last > first)
    return ended
