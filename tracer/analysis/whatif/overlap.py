"""A step's independent kernels on several streams: the duration of its compute, and the time of each kernel.

A recording of one stream does not show which kernels are independent; the graph of the run (graph.json) does. Up to
`Overlap.latency_ns` of a kernel's time is latency, which other kernels hide. The rest needs a share of the device: a
part of the multiprocessors that its blocks occupy (`Room.needed`), or its share of the memory bandwidth, whichever is
larger; kernels that together need more than the device has are slowed equally. A kernel begins only if there is room
for its blocks next to those of the running kernels: kernels that each fill the device run in sequence on several
streams as on one. A kernel that waits for another stream starts later by `Overlap.edge_ns`, and loses the time that it
gained from starting early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.fits import Overlap, Room
from tracer.analysis.whatif.recorded_step import RecordedStep
from tracer.compiled import compiled
from tracer.errors import UsageError
from tracer.model.graph_json import Leaf, Node, RunGraph
from tracer.model.intervals import Floats, Ints

Needs = tuple[tuple[int, ...], ...]
"""For each kernel of a step, in launch order, the positions of the kernels whose results it reads."""

_NOTHING: Final = 1e-3  # ns; what takes no longer is done


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step.

    Attributes:
        latency_ns, work_ns: parts of its time; only the second needs the device.
        demand: the share of the device that the work needs, 0..1.
        late_ns: how much later it starts after a kernel of another stream.
        after: positions of the kernels that it depends on.
        early_ns: the part of `late_ns` due to not starting early; if it waits for another stream, it does not start
            early after its predecessor on its own stream either.
        room: the share of the device that its blocks occupy while it runs, 0..1.
    """

    latency_ns: float
    work_ns: float
    demand: float
    late_ns: float
    after: tuple[int, ...]
    early_ns: float = 0.0
    room: float = 0.0


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a step on one stream, in launch order; arrays have one entry per kernel.

    Attributes:
        time: from the end of the preceding kernel to its own end, ns.
        gap: from the end of the preceding kernel to its start, ns; negative if it begins earlier.
        moving: time to move its bytes at the memory's bandwidth, ns.
        processors: its number of blocks / the device's multiprocessors.
        resident: its number of blocks / the maximum number resident on the device.
        needs: the kernels whose results it reads.
        shares: how the kernels share the device.
    """

    time: Floats
    gap: Floats
    moving: Floats
    processors: Floats
    resident: Floats
    needs: Needs
    shares: Room

    @classmethod
    def of(cls, graph: RunGraph, step: RecordedStep) -> StepKernels:
        """Combine the graph of a run with its recording of every kernel.

        If the number of multiprocessors is unknown, every kernel fills the device; if the bandwidth is unknown, or
        lower than the best kernel reaches, the rate of the best kernel is used.

        Raises:
            UsageError: the graph has a different number of kernels, or they are on several streams.
        """
        if graph.streams > 1:
            raise UsageError(f"the run used {graph.streams} streams already")
        kernels = step.kernels()
        if len(graph.launches) != len(kernels):
            raise UsageError(f"graph.json has {len(graph.launches)} kernels, a recorded step {len(kernels)}")
        columns = ("time", "gap", "blocks", "resident")
        time, gap, blocks, resident = (kernels[c].to_numpy(dtype=np.float64) for c in columns)
        moved = np.array([_bytes(graph, graph.nodes[i]) for i in graph.launches], dtype=np.float64)
        rate = float((moved / np.maximum(time, 1)).max())
        if step.bandwidth > 0:
            rate = min(rate, step.bandwidth / 1e9)
        processors = blocks / step.multiprocessors if step.multiprocessors > 0 else np.ones(len(time))
        return cls(time, gap, moved / rate, processors, resident, _needs(graph), step.fits.room)

    def under(self, overlap: Overlap) -> list[Kernel]:
        """The kernels with their losses and gains."""
        latency = np.minimum(self.time, overlap.latency_ns)
        work = self.time - latency
        demand = np.clip(np.maximum(self.moving / np.maximum(work, 1), self.shares.needed * self.processors), 1e-3, 1)
        early = np.minimum(np.maximum(-self.gap, 0), overlap.prologue_ns)
        late = early + np.maximum(overlap.edge_ns - np.maximum(self.gap, 0), 0)
        room = np.minimum(self.resident, 1)
        return [Kernel(*row) for row in zip(latency, work, demand, late, self.needs, early, room, strict=True)]

    def schedule(self, overlap: Overlap, streams: Sequence[int]) -> tuple[Floats, Floats]:
        """When each kernel starts and ends on these streams (one number per kernel), relative to the step's time on one
        stream.
        """
        alone = float(self.time.sum())
        start, end = simulate(self.under(overlap), streams, self.shares.crowded)
        return start / alone, end / alone


def _bytes(graph: RunGraph, node: Node) -> float:
    """The bytes that a node reads and writes: for a matrix only the rows read or written, for experts at most the
    number used.
    """
    ops = node.op.split("+")
    operands: list[Node | Leaf] = [*(graph.nodes[i] for i in node.src), *(graph.leaves[i] for i in node.leaves)]
    weights, written = float(node.weight_bytes), node.nbytes
    if ops[0] == "get_rows":
        weights = node.nbytes
    elif ops[0] == "mul_mat_id":
        weights *= _experts_used(graph, node)
    if ops[-1] == "set_rows":  # its result is all of what it sets rows of
        operands = [o for o in operands if o.shape != node.shape]
        rows = min((o.shape[0] for o in operands if o.dtype == "int64" and len(o.shape) == 1), default=node.shape[0])
        written = node.nbytes // node.shape[0] * rows
    return weights + written + sum(o.nbytes for o in operands)


def _experts_used(graph: RunGraph, node: Node) -> float:
    """The share of the experts that tokens can choose: top_k for each token, all different."""
    chosen = next((graph.nodes[s] for s in node.src if graph.nodes[s].op.endswith("top_k")), None)
    if chosen is None:
        return 1.0
    experts = graph.nodes[chosen.src[0]].shape[-1]
    return min(float(np.prod(chosen.shape)) / experts, 1.0)


def _needs(graph: RunGraph) -> Needs:
    """The kernels whose results each kernel reads, also through nodes without a kernel."""
    position = {node: i for i, node in enumerate(graph.launches)}
    through: list[frozenset[int]] = []
    for index, node in enumerate(graph.nodes):
        sources = [frozenset({position[s]}) if s in position else through[s] for s in node.src]
        through.append(frozenset().union(*sources))
        if index in position:
            through[index] = through[index] - {position[index]}
    return tuple(tuple(sorted(through[node])) for node in graph.launches)


def assign(needs: Needs, most: int) -> list[int]:
    """Assign a stream to each kernel, in launch order.

    A kernel stays on the stream of its latest dependency if that is the last kernel there. Otherwise it opens a branch:
    on a stream whose last kernel it depends on anyway, on a new stream or, with `most` streams in use, on that of its
    dependency.
    """
    streams: list[int] = []
    last: list[int] = []
    before: list[frozenset[int]] = []
    for i, after in enumerate(needs):
        before.append(frozenset(after).union(*(before[k] for k in after)))
        ends = [stream for stream, tail in enumerate(last) if tail in after]
        free = [stream for stream, tail in enumerate(last) if tail in before[i]]
        if ends:
            stream = max(ends, key=lambda s: last[s])
        elif free:
            stream = free[0]
        elif len(last) < most:
            stream = len(last)
            last.append(i)
        else:
            stream = streams[after[-1]] if after else 0
        last[stream] = i
        streams.append(stream)
    return streams


def simulate(kernels: Sequence[Kernel], streams: Sequence[int], crowded: float) -> tuple[Floats, Floats]:
    """When each kernel starts and ends on these streams, ns: its latency, then its work at its share of the device.

    A kernel starts once the preceding kernel on its stream and all its dependencies have ended (`late_ns` later for
    those on other streams), and once there is room for it or nothing else runs; among several, the one launched first.
    """
    rows = [(k.latency_ns, k.work_ns, k.demand, k.late_ns, k.early_ns, k.room) for k in kernels]
    after = np.cumsum([0, *(len(kernel.after) for kernel in kernels)])
    needs = np.array([need for kernel in kernels for need in kernel.after], dtype=np.int64)
    latency, work, demand, late, early, room = np.array(rows, dtype=np.float64).reshape(-1, 6).T.copy()
    return _run(latency, work, demand, late, early, room, after, needs, np.array(streams, dtype=np.int64), crowded)


@compiled
def _run(
    latency: Floats,
    work: Floats,
    demand: Floats,
    late: Floats,
    early: Floats,
    room: Floats,
    after: Ints,
    needs: Ints,
    streams: Ints,
    crowded: float,
) -> tuple[Floats, Floats]:  # pragma: no cover - compiled
    """The loop of `simulate`; kernel i depends on `needs[after[i] : after[i + 1]]`."""
    count, lanes = len(latency), streams.max() + 1 if len(streams) else 0
    start, end = np.zeros(count), np.full(count, np.inf)
    ahead, behind = np.full(count, -1), np.full(count, -1)
    head, last = np.full(lanes, -1), np.full(lanes, -1)
    for i in range(count):
        lane = streams[i]
        if last[lane] < 0:
            head[lane] = i
        else:
            ahead[i], behind[last[lane]] = last[lane], i
        last[lane] = i
    phase, left = np.zeros(count, np.int64), np.zeros(count)  # waiting, in its latencies, in its work
    now, done = 0.0, 0
    while done < count:
        held, coming = 0.0, np.inf
        running = 0
        for i in head:
            if i >= 0 and phase[i] > 0:
                held += room[i]
                running += 1
        for i in np.sort(head):
            if i < 0 or phase[i] > 0:
                continue
            ready = 0.0
            for need in needs[after[i] : after[i + 1]]:
                if streams[need] != streams[i]:
                    ready = max(ready, end[need] + late[i])
                    if ahead[i] >= 0:
                        ready = max(ready, end[ahead[i]] + early[i])
                else:
                    ready = max(ready, end[need])
            if ready > now:
                coming = min(coming, ready)
            elif running == 0 or held + room[i] <= crowded:
                phase[i], left[i], start[i] = 1, latency[i], now
                held += room[i]
                running += 1
        wanted = 0.0
        for i in head:
            if i >= 0 and phase[i] == 2:
                wanted += demand[i]
        slower, then = max(wanted, 1.0), coming
        for i in head:
            if i >= 0 and phase[i] > 0:
                then = min(then, now + left[i] * (slower if phase[i] == 2 else 1.0))
        took, now = then - now, then
        for lane in range(lanes):
            i = head[lane]
            if i < 0 or phase[i] == 0:
                continue
            left[i] -= took if phase[i] == 1 else took / slower
            if phase[i] == 1 and left[i] <= _NOTHING:
                phase[i], left[i] = 2, work[i]
            if phase[i] == 2 and left[i] <= _NOTHING:
                end[i], head[lane] = now, behind[i]
                done += 1
    return start, end
