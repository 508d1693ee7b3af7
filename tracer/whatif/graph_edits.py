"""Edits that put kernels into a CUDA graph.

`OneGraph` combines the kernels that a step launches one by one, or in several graphs, into one graph. The host work
between the first and the last of these launches prepares them, so it disappears with them. The kernels keep their
recorded durations. A light recording has only the start and end of some runs of launches, whose length depends on the
host: nothing can be predicted from the steps with these (`StepTimes.known`).

`IntoGraph` moves kernels that a step launches individually outside its graph into it; `eager_launches` finds them, and
the hole before each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracer.analysis.call_sites import host_ranges, innermost_ranges
from tracer.analysis.path.graph import LAUNCH as LAUNCHED
from tracer.analysis.path.graph import Edges
from tracer.analysis.path.paths import Causality, calls_at
from tracer.analysis.path.segments import OuterCalls, Work
from tracer.analysis.tokens import Steps
from tracer.errors import CannotTellError, EmptyTraceError, UnsafePlanError
from tracer.model.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT
from tracer.model.columns import NEVER, Columns, Names, among, ended_before, firsts, lasts, numbers, within
from tracer.model.fits import Fits, fits_for
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import PYTHON_FUNCTION
from tracer.model.tables import MEMSETS
from tracer.whatif.changes import Changes, Edit, calls_of_runs

_LACKING: Final = 0.1
"""The maximum share of steps whose eager launches are not all known. They are not changed, and the speed-up is the
ratio of medians; steps with runs of launches do not count in these (`StepTimes.known`)."""
BEFORE, BETWEEN, BEHIND = "before the graph", "between graphs", "after the graph"
_WAITS: Final = "the host waits for them between their launch and that of the graph"
KEYS: Final = ("kernel", "operator", "where")
_PLACES: Final = np.array([BEFORE, BETWEEN, BEHIND], dtype=object)
_MOST: Final = 0.5


@dataclass(frozen=True)
class OneGraph(Edit):
    """Make every run of launches one graph launch.

    Attributes:
        early: whether its kernels begin early (programmatic dependent launch).
    """

    early: bool = False

    def half_margin(self, speedup: float, level: str | None, fits: Fits) -> float | None:
        """See `fits.Margin`; graphs with early starts were measured, on recordings made under a profiler."""
        return fits.margins.half_width(fits.margins.one_graph, speedup) if self.early and level else None

    @property
    def label(self) -> str:
        """A short description."""
        return "one graph launch" + (" with early starts" if self.early else "")

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Turn the first launch of each run into that of the graph; remove the others and the code before them.

        Raises:
            EmptyTraceError: no step launches kernels one by one.
        """
        calls, run = launch_runs(changes, steps)
        if not len(calls):
            raise EmptyTraceError("no step launches kernels one by one: there is nothing to put into a graph")
        first = np.append(True, run[1:] != run[:-1])
        others, graphs = calls[~first], calls[first]
        costs = fits_for(changes.causality.trace).graph
        work = changes.causality.segments.activities
        inside = np.flatnonzero(np.isin(work.call, others))
        changes.forget_launches(inside)
        changes.limit_orders(inside, costs.order_ns)
        changes.drop_pauses(_between(calls, run))
        changes.remove_calls(_prepare(calls, run), and_issued=False)
        nodes = np.bincount(np.searchsorted(graphs, work.call[inside], side="right") - 1, minlength=len(graphs))
        took = costs.launch_ns + costs.node_ns * (nodes + 1)
        changes.set_calls(graphs, took)
        changes.add(_branches(changes.causality, calls, np.cumsum(first) - 1, took))
        launching = f"assumes that launching a graph costs {costs.launch_ns / 1e3:g} µs and {costs.node_ns} ns per node"
        if not self.early:
            return [f"{launching}, and that its kernels follow each other within {costs.order_ns / 1e3:g} µs"]
        changes.limit_orders(inside, 0)
        changes.shorten_activities(inside, costs.early_share, costs.early_most_ns)
        return [
            f"{launching}; a kernel that begins early ends earlier by {costs.early_share:.0%} of its time, at "
            f"most {costs.early_most_ns / 1e3:g} µs"
        ]


