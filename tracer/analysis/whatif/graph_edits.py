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
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_sites import host_ranges, innermost_ranges
from tracer.analysis.path.graph import LAUNCH as LAUNCHED
from tracer.analysis.path.graph import Edges
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes, Unmeasured
from tracer.analysis.whatif.host_edits import windows
from tracer.errors import CannotTellError, EmptyTraceError, UnsafePlanError
from tracer.model.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT
from tracer.model.fits import Fits, fits_for
from tracer.model.intervals import Ints
from tracer.model.rows import among
from tracer.model.schema import COMPUTE_TABLES, PYTHON_FUNCTION

_LACKING: Final = 0.1
"""The maximum share of steps whose eager launches are not all known. They are not changed, and the speed-up is the
ratio of medians; steps with runs of launches do not count in these (`StepTimes.known`)."""
BEFORE, BETWEEN, BEHIND = "before the graph", "between graphs", "after the graph"
_WAITS: Final = "the host waits for them between their launch and that of the graph"
KEYS: Final = ["kernel", "operator", "where"]


@dataclass(frozen=True)
class OneGraph:
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
        runs = launch_runs(changes, steps)
        if not len(runs):
            raise EmptyTraceError("no step launches kernels one by one: there is nothing to put into a graph")
        calls, run = runs["call"].to_numpy(), runs["run"].to_numpy()
        first = np.append(True, run[1:] != run[:-1])
        others, graphs = calls[~first], calls[first]
        costs = fits_for(changes.causality.trace).graph
        activities = changes.causality.work_frame
        inside = np.flatnonzero(np.isin(activities["call"], others))
        changes.forget_launches(inside)
        changes.limit_orders(inside, costs.order_ns)
        changes.drop_pauses(_between(calls, run))
        changes.remove_calls(_prepare(calls, run), and_issued=False)
        of_graph = np.searchsorted(graphs, activities["call"].to_numpy()[inside], side="right") - 1
        nodes = np.bincount(of_graph, minlength=len(graphs))
        took = costs.launch_ns + costs.node_ns * (nodes + 1)
        changes.set_calls(graphs, took)
        of_run = pd.DataFrame({"call": calls, "window": run})
        changes.add(_branches(changes.causality, of_run, dict(zip(run[first], took, strict=True))))
        launching = f"assumes that launching a graph costs {costs.launch_ns / 1e3:g} µs and {costs.node_ns} ns per node"
        if not self.early:
            return [f"{launching}, and that its kernels follow each other within {costs.order_ns / 1e3:g} µs"]
        changes.limit_orders(inside, 0)
        changes.shorten_activities(inside, costs.early_share, costs.early_most_ns)
        return [
            f"{launching}; a kernel that begins early ends earlier by {costs.early_share:.0%} of its time, at "
            f"most {costs.early_most_ns / 1e3:g} µs"
        ]


def launch_runs(changes: Changes, steps: Steps) -> pd.DataFrame:
    """The calls that one graph each would replace.

    A run consists of consecutive launches, with the events, and the copies and memsets within the device, between them.
    A graph launch belongs to a run only if the run contains several of them (a piecewise graph).

    Returns:
        Columns call (position) and run (number), sorted by call; a run has at least two calls, the first of which
        launches.
    """
    calls, table = changes.calls, windows(changes, steps).sort_values("call", kind="stable")
    letter, call = table["letter"].to_numpy(dtype="U1"), table["call"].to_numpy()
    within = _within_device(changes.causality)[call] & (letter == COPY)
    passes = within | among(letter, [LAUNCH, GRAPH_LAUNCH, EVENT, WAIT])
    place = table[["at"]].assign(process=calls["process"].to_numpy()[call], thread=calls["thread"].to_numpy()[call])
    breaks = ~passes | (place != place.shift()).any(axis=1).to_numpy()
    run = np.cumsum(breaks | np.append(False, ~passes[:-1]))
    graphs = pd.Series(letter == GRAPH_LAUNCH).groupby(run).transform("sum").to_numpy()
    alone = (letter == GRAPH_LAUNCH) & (graphs == 1)
    run = run * 2 + pd.Series(alone).groupby(run).cumsum().to_numpy()  # what follows a graph is another run
    launches = among(letter, [LAUNCH, GRAPH_LAUNCH]) & ~alone
    of_run = pd.Series(np.where(launches, call, -1)).groupby(run)
    first = pd.Series(np.where(launches, call, len(calls))).groupby(run).transform("min").to_numpy()
    last = of_run.transform("max").to_numpy()
    chosen = passes & ~alone & (call >= first) & (call <= last) & (first < last)
    return pd.DataFrame({"call": call[chosen], "run": run[chosen]})


