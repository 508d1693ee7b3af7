"""Points in time and their dependencies: a directed acyclic graph that can be replayed; and what each call and activity
of a recording waits for, with the minimum time of each dependency.

An edge (source, target, weight) means that the target is at least `weight` ns after the source. The part of a recorded
time that no edge explains is the point's `residual`. The longest paths through the recorded weights and residuals
therefore reproduce the recording to the nanosecond, and paths through changed weights predict the effect of the change.
This is the critical-path method (Kelley and Walker 1959) applied to the events of a program (Yang and Miller 1988). The
loops over points are compiled (Numba); ten million edges take about a second.

A call continues where the previous call of its thread ended. An activity starts after the call that issued it, after
the previous activity of its stream, and after the events that its stream waits for. A sync or a blocking copy returns
after the work that it waits for. The minimum time of each dependency is estimated from the recording: the median over
those that waited for nothing else, or `fits.Usual` if there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.analysis.path.segments import Segments
from tracer.compiled import compiled
from tracer.model.calls import BLOCKING_COPY, COPY, SYNC
from tracer.model.columns import Columns, joined, last_at, quantiles, ranks
from tracer.model.fits import Usual, fits_for
from tracer.model.intervals import Bools, Ints
from tracer.model.tables import MEMCPYS, MEMSETS

NEVER: Final = np.iinfo(np.int64).max // 4
"""Later than any time: the deadline of a point that nothing waits for."""

FREE: Final = -NEVER
"""The weight of an edge that no longer holds."""

CALL, HOST, DEVICE, ORDER, LAUNCH, RETURN, EVENT = range(7)
KINDS: Final = ("call", "host", "device", "stream order", "launch", "return", "event")
"""The kinds of edges: inside a call, between two calls of a thread, an activity, from an activity to the next on its
stream, from a call to the activity that it issued, from what a call waited for to its return, from stream to stream."""

_IDLE_SYNC: Final = 0.1  # quantile of a sync's durations that is taken as what it takes without waiting
_MEDIAN: Final = 0.5
_NAMES: Final = 4096  # more than names of calls, or tables; larger numbers of names only mix groups


class Edges(Columns):
    """Edges, one per row: points `source` and `target`, `weight` in ns, `kind` (see `KINDS`)."""

    source: Ints
    target: Ints
    weight: Ints
    kind: Ints

    @classmethod
    def of(cls, source: Ints, target: Ints, weight: Ints, kind: int) -> Edges:
        """Edges of one kind."""
        return cls(source, target, weight, np.full(len(source), kind, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Dag:
    """Points and edges.

    Attributes:
        time: time of each point, ns. A point that waits for nothing keeps it.
        edges: sorted by target; none is longer than the recorded time between its points.
        residual: per point, the time that no edge explains, ns >= 0.
        backward: number of edges that were left out because they lead back in time (host and device clocks disagree).
    """

    time: Ints
    edges: Edges
    residual: Ints
    backward: int = 0

    @cached_property
    def first(self) -> Ints:
        """The position of each point's first edge, and the number of all edges."""
        first = np.zeros(len(self.time) + 1, np.int64)
        np.cumsum(np.bincount(self.edges.target, minlength=len(self.time)), out=first[1:])
        return first

    @classmethod
    def recorded(cls, time: Ints, edges: Edges) -> Dag:
        """Build the graph whose replay gives exactly these times."""
        took = time[edges.target] - time[edges.source]
        forward = took >= 0
        kept = edges if forward.all() else edges[forward]
        kept = kept.changed(weight=np.clip(kept.weight, 0, took[forward]))
        none = np.zeros(len(time), np.int64)
        dag = cls(time, _by_target(kept), none, int((~forward).sum()))
        cyclic = dag._in_cycles()
        if cyclic.any():  # among points of the same time; an edge against their numbers goes
            edges = dag.edges
            stays = ~(cyclic[edges.source] & cyclic[edges.target] & (edges.source > edges.target))
            dag = cls(time, edges[stays], none, dag.backward + int((~stays).sum()))
        explained = _forward(dag.order, dag.first, dag.edges.source, dag.edges.weight, dag.residual, time, False)[0]
        waits = np.diff(dag.first) > 0
        return dag.changed(dag.edges.weight, np.where(waits, time - explained, 0))

    @cached_property
    def order(self) -> Ints:
        """The points in topological order."""
        return np.asarray(_topological(self.first, self.edges.source), dtype=np.int64)

    def _in_cycles(self) -> Bools:
        left = np.ones(len(self.time), dtype=bool)
        left[self.order] = False
        return left

    def changed(self, weight: Ints, residual: Ints, added: Edges | None = None) -> Dag:
        """A graph of these points with other weights (`FREE` for an edge that no longer holds) and additional edges.

        Raises:
            ValueError: the points would have a cyclic dependency.
        """
        edges = self.edges.changed(weight=weight)
        if added is None or not len(added):
            dag = Dag(self.time, edges, residual, self.backward)
            dag.__dict__.update(order=self.order, first=self.first)  # as they were
            return dag
        added = _by_target(added)
        places = self.first[added.target]
        both = ((getattr(edges, name), getattr(added, name)) for name in Edges.column_names())
        dag = Dag(self.time, Edges(*(np.insert(old, places, new) for old, new in both)), residual, self.backward)
        place = np.empty(len(self.time), np.int64)
        place[self.order] = np.arange(len(self.time))
        if (place[added.source] < place[added.target]).all():
            dag.__dict__.update(order=self.order)
        elif len(dag.order) < len(self.time):
            raise ValueError("the points have a cyclic dependency")
        return dag

    def replayed(self) -> tuple[Ints, Ints]:
        """The time of each point, and the position of the edge that determines it (-1 if none does)."""
        e = self.edges
        return _forward(self.order, self.first, e.source, e.weight, self.residual, self.time, True)

    def slack(self, time: Ints, deadlines: Ints) -> Ints:
        """The slack of each point: how much later it may be before a deadline is missed, ns; about `NEVER` if no
        deadline depends on it.

        Args:
            time: time of the points, as returned by `replayed`.
            deadlines: latest time per point, `NEVER` for none.
        """
        e = self.edges
        late = _backward(self.order, self.first, e.source, e.weight, self.residual, deadlines)
        return np.asarray(late - time)


