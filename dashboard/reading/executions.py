"""Maps the kernels of a recording to the nodes of the graph that was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from tracer.model.graph_json import RunGraph
from tracer.model.intervals import Ints
from tracer.model.schema import MISSING
from tracer.model.trace import Trace


@dataclass(frozen=True, eq=False)
class Executions:
    """The kernels of a recording's token steps.

    Attributes:
        table: one row per kernel of a known node, by start: node, start, end (ns), stream.
        problem: why no kernel's node is known; empty if they are known.
    """

    table: pd.DataFrame
    problem: str = ""

    @cached_property
    def durations(self) -> pd.DataFrame:
        """Per node (the index) median, p90 (ns) and count of its kernel's executions."""
        lengths = (self.table["end"] - self.table["start"]).groupby(self.table["node"])
        return pd.DataFrame({"median": lengths.median(), "p90": lengths.quantile(0.9), "count": lengths.size()})

    def within(self, node: int, low: int, high: int) -> tuple[int, int] | None:
        """Start and end (ns) of the node's first execution that starts in [low, high), or None."""
        table = self.table
        found = table[(table["node"] == node) & (table["start"] >= low) & (table["start"] < high)]
        return None if not len(found) else (int(found["start"].iloc[0]), int(found["end"].iloc[0]))

    def node_of(self, stream: int, start: int) -> int | None:
        """The node of the kernel that starts at this time (ns) on this stream, or None."""
        found = self.table[(self.table["start"] == start) & (self.table["stream"] == stream)]
        return int(found["node"].iloc[0]) if len(found) else None


def executions_of(trace: Trace | None, steps: pd.DataFrame | None, graph: RunGraph) -> Executions:
    """Find the node of every kernel in the token steps.

    The CPU backend names a kernel `op(node)`. CUDA graphs number their nodes in order of creation: if a recording has
    as many numbers as the plan has launches, the k-th number is the k-th launch.
    """
    nothing = pd.DataFrame({name: pd.Series(dtype="int64") for name in ("node", "start", "end", "stream")})
    if trace is None or steps is None or not len(steps):
        return Executions(nothing, "The recording has no token steps.")
    kernels = trace["kernels"]
    kernels = kernels[(kernels["start"] >= steps["start"].min())]
    if not len(kernels):
        return Executions(nothing, "This recording has no kernels; only a pass at node level does.")
    node = _by_name(kernels["name"], graph)
    if (node == MISSING).all():
        numbers = np.unique(kernels["graph_node"][kernels["graph_node"] != MISSING])
        if len(numbers) != len(graph.launches):
            counts = f"{len(numbers)} graph nodes with kernels, and the plan {len(graph.launches)}"
            return Executions(nothing, f"The kernels of this recording cannot be matched to nodes: it has {counts}.")
        node = _by_number(kernels["graph_node"].to_numpy(), numbers, graph.launches)
    table = kernels[["start", "end", "stream"]].assign(node=node)[node != MISSING]
    return Executions(table.sort_values("start", kind="stable", ignore_index=True))


def _by_name(names: pd.Series, graph: RunGraph) -> Ints:
    known = {f"{node.op}({node.name})": i for i, node in enumerate(graph.nodes) if node.stream is not None}
    of_category = np.array([known.get(str(name), MISSING) for name in names.cat.categories], dtype=np.int64)
    return of_category[names.cat.codes.to_numpy()]


def _by_number(numbers: Ints, known: Ints, launches: Sequence[int]) -> Ints:
    """The node of every kernel by its number in the CUDA graph; MISSING for kernels without one."""
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[place] == numbers, np.array(launches, dtype=np.int64)[place], MISSING)