def launch_runs(changes: Changes, steps: Steps) -> tuple[Ints, Ints]:
    """The calls that one graph each would replace.

    A run consists of consecutive launches, with the events, and the copies and memsets within the device, between them.
    A graph launch belongs to a run only if the run contains several of them (a piecewise graph).

    Returns:
        The positions of the calls, ascending, and the number of the run of each; a run has at least two calls, the
        first of which launches.
    """
    calls, table = changes.calls, calls_of_runs(changes, steps)
    table = table[np.argsort(table.call, kind="stable")]
    letter, call, at = table.letter, table.call, table.at
    within_device = _within_device(changes.causality)[call] & (letter == COPY)
    passes = within_device | among(letter, [LAUNCH, GRAPH_LAUNCH, EVENT, WAIT])
    goes_on = np.zeros(len(call), bool)  # on the thread and in the step of the row before
    for each in (at, calls.process[call], calls.thread[call]):
        goes_on[1:] |= each[1:] != each[:-1]
    goes_on[1:] = ~goes_on[1:] & passes[:-1]
    run = np.cumsum(~(passes & goes_on))
    is_graph = letter == GRAPH_LAUNCH
    alone = is_graph & (np.bincount(run, weights=is_graph)[run] == 1)
    run = 2 * run + _counted(alone, run)  # what follows a graph is another run
    launches = np.flatnonzero(among(letter, [LAUNCH, GRAPH_LAUNCH]) & ~alone)
    count, row = int(run.max(initial=0)) + 1, np.arange(len(run))
    first, last = (each(run[launches], count, launches)[run] for each in (firsts, lasts))
    chosen = passes & ~alone & (first < last) & (row >= first) & (row <= last)
    return call[chosen], run[chosen]


def _counted(chosen: Bools, run: Ints) -> Ints:
    """How many of the rows of each run, which are consecutive, are chosen up to each row."""
    count = np.cumsum(chosen)
    begins = np.append(True, run[1:] != run[:-1])[: len(run)]
    before = np.where(begins, count - chosen, 0)
    return count - np.maximum.accumulate(before)


def _within_device(causality: Causality) -> Bools:
    """Which calls issue only memsets and copies within a device."""
    work = causality.segments.activities
    within_device = (work.table == MEMSETS) | work.name.rows("memcpy DtoD")
    is_within, issued = np.zeros(len(causality.segments.calls), bool), work.call >= 0
    is_within[work.call[issued & within_device]] = True
    is_within[work.call[issued & ~within_device]] = False
    return is_within


def _between(calls: Ints, run: Ints) -> Ints:
    """All calls of any kind from the first of each run to the second-to-last; a thread's calls are consecutive."""
    inside = np.flatnonzero(run[1:] == run[:-1])
    sizes = calls[inside + 1] - calls[inside]
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.repeat(calls[inside], sizes) + np.arange(sizes.sum()) - begins)


def _prepare(calls: Ints, run: Ints) -> Ints:
    """The calls of `_between` without the first of each run, and with its last."""
    return _between(calls, run) + 1


def _branches(causality: Causality, calls: Ints, graph: Ints, took: Ints) -> Edges:
    """From the launch of each graph to its first activity on every stream except that of its first launch.

    Args:
        calls, graph: the calls that graphs replace, and the number of the graph of each; its first call launches it.
        took: how long the launch of each graph takes, ns.
    """
    work, segments = causality.segments.activities, causality.segments
    graph_of, launch = lasts(calls, len(segments.calls), graph), firsts(graph, len(took), calls)
    activity = np.flatnonzero((work.call >= 0) & (graph_of[work.call] >= 0))
    graph = graph_of[work.call[activity]]
    of_lane = within(graph, work.lane[activity]) == 0  # the first of its graph on its stream
    activity, graph = activity[of_lane], graph[of_lane]
    others = work.call[activity] != launch[graph]
    activity, graph = activity[others], graph[others]
    return Edges.of(2 * launch[graph], segments.starts(activity), took[graph], LAUNCHED)


