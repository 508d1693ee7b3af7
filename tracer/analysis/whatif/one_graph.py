"""The edit that combines the kernels that a step launches one by one, or in several graphs, into one CUDA graph.

The host work between the first and the last of these launches prepares them, so it disappears with them. The kernels
keep their recorded durations. A light recording has no kernels of individual launches, only the start and end of each
run, whose length depends on the host: nothing can be predicted from such runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import COPY, EVENT, GRAPH_LAUNCH, LAUNCH, WAIT, among
from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.edges import LAUNCH as LAUNCHED
from tracer.analysis.causality.paths import Causality
from tracer.analysis.fits import Fits, fits_for
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.strategies import windows
from tracer.errors import CannotTellError, EmptyTraceError

Ints = NDArray[np.int64]

_UNKNOWN: Final = 0.05
"""The maximum share of a step for runs of launches of which only the start and end are known."""
_WITHOUT_KERNELS: Final = (
    "the recording lacks the kernels that the graph would contain: it has only the start and end of runs of launches, "
    "which depend on the host; record with --passes light,node"
)


@dataclass(frozen=True)
class OneGraph:
    """Make every run of launches one graph launch.

    Attributes:
        early: whether its kernels begin early (programmatic dependent launch).
    """

    early: bool = False

    def half_margin(self, speedup: float, level: str | None, fits: Fits) -> float | None:
        """See `margin`; graphs with early starts were measured, on recordings made under a profiler."""
        return fits.margins.half_width(fits.margins.one_graph, speedup) if self.early and level else None

    @property
    def label(self) -> str:
        """A short description."""
        return "one graph launch" + (" with early starts" if self.early else "")

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Turn the first launch of each run into that of the graph; remove the others and the code before them.

        Raises:
            EmptyTraceError: no step launches kernels one by one.
            CannotTellError: the durations of the kernels in the runs are not recorded.
        """
        runs = launch_runs(changes, steps)
        if not len(runs):
            raise EmptyTraceError("no step launches kernels one by one: there is nothing to put into a graph")
        _check_kernels(changes.causality, steps, runs)
        calls, run = runs["call"].to_numpy(), runs["run"].to_numpy()
        first = np.append(True, run[1:] != run[:-1])
        others, graphs = calls[~first], calls[first]
        costs = fits_for(changes.causality.trace).graph
        activities = changes.causality.segments.activities
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
    activities = causality.segments.activities
    within = (activities["table"] == "memsets") | (activities["name"].astype(str) == "memcpy DtoD")
    found, issued = np.zeros(len(causality.segments.calls), bool), activities["call"].to_numpy()
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


def _check_kernels(causality: Causality, steps: Steps, runs: pd.DataFrame) -> None:
    """Raise CannotTellError if most of the graph would consist of runs of which only the length is known."""
    activities = causality.segments.activities
    letter = causality.segments.calls["letter"].to_numpy(dtype="U1")
    launch = runs["call"].to_numpy()[letter[runs["call"]] == LAUNCH]
    chosen = (activities["table"] == "graph_launches").to_numpy() & np.isin(activities["call"], launch)
    length = (activities["end"] - activities["start"]).to_numpy()[chosen].sum()
    if length > _UNKNOWN * (steps.table["end"] - steps.table["start"]).sum():
        raise CannotTellError(_WITHOUT_KERNELS)


def _branches(causality: Causality, launches: pd.DataFrame, took: dict[int, int]) -> Edges:
    """From the launch of each graph to its first activity on every stream except that of its first launch."""
    activities = causality.segments.activities
    issued = activities[["call", "lane"]].assign(activity=np.arange(len(activities)))
    nodes = issued.merge(launches[["call", "window"]], on="call").sort_values("activity")
    nodes = nodes.drop_duplicates(["window", "lane"])
    graphs = launches.drop_duplicates("window").set_index("window")["call"]
    nodes["graph"] = nodes["window"].map(graphs)
    nodes = nodes[nodes["call"] != nodes["graph"]]
    start = causality.segments.starts(nodes["activity"].to_numpy())
    return Edges.of(2 * nodes["graph"].to_numpy(), start, nodes["window"].map(took).to_numpy(), LAUNCHED)
