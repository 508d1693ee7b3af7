"""The edit that makes one CUDA graph of the kernels that a step launches one by one, or in several graphs.

What the host does between the first and the last of these launches prepares them, so that it goes with them. The
kernels take as long as recorded. A light recording has no kernels of single launches, only when a run of them began and
ended, which is as long as the host took to launch it: from such runs nothing can be predicted.
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
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.margin import ONE_GRAPH
from tracer.analysis.whatif.strategies import windows
from tracer.errors import CannotTellError, EmptyTraceError

Ints = NDArray[np.int64]

GRAPH_ORDER_NS: Final = 400
"""Between kernels of a graph that follow each other on an H200 (sample_traces/six-strategies, node level)."""

EARLY_SHARE: Final = 0.22
EARLY_MOST_NS: Final = 1500
"""How much of a kernel's time goes where it may begin before the one ahead of it has ended (programmatic dependent
launch): that share, but no more than its start takes. Of four models on an H200, whose recordings are named in
benchmarks/results/whatif_prediction.json, kernels of 1 µs lost 0.2 and those of 10 µs 1.7 µs."""

GRAPH_LAUNCH_NS: Final = 2000
GRAPH_NODE_NS: Final = 15
"""What launching a graph takes the host without a profiler: measured on an H200's host as 2.0 to 2.3 µs for 56 to 133
nodes and 10 µs for 342 (llama.cpp); the line through them."""


_UNKNOWN: Final = 0.05
"""The most of a step that runs of launches may take of which only begin and end are known."""
_WITHOUT_KERNELS: Final = (
    "the recording does not have the kernels that the graph would hold, only when runs of launches began and ended, "
    "and that depends on the host: record them with --passes light,node"
)


@dataclass(frozen=True)
class OneGraph:
    """Every run of launches as one graph launch.

    Attributes:
        early: whether its kernels begin early (programmatic dependent launch).
    """

    early: bool = False

    def half_margin(self, speedup: float, profiled: bool) -> float | None:
        """See `margin`; measured were graphs with early starts, from recordings made under a profiler."""
        return ONE_GRAPH.half_width(speedup) if self.early and profiled else None

    @property
    def label(self) -> str:
        """A short description."""
        return "one graph launch" + (" with early starts" if self.early else "")

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """The first launch of each run becomes that of the graph; the others, and the code before them, are gone.

        Raises:
            EmptyTraceError: no step launches kernels one by one.
            CannotTellError: how long the kernels of the runs take is not recorded.
        """
        runs = launch_runs(changes, steps)
        if not len(runs):
            raise EmptyTraceError("no step launches kernels one by one: there is nothing to put into a graph")
        _check_kernels(changes.causality, steps, runs)
        calls, run = runs["call"].to_numpy(), runs["run"].to_numpy()
        first = np.append(True, run[1:] != run[:-1])
        others, graphs = calls[~first], calls[first]
        activities = changes.causality.segments.activities
        inside = np.flatnonzero(np.isin(activities["call"], others))
        changes.forget_launches(inside)
        changes.limit_orders(inside, GRAPH_ORDER_NS)
        changes.drop_pauses(_between(calls, run))
        changes.remove_calls(_prepare(calls, run), and_issued=False)
        of_graph = np.searchsorted(graphs, activities["call"].to_numpy()[inside], side="right") - 1
        nodes = np.bincount(of_graph, minlength=len(graphs))
        took = GRAPH_LAUNCH_NS + GRAPH_NODE_NS * (nodes + 1)
        changes.set_calls(graphs, took)
        of_run = pd.DataFrame({"call": calls, "window": run})
        changes.add(_branches(changes.causality, of_run, dict(zip(run[first], took, strict=True))))
        launching = f"launching a graph is taken to cost {GRAPH_LAUNCH_NS / 1e3:g} µs and {GRAPH_NODE_NS} ns per node"
        if not self.early:
            return [f"{launching}, and its kernels to follow each other within {GRAPH_ORDER_NS / 1e3:g} µs"]
        changes.limit_orders(inside, 0)
        changes.shorten_activities(inside, EARLY_SHARE, EARLY_MOST_NS)
        return [
            f"{launching}; a kernel that begins early is taken to be done earlier by {EARLY_SHARE:.0%} of its time, at "
            f"most {EARLY_MOST_NS / 1e3:g} µs"
        ]


def launch_runs(changes: Changes, steps: Steps) -> pd.DataFrame:
    """The calls that one graph each would replace.

    A run is of launches that follow each other, with the copies and fills within the device and the events between
    them. A graph launch is no part of one, unless it holds several: pieces of a graph.

    Returns:
        Columns call (position) and run (number), by call; runs have two calls or more, the first of which launches.
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
    """Which calls issue nothing but copies within a device and fills."""
    activities = causality.segments.activities
    within = (activities["table"] == "memsets") | (activities["name"].astype(str) == "memcpy DtoD")
    found, issued = np.zeros(len(causality.segments.calls), bool), activities["call"].to_numpy()
    found[issued[(issued >= 0) & within.to_numpy()]] = True
    found[issued[(issued >= 0) & ~within.to_numpy()]] = False
    return found


def _between(calls: Ints, run: Ints) -> Ints:
    """All calls, of any kind, from the first of each run to the one before its last: calls of a thread follow each
    other."""
    inside = np.flatnonzero(run[1:] == run[:-1])
    sizes = calls[inside + 1] - calls[inside]
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.repeat(calls[inside], sizes) + np.arange(sizes.sum()) - begins)


def _prepare(calls: Ints, run: Ints) -> Ints:
    """The same without the first of each run, and with its last."""
    return _between(calls, run) + 1


def _check_kernels(causality: Causality, steps: Steps, runs: pd.DataFrame) -> None:
    """Raises CannotTellError where lengths of runs are most of what would be in the graph."""
    activities = causality.segments.activities
    letter = causality.segments.calls["letter"].to_numpy(dtype="U1")
    launch = runs["call"].to_numpy()[letter[runs["call"]] == LAUNCH]
    chosen = (activities["table"] == "graph_launches").to_numpy() & np.isin(activities["call"], launch)
    length = (activities["end"] - activities["start"]).to_numpy()[chosen].sum()
    if length > _UNKNOWN * (steps.table["end"] - steps.table["start"]).sum():
        raise CannotTellError(_WITHOUT_KERNELS)


def _branches(causality: Causality, launches: pd.DataFrame, took: dict[int, int]) -> Edges:
    """From the launch of each graph to its first activity on every stream but that of its first launch."""
    activities = causality.segments.activities
    issued = activities[["call", "lane"]].assign(activity=np.arange(len(activities)))
    nodes = issued.merge(launches[["call", "window"]], on="call").sort_values("activity")
    nodes = nodes.drop_duplicates(["window", "lane"])
    graphs = launches.drop_duplicates("window").set_index("window")["call"]
    nodes["graph"] = nodes["window"].map(graphs)
    nodes = nodes[nodes["call"] != nodes["graph"]]
    start = causality.segments.starts(nodes["activity"].to_numpy())
    return Edges.of(2 * nodes["graph"].to_numpy(), start, nodes["window"].map(took).to_numpy(), LAUNCHED)
