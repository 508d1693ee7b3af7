"""Happens-before over streams, events, graphs, waits and host threads; the clashes that it leaves, and what each wait
orders.

A *lane* is what runs in order by itself: a stream, a branch of a graph, or a host thread. An operation is before
another one if it is earlier in its lane or if a chain of lanes and edges leads from it to the other (Lamport, CACM
21(7), 1978). For each operation a vector clock (Fidge 1988, Mattern 1989) has the number of operations of each lane
that are before it. It only changes where an edge arrives, so that only these operations have a clock of their own.

Of each lane, the operations before a given one are its first ones. Those issued earlier than it and not before it are
therefore neighbours in their lane, and so are those that only a certain wait puts before it. A binary search finds them
among the accesses to bytes that overlap: no pair of accesses that are in order is ever looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.model.columns import Columns, ranks, within
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING

Clocks = NDArray[np.int32]

GIVEN, WAIT = range(2)
"""The kinds of edges: given with the program (issue, the inside of a graph, the driver's reuse of memory), or made by a
call that waits, which could be dropped."""

_AT_ONCE: Final = 1 << 21  # searches, which take 50 bytes each


class Edges(Columns):
    """Operations that run before others: the positions of both, the source's being lower; and the kind (`WAIT`)."""

    source: Ints
    target: Ints
    kind: Ints


class Accesses(Columns):
    """What operations read and write.

    Attributes:
        operation: its position.
        buffer: the number of the memory that the addresses are of; of all of it, if addresses are unique.
        start, end: the bytes [start, end).
        writes: whether it writes them.
        by_host: whether a processor of the host accesses them, in a host thread or in a host function of a stream.
        guessed: whether it may access them, as a kernel may with the memory that its parameters point to. A clash with
            such an access is a candidate.
    """

    operation: Ints
    buffer: Ints
    start: Ints
    end: Ints
    writes: Bools
    by_host: Bools
    guessed: Bools


class Clashes(Columns):
    """Pairs of accesses, by their positions, to common bytes that at least one writes; `first` is issued first."""

    first: Ints
    second: Ints


class Verdicts(Columns):
    """What waits are for; accesses by their positions.

    Attributes:
        wait: the operation that waits.
        lost: number of pairs of clashing accesses that nothing else orders; if any, the wait is needed.
        first, second: the nearest of these pairs. Else the nearest of what it waits for, unless that was known to be
            done, and what is behind it; if all was known, of that. MISSING if none clash.
        instead: the other wait that orders them too; MISSING if there is none, or if no wait is necessary for that.
    """

    wait: Ints
    lost: Ints
    first: Ints
    second: Ints
    instead: Ints


@dataclass(frozen=True, eq=False)
class Order:
    """The order of operations, which are numbered as they are issued.

    Attributes:
        lane: of each operation, numbered from 0.
        edges: all edges beyond the order of each lane, in any order.
    """

    lane: Ints
    edges: Edges

    @cached_property
    def lanes(self) -> int:
        """The number of lanes, at least 1."""
        return int(self.lane.max(initial=0)) + 1

    @cached_property
    def place(self) -> Ints:
        """The number of earlier operations in the lane of each."""
        return within(self.lane) if len(self.lane) else self.lane

    @cached_property
    def _arriving(self) -> Edges:
        """The edges, by target."""
        return self.edges[np.argsort(self.edges.target, kind="stable")]

    @cached_property
    def _joins(self) -> Ints:
        """The operations where edges arrive."""
        return np.unique(self._arriving.target)

    @cached_property
    def _last_join(self) -> Ints:
        """For each operation, 1 + the number of the last join in its lane up to itself, or 0."""
        joined = np.zeros(len(self.lane), np.int64)
        joined[self._joins] = np.arange(1, len(self._joins) + 1)
        order, size = np.argsort(self.lane, kind="stable"), len(self._joins) + 1
        latest = np.maximum.accumulate(joined[order] + self.lane[order] * size) if len(order) else joined
        last = np.empty(len(order), np.int64)
        last[order] = latest - self.lane[order] * size
        return last

    @cached_property
    def _given(self) -> _Arrivals:
        """What each join is made of."""
        edges, joins, last = self._arriving, self._joins, self._last_join
        first = np.searchsorted(edges.target, np.append(joins, len(self.lane))).tolist()
        order = np.argsort(self.lane[joins], kind="stable")
        follows = self.lane[joins[order]][1:] == self.lane[joins[order]][:-1]
        before = np.zeros(len(joins), np.int64)
        before[order[1:][follows]] = order[:-1][follows] + 1
        source = edges.source
        return _Arrivals(
            first, before.tolist(), last[source].tolist(), self.lane[source].tolist(),
            (self.place[source] + 1).tolist(), (edges.kind == WAIT).tolist(),
        )  # fmt: skip

    @cached_property
    def _clocks(self) -> Clocks:
        """Row 0 is empty, row 1 + k is the clock at the k-th join; the entry of its own lane is not kept."""
        clocks = np.zeros((len(self._joins) + 1, self.lanes), np.int32)
        for k in range(len(self._joins)):
            self._given.fill(clocks[k + 1], k, clocks)
        return clocks

    def before(self, first: Ints, second: Ints) -> Bools:
        """Whether each first operation is before the second one."""
        lane, place = self.lane[first], self.place[first]
        known = self._clocks[self._last_join[second], lane]
        return np.where(lane == self.lane[second], place < self.place[second], place < known)

    def clashes(self, accesses: Accesses) -> Clashes:
        """All clashes without an order, by the operation of the second access, then of the first."""
        found = _Overlaps(self, accesses)
        rows = np.arange(len(accesses))
        clocks = self._last_join[accesses.operation]
        return found.pairs(rows, self._clocks, clocks)

    def verdicts(self, accesses: Accesses, waits: Iterable[int] | None = None) -> Verdicts:
        """What each wait orders, if only this one were dropped: of two that order the same accesses, either is not
        needed as long as the other stays.

        Args:
            waits: the operations; None for all that have edges of the kind `WAIT`.
        """
        arriving = self._arriving
        chosen = np.unique(arriving.target[arriving.kind == WAIT]) if waits is None else np.array([*waits], np.int64)
        found = _Overlaps(self, accesses)
        rows = [self._verdict(wait, found) for wait in chosen.tolist()]
        return Verdicts(*np.array(rows, np.int64).reshape(-1, 5).T)

    def lost(self, accesses: Accesses, wait: int) -> Clashes:
        """The clashes that would have no order without this wait, and have one with it."""
        return self._lost(_Overlaps(self, accesses), self._without(wait))

    def _lost(self, found: _Overlaps, fewer: dict[int, Clocks]) -> Clashes:
        joins = np.array(sorted(fewer), np.int64)
        less = np.stack([fewer[join] for join in joins.tolist()]) if len(joins) else self._clocks[:0]
        begins, sizes = found.first_of[joins], found.first_of[joins + 1] - found.first_of[joins]
        which = np.repeat(np.arange(len(joins)), sizes)
        return found.pairs(found.by_join[_ranges(begins, sizes)], less, which, self._clocks[joins])

    def _verdict(self, wait: int, found: _Overlaps) -> tuple[int, int, int, int, int]:
        fewer = self._without(wait)
        if len(lost := self._lost(found, fewer)):
            return wait, len(lost), *_nearest(lost, found.accesses), MISSING
        pair = self._nearest_ordered(wait, found, fewer)
        if pair is None:
            return wait, 0, MISSING, MISSING, MISSING
        operations = found.accesses.operation
        return wait, 0, *pair, self._instead(int(operations[pair[0]]), int(operations[pair[1]]), wait, fewer)

    def _without(self, wait: int) -> dict[int, Clocks]:
        """The clocks (by row) that are smaller without a wait, as they are then."""
        place = int(np.searchsorted(self._joins, wait))
        changed: dict[int, Clocks] = {}
        if place == len(self._joins) or self._joins[place] != wait:
            return changed
        last, k = place, place
        while k < len(self._joins) and k <= last:
            if k == place or self._given.reads(k, changed):
                row = np.zeros(self.lanes, np.int32)
                self._given.fill(row, k, self._clocks, changed, dropped=k == place)
                own = self.lane[self._joins[k]]
                now = self._clocks[k + 1]
                row[own] = now[own]
                if (row != now).any():
                    changed[k + 1] = row
                    last = max(last, self._readers[k + 1])
            k += 1
        return changed

    @cached_property
    def _readers(self) -> Sequence[int]:
        """For each row of the clocks, the last join that is made of it."""
        last = np.zeros(len(self._joins) + 1, np.int64)
        given = self._given
        target = np.repeat(np.arange(len(self._joins)), np.diff(given.first))
        np.maximum.at(last, np.array(given.source, np.int64), target)
        np.maximum.at(last, np.array(given.before, np.int64), np.arange(len(self._joins)))
        return last.tolist()

    def _nearest_ordered(self, wait: int, found: _Overlaps, fewer: dict[int, Clocks]) -> tuple[int, int] | None:
        """The nearest accesses of two lanes that clash, the first of what is waited for, the second behind the wait."""
        edges, none = self._arriving, np.zeros(self.lanes, np.int32)
        sources = edges.source[(edges.target == wait) & (edges.kind == WAIT)]
        known = self._clocks[self._last_join[sources]].max(axis=0, initial=0)
        np.maximum.at(known, self.lane[sources], (self.place[sources] + 1).astype(np.int32))
        operations = found.accesses.operation
        later = np.flatnonzero((operations == wait) | self.before(np.full(len(operations), wait), operations))
        later = later[np.argsort(operations[later], kind="stable")]
        low = fewer.get(int(self._last_join[wait]), none).copy()
        low[self.lane[wait]] = known[self.lane[wait]]  # its own lane needs no wait
        at = 0
        for size in (64, 1024, len(later)):
            rows = later[at : at + size]
            pairs = found.pairs(rows, low[None], np.zeros(len(rows), np.int64), known[None])
            if len(pairs):
                return _nearest(pairs, found.accesses)
            at += size
        return None

    def _instead(self, first: int, second: int, without: int, fewer: dict[int, Clocks]) -> int:
        """The last wait on a way from one operation to another that is not this one; MISSING if there is none."""
        lane, place, given = int(self.lane[first]), int(self.place[first]), self._given

        def known(row: int) -> int:
            return int(fewer.get(row, self._clocks[row])[lane])

        row, end = int(self._last_join[second]), int(self.lane[second])
        while row and end != lane:
            while known(given.before[row - 1]) > place:
                row = given.before[row - 1]
            join = int(self._joins[row - 1])
            for edge in range(given.first[row - 1], given.first[row]):
                waits = given.waits[edge]
                if waits and join == without:
                    continue
                direct = given.lane[edge] == lane and given.reached[edge] > place
                if direct or known(given.source[edge]) > place:
                    if waits:
                        return join
                    row, end = given.source[edge], given.lane[edge]
                    break
            else:
                return MISSING
        return MISSING


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """The edges of each join, as lists.

    Attributes:
        first: of each join, the position of its first edge; and the number of edges.
        before: the row of the clock before it in its lane.
        source, lane, reached, waits: of each edge, the row of its source's clock, the source's lane and 1 + its place
            there, and whether it is a wait.
    """

    first: list[int]
    before: list[int]
    source: list[int]
    lane: list[int]
    reached: list[int]
    waits: list[bool]

    def fill(
        self, row: Clocks, join: int, clocks: Clocks, changed: dict[int, Clocks] | None = None, dropped: bool = False
    ) -> None:
        """Write the clock of a join, from the clocks of others of which some have changed, perhaps without its
        waits."""
        changed = changed or {}
        row[:] = changed.get(self.before[join], clocks[self.before[join]])
        for edge in range(self.first[join], self.first[join + 1]):
            if dropped and self.waits[edge]:
                continue
            np.maximum(row, changed.get(self.source[edge], clocks[self.source[edge]]), out=row)
            if row[self.lane[edge]] < self.reached[edge]:
                row[self.lane[edge]] = self.reached[edge]

    def reads(self, join: int, changed: dict[int, Clocks]) -> bool:
        """Whether a join is made of any of these clocks."""
        edges = range(self.first[join], self.first[join + 1])
        return self.before[join] in changed or any(self.source[edge] in changed for edge in edges)


class _Overlaps:
    """Finds the accesses that clash with given ones, between two clocks.

    Attributes:
        by_join, first_of: the accesses by the clock that they share, and where those of each clock begin.
    """

    def __init__(self, order: Order, accesses: Accesses) -> None:
        self.accesses, self._order = accesses, order
        clock = order._last_join[accesses.operation]
        self.by_join = np.argsort(clock, kind="stable")
        self.first_of = np.searchsorted(clock[self.by_join], np.arange(len(order._joins) + 2))
        self._span, self._near, self._nearby = _overlapping(accesses)
        self._wrote, self._read = (self._table(rows) for rows in (accesses.writes, ~accesses.writes))

    def _table(self, chosen: Bools) -> _Table:
        order, accesses = self._order, self.accesses
        lane = order.lane[accesses.operation]
        rows = np.flatnonzero(chosen & (accesses.end > accesses.start))
        rows = rows[np.lexsort((accesses.operation[rows], lane[rows], self._span[rows]))]
        begins = np.append(True, (np.diff(self._span[rows]) != 0) | (np.diff(lane[rows]) != 0))[: len(rows)]
        group = np.cumsum(begins) - 1
        span, of_group = self._span[rows[begins]], lane[rows[begins]]
        first = np.searchsorted(span, np.arange(len(self._near)))  # groups are sorted by span
        sizes = np.searchsorted(span, np.arange(len(self._near)), side="right") - first
        # for each span, the groups of all spans that overlap it
        counts = sizes[self._nearby]
        groups = _ranges(first[self._nearby], counts)
        until = np.append(0, np.cumsum(counts))[np.append(0, np.cumsum(self._near))]
        size = len(order.lane) + 1
        return _Table(
            rows, of_group, until, groups, group * size + order.place[accesses.operation[rows]],
            group * size + accesses.operation[rows], size,
        )  # fmt: skip

    def pairs(self, rows: Ints, low: Clocks, which: Ints, high: Clocks | None = None) -> Clashes:
        """The clashes of these accesses with those of other lanes that the clock `high` has and the clock `low` has
        not.

        Args:
            which: for each access, its row of `low` and `high`.
            high: None for all that were issued before the access.
        """
        found = []
        for table, asking in ((self._wrote, slice(None)), (self._read, self.accesses.writes[rows])):
            found += table.pairs(self, rows[asking], low, which[asking], high)
        first = np.concatenate([each[0] for each in found]) if found else rows[:0]
        second = np.concatenate([each[1] for each in found]) if found else rows[:0]
        operation = self.accesses.operation
        order = np.lexsort((second, first, operation[first], operation[second]))
        return Clashes(first[order], second[order])

    def asked(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """The bytes, the lane and the operation of accesses."""
        operation = self.accesses.operation[rows]
        return self._span[rows], self._order.lane[operation], operation


@dataclass(frozen=True, slots=True)
class _Table:
    """Accesses by bytes and lane, a group each, in the order of their lane.

    Attributes:
        rows: the accesses.
        lane: of each group.
        until, groups: for each span of bytes, where its part of `groups` begins, the groups that overlap it.
        at_place, at_issue: of each access, (group, place in its lane) and (group, operation), each as one number:
            group * size + number.
    """

    rows: Ints
    lane: Ints
    until: Ints
    groups: Ints
    at_place: Ints
    at_issue: Ints
    size: int

    def pairs(
        self, found: _Overlaps, rows: Ints, low: Clocks, which: Ints, high: Clocks | None
    ) -> list[tuple[Ints, Ints]]:
        """See `_Overlaps.pairs`."""
        span, lane, issued = found.asked(rows)
        counts = self.until[span + 1] - self.until[span]
        done, parts = np.append(0, np.cumsum(counts)), []
        cuts = np.searchsorted(done, np.arange(_AT_ONCE, int(done[-1]), _AT_ONCE))
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            asking = np.repeat(np.arange(a, b), counts[a:b])
            group = self.groups[_ranges(self.until[span[a:b]], counts[a:b])]
            other = self.lane[group] != lane[asking]
            asking, group = asking[other], group[other]
            base, of_lane = group * self.size, self.lane[group]
            left = np.searchsorted(self.at_place, base + low[which[asking], of_lane])
            if high is None:
                right = np.searchsorted(self.at_issue, base + issued[asking])
            else:
                right = np.searchsorted(self.at_place, base + high[which[asking], of_lane])
            sizes = np.maximum(right - left, 0)
            parts.append((self.rows[_ranges(left, sizes)], rows[np.repeat(asking, sizes)]))
        return parts


def _overlapping(accesses: Accesses) -> tuple[Ints, Ints, Ints]:
    """Number the distinct spans of bytes. For each access its number; for each number how many others overlap it, and
    these, one behind the other. Empty spans overlap nothing."""
    number = ranks(accesses.buffer, accesses.start, accesses.end)
    count = int(number.max(initial=-1)) + 1
    buffer, start, end = np.empty((3, count), np.int64)
    buffer[number], start[number], end[number] = accesses.buffer, accesses.start, accesses.end
    edges = ranks(np.append(buffer, buffer), np.append(start, end))
    # in this order, those that begin inside a span follow it directly
    until = np.searchsorted(edges[:count], edges[count:])
    sizes = np.where(end > start, until - np.arange(count) - 1, 0)
    one, other = np.repeat(np.arange(count), sizes), _ranges(np.arange(count) + 1, sizes)
    filled = end[other] > start[other]
    one, other = one[filled], other[filled]
    itself = np.flatnonzero(end > start)
    mine, theirs = np.concatenate([one, other, itself]), np.concatenate([other, one, itself])
    return number, np.bincount(mine, minlength=count), theirs[np.argsort(mine, kind="stable")]


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """The numbers first, first + 1, ... of each range, one range behind the other."""
    done = np.cumsum(sizes)
    return np.arange(int(done[-1]) if len(done) else 0) + np.repeat(first - done + sizes, sizes)


def _nearest(pairs: Clashes, accesses: Accesses) -> tuple[int, int]:
    """The pair with the earliest second operation and then the latest first one."""
    operation = accesses.operation
    row = np.lexsort((-operation[pairs.first], operation[pairs.second]))[0]
    return int(pairs.first[row]), int(pairs.second[row])