def _by_target(edges: Edges) -> Edges:
    return edges[np.argsort(edges.target, kind="stable")]


class Waits(Columns):
    """The calls that return after an activity.

    Attributes:
        call, activity: their positions.
        waited: whether the call waited for the end of the activity.
        took: from that end to the return of the call, ns.
    """

    call: Ints
    activity: Ints
    waited: Bools
    took: Ints


def find_edges(segments: Segments) -> Edges:
    """All edges between the points of the segments, with their recorded weights."""
    waits = waits_of(segments)
    usual = fits_for(segments.trace).usual
    launches, ready = _launches(segments, usual)
    return joined(
        [
            _host(segments),
            _calls(segments, waits),
            *_activities(segments),
            launches,
            *_orders(segments, ready, usual),
            _events(segments, usual),
            _returns(segments, waits, usual),
        ]
    )


def _host(segments: Segments) -> Edges:
    """From the end of each call to the start of the next one of its thread."""
    calls = segments.calls
    row = np.flatnonzero(calls.is_followed)
    return Edges.of(2 * row + 1, 2 * row + 2, calls.start[row + 1] - calls.end[row], HOST)


def waits_of(segments: Segments) -> Waits:
    """The calls that return after an activity: syncs and copies."""
    calls, work = segments.calls, segments.activities
    copies = np.flatnonzero((work.call >= 0) & ((work.table == MEMCPYS) | (work.table == MEMSETS)))
    letter, end = calls.letter[work.call[copies]], work.end[copies]
    is_timed = end > work.start[copies]  # not by the light recorder
    blocks = (letter == BLOCKING_COPY) | ((letter == COPY) & is_timed)
    copies = copies[blocks & (calls.end[work.call[copies]] >= end)]
    awaited = segments.awaited()
    call, activity = np.append(awaited.call, work.call[copies]), np.append(awaited.activity, copies)
    ended, returned = work.end[activity], calls.end[call]
    return Waits(call, activity, (ended > calls.start[call]) & (ended <= returned), returned - ended)


def _calls(segments: Segments, waits: Waits) -> Edges:
    """The time inside each call; for a call that may wait, its duration without waiting.

    If the recording has no example, it is the time that calls of that name take to return after the work that they wait
    for.
    """
    calls = segments.calls
    took, name = calls.end - calls.start, calls.name.codes
    waited = waits[waits.waited]
    waiting = np.zeros(len(calls), bool)
    waiting[waited.call] = True
    if len(waited):
        idle = (calls.letter == SYNC) & ~waiting
        base = np.zeros(len(calls.name.words))
        for names, ns in (
            quantiles(waited.took, name[waited.call], _MEDIAN),
            quantiles(took[idle], name[idle], _IDLE_SYNC),
        ):
            base[names] = ns
        took[waiting] = np.minimum(took[waiting], base[name[waiting]].astype(np.int64))
    row = np.arange(len(calls))
    return Edges.of(2 * row, 2 * row + 1, took, CALL)