class Launched(Columns):
    """Kernels launched individually in steps that also launch a graph.

    Attributes:
        kernel: its short name.
        operator: the innermost range around its launch; "" for none.
        where: `BEFORE` the first graph of its step, `BETWEEN` that and the last, or `BEHIND` it.
        at: the position of the step.
        activity, call, graph: the positions of the kernel, of its launch, and of that of the step's first graph.
        hole_ns: the time before the kernel in which nothing runs on its device.
        kernel_ns: its own time.
        launch_ns: the time inside the call.
        is_wait_between: whether the host waits between the two launches.
    """

    kernel: Names
    operator: Names
    where: Names
    at: Ints
    activity: Ints
    call: Ints
    graph: Ints
    hole_ns: Ints
    kernel_ns: Ints
    launch_ns: Ints
    is_wait_between: Bools

    @cached_property
    def kinds(self) -> tuple[Ints, int]:
        """The number of the kernel, operator and place of each row, and how many there are."""
        return numbers(self.kernel.codes, self.operator.codes, self.where.codes)


class LaunchedKinds(Columns):
    """Such kernels by kernel, operator and place, the largest holes first.

    Attributes:
        kernel, operator, where: of them.
        per_step: their number per step.
        hole_us, kernel_us, launch_us: mean sums per step.
        is_wait_between: true for most.
        number: of the kind, see `Launched.kinds`.
    """

    kernel: Names
    operator: Names
    where: Names
    per_step: Floats
    hole_us: Floats
    kernel_us: Floats
    launch_us: Floats
    is_wait_between: Bools
    number: Ints


@dataclass(frozen=True, eq=False)
class EagerLaunches:
    """The kernels launched individually in steps that also launch a graph.

    Attributes:
        table: one row per kernel.
        steps: the number of steps without those of `lacking`.
        lacking: the number of steps left out because the recording lacks kernels that they launch.
    """

    table: Launched
    steps: int
    lacking: int

    def by_kernel(self) -> LaunchedKinds:
        """The kernels by kind."""
        table, (number, count) = self.table, self.table.kinds
        first = firsts(number, count)
        size = np.bincount(number, minlength=count)
        hole, kernel, launch = (
            np.bincount(number, weights=ns, minlength=count) / self.steps / 1e3
            for ns in (table.hole_ns, table.kernel_ns, table.launch_ns)
        )
        waits = np.bincount(number, weights=table.is_wait_between, minlength=count) / size > _MOST
        kinds = LaunchedKinds(
            table.kernel[first], table.operator[first], table.where[first], size / self.steps, hole, kernel, launch,
            waits, np.arange(count),
        )  # fmt: skip
        return kinds[count - 1 - np.argsort(hole[::-1], kind="stable")[::-1]]


def eager_launches(causality: Causality, steps: Steps) -> EagerLaunches:
    """Find the kernels launched individually in steps that also launch a graph; must not be modified."""
    return causality.once(_eager_launches, steps)


def _eager_launches(causality: Causality, steps: Steps) -> EagerLaunches:
    calls, work = causality.segments.calls, causality.segments.activities
    at = causality.once(calls_at, steps)
    graphs = np.flatnonzero((at >= 0) & (calls.letter == GRAPH_LAUNCH))
    first, last = (each(at[graphs], len(steps) + 1, graphs) for each in (firsts, lasts))  # of each step, and of none
    launches = (calls.letter == LAUNCH) & (first[at] >= 0)
    kernels = np.flatnonzero(work.is_kernel & (work.call >= 0))
    has_kernel = np.zeros(len(calls), bool)
    has_kernel[work.call[kernels]] = True
    is_lacking = np.zeros(len(steps) + 1, bool)
    is_lacking[at[launches & ~has_kernel]] = True
    call = work.call[kernels]
    chosen = launches[call] & ~is_lacking[at[call]]
    kernels, call = kernels[chosen], call[chosen]
    graph, final = first[at[call]], last[at[call]]
    nvtx = host_ranges(causality.trace)
    operator = innermost_ranges(nvtx[~nvtx.domain.rows(PYTHON_FUNCTION)], calls[call])
    start = calls.start[call]
    where = np.where(start < calls.start[graph], 0, np.where(start < calls.start[final], 1, 2))
    table = Launched(
        work.name[kernels], operator, Names(where, _PLACES), at[call], kernels, call, graph, _holes(work)[kernels],
        (work.end - work.start)[kernels], (calls.end - calls.start)[call],
        _is_wait_between(calls, start, calls.start[graph]),
    )  # fmt: skip
    lacking = int(is_lacking.sum())
    return EagerLaunches(table, len(steps) - lacking, lacking)


