"""A step's independent kernels on several streams: how long its compute would take.

A recording of one stream does not tell which kernels are independent; the graph of the run (graph.json) does. Every
kernel has a fixed part and moves bytes; kernels that run together share the memory's bandwidth equally, which is all
that slows them. What waits for another stream starts `EDGE_NS` after it, and loses what it had from starting early.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.tokens import Steps, step_compute
from tracer.analysis.whatif.changes import Changes
from tracer.errors import UsageError
from tracer.graph_json import RunGraph
from tracer.schema import COMPUTE_TABLES
from tracer.trace import Trace

EDGE_NS: Final = 1000
"""From the end of a kernel to the start of one on another stream, inside a CUDA graph."""

PROLOGUE_NS: Final = 1500
"""What programmatic dependent launch hides of a kernel's start; behind an edge between streams it shows. Both for an
H200, chosen so that one cell of benchmarks/results/gpu_concurrency.json comes out (llama-1.1b, batch 1: 1.02)."""

_NOTHING: Final = 1e-3  # ns; what takes no longer is done


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step.

    Attributes:
        fixed_ns: what it takes however fast memory is.
        nbytes: what it moves.
        late_ns: by how much later it is done where it waits for another stream.
        after: the kernels (by position) that it needs.
    """

    fixed_ns: float
    nbytes: float
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

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.streams} streams"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Let the compute of every step take as much less time as the simulated one.

        Raises:
            UsageError: the recording and the graph do not belong together, or it has several streams already.
        """
        times, gaps = kernel_times(self.node, self.node_steps)
        stated = self.node["devices"]["memory_bandwidth"]
        most = stated.max() / 1e9 if (stated > 0).any() else None
        kernels, bandwidth = kernels_of(self.graph, times, gaps, most)
        streams = assign(kernels, self.streams)
        ratio = makespan(kernels, streams, bandwidth) / float(times.sum())
        activities = changes.causality.segments.activities
        changes.scale_activities(np.flatnonzero(activities["table"].isin(COMPUTE_TABLES)), ratio)
        used = len(set(streams))
        return [
            f"{used} streams: a step's {len(kernels)} kernels take {ratio:.3f} times as long",
            f"an edge between streams is taken to cost {EDGE_NS / 1e3:g} µs, a start that cannot be early "
            f"{PROLOGUE_NS / 1e3:g} µs, and kernels that overlap to share {bandwidth:,.0f} GB/s",
        ]


def kernel_times(node: Trace, steps: Steps) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each kernel of a step the time from the end of the one before it to its own end, and to its start, ns.

    The latter is negative for kernels that begin before their predecessor has ended. Medians over the steps.

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
    gaps = np.median(start[:, 1:] - reached[:, :-1], axis=0)
    return times, np.append(0.0, gaps)


def kernels_of(
    graph: RunGraph, times: NDArray[np.float64], gaps: NDArray[np.float64], most: float | None
) -> tuple[list[Kernel], float]:
    """The kernels of a step with what they need, and the memory's bandwidth in bytes per ns.

    The bandwidth is the best that a kernel reaches, or `most`, the device's by its own statement, if that is less; what
    it leaves of a kernel's time is fixed.

    Raises:
        UsageError: the graph has another number of kernels, or they are on several streams.
    """
    if graph.streams > 1:
        raise UsageError(f"the run used {graph.streams} streams already")
    if len(graph.launches) != len(times):
        raise UsageError(f"graph.json has {len(graph.launches)} kernels, a recorded step {len(times)}")
    moved = np.array([_bytes(graph, node) for node in graph.launches], dtype=np.float64)
    best = float((moved / np.maximum(times, 1)).max())
    bandwidth = min(best, most) if most else best
    moved = np.minimum(moved, bandwidth * times)  # experts that were not used, say
    needs = _needs(graph)
    fixed = np.maximum(times - moved / bandwidth, 0)
    late = np.where(gaps < 0, EDGE_NS + PROLOGUE_NS, np.maximum(EDGE_NS - gaps, 0))
    return [Kernel(*row) for row in zip(fixed, moved, late, needs, strict=True)], bandwidth


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


def makespan(kernels: Sequence[Kernel], streams: Sequence[int], bandwidth: float) -> float:
    """How long they take, ns: a fixed part each, then their bytes at an equal share of the bandwidth."""
    queues: dict[int, list[int]] = {}
    for i, stream in enumerate(streams):
        queues.setdefault(stream, []).append(i)
    waiting = {stream: iter(queue) for stream, queue in queues.items()}
    head = {stream: next(queue) for stream, queue in waiting.items()}
    ended: dict[int, float] = {}
    fixed: list[tuple[float, int]] = []  # when a running kernel's fixed part ends
    left: dict[int, float] = {}  # bytes of those that move
    now = 0.0
    started: set[int] = set()
    while head or fixed or left:
        for i in list(head.values()):
            if i not in started and all(k in ended for k in kernels[i].after):
                late = kernels[i].late_ns
                ready = max([now, *(ended[k] + late * (streams[k] != streams[i]) for k in kernels[i].after)])
                heapq.heappush(fixed, (ready + kernels[i].fixed_ns, i))
                started.add(i)
        rate = bandwidth / max(len(left), 1)
        done = now + min(left.values()) / rate if left else np.inf
        then = min(done, fixed[0][0] if fixed else np.inf)
        left = {i: nbytes - (then - now) * rate for i, nbytes in left.items()}
        now = then
        while fixed and fixed[0][0] <= now:
            i = heapq.heappop(fixed)[1]
            left[i] = kernels[i].nbytes
        for i in [i for i, nbytes in left.items() if nbytes <= _NOTHING * bandwidth]:
            del left[i]
            ended[i] = now
            stream = streams[i]
            if (following := next(waiting[stream], None)) is None:
                del head[stream]
            else:
                head[stream] = following
    return now