def _within_device(causality: Causality) -> NDArray[np.bool_]:
    """Which calls issue only memsets and copies within a device."""
    activities = causality.work_frame
    within = (activities["table"] == "memsets") | (activities["name"].astype(str) == "memcpy DtoD")
    found, issued = np.zeros(len(causality.call_frame), bool), activities["call"].to_numpy()
    found[issued[(issued >= 0) & within.to_numpy()]] = True
    found[issued[(issued >= 0) & ~within.to_numpy()]] = False
    return found


def _between(calls: Ints, run: Ints) -> Ints:
    """All calls of any kind from the first of each run to the second-to-last; a thread's calls are consecutive."""
    inside = np.flatnonzero(run[1:] == run[:-1])
    sizes = calls[inside + 1] - calls[inside]
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.repeat(calls[inside], sizes) + np.arange(sizes.sum()) - begins)


def _prepare(calls: Ints, run: Ints) -> Ints:
    """The calls of `_between` without the first of each run, and with its last."""
    return _between(calls, run) + 1


def _branches(causality: Causality, launches: pd.DataFrame, took: dict[int, int]) -> Edges:
    """From the launch of each graph to its first activity on every stream except that of its first launch."""
    activities = causality.work_frame
    issued = activities[["call", "lane"]].assign(activity=np.arange(len(activities)))
    nodes = issued.merge(launches[["call", "window"]], on="call").sort_values("activity")
    nodes = nodes.drop_duplicates(["window", "lane"])
    graphs = launches.drop_duplicates("window").set_index("window")["call"]
    nodes["graph"] = nodes["window"].map(graphs)
    nodes = nodes[nodes["call"] != nodes["graph"]]
    start = causality.segments.starts(nodes["activity"].to_numpy())
    launching = np.asarray(nodes["window"].map(took), np.int64)
    return Edges.of(2 * nodes["graph"].to_numpy(), start, launching, LAUNCHED)


@dataclass(frozen=True)
class EagerLaunches:
    """The kernels launched individually in steps that also launch a graph.

    Attributes:
        table: one row per kernel: kernel (short name), operator (the innermost range around its launch, "" for none),
            where (`BEFORE` the first graph of its step, `BETWEEN` that and the last, or `BEHIND` it), at (position in
            the steps), activity and call (positions), graph (position of the graph's launch), hole_ns (time before the
            kernel in which nothing runs on its device), kernel_ns, launch_ns (inside the call), is_wait_between
            (whether the host waits between the two launches).
        steps: the number of steps without those of `lacking`.
        lacking: the number of steps left out because the recording lacks kernels that they launch.
    """

    table: pd.DataFrame
    steps: int
    lacking: int

    def by_kernel(self) -> pd.DataFrame:
        """The kernels grouped by `KEYS`: per_step, hole_us, kernel_us and launch_us (mean sums per step),
        is_wait_between (true for most); the largest holes first.
        """
        groups = self.table.groupby(KEYS, sort=False)
        found = groups.agg(
            count=("call", "size"), hole=("hole_ns", "sum"), kernel=("kernel_ns", "sum"), launch=("launch_ns", "sum"),
            waits=("is_wait_between", "mean"),
        )  # fmt: skip
        table = pd.DataFrame(
            {
                "per_step": found["count"] / self.steps,
                **{f"{name}_us": found[name] / self.steps / 1e3 for name in ("hole", "kernel", "launch")},
                "is_wait_between": found["waits"] > 0.5,
            }
        )
        return table.sort_values("hole_us", ascending=False, kind="stable").reset_index()


