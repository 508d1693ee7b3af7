"""Host calls and device activities of a trace as one list, each with its lane: the thread or stream it runs on.

What waits for them: the activities that a host sync waits for, and those that a stream's wait for an event orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.analysis.calls import PlainCalls, captured, in_order, outermost
from tracer.model.calls import BEGIN_CAPTURE, END_CAPTURE, POLL, SYNC
from tracer.model.columns import (
    Caused,
    Columns,
    among,
    first_at,
    firsts,
    last_at,
    lasts,
    numbers,
    pairs,
    positions,
    spread,
)
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.tables import Activities, Syncs
from tracer.model.trace import Trace

STREAM_WAIT: Final = "stream wait"
_OF_EVENT: Final = "event"


class OuterCalls(PlainCalls):
    """The calls of each thread that are not inside another one, of any kind, by process, thread and start. The letter
    is that of the call, or else of the first call inside it that has one; "" if it was recorded into a graph or only
    queries. `row` is in the trace's calls."""

    row: Ints

    @cached_property
    def is_followed(self) -> Bools:
        """Which calls, except the last, have another one of their thread behind them."""
        return same_as_next(self.process) & same_as_next(self.thread)


class Work(Activities):
    """What ran on devices, by lane, start and end.

    Attributes:
        row: in its table.
        lane: the number of its stream.
        call: the position in `OuterCalls` of the call that issued it, or -1.
        issued: the start of that call, or else its own, ns.
    """

    row: Ints
    lane: Ints
    call: Ints
    issued: Ints

    @cached_property
    def is_followed(self) -> Bools:
        """Which activities, except the last, have another one of their stream behind them."""
        return same_as_next(self.lane)

    @cached_property
    def is_first(self) -> Bools:
        """Which are the first of their call on their stream."""
        key = self.lane * (int(self.call.max(initial=0)) + 1) + self.call
        first = np.append(True, key[1:] != key[:-1])[: len(key)] & (self.call >= 0)
        begins = key[first]
        if (begins[1:] <= begins[:-1]).any():  # two threads launch to a stream
            first[np.flatnonzero(first)] = ~_repeated(begins)
        return first

    @cached_property
    def is_beside(self) -> Bools:
        """Which were issued by a call that also issued activities on other streams."""
        if not len(self) or self.lane[0] == self.lane[-1]:
            return np.zeros(len(self), bool)
        count = int(self.call.max()) + 1
        known = self.call >= 0
        lowest, highest = (each(self.call[known], count, self.lane[known]) for each in (firsts, lasts))  # lanes ascend
        return known & np.append(lowest != highest, False)[self.call]


class Lanes(Columns):
    """The streams, by number."""

    process: Ints
    device: Ints
    context: Ints
    stream: Ints


class Asked(Columns):
    """The streams that calls wait for: the position of the call, the lane (MISSING for a stream without work), and the
    time before which the work was issued that it waits for, ns."""

    call: Ints
    lane: Ints
    until: Ints


class Awaited(Columns):
    """The activities that calls wait for: positions."""

    call: Ints
    activity: Ints


class Ordered(Columns):
    """The activities ordered by event waits between streams.

    Attributes:
        call: the position of the call that makes its stream wait.
        before: the position of the last activity before the record.
        after: that of the first one after the wait.
    """

    call: Ints
    before: Ints
    after: Ints


