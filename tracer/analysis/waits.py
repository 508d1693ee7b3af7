"""The work that a host sync, blocking copy or polling loop waits for, and the polling loops.

A host that repeatedly queries whether work has completed waits for it, as in a sync.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import Calls, PlainCalls, outer_rows
from tracer.model.calls import BLOCKING_COPY, POLL
from tracer.model.columns import NEVER, Columns, Names, grouped, last_at, numbers, several, spread
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import DEVICE_TABLES, MISSING, MOST_NS
from tracer.model.trace import Trace

UNKNOWN: Final = "unknown"
"""Placeholder for the target of a wait that the trace does not name."""

_ON_EVERY_STREAM: Final = re.compile(r"(?:Device|Ctx|Thread)Synchronize")
_ON_A_STREAM: Final = re.compile(r"stream(?:Synchronize|Query)", re.IGNORECASE)
MANY: Final = 3
"""Minimum number of queries in a loop whose results are unknown; two may be an allocator that queries two events."""

_ENDED: Final = 0  # what a query returns once the work has completed; cudaErrorNotReady and hipErrorNotReady are 600


class Targets(Columns):
    """The targets of waiting calls, one per call.

    Attributes:
        device, context, stream: MISSING: any of the process.
        until: only work enqueued before then, ns.
        known: whether the trace says; otherwise the row has no meaning.
        of_event: whether `until` is when an event was recorded, rather than when the call began.
    """

    device: Ints
    context: Ints
    stream: Ints
    until: Ints
    known: Bools
    of_event: Bools


class Awaited(Columns):
    """What waits waited for last.

    Attributes:
        table: its position in `DEVICE_TABLES`, or -1 if it had ended before.
        row: in that table, or -1.
        end: ns, or -`MOST_NS`.
    """

    table: Ints
    row: Ints
    end: Ints


class Polls(Calls):
    """Polling loops: start of the first query, the other columns of the last; `queries` is their number."""

    queries: Ints


def targets(trace: Trace, waits: PlainCalls) -> Targets:
    """Determine the target of each waiting call.

    A stream sync waits for that stream, a device or context sync for all its streams, an event sync for the work issued
    to the event's stream before the event was last recorded, and a blocking copy for its stream. If the trace has no
    row for the sync (Kineto without `cuda_sync`, HIP), only a device sync is known by its name, and a stream sync if
    its process uses no other stream.
    """
    syncs, copies = trace.syncs, trace.memcpys
    rows, words = syncs.of(waits), syncs.type.words.tolist()
    of_type = {str(word): code for code, word in enumerate(words)}
    kinds = spread(syncs.type.codes, rows, of_type[UNKNOWN])
    device, context, stream, event = (
        spread(column, rows, MISSING) for column in (syncs.device, syncs.context, syncs.stream, syncs.event)
    )
    is_copy = waits.letter == BLOCKING_COPY
    if is_copy.any():
        own = copies.of(waits)
        has_row = is_copy & (own >= 0)
        for column, values in ((device, copies.device), (context, copies.context), (stream, copies.stream)):
            column[has_row] = values[own[has_row]]
    every, silent = kinds == of_type["context"], (kinds == of_type[UNKNOWN]) & ~is_copy
    if silent.any():
        every |= silent & waits.name.chosen(_ON_EVERY_STREAM.search)
        alone = silent & waits.name.chosen(_ON_A_STREAM.search)
        stream[every] = MISSING
        stream[alone] = _only_stream(trace, waits.process[alone])
    else:
        stream[every] = MISSING
    until, by_event = waits.start.copy(), np.zeros(len(waits), bool)
    of_event = np.flatnonzero((kinds == of_type["event"]) & (event != MISSING))
    if len(of_event) and len(trace.cuda_events):
        recorded, record, when = _last_record(trace, waits, event, of_event)
        events = trace.cuda_events
        device[recorded], context[recorded], stream[recorded] = (
            each[record] for each in (events.device, events.context, events.stream)
        )
        until[recorded], by_event[recorded] = when, True
    return Targets(device, context, stream, until, every | (stream != MISSING), by_event)


def _only_stream(trace: Trace, processes: Ints) -> Ints:
    """The stream of each process that uses only one, else MISSING."""
    streams = np.full(len(processes), MISSING)
    for (process,), rows in grouped(processes):
        streams[rows] = _stream_of(trace, process)
    return streams


def _stream_of(trace: Trace, process: int) -> int:
    places = set()
    for name in DEVICE_TABLES:
        table: Any = trace.table(name)
        mine = table.process == process
        values = [column[mine] for column in (table.device, table.context, table.stream)]
        if several(*values):
            return MISSING
        places.update([tuple(int(each[0]) for each in values)] if mine.any() else [])
    return places.pop()[-1] if len(places) == 1 else MISSING


def _last_record(trace: Trace, waits: PlainCalls, event: Ints, asked: Ints) -> tuple[Ints, Ints, Ints]:
    """Those of the waits asked for (positions) whose event was recorded before they began, and for each of them the row
    of the last record and when it was made, ns."""
    call = trace.api.of(trace.cuda_events)
    rows = np.flatnonzero(call >= 0)
    records, recorded = trace.cuda_events[rows], trace.api.start[call[rows]]
    wanted = [waits.process[asked], event[asked]]
    last = last_at(wanted, waits.start[asked] - 1, [records.process, records.event], recorded)
    known = last >= 0
    return asked[known], rows[last[known]], recorded[last[known]]


def last_awaited(trace: Trace, waits: PlainCalls, asked: Targets, end: Ints | None = None) -> Awaited:
    """What each wait waited for last: the last work of its target that ended in it.

    Args:
        end: when each returned, if not when it ended, ns.
    """
    tables: list[Any] = [trace.table(name) for name in DEVICE_TABLES]
    first = np.cumsum([0, *map(len, tables)])  # of each table, one behind the other
    latest, ended = np.full(len(waits), -1, dtype=np.int64), np.full(len(waits), -MOST_NS)
    end = waits.end if end is None else end
    asking, filled = np.flatnonzero(asked.known), [number for number, table in enumerate(tables) if len(table)]
    keys = (waits.process, asked.device, asked.context, asked.stream, asked.of_event)
    for (process, *place, by_event), index in grouped(*(key[asking] for key in keys)) if filled else ():
        here, at = {number: _at(tables[number], process, place) for number in filled}, asking[index]
        for numbers_ in (filled,) if by_event else ([number] for number in filled):
            rows = np.concatenate([first[number] + here[number] for number in numbers_])
            ends = np.concatenate([tables[number].end[here[number]] for number in numbers_])
            if not len(rows):
                continue
            order = slice(None) if (ends[1:] >= ends[:-1]).all() else np.argsort(ends, kind="stable")
            rows, ends = rows[order], ends[order]
            last = np.searchsorted(ends, end[at], side="right") - 1
            if by_event:  # a stream completes its work in the order in which it was enqueued
                begun = np.concatenate([_issued(trace, tables[number][here[number]]) for number in numbers_])
                issued = np.maximum.accumulate(begun[order])
                last = np.minimum(last, np.searchsorted(issued, asked.until[at], side="left") - 1)
            waited = (last >= 0) & (ends[last] > waits.start[at]) & (ends[last] >= ended[at])
            latest[at[waited]], ended[at[waited]] = rows[last[waited]], ends[last[waited]]
    table = np.where(latest >= 0, np.searchsorted(first, latest, side="right") - 1, -1)
    return Awaited(table, np.where(latest >= 0, latest - first[table], -1), ended)


def _at(table: Any, process: int, place: Sequence[int]) -> Ints:
    """The rows of a process at a device, context and stream; MISSING stands for all of them."""
    chosen = table.process == process
    for column, value in zip((table.device, table.context, table.stream), place, strict=True):
        if value != MISSING:
            chosen &= column == value
    return np.flatnonzero(chosen)


def _issued(trace: Trace, activities: Any) -> Ints:
    """When each activity's call began; before everything else if the trace lacks that call."""
    return spread(trace.api.start, trace.api.of(activities), -NEVER)