def eager_launches(causality: Causality, steps: Steps) -> EagerLaunches:
    """Find the kernels launched individually in steps that also launch a graph."""
    calls, activities = causality.call_frame, causality.work_frame
    at = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    letter = calls["letter"].to_numpy(dtype="U1")
    graphs = np.flatnonzero((at >= 0) & (letter == GRAPH_LAUNCH))
    of_step = pd.Series(graphs, index=at[graphs]).groupby(level=0)
    first, last = of_step.first(), of_step.last()
    launches = np.flatnonzero((letter == LAUNCH) & np.isin(at, first.index))
    call = activities["call"].to_numpy()
    kernels = np.flatnonzero((activities["table"] == "kernels").to_numpy() & (call >= 0))
    lacking = np.unique(at[launches[~np.isin(launches, call[kernels])]])
    kernels = kernels[np.isin(call[kernels], launches) & ~np.isin(at[call[kernels]], lacking)]
    call = call[kernels]
    graph, final = (one.reindex(at[call]).to_numpy(np.int64) for one in (first, last))
    nvtx = host_ranges(causality.trace)
    operator = innermost_ranges(nvtx[nvtx["domain"] != PYTHON_FUNCTION], calls.iloc[call])
    starts = calls["start"].to_numpy()
    table = pd.DataFrame(
        {
            "kernel": activities["name"].astype(str).to_numpy()[kernels],
            "operator": operator.astype(str),
            "where": np.select([starts[call] < starts[graph], starts[call] < starts[final]], [BEFORE, BETWEEN], BEHIND),
            "at": at[call],
            "activity": kernels,
            "call": call,
            "graph": graph,
            "hole_ns": _holes(activities)[kernels],
            "kernel_ns": (activities["end"] - activities["start"]).to_numpy()[kernels],
            "launch_ns": (calls["end"] - calls["start"]).to_numpy()[call],
            "is_wait_between": _is_wait_between(calls, starts[call], starts[graph]),
        }
    )
    return EagerLaunches(table, len(steps) - len(lacking), len(lacking))


@dataclass(frozen=True)
class IntoGraph(Unmeasured):
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
        found = eager_launches(changes.causality, steps)
        if found.lacking > _LACKING * len(steps) and not changes.causality.trace.has_runs:
            raise CannotTellError(
                f"the recording lacks kernels that {found.lacking:,} of {len(steps):,} steps launch outside their graph"
            )
        launches = found.table
        if self.kernel is not None:
            values = self.kernel, self.operator, self.where
            of_row = [launches[name] == value for name, value in zip(KEYS, values, strict=True)]
            launches = launches[np.logical_and.reduce(of_row)]
        launches = launches.drop_duplicates("activity")
        if not len(launches):
            raise EmptyTraceError("no step launches these kernels outside its graph")
        if launches["is_wait_between"].mean() > 0.5:
            raise UnsafePlanError(f"{self.label}: {_WAITS}")
        launches = launches[~launches["is_wait_between"]]
        activities = launches["activity"].to_numpy()
        changes.forget_launches(activities)
        graph = fits_for(changes.causality.trace).graph
        changes.limit_orders(activities, graph.order_ns)
        changes.remove_calls(launches["call"].unique(), and_issued=False)
        changes.add(_behind_graph(changes, launches[launches["where"] == BEFORE]))
        try:
            changes.dag()
        except ValueError:  # points that wait for one another
            raise UnsafePlanError(f"{self.label}: {_WAITS}") from None
        return [
            f"assumes that a kernel of a graph starts within {graph.order_ns / 1e3:g} µs of the previous one's end, "
            f"and adds {graph.node_ns} ns to its launch"
        ]


def _behind_graph(changes: Changes, launches: pd.DataFrame) -> Edges:
    """Edges from the launch of a graph to the kernels that came before it."""
    graph = launches["graph"].to_numpy()
    took = changes.call_times()[graph] + fits_for(changes.causality.trace).graph.node_ns
    start = changes.causality.segments.starts(launches["activity"].to_numpy())
    return Edges.of(2 * graph, start, took, LAUNCHED)


def _holes(activities: pd.DataFrame) -> Ints:
    """How long nothing, copies included, runs on the device before each activity; 0 for the first."""
    found = np.zeros(len(activities), np.int64)
    of_compute = activities["table"].isin([*COMPUTE_TABLES, "memcpys", "memsets"]).to_numpy()
    for of_device in activities[of_compute].groupby("device", sort=False).indices.values():
        rows = np.flatnonzero(of_compute)[of_device]
        rows = rows[np.argsort(activities["start"].to_numpy()[rows], kind="stable")]
        start, end = (activities[name].to_numpy()[rows] for name in ("start", "end"))
        found[rows[1:]] = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    return found


def _is_wait_between(calls: pd.DataFrame, one: Ints, other: Ints) -> NDArray[np.bool_]:
    waits = np.sort(calls["start"].to_numpy()[calls["letter"].isin([SYNC, BLOCKING_COPY])])
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.asarray(np.searchsorted(waits, high) > np.searchsorted(waits, low))
