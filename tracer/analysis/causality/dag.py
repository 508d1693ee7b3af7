"""Points in time and their dependencies: a directed acyclic graph that can be replayed.

An edge (source, target, weight) means that the target is at least `weight` ns after the source. The part of a recorded
time that no edge explains is the point's `residual`. The longest paths through the recorded weights and residuals
therefore reproduce the recording to the nanosecond, and paths through changed weights predict the effect of the change.
This is the critical-path method (Kelley and Walker 1959) applied to the events of a program (Yang and Miller 1988). The
loops over points are compiled (Numba); ten million edges take about a second.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from tracer.compiled import compiled
from tracer.model.intervals import Bools, Ints

NEVER: Final = np.iinfo(np.int64).max // 4
"""Later than any time: the deadline of a point that nothing waits for."""

FREE: Final = -NEVER
"""The weight of an edge that no longer holds."""


@dataclass(frozen=True)
class Edges:
    """Edges, one per row: points `source` and `target`, `weight` in ns, `kind` (see `edges.KINDS`)."""

    source: Ints
    target: Ints
    weight: Ints
    kind: Ints

    @classmethod
    def of(cls, source: Any, target: Any, weight: Any, kind: int) -> Edges:
        """Edges of one kind."""
        start, end, ns = (np.asarray(column, dtype=np.int64) for column in (source, target, weight))
        return cls(start, end, ns, np.full(len(start), kind, dtype=np.int64))

    @classmethod
    def joined(cls, *parts: Edges) -> Edges:
        """Concatenate several sets of edges."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in (f.name for f in fields(cls))))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: Any) -> Edges:
        return Edges(self.source[rows], self.target[rows], self.weight[rows], self.kind[rows])


@dataclass(frozen=True)
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
        """The position of each point's first edge, and its number of edges."""
        first = np.zeros(len(self.time) + 1, np.int64)
        np.cumsum(np.bincount(self.edges.target, minlength=len(self.time)), out=first[1:])
        return first

    @classmethod
    def recorded(cls, time: Ints, edges: Edges) -> Dag:
        """Build the graph whose replay gives exactly these times."""
        took = time[edges.target] - time[edges.source]
        forward = took >= 0
        kept = edges if forward.all() else edges[forward]
        kept = replace(kept, weight=np.clip(kept.weight, 0, took[forward]))
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
        edges = replace(self.edges, weight=weight)
        if added is None or not len(added):
            dag = Dag(self.time, edges, residual, self.backward)
            dag.__dict__.update(order=self.order, first=self.first)  # as they were
            return dag
        added = _by_target(added)
        places = self.first[added.target]
        pairs = ((getattr(edges, f.name), getattr(added, f.name)) for f in fields(Edges))
        joined = Edges(*(np.insert(old, places, new) for old, new in pairs))
        dag = Dag(self.time, joined, residual, self.backward)
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
    found, deciding = time.copy(), np.full(len(time), -1)
    for point in order:
        best = np.int64(-(2**62))
        for edge in range(first[point], first[point + 1]):
            earliest = (found if decide else time)[source[edge]] + weight[edge]
            if earliest > best:
                best = earliest
                deciding[point] = edge
        if deciding[point] >= 0 and best > FREE // 2:
            found[point] = best + residual[point]
        else:
            deciding[point] = -1
    return found, deciding


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
    found = 0
    for number in range(len(ends) - 1, -1, -1):
        point = came = starts[number]
        while deciding[point] >= 0 and time[point] > floors[number]:
            found += 1
            came, point = point, source[deciding[point]]
        if number == 0 or previous[number] != ends[number - 1] or time[point] > floors[number]:
            continue
        if time[point] < floors[number]:
            point = came
        if time[point] >= time[ends[number - 1]]:
            starts[number - 1] = point
    which, edges, at = np.empty(found, np.int64), np.empty(found, np.int64), 0
    for number in range(len(ends)):
        point = starts[number]
        while deciding[point] >= 0 and time[point] > floors[number]:
            which[at], edges[at] = number, deciding[point]
            at += 1
            point = source[deciding[point]]
    return which, edges
