"""The critical path of each token step, the slack of everything off it, and both as one report.

The path leads back from the end of the last compute of the last step to that of the first: over kernels, copies,
launches, syncs and host code, each of which began because its predecessor on the path ended. That of a step is the part
between the last compute of the previous step and its own. So what a host does that launches ahead is on the path if the
device waits for it in a later step, and the kernels that run meanwhile are not. Anything off the path can be later by
its slack, and removing it gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from tracer.analysis.call_sites import call_sites
from tracer.analysis.path.graph import CALL, DEVICE, HOST, KINDS, LAUNCH, NEVER, ORDER, RETURN, Dag, find_edges, walk
from tracer.analysis.path.segments import OuterCalls, Segments
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError
from tracer.model.calls import CALLS, COPIES, LAUNCHES, SYNC
from tracer.model.columns import (
    Columns,
    Letters,
    Names,
    Texts,
    among,
    grouped,
    joined,
    modes,
    numbers,
    quantiles,
    within,
)
from tracer.model.fits import fits_for
from tracer.model.intervals import Bools, Floats, Ints, covered
from tracer.model.schema import HOST_COMPUTE, MISSING
from tracer.model.tables import Nvtx
from tracer.model.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

COMMUNICATION: Final = "communication"
_KINDS: Final = np.array([*KINDS, COMMUNICATION, HOST_COMPUTE], dtype=object)
_OF_COMMUNICATION, _OF_HOST_COMPUTE = len(KINDS), len(KINDS) + 1
_SHOWN: Final = (SYNC, *COPIES, *LAUNCHES)
_NONE: Final = 100  # ns a step on the path, below which a call costs nothing that could be seen
_MEDIAN: Final = 0.5

BESIDE_SYNC: Final = "costs nothing: it waits off the path"
BESIDE: Final = "costs nothing: off the path"


@dataclass(frozen=True, eq=False)
class Causality:
    """The dependencies of a trace: its segments, the graph of their points, and the edge that determines each point."""

    trace: Trace
    segments: Segments
    dag: Dag
    deciding: Ints
    _answers: dict[object, tuple[Steps, Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, trace: Trace) -> Causality:
        """Find the dependencies of a trace."""
        segments = Segments.of(trace)
        dag = Dag.recorded(segments.times(), find_edges(segments))
        return cls(trace, segments, dag, dag.replayed()[1])

    def once(self, ask: Callable[[Causality, Steps], T], steps: Steps) -> T:
        """The cached result of a function of a recording and its steps; it must not be modified."""
        key = ask, id(steps)
        if key not in self._answers:
            self._answers[key] = steps, ask(self, steps)  # which keeps the id the steps' own
        answer: T = self._answers[key][1]
        return answer

    @cached_property
    def of_host(self) -> tuple[Bools, Bools]:
        """Which edges and which points have weights and residuals in host time; those of the others are device time.

        The time between the activities of different calls is host time, because a profiler's marks there are made on
        the host. The time from the end of the work that a wait awaits to its return is not: the driver polls, or wakes
        the thread, as it does without a profiler.
        """
        segments, edges = self.segments, self.dag.edges
        issued = np.append(np.full(len(segments.calls), MISSING), segments.activities.call)
        apart = issued[edges.source // 2] != issued[edges.target // 2]
        points = np.zeros(len(self.dag.time), bool)
        points[: 2 * len(segments.calls)] = True
        points[edges.target[edges.kind == LAUNCH]] = True
        return among(edges.kind, [CALL, HOST, LAUNCH]) | ((edges.kind == ORDER) & apart), points

    @cached_property
    def host_compute(self) -> Ints:
        """For each edge between two calls of a thread, the time in which the host computes as a device (covered by the
        thread's own ranges), ns; 0 for all other edges. Work that depends on the later call waits for it.
        """
        edges, calls, ranges = self.dag.edges, self.segments.calls, _computed(self.trace)
        computed = np.zeros(len(edges), np.int64)
        for (process, thread), own in grouped(ranges.process, ranges.thread):
            on_thread = (calls.process == process) & (calls.thread == thread)
            here = np.flatnonzero(edges.kind == HOST)
            here = here[on_thread[edges.source[here] // 2]]
            window = self.dag.time[edges.source[here]], self.dag.time[edges.target[here]]
            computed[here] = covered(ranges.start[own], ranges.end[own], *window)
        return computed


def _computed(trace: Trace) -> Nvtx:
    """The ranges in which the host computes as a device."""
    return trace.nvtx[trace.nvtx.domain.rows(HOST_COMPUTE)]


def calls_at(causality: Causality, steps: Steps) -> Ints:
    """For each call its position in `steps`, or -1; by `Causality.once`."""
    calls = causality.segments.calls
    return steps.of(calls.start, calls.process, calls.thread)


def work_at(causality: Causality, steps: Steps) -> Ints:
    """For each activity the position in `steps` of the step that launched it, or -1; by `Causality.once`."""
    return activity_steps(causality.trace, steps, causality.segments.activities)


class StepEnds(Columns):
    """The last compute of each step.

    Attributes:
        step, group: of the step.
        at: its position in `Steps.rows`.
        point, end: the end of its last compute, as a point and in ns.
        previous, before: the same two of the preceding step in its group, MISSING for the first one.
    """

    step: Ints
    group: Ints
    at: Ints
    point: Ints
    end: Ints
    previous: Ints
    before: Ints

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepEnds:
        """Find the last compute of each step.

        Raises:
            EmptyTraceError: no two consecutive steps have compute.
        """
        work, of_step = causality.segments.activities, causality.once(work_at, steps)
        rows = np.flatnonzero(work.computes & (of_step >= 0))
        rows = rows[np.lexsort((work.end[rows], of_step[rows]))]
        rows = rows[np.append(np.diff(of_step[rows]) > 0, True)[: len(rows)]]
        at = of_step[rows]
        group, end = steps.rows.group[at], work.end[rows]
        point = causality.segments.starts(rows) + 1
        previous, before = (np.full(len(rows), MISSING) for _ in range(2))
        for _, own in grouped(group):
            previous[own[1:]], before[own[1:]] = point[own[:-1]], end[own[:-1]]
        if not (previous >= 0).any():
            raise EmptyTraceError(f"no path: {steps.counted}, no two consecutive ones with kernels")
        return cls(steps.rows.step[at], group, at, point, end, previous, before)

    @property
    def followed(self) -> StepEnds:
        """Those behind another."""
        return self[self.previous >= 0]


class Pieces(Columns):
    """The pieces of the steps' paths.

    Attributes:
        step: the number of the step.
        start, end: ns.
        kind: one of `graph.KINDS`, `COMMUNICATION` for a collective, or `HOST_COMPUTE` for time between two calls in
            which the host computed as a device.
        name: of the call or activity; for an edge between two, of the later one; for `HOST_COMPUTE` the short one of
            its kernel.
        bytes: that a product on the host read; NaN if unknown, and for everything else.
        of, by: the segment whose name it has, and the one from which it leads.
    """

    step: Ints
    start: Ints
    end: Ints
    kind: Names
    name: Names
    bytes: Floats
    of: Ints
    by: Ints

    @property
    def ns(self) -> Ints:
        """The length of each."""
        return self.end - self.start

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, without the positions of segments."""
        return super().frame().drop(columns=["of", "by"])


def critical_path(causality: Causality, ends: StepEnds) -> Pieces:
    """The pieces of every step's path in chronological order.

    Pieces follow one another without a gap. Those of a step cover the time from the last compute of the preceding step
    to its own last compute, unless they begin at a point whose dependencies are not in the trace; the path to the
    preceding step then begins at that step's last compute.
    """
    dag, segments = causality.dag, causality.segments
    ends = ends.followed
    ends = ends[np.lexsort((ends.at, ends.group))]
    which, edge = walk(ends.point, ends.previous, ends.before, dag.time, causality.deciding, dag.edges.source)
    source, target = dag.edges.source[edge], dag.edges.target[edge]
    start = np.maximum(dag.time[source], ends.before[which])
    end = np.minimum(dag.time[target], ends.end[which])
    kept = end > start
    which, edge, start, end, source, target = (each[kept] for each in (which, edge, start, end, source, target))
    of, kind = target // 2, dag.edges.kind[edge]
    kind[(kind == DEVICE) & _is_collective(segments, of)] = _OF_COMMUNICATION
    pieces = Pieces(
        ends.step[which], start, end, Names(kind, _KINDS), _names(segments, of), np.full(len(of), np.nan), of,
        source // 2,
    )  # fmt: skip
    pieces = _with_host_compute(causality, pieces)
    return pieces[np.lexsort((pieces.start, pieces.step))]


def _is_collective(segments: Segments, of: Ints) -> Bools:
    collective = segments.activities.collective
    if not collective.any():
        return np.zeros(len(of), bool)
    return np.append(np.zeros(len(segments.calls), bool), collective)[of]


def _names(segments: Segments, of: Ints) -> Names:
    """The names of some segments."""
    calls, work = segments.calls, segments.activities
    is_call = of < len(calls)
    codes = np.empty(len(of), np.int64)
    codes[is_call] = calls.name.codes[of[is_call]]
    codes[~is_call] = work.name.codes[of[~is_call] - len(calls)].astype(np.int64) + len(calls.name.words)
    return Names.at_codes(codes, np.concatenate([calls.name.words, work.name.words]))


def _with_host_compute(causality: Causality, pieces: Pieces) -> Pieces:
    """The pieces, with the time between two calls cut where the host computed as a device."""
    ranges, between = _computed(causality.trace), pieces.kind.codes == HOST
    if not len(ranges) or not between.any():
        return pieces
    ranges = ranges[np.argsort(ranges.start, kind="stable")]
    calls, parts = causality.segments.calls, [pieces[~between]]
    pieces = pieces[between]
    for (process, thread), rows in grouped(calls.process[pieces.of], calls.thread[pieces.of]):
        here = (ranges.process == process) & (ranges.thread == thread)
        parts += _cut(pieces[rows], ranges[here])
    return joined(parts)


def _cut(pieces: Pieces, ranges: Nvtx) -> tuple[Pieces, Pieces]:
    """Cut the pieces of one thread at the starts and ends of its ranges; the parts inside the ranges, and the rest."""
    first = np.searchsorted(ranges.end, pieces.start, "right")
    count = np.maximum(np.searchsorted(ranges.start, pieces.end, "left") - first, 0)
    number = np.repeat(np.arange(len(pieces)), count)
    at = np.arange(len(number)) + np.repeat(first - np.cumsum(count) + count, count)
    inside, cause = pieces[number], ranges[at]
    start, end = np.maximum(inside.start, cause.start), np.minimum(inside.end, cause.end)
    computed = inside.changed(
        start=start, end=end, kind=Names(np.full(len(at), _OF_HOST_COMPUTE), _KINDS),
        name=Names.at_codes(cause.text.codes, [str(text).partition("(")[0] for text in cause.text.words]),
        bytes=cause.payload * (end - start) / (cause.end - cause.start),
    )  # fmt: skip
    # what is left of a piece opens at its start and at its ranges' ends, and closes at these' starts and at its end
    of = np.append(np.arange(len(pieces)), number)
    opens, closes = np.append(pieces.start, end), np.append(pieces.end, start)
    by_open = np.lexsort((opens, of))
    rest = pieces[of[by_open]].changed(start=opens[by_open], end=closes[np.lexsort((closes, of))])
    return computed, rest[rest.end > rest.start]


class CallSlack(OuterCalls):
    """The syncs, copies and launches inside the steps, by step and start.

    Attributes:
        step: the number of the step.
        position: 1, 2, ... in its step.
        slack_ns: how much later a sync could return, or a copy or launch begin, without delaying the end of any step;
            `NEVER` if it never would.
        on_path_ns: the part of the step's path inside the call, and from there to the start of the work that it
            launched.
    """

    step: Ints
    position: Ints
    slack_ns: Ints
    on_path_ns: Ints


def call_slack(causality: Causality, ends: StepEnds, pieces: Pieces, steps: Steps) -> CallSlack:
    """Every sync, copy and launch inside a step, with its share of the critical path and its slack."""
    calls, slack = causality.segments.calls, _slack(causality, ends)
    at = causality.once(calls_at, steps)
    chosen = np.flatnonzero((at >= 0) & among(calls.letter, _SHOWN))
    step = steps.rows.step[at[chosen]]
    order = np.lexsort((calls.start[chosen], step))
    chosen, step = chosen[order], step[order]
    mine = calls[chosen]
    inside = pieces[among(pieces.kind.codes, [CALL, RETURN, LAUNCH])]
    call = np.where(inside.kind.codes == LAUNCH, inside.by, inside.of)
    late, on_path = slack[2 * chosen + (mine.letter == SYNC)], _sums(inside.ns, call, len(calls))[chosen]
    return CallSlack.from_table(mine, step=step, position=within(step) + 1, slack_ns=late, on_path_ns=on_path)


class WorkSlack(Columns):
    """What ran on devices: its part of the path, and how much later it could end without delaying any step (`NEVER` if
    it never delays one)."""

    start: Ints
    end: Ints
    process: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    slack_ns: Ints
    on_path_ns: Ints


def activity_slack(causality: Causality, ends: StepEnds, pieces: Pieces) -> WorkSlack:
    """Every kernel, copy, memset and graph: its part of the path, and its slack."""
    segments, work = causality.segments, causality.segments.activities
    slack = _slack(causality, ends)[segments.starts(np.arange(len(work))) + 1]
    inside = pieces[among(pieces.kind.codes, [DEVICE, _OF_COMMUNICATION])]
    on_path = _sums(inside.ns, inside.of - len(segments.calls), len(work))
    return WorkSlack.from_table(work, slack_ns=slack, on_path_ns=on_path)


def _sums(ns: Ints, number: Ints, count: int) -> Ints:
    """The sum of the times of each number below `count`."""
    return np.bincount(number, weights=ns, minlength=count).astype(np.int64)  # exact below 2**53 ns


def _slack(causality: Causality, ends: StepEnds) -> Ints:
    """How much later each point may be without delaying any step, ns; `NEVER` at most."""
    dag = causality.dag
    deadlines = np.full(len(dag.time), NEVER)
    deadlines[ends.point] = ends.end
    return np.minimum(dag.slack(dag.time, deadlines), NEVER)


class Shares(Columns):
    """The composition of the paths, the most time first.

    Attributes:
        kind, name: of pieces.
        ns_per_step: their mean over the steps.
        steps: the number of steps that have them.
        bytes_per_step: their mean; NaN if any are unknown.
    """

    kind: Names
    name: Names
    ns_per_step: Floats
    steps: Ints
    bytes_per_step: Floats


def path_shares(pieces: Pieces) -> Shares:
    """The composition of the paths by kind and name."""
    name = pieces.name
    keys, group = np.unique(pieces.kind.codes * np.int64(len(name.words) or 1) + name.codes, return_inverse=True)
    step, steps = numbers(pieces.step)
    times = np.bincount(np.unique(group * steps + step) // max(steps, 1), minlength=len(keys))
    kind, word = np.divmod(keys, len(name.words) or 1)
    shares = Shares(
        Names(kind, pieces.kind.words), Names(word, name.words), _sums(pieces.ns, group, len(keys)) / max(steps, 1),
        times, np.bincount(group, weights=pieces.bytes, minlength=len(keys)) / max(steps, 1),
    )  # fmt: skip
    return shares[len(keys) - 1 - np.argsort(shares.ns_per_step[::-1])[::-1]]


class PathCalls(Columns):
    """The syncs, copies and launches of a step by position: those that at least half of the steps have.

    Attributes:
        position: 1, 2, ... in a step.
        name, letter: the most common ones.
        sync: 1, 2, ... among the syncs, MISSING for other calls.
        steps: the number of steps that have it.
        on_path_us, slack_us: medians; the slack is NaN if nothing ever waits for the call.
        site: the most common call site; "" if unknown.
        verdict: "" for calls on the path.
    """

    position: Ints
    name: Texts
    letter: Letters
    sync: Ints
    steps: Ints
    on_path_us: Floats
    slack_us: Floats
    site: Texts
    verdict: Texts

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, with None for an unknown slack."""
        table = super().frame()
        return table.assign(slack_us=table["slack_us"].astype(object).where(~np.isnan(self.slack_us), None))


def by_position(calls: CallSlack, sites: Texts | None = None) -> PathCalls:
    """One row per position."""
    count = int(calls.position.max(initial=0))
    place, steps = calls.position - 1, numbers(calls.step)[1]
    of_place = np.bincount(place, minlength=count)
    letters = np.array(["", *CALLS])
    kept = np.flatnonzero((of_place > 0) & (of_place * 2 >= steps))
    letter = letters[modes(np.argmax(calls.letter[:, None] == letters, axis=1), place, count)[kept]]
    on_path, slack = (quantiles(ns, place, _MEDIAN)[1] for ns in (calls.on_path_ns, calls.slack_ns))
    position = np.flatnonzero(of_place)
    on_path, slack = (ns[np.searchsorted(position, kept)] for ns in (on_path, slack))
    is_sync = letter == SYNC
    beside = (on_path < _NONE) & (slack > 0)
    verdict = np.full(len(kept), "", dtype=object)
    verdict[beside], verdict[beside & is_sync] = BESIDE, BESIDE_SYNC
    site = np.full(len(kept), "", dtype=object)
    if sites is not None and len(sites):
        site = modes(sites, place, count)[kept]
    return PathCalls(
        kept + 1, calls.name.words[modes(calls.name.codes, place, count)[kept]], letter,
        np.where(is_sync, np.cumsum(is_sync), MISSING), of_place[kept], on_path / 1e3,
        np.where(slack < NEVER / 2, slack / 1e3, np.nan), site, verdict,
    )  # fmt: skip


def syncs_by_position(calls: CallSlack) -> PathCalls:
    """Like `by_position`, but for syncs only, by their positions among the syncs of a step, as in
    `SyncReport.inventory`."""
    syncs = calls[calls.letter == SYNC]
    return by_position(syncs.changed(position=within(syncs.step) + 1))


@dataclass(frozen=True, eq=False)
class PathReport:
    """What each step waited for.

    Attributes:
        table: the pieces of the steps' paths.
        shares: the composition of the paths.
        calls: the syncs, copies and launches of a step.
        steps: number of steps with a path: those that follow another one.
        warning: the effect of tracing on the path; None if the recording was not traced.
        notes: doubts about the clocks.
    """

    table: Pieces
    shares: Shares
    calls: PathCalls
    steps: int
    warning: str | None
    notes: tuple[str, ...]

    @property
    def path_us(self) -> float:
        """Mean length of a step's path, µs."""
        return float(self.shares.ns_per_step.sum() / 1e3)


def path_report(trace: Trace, steps: Steps, *, with_sites: bool = False) -> PathReport:
    """Compute the critical path of every step.

    Args:
        trace: the recording, for call sites read with its Python functions.
        with_sites: whether to find the call site of each call.

    Raises:
        EmptyTraceError: no two consecutive steps have compute.
    """
    causality = Causality.of(trace)
    ends = StepEnds.of(causality, steps)
    pieces = critical_path(causality, ends)
    calls = call_slack(causality, ends, pieces, steps)
    sites = call_sites(trace, calls).site if with_sites else None
    traced = ("recorded under a profiler: the path includes what the profiler adds", fits_for(trace).caution)
    backward = causality.dag.backward
    doubt = f"{backward} edges lead back in time and are left out: clocks of host and device disagree"
    return PathReport(
        table=pieces,
        shares=path_shares(pieces),
        calls=by_position(calls, sites),
        steps=len(ends.followed),
        warning=None if trace.is_untraced else "; ".join(filter(None, traced)),
        notes=(doubt,) if backward else (),
    )