@dataclass(frozen=True)
class IntoGraph(Edit):
    """Move kernels that are launched individually outside a graph into it.

    Attributes:
        kernel, operator, where: those of one row of `by_kernel`; None for all kernels.
    """

    kernel: str | None = None
    operator: str = ""
    where: str = ""

    @property
    def label(self) -> str:
        """A short description."""
        return "eager launches into the graph" if self.kernel is None else f"{self.kernel} into the graph"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Remove their launches; they start with the graph, or directly after what precedes them.

        Raises:
            EmptyTraceError: there are no such kernels.
            CannotTellError: the recording lost them in too many steps.
            UnsafePlanError: the host waits between their launch and that of the graph.
        """
        eager = eager_launches(changes.causality, steps)
        if eager.lacking > _LACKING * len(steps) and not changes.causality.trace.has_runs:
            raise CannotTellError(
                f"the recording lacks kernels that {eager.lacking:,} of {len(steps):,} steps launch outside their graph"
            )
        launches = eager.table
        if self.kernel is not None:
            wanted = zip(KEYS, (self.kernel, self.operator, self.where), strict=True)
            launches = launches[np.logical_and.reduce([getattr(launches, key).rows(text) for key, text in wanted])]
        if not len(launches):
            raise EmptyTraceError("no step launches these kernels outside its graph")
        if launches.is_wait_between.mean() > _MOST:
            raise UnsafePlanError(f"{self.label}: {_WAITS}")
        launches = launches[~launches.is_wait_between]
        changes.forget_launches(launches.activity)
        graph = fits_for(changes.causality.trace).graph
        changes.limit_orders(launches.activity, graph.order_ns)
        changes.remove_calls(np.unique(launches.call), and_issued=False)
        changes.add(_behind_graph(changes, launches[launches.where.rows(BEFORE)]))
        try:
            changes.dag()
        except ValueError:  # points that wait for one another
            raise UnsafePlanError(f"{self.label}: {_WAITS}") from None
        return [
            f"assumes that a kernel of a graph starts within {graph.order_ns / 1e3:g} µs of the previous one's end, "
            f"and adds {graph.node_ns} ns to its launch"
        ]


def _behind_graph(changes: Changes, launches: Launched) -> Edges:
    """Edges from the launch of a graph to the kernels that came before it."""
    took = changes.call_times()[launches.graph] + fits_for(changes.causality.trace).graph.node_ns
    return Edges.of(2 * launches.graph, changes.causality.segments.starts(launches.activity), took, LAUNCHED)


def _holes(work: Work) -> Ints:
    """How long nothing, copies included, runs on the device before each activity; 0 for the first."""
    order, holes = np.argsort(work.start, kind="stable"), np.empty(len(work), np.int64)
    start, ended = work.start[order], ended_before(work.end[order], work.device[order])
    holes[order] = np.where(ended == -NEVER, 0, np.maximum(start - ended, 0))
    return holes


def _is_wait_between(calls: OuterCalls, one: Ints, other: Ints) -> Bools:
    waits = np.sort(calls.start[among(calls.letter, [SYNC, BLOCKING_COPY])])
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.asarray(np.searchsorted(waits, high) > np.searchsorted(waits, low))
