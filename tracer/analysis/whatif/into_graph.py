"""Kernels that steps launch individually outside their CUDA graph: the hole before each, and the edit that moves them
into the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_sites import host_ranges, innermost_ranges
from tracer.analysis.calls import BLOCKING_COPY, GRAPH_LAUNCH, LAUNCH, SYNC
from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.edges import LAUNCH as LAUNCHED
from tracer.analysis.causality.paths import Causality
from tracer.analysis.fits import fits_for
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.edits import Unmeasured
from tracer.errors import EmptyTraceError, UnsafePlanError
from tracer.model.schema import COMPUTE_TABLES, PYTHON_FUNCTION

BEFORE, BEHIND = "before the graph", "after the graph"
_WAITS: Final = "the host waits for them between their launch and that of the graph"
KEYS: Final = ["kernel", "operator", "where"]


def eager_launches(causality: Causality, steps: Steps) -> pd.DataFrame:
    """The kernels launched individually in steps that also launch a graph.

    Returns:
        One row per kernel: kernel (short name), operator (the innermost range around its launch, "" for none), where
        (`BEFORE` the first graph of its step, or `BEHIND` it), at (position in `steps`), activity and call (positions),
        graph (position of the graph's launch), hole_ns (time before the kernel in which nothing runs on its device),
        kernel_ns, launch_ns (inside the call), is_wait_between (whether the host waits between the two launches).
    """
    calls, activities = causality.segments.calls, causality.segments.activities
    at = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    letter = calls["letter"].to_numpy(dtype="U1")
    graphs = np.flatnonzero((at >= 0) & (letter == GRAPH_LAUNCH))
    first = pd.Series(graphs, index=at[graphs]).groupby(level=0).first()
    call = activities["call"].to_numpy()
    kernels = np.flatnonzero((activities["table"] == "kernels").to_numpy() & (call >= 0))
    kernels = kernels[(letter[call[kernels]] == LAUNCH) & np.isin(at[call[kernels]], first.index)]
    call = call[kernels]
    graph = first.reindex(at[call]).to_numpy(np.int64)
    nvtx = host_ranges(causality.trace)
    operator = innermost_ranges(nvtx[nvtx["domain"] != PYTHON_FUNCTION], calls.iloc[call])
    starts = calls["start"].to_numpy()
    return pd.DataFrame(
        {
            "kernel": activities["name"].astype(str).to_numpy()[kernels],
            "operator": operator.astype(str),
            "where": np.where(starts[call] < starts[graph], BEFORE, BEHIND),
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


def by_kernel(launches: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The kernels of `eager_launches` grouped by `KEYS`: per_step, hole_us, kernel_us and launch_us (mean sums per
    step), is_wait_between (true for most); the largest holes first.
    """
    groups = launches.groupby(KEYS, sort=False)
    found = groups.agg(
        count=("call", "size"), hole=("hole_ns", "sum"), kernel=("kernel_ns", "sum"), launch=("launch_ns", "sum"),
        waits=("is_wait_between", "mean"),
    )  # fmt: skip
    table = pd.DataFrame(
        {
            "per_step": found["count"] / steps,
            **{f"{name}_us": found[name] / steps / 1e3 for name in ("hole", "kernel", "launch")},
            "is_wait_between": found["waits"] > 0.5,
        }
    )
    return table.sort_values("hole_us", ascending=False, kind="stable").reset_index()


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
            UnsafePlanError: the host waits between their launch and that of the graph.
        """
        launches = eager_launches(changes.causality, steps)
        if self.kernel is not None:
            of_row = [launches[name] == value for name, value in zip(KEYS, self._values(), strict=True)]
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
        changes.add(_behind_launch(changes, launches[launches["where"] == BEFORE]))
        try:
            changes.dag()
        except ValueError:  # points that wait for one another
            raise UnsafePlanError(f"{self.label}: {_WAITS}") from None
        return [
            f"assumes that a kernel of a graph starts within {graph.order_ns / 1e3:g} µs of the previous one's end, "
            f"and adds {graph.node_ns} ns to its launch"
        ]

    def _values(self) -> tuple[Any, ...]:
        return self.kernel, self.operator, self.where


def _behind_launch(changes: Changes, launches: pd.DataFrame) -> Edges:
    """Edges from the launch of a graph to the kernels that came before it."""
    graph = launches["graph"].to_numpy()
    took = changes.call_times()[graph] + fits_for(changes.causality.trace).graph.node_ns
    start = changes.causality.segments.starts(launches["activity"].to_numpy())
    return Edges.of(2 * graph, start, took, LAUNCHED)


def _holes(activities: pd.DataFrame) -> NDArray[np.int64]:
    """How long nothing, copies included, runs on the device before each activity; 0 for the first."""
    found = np.zeros(len(activities), np.int64)
    of_compute = activities["table"].isin([*COMPUTE_TABLES, "memcpys", "memsets"]).to_numpy()
    for of_device in activities[of_compute].groupby("device", sort=False).indices.values():
        rows = np.flatnonzero(of_compute)[of_device]
        rows = rows[np.argsort(activities["start"].to_numpy()[rows], kind="stable")]
        start, end = (activities[name].to_numpy()[rows] for name in ("start", "end"))
        found[rows[1:]] = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    return found


def _is_wait_between(calls: pd.DataFrame, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    waits = np.sort(calls["start"].to_numpy()[calls["letter"].isin([SYNC, BLOCKING_COPY])])
    low, high = np.minimum(one, other), np.maximum(one, other)
    return np.asarray(np.searchsorted(waits, high) > np.searchsorted(waits, low))