def poll_loops(trace: Trace) -> Polls:
    """Find polling loops: two or more queries by one thread, of the same stream or event, without another call between,
    of which a row may be several; sorted by (process, thread, start).

    If the trace records return values, a loop ends with the query that finds the work completed. A single query is not
    a wait. Neither are several queries that may refer to different events: allocators query which blocks they can
    reuse. If a trace has neither return values nor events, a loop needs at least `MANY` queries, and work of the
    process must end between the last two.
    """
    api = trace.api
    queried = api.letter == POLL
    if not queried.any():
        return _loops(trace, queried[:0].nonzero()[0], queried[:0].nonzero()[0])
    thread, count = numbers(api.process, api.thread)
    rows = outer_rows(trace, (np.bincount(thread[queried], minlength=count) > 0)[thread])
    calls, poll = api[rows], queried[rows]
    asked = trace.syncs.of(calls)
    event, stream = spread(trace.syncs.event, asked, MISSING), spread(trace.syncs.stream, asked, MISSING)
    again = np.zeros(len(rows) + 1, dtype=bool)
    again[1:-1] = poll[1:] & poll[:-1] & (calls.return_value[:-1] != _ENDED)
    for values in (calls.process, calls.thread, calls.name.codes, event, stream):
        again[1:-1] &= values[1:] == values[:-1]
    first, last = np.flatnonzero(poll & ~again[:-1]), np.flatnonzero(poll & ~again[1:])  # of each loop
    made = np.append(0, np.cumsum(np.maximum(calls.count, 1)))  # queries before each row
    several_ = made[last + 1] - made[first] > 1
    first, last = first[several_], last[several_]
    recorded = (event[last] != MISSING) | (stream[last] != MISSING) | (calls.return_value[last] != MISSING)
    ended = _work_ended(trace, calls.process[last], calls.start[np.maximum(last - 1, first)], calls.end[last])
    queries = made[last + 1] - made[first]
    kept = recorded | ((queries >= MANY) & ended)
    return _loops(trace, rows[first[kept]], rows[last[kept]], queries[kept])


def _loops(trace: Trace, first: Ints, last: Ints, queries: Ints | None = None) -> Polls:
    """The loops between these rows of `trace.api`."""
    nothing = Names(np.zeros(len(last), np.int64), np.array([""], dtype=object))
    return Polls.from_table(
        trace.api[last], start=trace.api.start[first], letter=np.full(len(last), POLL),
        stream=np.full(len(last), MISSING), kind=nothing, queries=last if queries is None else queries,
    )  # fmt: skip


def _work_ended(trace: Trace, process: Ints, since: Ints, until: Ints) -> Bools:
    """Whether work of these processes ended in these times, ns."""
    ended = np.zeros(len(process), dtype=bool)
    for (one,), rows in grouped(process):
        tables: list[Any] = [trace.table(name) for name in DEVICE_TABLES]
        ends = np.sort(np.concatenate([each.end[each.process == one] for each in tables]))
        ended[rows] = np.searchsorted(ends, until[rows]) > np.searchsorted(ends, since[rows])
    return ended
