"""A step's independent kernels on several streams: how long its compute would take.

A recording of one stream does not tell which kernels are independent; the graph of the run (graph.json) does. Of a
kernel's time up to `LATENCY_NS` are latencies, which others hide. The rest needs a share of the device: of its
multiprocessors, as many as it has blocks, or of the memory's bandwidth, whichever is more; kernels that together ask
for more than there is are slowed alike. What waits for another stream starts later by `EDGE_NS`, and loses what it had
from starting early.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pandas as pd

from tracer.analysis.tokens import Steps, step_compute
from tracer.analysis.whatif.changes import Changes
from tracer.errors import UsageError
from tracer.graph_json import RunGraph
from tracer.schema import COMPUTE_TABLES, MISSING
from tracer.trace import Trace

EDGE_NS: Final = 1000
"""From the end of a kernel to the start of one on another stream, inside a CUDA graph."""

PROLOGUE_NS: Final = 1500
"""What programmatic dependent launch hides of a kernel's start; behind an edge between streams it shows."""

LATENCY_NS: Final = 2500
"""Of a kernel's time, what leaves the device free for others. The three are for an H200. They and the form of the model
were chosen with all rows `branches` of benchmarks/results/whatif_prediction.json in view, so these rows are no
independent check."""

_SECOND_KERNEL: Final = re.compile(r"splitk_?reduce", re.IGNORECASE)
_NOTHING: Final = 1e-3  # ns; what takes no longer is done


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step.

    Attributes:
        latency_ns, work_ns: parts of its time, of which the second needs the device.
        demand: the share of the device that the work takes, 0..1.
        late_ns: by how much later it is done where it waits for another stream.
        after: the kernels (by position) that it needs.
    """

    latency_ns: float
    work_ns: float
    demand: float
    late_ns: float
    after: tuple[int, ...]


@dataclass(frozen=True)
class Concurrent:
    """Independent kernels of the steps on up to `streams` streams.

    Attributes:
        graph: of the run.
        node: a recording of it with every kernel (its node pass), and its steps.
    """

    graph: RunGraph
    node: Trace
    node_steps: Steps
    streams: int = 4
    doubt: ClassVar[float] = 0.027
    """The farthest that it was off for dense and linear models (benchmarks/results/whatif_prediction.json)."""

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.streams} streams"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Let the compute of every step take as much less time as the simulated one.

        Raises:
            UsageError: the recording and the graph do not belong together, or it has several streams already.
        """
        recorded = kernel_times(self.node, self.node_steps)
        devices = self.node["devices"]
        has = (int(devices[c].max()) if len(devices) else MISSING for c in ("sm_count", "memory_bandwidth"))
        kernels = kernels_of(self.graph, recorded, *has)
        streams = assign(kernels, self.streams)
        ratio = makespan(kernels, streams) / float(recorded["time"].sum())
        activities = changes.causality.segments.activities
        changes.scale_activities(np.flatnonzero(activities["table"].isin(COMPUTE_TABLES)), ratio)
        used = len(set(streams))
        return [
            f"{used} streams: a step's {len(kernels)} kernels take {ratio:.3f} times as long",
            f"an edge between streams is taken to cost {EDGE_NS / 1e3:g} µs, a start that cannot be early "
            f"{PROLOGUE_NS / 1e3:g} µs, and {LATENCY_NS / 1e3:g} µs of a kernel to be latencies that others hide",
        ]