@dataclass(frozen=True, eq=False)
class Segments:
    """Calls and activities, the calls first; segment i starts at point 2 i and ends at point 2 i + 1.

    Attributes:
        trace: the recording.
        calls: its host calls.
        activities: what ran on its devices.
        outermost: for each of the trace's calls, the position in `calls` of the call that contains it.
    """

    trace: Trace
    calls: OuterCalls
    activities: Work
    outermost: Ints

    @classmethod
    def of(cls, trace: Trace) -> Segments:
        """The segments of a trace."""
        calls, outermost = outermost_calls(trace)
        return cls(trace, calls, _work(trace, calls, outermost), outermost)

    def calls_of(self, rows: Caused) -> Ints:
        """For rows with process and correlation, the position of the call that they belong to, or -1."""
        return spread(self.outermost, self.trace.api.of(rows), MISSING)

    def __len__(self) -> int:
        return len(self.calls) + len(self.activities)

    def times(self) -> Ints:
        """The time of every point, ns."""
        times = np.empty(2 * len(self), np.int64)
        times[0::2] = np.concatenate([self.calls.start, self.activities.start])
        times[1::2] = np.concatenate([self.calls.end, self.activities.end])
        return times

    def starts(self, activities: Ints) -> Ints:
        """The points at which the activities at these positions start; each ends at the following point."""
        return np.asarray(2 * (activities + len(self.calls)), dtype=np.int64)

    @cached_property
    def lanes(self) -> Lanes:
        """The streams."""
        work = self.activities
        first = np.append(0, np.flatnonzero(~work.is_followed) + 1)[: len(work)]
        return Lanes(work.process[first], work.device[first], work.context[first], work.stream[first])

    def lanes_of(self, rows: Syncs | Lanes) -> Ints:
        """The lane of each row, MISSING for a stream without work."""
        keys = [[each.process, each.device, each.context, each.stream] for each in (rows, self.lanes)]
        return positions(*keys)

    def issued_before(self, lane: Ints, until: Ints) -> Ints:
        """The last activity of each lane that was issued before a time (ns), or -1."""
        return last_at([lane], until - 1, [self.activities.lane], self.activities.issued)

    def issued_after(self, lane: Ints, until: Ints) -> Ints:
        """The first activity of each lane that was issued after a time (ns), or -1."""
        return first_at([lane], until + 1, [self.activities.lane], self.activities.issued)

    def awaited(self) -> Awaited:
        """The activity that each host sync waits for: the last one issued to its stream before it.

        A sync of a context waits for all its streams, a sync of an event for the work issued to its stream before the
        record. If the trace has no information on a sync, it is taken to wait for the last activity of its process that
        ended before it did: that activity may have ended earlier, but if it ends later in a what-if, the sync waits for
        it. A sync that has nothing to wait for has no row.
        """
        asked = self.asked
        activity = self.issued_before(asked.lane, asked.until)
        is_untold = self.calls.letter == SYNC
        is_untold[asked.call] = False
        alone, work = np.flatnonzero(is_untold), self.activities
        ended = last_at([self.calls.process[alone]], self.calls.end[alone], [work.process], work.end)
        awaited = Awaited(np.append(asked.call, alone), np.append(activity, ended))
        return awaited[awaited.activity >= 0]

    @cached_property
    def asked(self) -> Asked:
        """The streams that each host sync waits for, if the trace shows them, by the time until which they count."""
        syncs = self.trace.syncs
        call = self.calls_of(syncs)
        waits = (call >= 0) & ~syncs.type.rows(STREAM_WAIT)
        of_event = waits & syncs.type.rows(_OF_EVENT)
        of_context = waits & ~of_event & (syncs.stream == MISSING)
        of_stream = waits & ~of_event & ~of_context
        parts = [(call[of_stream], self.lanes_of(syncs[of_stream]), self.calls.start[call[of_stream]])]
        if of_context.any():
            mine, theirs = ([each.process, each.device, each.context] for each in (syncs[of_context], self.lanes))
            sync, lane = pairs(mine, theirs)
            caller = call[of_context][sync]
            parts.append((caller, lane, self.calls.start[caller]))
        if of_event.any():
            parts.append(self._recorded(syncs[of_event], call[of_event]))
        asked = Asked(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return asked[np.argsort(asked.until, kind="stable")]

    @cached_property
    def ordered(self) -> Ordered:
        """The order between streams that their waits for events make."""
        syncs = self.trace.syncs
        call = self.calls_of(syncs)
        chosen = (call >= 0) & syncs.type.rows(STREAM_WAIT)
        if not chosen.any() or not len(self.activities):
            return Ordered(*(np.zeros(0, np.int64) for _ in range(3)))
        waits, call = syncs[chosen], call[chosen]
        of_record, lane, until = self._recorded(waits, call)
        before = self.issued_before(lane, until)
        after = self.issued_after(self.lanes_of(waits), self.calls.start[call])
        of_record, before = of_record[before >= 0], before[before >= 0]
        call, after = call[after >= 0], after[after >= 0]
        first, second = pairs([of_record], [call])
        return Ordered(of_record[first], before[first], after[second])

    def _recorded(self, waits: Syncs, call: Ints) -> tuple[Ints, Ints, Ints]:
        """Those of the calls that wait for an event that was recorded before; the lane and the time of the last record,
        by the time of the wait."""
        events = self.trace.cuda_events
        recording = self.calls_of(events)
        events, recording = events[recording >= 0], recording[recording >= 0]
        recorded, begun = self.calls.start[recording], self.calls.start[call]
        order = np.argsort(begun, kind="stable")
        waits, call, begun = waits[order], call[order], begun[order]
        last = last_at([waits.process, waits.event], begun - 1, [events.process, events.event], recorded)
        records = events[last[last >= 0]]
        lanes = self.lanes_of(Lanes(records.process, records.device, records.context, records.stream))
        return call[last >= 0], lanes, recorded[last[last >= 0]]


def outermost_calls(trace: Trace) -> tuple[OuterCalls, Ints]:
    """The calls of a trace that are not inside another one; and for each of all its calls, the position of the call
    that contains it."""
    api = trace.api
    rows = in_order(trace, np.ones(len(api), bool))
    letters, is_outer = api.letter[rows], outermost(api, rows)
    letters[captured(api, rows) | among(letters, [BEGIN_CAPTURE, END_CAPTURE, POLL])] = ""
    position = np.cumsum(is_outer) - 1
    letter = letters[is_outer]
    lettered = np.flatnonzero(letters != "")[::-1]
    letter[position[lettered]] = letters[lettered]  # of several letters the first one, which is assigned last
    inside = np.empty(len(rows), np.int64)
    inside[rows] = position
    rows = rows[is_outer]
    return OuterCalls.from_table(api[rows], letter=letter, row=rows), inside


def _work(trace: Trace, calls: OuterCalls, outermost: Ints) -> Work:
    """What ran on the devices, each with the call that issued it."""
    ran = trace.activities()
    call = spread(outermost, trace.api.of(ran), MISSING)
    row = np.empty(len(ran), np.int64)
    for table in range(len(DEVICE_TABLES)):
        of_table = ran.table == table
        row[of_table] = np.arange(np.count_nonzero(of_table))
    lane, _ = numbers(ran.process, ran.device, ran.context, ran.stream)
    issued = np.where(call >= 0, np.append(calls.start, 0)[call], ran.start)
    order = np.lexsort((ran.end, ran.start, lane))
    return Work.from_table(ran, row=row, lane=lane, call=call, issued=issued)[order]


def same_as_next(values: Ints) -> Bools:
    """Which values, except the last, are those of the next row."""
    return np.asarray(values[1:] == values[:-1])


def _repeated(values: Ints) -> Bools:
    """Which values occurred before."""
    repeated = np.ones(len(values), bool)
    repeated[np.unique(values, return_index=True)[1]] = False
    return repeated