def _activities(segments: Segments) -> tuple[Edges, Edges]:
    """The time inside each activity.

    An activity that starts before the previous one on its stream ends (programmatic dependent launch) waits for that
    end; its own time is what follows it.
    """
    work = segments.activities
    start, end = work.start, work.end
    ahead = np.flatnonzero(work.is_followed & (start[1:] < end[:-1]) & (end[:-1] <= end[1:]))
    own = end - start
    own[ahead + 1] = end[ahead + 1] - end[ahead]
    point = segments.starts(np.arange(len(work)))
    return (
        Edges.of(point, point + 1, own, DEVICE),
        Edges.of(point[ahead] + 1, point[ahead + 1] + 1, own[ahead + 1], DEVICE),
    )


def _launches(segments: Segments, usual: Usual) -> tuple[Edges, Ints]:
    """From the start of each call to the first activity that it issued on each stream.

    Also returns the earliest time at which each activity could have started as far as its call is concerned, ns.
    """
    calls, work = segments.calls, segments.activities
    first = np.flatnonzero(work.is_first)
    call, issued = work.call[first], work.issued[first]
    latency = work.start[first] - issued
    found_idle = np.ones(len(work), bool)
    found_idle[1:] = ~work.is_followed | (work.end[:-1] <= work.issued[1:])
    group = _codes(calls.name.codes[call], work.table[first])
    typical = _typical(latency, group, found_idle[first], usual.launch_ns)
    ready = work.issued.copy()
    ready[first] += typical
    return Edges.of(2 * call, segments.starts(first), np.minimum(latency, typical), LAUNCH), ready


def _orders(segments: Segments, ready: Ints, usual: Usual) -> tuple[Edges, Edges]:
    """From each activity to the next one of its stream.

    The time between two activities is typical if the second was `ready` before the first ended. An activity that starts
    before the previous one ends follows its start.
    """
    work = segments.activities
    row = np.flatnonzero(work.is_followed)
    start, end = work.start[row + 1], work.end[row]
    apart = start >= end
    took = start - end
    inside = (work.call[row] == work.call[row + 1]) & (work.call[row] >= 0)
    group = _codes(work.table[row], work.table[row + 1], inside)
    typical = _typical(took, group, (ready[row + 1] <= end) & apart, usual.order_ns)
    alone = inside & ~work.is_beside[row]  # a graph on one stream: nothing else can have delayed it
    weight = np.where(alone, took, np.minimum(took, typical))
    first, second = segments.starts(row), segments.starts(row + 1)
    return (
        Edges.of(first[apart] + 1, second[apart], weight[apart], ORDER),
        Edges.of(first[~apart], second[~apart], (start - work.start[row])[~apart], ORDER),
    )


def _events(segments: Segments, usual: Usual) -> Edges:
    """Between streams: through events, and inside a graph launch, where only the times show the order."""
    work, ordered = segments.activities, segments.ordered
    inside = _inside_graphs(segments)
    before, after = np.append(ordered.before, inside[0]), np.append(ordered.after, inside[1])
    took = work.start[after] - work.end[before]
    typical = _typical(took, np.zeros(len(took), np.int64), took >= 0, usual.event_ns)
    return Edges.of(segments.starts(before) + 1, segments.starts(after), np.minimum(took, typical), EVENT)


def _inside_graphs(segments: Segments) -> tuple[Ints, Ints]:
    """Between graph nodes on several streams: a node is taken to wait for the last one that ends before it starts, if
    that is on another stream. The positions of both.
    """
    work = segments.activities
    nodes = np.flatnonzero(work.is_beside)
    if not len(nodes):
        return nodes, nodes
    nodes = nodes[np.argsort(work.end[nodes])]  # of several that end at one time, any one
    call, lane = work.call[nodes], work.lane[nodes]
    before = last_at([call], work.start[nodes], [call], work.end[nodes])
    apart = (before >= 0) & (lane[before] != lane)
    return nodes[before[apart]], nodes[apart]


def _returns(segments: Segments, waits: Waits, usual: Usual) -> Edges:
    """From the work that a call waited for to the return of the call."""
    group = _codes(segments.calls.name.codes[waits.call], segments.activities.table[waits.activity])
    weight = np.minimum(waits.took, _typical(waits.took, group, waits.waited, usual.return_ns))
    return Edges.of(segments.starts(waits.activity) + 1, 2 * waits.call + 1, weight, RETURN)


