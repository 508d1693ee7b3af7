"""Changes to a recording's dependency graph: calls and activities are removed, or get other durations or dependencies;
and the calls of the steps, which edits change.

A removed segment keeps its two points but takes no time: whatever waited for it waits for what it waited for. An `Edit`
applies itself to `Changes` and states its assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.path.graph import CALL, DEVICE, FREE, HOST, LAUNCH, ORDER, RETURN, Dag, Edges
from tracer.analysis.path.paths import Causality, calls_at
from tracer.analysis.path.segments import OuterCalls
from tracer.analysis.tokens import Steps
from tracer.model.calls import GRAPH_LAUNCH, LAUNCHES, SYNC
from tracer.model.columns import Columns, Letters, among, joined
from tracer.model.fits import Fits
from tracer.model.intervals import Bools, Ints


@dataclass(frozen=True)
class Assumed:
    """Assumptions that no recording can confirm exactly.

    Attributes:
        host: untraced / traced time of all host work, calls and launches included, and of the time between the
            activities of different calls, which a profiler's marks determine.
        graph_launch: the same for the launch of a graph and its latency, in addition to `host`, because a profiler
            prepares its records there.
    """

    host: float = 1.0
    graph_launch: float = 1.0


class Changes:
    """Collects changes; `dag` then returns the changed graph. Calls and activities are given by position.

    Args:
        assumed: how its times are interpreted.

    Attributes:
        removed: which segments are removed.
        chooses_tokens: whether the device's time to choose tokens is already added.
    """

    chooses_tokens = False

    def __init__(self, causality: Causality, assumed: Assumed | None = None) -> None:
        self.causality = causality
        self.removed = np.zeros(len(causality.segments), bool)
        self._assumed = assumed or Assumed()
        self._edges = causality.dag.edges
        self._added: list[Edges] = []
        self._weight, self._residual = self._untraced()

    @property
    def calls(self) -> OuterCalls:
        """The recording's calls."""
        return self.causality.segments.calls

    def remove_calls(self, calls: Ints, *, and_issued: bool = True) -> None:
        """Remove calls with their waits and, with `and_issued`, the activities that they issue.

        The host code that belongs to a call lies before and behind it, together with the end of what its neighbours do
        and the preparation of the next call. Neither side can hold more of it than the shorter pause. So between none
        and twice the shorter pause vanishes; the middle is taken.
        """
        edges = self._edges
        gone = self._with_issued(calls) if and_issued else self._chosen(calls)
        before, behind = self._pauses_before(), (edges.kind == HOST) & (gone & ~self.removed)[edges.source // 2]
        self.remove(gone)
        pause = self._pauses()[behind]
        self._weight[behind] -= np.minimum(pause, before[edges.source[behind] // 2])

    def remove(self, gone: Bools) -> None:
        """Set the duration of segments to 0; they wait only for their predecessor in their thread or stream."""
        edges = self._edges
        self.removed |= gone
        self._weight[among(edges.kind, [CALL, DEVICE]) & gone[edges.target // 2]] = 0
        self._weight[(edges.kind == ORDER) & gone[edges.source // 2]] = 0
        self._weight[among(edges.kind, [RETURN, LAUNCH]) & gone[edges.target // 2]] = FREE
        self._residual[np.repeat(gone, 2)] = 0

    def forget_launches(self, activities: Ints) -> None:
        """Remove the dependency of activities on the calls that issued them, and the delay between call and start."""
        chosen = self._chosen(activities + len(self.calls))
        self._weight[(self._edges.kind == LAUNCH) & chosen[self._edges.target // 2]] = FREE
        self._residual[0::2][chosen] = 0

    def drop_pauses(self, calls: Ints) -> None:
        """Remove the host work between these calls and the next ones, except what the host computes as a device."""
        behind = (self._edges.kind == HOST) & self._chosen(calls)[self._edges.source // 2]
        self._weight[behind] = self.causality.host_compute[behind]

    def move_pauses(self, calls: Ints, behind: Ints) -> None:
        """Move the host work after each of these calls to after the corresponding call in `behind`."""
        rows = np.flatnonzero(self._edges.kind == HOST)
        edge_of = np.full(len(self.causality.segments), len(self._weight))
        edge_of[self._edges.source[rows] // 2] = rows
        weight = np.append(self._weight, 0)  # the last call of a thread has no edge
        source, target = edge_of[calls], edge_of[behind]
        moved = np.where(target < len(self._weight), weight[source], 0)
        np.subtract.at(weight, source, moved)
        np.add.at(weight, target, moved)
        self._weight = weight[:-1]

    def move_calls(self, calls: Ints, behind: Ints) -> None:
        """Move calls, and the host work between them, to after the corresponding call in `behind`. The host work before
        the first of consecutive calls stays: it may be anything. What they issue is removed; the caller adds it in its
        new place.
        """
        took = self.call_times()[calls]
        follows = np.isin(calls - 1, calls)
        self.move_pauses(calls[follows] - 1, behind[follows])
        self.remove(self._with_issued(calls))
        later = np.zeros(len(self.causality.segments), np.int64)
        np.add.at(later, behind, took)
        host = self._edges.kind == HOST
        self._weight[host] += later[self._edges.source[host] // 2]

    def limit_orders(self, activities: Ints, most_ns: int) -> None:
        """Limit the time between the start of each activity and the end of its predecessor on the stream."""
        chosen = self._chosen(activities + len(self.calls))
        orders = (self._edges.kind == ORDER) & (self._edges.target % 2 == 0) & chosen[self._edges.target // 2]
        self._weight[orders] = np.minimum(self._weight[orders], most_ns)

    def set_calls(self, calls: Ints, took_ns: Ints) -> None:
        """Set the durations of calls; the activities that they issue start earlier or later by the difference."""
        edges = self._edges
        own = edges.kind == CALL
        change, took = np.zeros(len(self.causality.segments), np.int64), np.full(len(self.causality.segments), -1)
        took[calls] = took_ns
        own &= took[edges.source // 2] >= 0
        change[edges.source[own] // 2] = took[edges.source[own] // 2] - self._weight[own]
        moved = among(edges.kind, [CALL, LAUNCH]) & (self._weight >= 0)
        self._weight[moved] = np.maximum(self._weight[moved] + change[edges.source[moved] // 2], 0)

    def call_times(self) -> Ints:
        """The duration of each call after the changes so far, ns; 0 if the dependency graph does not show it."""
        own = self._edges.kind == CALL
        times = np.zeros(len(self.causality.segments), np.int64)
        times[self._edges.source[own] // 2] = np.maximum(self._weight[own], 0)
        return times[: len(self.calls)]

    def delay_returns(self, later_ns: int) -> None:
        """Make every host sync return this much later (if negative, earlier) than recorded."""
        edges = self._edges
        syncs = np.zeros(len(self.causality.segments), bool)
        syncs[: len(self.calls)] = self.calls.letter == SYNC
        returns = among(edges.kind, [CALL, RETURN]) & syncs[edges.target // 2] & (self._weight >= 0)
        returns &= ~self.removed[edges.target // 2]
        self._weight[returns] = np.maximum(self._weight[returns] + later_ns, 0)

    def scale_pauses(self, factor: float) -> None:
        """Scale the host code between calls by `factor`; what the host computes as a device keeps its time."""
        computed = self.causality.host_compute
        self._weight -= computed
        self._scale(self._edges.kind == HOST, factor)
        self._weight += computed

    def scale_host_compute(self, factor: float) -> None:
        """Scale what the host computes as a device by `factor`."""
        scaled = self._weight + (self.causality.host_compute * (factor - 1)).astype(np.int64)
        self._weight = np.maximum(scaled, 0)  # another edit may have taken a part of it

    def scale_activities(self, activities: Ints, factor: float) -> None:
        """Scale activities by `factor`; an activity that starts while one of them runs is moved by the same amount."""
        edges = self._edges
        chosen = self._chosen(activities + len(self.calls))
        self._scale(self._own_times(activities), factor)
        self._scale((edges.kind == ORDER) & (edges.source % 2 == 0) & chosen[edges.source // 2], factor)

    def lengthen_activities(self, activities: Ints, by_ns: int) -> None:
        """Let each of these activities take this much longer."""
        self._weight[self._own_times(activities)] += by_ns

    def shorten_activities(self, activities: Ints, share: float, most_ns: int) -> None:
        """Shorten activities by this share of their duration, at most by `most_ns`."""
        own = self._own_times(activities)
        self._weight[own] -= np.minimum(self._weight[own] * share, most_ns).astype(np.int64)

    def add(self, edges: Edges) -> None:
        """Add dependencies between points."""
        self._added.append(edges)

    def dag(self) -> Dag:
        """The changed graph."""
        added = joined(self._added) if self._added else None
        return self.causality.dag.changed(self._weight, self._residual, added)

    def _with_issued(self, calls: Ints) -> Bools:
        """Which segments are these calls, or activities that they issue."""
        gone, count = self._chosen(calls), len(self.calls)
        gone[count:] = np.append(gone[:count], False)[self.causality.segments.activities.call]
        return gone

    def _own_times(self, activities: Ints) -> Bools:
        """The edges inside these activities."""
        return (self._edges.kind == DEVICE) & self._chosen(activities + len(self.calls))[self._edges.target // 2]

    def _chosen(self, segments: Ints) -> Bools:
        chosen = np.zeros(len(self.causality.segments), bool)
        chosen[segments] = True
        return chosen

    def _scale(self, chosen: Bools, factor: float) -> None:
        self._weight[chosen] = (self._weight[chosen] * factor).astype(np.int64)

    def _untraced(self) -> tuple[Ints, Ints]:
        """Weights and residuals as they would be without a profiler."""
        dag, host = self.causality.dag, self._assumed.host
        edges, points = self.causality.of_host
        factor = np.where(edges, host, 1.0)
        launches = np.flatnonzero(self.calls.letter == GRAPH_LAUNCH)
        begun = among(dag.edges.kind, [CALL, LAUNCH]) & self._chosen(launches)[dag.edges.source // 2]
        factor[begun] *= self._assumed.graph_launch
        computed = self.causality.host_compute  # no profiler is in there
        weight = computed + ((dag.edges.weight - computed) * factor).astype(np.int64)
        return weight, (dag.residual * np.where(points, host, 1.0)).astype(np.int64)

    def _pauses_before(self) -> Ints:
        """The host code between each segment and the previous call of its thread, without what the host computes as a
        device, ns."""
        host = np.flatnonzero(self._edges.kind == HOST)
        pauses = np.zeros(len(self.causality.segments), np.int64)
        pauses[self._edges.target[host] // 2] = self._pauses()[host]
        return pauses

    def _pauses(self) -> Ints:
        """The part of each edge that is not what the host computes as a device, ns."""
        return np.asarray(np.maximum(self._weight - self.causality.host_compute, 0), dtype=np.int64)


class CallsOfRuns(Columns):
    """The calls of the steps' own threads that launch, copy or synchronise, by step and start, and the launch that they
    prepare.

    Attributes:
        call: their positions.
        at: their positions in `steps`.
        run: the number of the next run of launches in its step, that of its own run for a launch, -1 for a call
            after the last one, such as the fetch of the result.
        between: whether the step has launches both before and after it.
    """

    call: Ints
    at: Ints
    letter: Letters
    run: Ints
    between: Bools

    @property
    def launches(self) -> Bools:
        """Which of them launch."""
        return among(self.letter, LAUNCHES)


def calls_of_runs(changes: Changes, steps: Steps) -> CallsOfRuns:
    """The calls of the steps."""
    return changes.causality.once(_calls_of_runs, steps)


def _calls_of_runs(causality: Causality, steps: Steps) -> CallsOfRuns:
    calls, of_step = causality.segments.calls, causality.once(calls_at, steps)
    chosen = np.flatnonzero((of_step >= 0) & (calls.letter != ""))
    chosen = chosen[np.lexsort((calls.start[chosen], of_step[chosen]))]
    at, letter = of_step[chosen], calls.letter[chosen]
    launch = among(letter, LAUNCHES)
    follows = np.append(False, at[1:] == at[:-1])[: len(at)]
    run = np.cumsum(launch & ~(follows & np.append(False, launch[:-1])[: len(at)]))
    ends = np.flatnonzero(~np.append(follows[1:], False))[: len(at)]  # the last call of each step
    sizes = np.diff(ends, prepend=-1)
    launched = np.cumsum(launch)
    before = np.repeat(np.append(0, launched[ends])[:-1], sizes)  # launches in the steps before
    has_launch = np.repeat(launched[ends], sizes) > before
    coming = np.where(launch, run, run + 1)
    of_run = np.where(has_launch & (coming <= np.repeat(run[ends], sizes)), coming, -1)
    return CallsOfRuns(chosen, at, letter, of_run, (launched > before) & ~launch & (of_run >= 0))


class Edit:
    """One change of a what-if, a dataclass. `words` describe it, with its fields in braces."""

    words = ""

    def half_margin(self, speedup: float, level: str | None, fits: Fits) -> float | None:
        """By how much the logarithm of that prediction may be off, for a recording at that level of tracing (None: made
        without a profiler); None if no case of its kind was measured.
        """
        return None

    @property
    def label(self) -> str:
        """A short description."""
        return self.words.format(**vars(self))

    def widest(self, changes: Changes, steps: Steps) -> Edit:
        """The same edit of everything that it may concern, where the recording does not tell; else itself."""
        return self

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Apply the edit; return the assumptions that a reader must know."""
        raise NotImplementedError


class FewerCalls(Edit):
    """An edit that only removes calls."""

    def half_margin(self, speedup: float, level: str | None, fits: Fits) -> float | None:
        """See `fits.Margin`."""
        margins = fits.margins
        traced = margins.fewer_calls_graph if level == "graph" else margins.fewer_calls_node
        return margins.half_width(margins.fewer_calls if level is None else traced, speedup)