def kernel_times(node: Trace, steps: Steps) -> pd.DataFrame:
    """The kernels of a step in their order.

    Kernels may begin before their predecessor has ended, so durations do not add up. Medians over the steps that have
    the usual number of kernels. The second kernel of a product that cuBLAS splits counts with the first.

    Returns:
        Columns time (from the end of the one before to its own end, ns), gap (from there to its start, negative for
        one that begins before) and blocks.

    Raises:
        UsageError: there are no kernels.
    """
    compute = step_compute(node, steps).sort_values(["at", "start"], kind="stable")
    compute = compute[compute["table"] == "kernels"]
    sizes = compute.groupby("at").size()
    if not len(sizes):
        raise UsageError("the recording has no kernels, only whole graphs: streams need one at node level")
    usual = sizes[sizes == sizes.mode().iloc[0]].index
    compute = compute[compute["at"].isin(usual)]
    start, end = (compute[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
    reached = np.maximum.accumulate(end, axis=1)
    times = np.median(np.diff(np.concatenate((start[:, :1], reached), axis=1), axis=1), axis=0)
    gaps = np.append(0.0, np.median(start[:, 1:] - reached[:, :-1], axis=0))
    sizes = node["kernels"].set_index(["start", "stream"])[["grid_x", "grid_y", "grid_z"]].prod(axis=1)
    blocks = sizes.reindex(pd.MultiIndex.from_frame(compute[["start", "stream"]])).to_numpy().reshape(len(usual), -1)
    table = pd.DataFrame({"time": times, "gap": gaps, "blocks": np.abs(blocks).max(axis=0)})
    own = ~compute["name"].iloc[: len(table)].astype("str").str.contains(_SECOND_KERNEL).to_numpy()
    table["time"] = table["time"].groupby(np.cumsum(own)).transform("sum")
    return table[own].reset_index(drop=True)


def kernels_of(graph: RunGraph, recorded: pd.DataFrame, multiprocessors: int, bandwidth: int) -> list[Kernel]:
    """The kernels of a step with what they need.

    Args:
        graph: of the run.
        recorded: as `kernel_times` gives it.
        multiprocessors: of the device; not positive if unknown, then every kernel fills it.
        bandwidth: of its memory by its own statement, bytes/s; not positive if unknown. What the best kernel reaches
            is taken, if that is less.

    Raises:
        UsageError: the graph has another number of kernels, or they are on several streams.
    """
    if graph.streams > 1:
        raise UsageError(f"the run used {graph.streams} streams already")
    if len(graph.launches) != len(recorded):
        raise UsageError(f"graph.json has {len(graph.launches)} kernels, a recorded step {len(recorded)}")
    times, gaps = recorded["time"].to_numpy(), recorded["gap"].to_numpy()
    moved = np.array([_bytes(graph, node) for node in graph.launches], dtype=np.float64)
    reached = float((moved / np.maximum(times, 1)).max())
    rate = min(reached, bandwidth / 1e9) if bandwidth > 0 else reached  # bytes may count experts that were not used
    latency = np.minimum(times, LATENCY_NS)
    work = times - latency
    of_memory = moved / rate / np.maximum(work, 1)
    of_processors = recorded["blocks"].to_numpy() / multiprocessors if multiprocessors > 0 else np.ones(len(times))
    demand = np.clip(np.maximum(of_memory, of_processors), 1e-3, 1)
    late = np.where(gaps < 0, EDGE_NS + PROLOGUE_NS, np.maximum(EDGE_NS - gaps, 0))
    return [Kernel(*row) for row in zip(latency, work, demand, late, _needs(graph), strict=True)]


def _bytes(graph: RunGraph, index: int) -> int:
    """What a node reads and writes."""
    node = graph.nodes[index]
    read = sum(graph.nodes[source].nbytes for source in node.src)
    states = sum(graph.leaves[leaf].nbytes for leaf in node.leaves)
    weights = node.nbytes if node.op.startswith("get_rows") else node.weight_bytes  # only the rows that it takes
    return weights + node.nbytes + read + states


def _needs(graph: RunGraph) -> list[tuple[int, ...]]:
    """For each kernel the positions of those whose results it reads, also through nodes without a kernel."""
    position = {node: i for i, node in enumerate(graph.launches)}
    through: list[frozenset[int]] = []
    for index, node in enumerate(graph.nodes):
        sources = [frozenset({position[s]}) if s in position else through[s] for s in node.src]
        through.append(frozenset().union(*sources))
        if index in position:
            through[index] = through[index] - {position[index]}
    return [tuple(sorted(through[node])) for node in graph.launches]


def assign(kernels: Sequence[Kernel], most: int) -> list[int]:
    """A stream for each kernel, in the order of launching.

    A kernel goes on where the last of what it needs was the last; else it opens a branch, on a stream whose last kernel
    it needs in any case, or on a new one, or, with `most` in use, on that of what it needs.
    """
    streams: list[int] = []
    last: list[int] = []
    before: list[frozenset[int]] = []
    for i, kernel in enumerate(kernels):
        before.append(frozenset(kernel.after).union(*(before[k] for k in kernel.after)))
        ends = [stream for stream, tail in enumerate(last) if tail in kernel.after]
        free = [stream for stream, tail in enumerate(last) if tail in before[i]]
        if ends:
            stream = max(ends, key=lambda s: last[s])
        elif free:
            stream = free[0]
        elif len(last) < most:
            stream = len(last)
            last.append(i)
        else:
            stream = streams[kernel.after[-1]] if kernel.after else 0
        last[stream] = i
        streams.append(stream)
    return streams


def makespan(kernels: Sequence[Kernel], streams: Sequence[int]) -> float:
    """How long they take on these streams, ns: their latencies, then their work at the share of the device they get."""
    queues: dict[int, list[int]] = {}
    for i, stream in enumerate(streams):
        queues.setdefault(stream, []).append(i)
    waiting = {stream: iter(queue) for stream, queue in queues.items()}
    head = {stream: next(queue) for stream, queue in waiting.items()}
    ended: dict[int, float] = {}
    begun: list[tuple[float, int]] = []  # when the latencies of those that have started are over
    left: dict[int, float] = {}  # work of those behind them
    started: set[int] = set()
    now = 0.0
    while head:
        for i in head.values():
            kernel = kernels[i]
            if i not in started and all(k in ended for k in kernel.after):
                ready = max([now, *(ended[k] + kernel.late_ns * (streams[k] != streams[i]) for k in kernel.after)])
                heapq.heappush(begun, (ready + kernel.latency_ns, i))
                started.add(i)
        slower = max(sum(kernels[i].demand for i in left), 1.0)
        then = min(now + min(left.values(), default=np.inf) * slower, begun[0][0] if begun else np.inf)
        left = {i: work - (then - now) / slower for i, work in left.items()}
        now = then
        while begun and begun[0][0] <= now:
            i = heapq.heappop(begun)[1]
            left[i] = kernels[i].work_ns
        for i in [i for i, work in left.items() if work <= _NOTHING]:
            del left[i]
            ended[i] = now
            stream = streams[i]
            if (following := next(waiting[stream], None)) is None:
                del head[stream]
            else:
                head[stream] = following
    return now