def _codes(*columns: Ints | Bools) -> Ints:
    """One number for each distinct row of small non-negative integers."""
    code = columns[0].astype(np.int64)
    for column in columns[1:]:
        code = code * _NAMES + column
    return code


def _typical(took: Ints, group: Ints, free: Bools, usual_ns: int) -> Ints:
    """For each row the median over the `free` rows of its group or, without any, over all its rows, but at most
    `usual_ns`.
    """
    if not free.any():
        return np.full(len(took), usual_ns)
    number = ranks(group)
    typical = np.full(int(number.max()) + 1, min(np.median(took[free]), usual_ns))
    groups, medians = quantiles(took[free], number[free], _MEDIAN)
    typical[groups] = medians
    return typical[number].astype(np.int64)


@compiled
def _topological(first: Ints, source: Ints) -> Ints:  # pragma: no cover - compiled
    """Kahn's order (1962); points in cycles are not included."""
    points, edges = len(first) - 1, len(source)
    waiting = np.empty(points, np.int64)
    heads, links = np.full(points, -1), np.empty(edges, np.int64)
    targets = np.empty(edges, np.int64)
    for point in range(points):
        waiting[point] = first[point + 1] - first[point]
        for edge in range(first[point], first[point + 1]):
            targets[edge] = point
            links[edge] = heads[source[edge]]
            heads[source[edge]] = edge
    order, done = np.empty(points, np.int64), 0
    for point in range(points):
        if waiting[point] == 0:
            order[done] = point
            done += 1
    at = 0
    while at < done:
        edge = heads[order[at]]
        while edge >= 0:
            target = targets[edge]
            waiting[target] -= 1
            if waiting[target] == 0:
                order[done] = target
                done += 1
            edge = links[edge]
        at += 1
    return order[:done]


@compiled
def _forward(
    order: Ints, first: Ints, source: Ints, weight: Ints, residual: Ints, time: Ints, decide: bool
) -> tuple[Ints, Ints]:  # pragma: no cover - compiled
    """Longest paths. Without `decide`, every source keeps its recorded time: the part of each time that the edges
    explain.
    """
    reached, deciding = time.copy(), np.full(len(time), -1)
    for point in order:
        best = np.int64(-(2**62))
        for edge in range(first[point], first[point + 1]):
            earliest = (reached if decide else time)[source[edge]] + weight[edge]
            if earliest > best:
                best = earliest
                deciding[point] = edge
        if deciding[point] >= 0 and best > FREE // 2:
            reached[point] = best + residual[point]
        else:
            deciding[point] = -1
    return reached, deciding


@compiled
def _backward(
    order: Ints, first: Ints, source: Ints, weight: Ints, residual: Ints, deadlines: Ints
) -> Ints:  # pragma: no cover - compiled
    late = deadlines.copy()
    for at in range(len(order) - 1, -1, -1):
        point = order[at]
        for edge in range(first[point], first[point + 1]):
            latest = late[point] - residual[point] - weight[edge]
            if weight[edge] > FREE // 2 and latest < late[source[edge]]:
                late[source[edge]] = latest
    return late


@compiled
def walk(
    ends: Ints, previous: Ints, floors: Ints, time: Ints, deciding: Ints, source: Ints
) -> tuple[Ints, Ints]:  # pragma: no cover - compiled
    """Walk back from every end along the deciding edges while they end after its floor.

    The walk of an end that is the `previous` of the next one continues that one's, with the edge that leads past its
    own time, unless that walk found no edge before it came there.

    Returns:
        (number of the end, edge) of each step back, the latest edge of an end first.
    """
    starts = ends.copy()
    count = 0
    for number in range(len(ends) - 1, -1, -1):
        point = came = starts[number]
        while deciding[point] >= 0 and time[point] > floors[number]:
            count += 1
            came, point = point, source[deciding[point]]
        if number == 0 or previous[number] != ends[number - 1] or time[point] > floors[number]:
            continue
        if time[point] < floors[number]:
            point = came
        if time[point] >= time[ends[number - 1]]:
            starts[number - 1] = point
    which, edges, at = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for number in range(len(ends)):
        point = starts[number]
        while deciding[point] >= 0 and time[point] > floors[number]:
            which[at], edges[at] = number, deciding[point]
            at += 1
            point = source[deciding[point]]
    return which, edges
