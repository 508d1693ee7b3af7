"""graph.json: the graph that was run, its streams and events, and what each allocator would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from executor.allocator import ALLOCATORS, Schedule, allocate
from executor.concurrency import Region, map_streams
from executor.graph import Flag, Tensor
from executor.hazards import find_hazards
from executor.plans import Launch, Part, Plan, Record, Wait
from executor.scheduler import Prepared
from tracer.graph_json import Leaf, Memory, Node, RegionOf, RunGraph, StreamWait


def run_graph(prepared: Prepared) -> RunGraph:
    """The content of a run directory's graph.json."""
    graph, nodes, plan = prepared.step.graph, prepared.split.nodes, prepared.plan
    leaves = [*graph.inputs, *graph.state]
    index = {tensor: i for i, tensor in enumerate(nodes)}
    leaf_index = {leaf: i for i, leaf in enumerate(leaves)}
    streams = map_streams(nodes, prepared.regions)
    levels = list(_levels(prepared.regions))
    region_of = {
        i: number for number, (region, _) in enumerate(levels) for branch in region.branches for i in branch.nodes
    }  # inner regions come later, and stay
    return RunGraph(
        nodes=tuple(
            Node(
                n.name, n.op, n.shape, n.dtype, n.nbytes, streams[i] if n.has_kernel else None,
                tuple(index[s] for s in n.src if s in index),
                tuple(leaf_index[s] for s in n.src if s in leaf_index),
                sum(s.nbytes for s in n.src if s.flags & Flag.WEIGHT),
                region_of.get(i),
            )
            for i, n in enumerate(nodes)
        ),
        leaves=tuple(
            Leaf(t.name, "input" if t.flags & Flag.INPUT else "state", t.shape, t.dtype, t.nbytes) for t in leaves
        ),
        regions=tuple(RegionOf(r.fork, r.join, len(r.branches), level) for r, level in levels),
        launches=tuple(
            index[launch.node] for part in plan.parts if isinstance(part, Part) for launch in part.plan.launches
        ),
        waits=tuple(stream_waits(plan, nodes)),
        streams=plan.streams,
        weights=len(graph.weights),
        weight_bytes=sum(weight.nbytes for weight in graph.weights),
        memory=tuple(_memory(prepared, streams)),
        allocator=prepared.memory.allocator,
    )  # fmt: skip


def stream_waits(plan: Plan, nodes: Sequence[Tensor]) -> Iterator[StreamWait]:
    """Every wait with the record it waits for, by the kernels before the one and after the other, in issue order."""
    index = {node: i for i, node in enumerate(nodes)}
    last: dict[int, int] = {}
    recorded: dict[int, tuple[int | None, int]] = {}
    waiting: dict[int, list[int]] = {}
    for instruction in plan.instructions:
        stream = instruction.stream
        if isinstance(instruction, Launch):
            last[stream] = index[instruction.node]
            for event in waiting.pop(stream, ()):
                yield StreamWait(event, *recorded[event], last[stream], stream)
        elif isinstance(instruction, Record):
            recorded[instruction.event] = (last.get(stream), stream)
        elif isinstance(instruction, Wait):
            waiting.setdefault(stream, []).append(instruction.event)
    for stream, events in waiting.items():
        for event in events:
            yield StreamWait(event, *recorded[event], None, stream)


def _levels(regions: Sequence[Region], level: int = 0) -> Iterator[tuple[Region, int]]:
    """These and the inner ones, an outer one before its inner ones, with how deep they lie."""
    for region in regions:
        yield region, level
        yield from _levels(tuple(chain.from_iterable(branch.inner for branch in region.branches)), level + 1)


def _memory(prepared: Prepared, streams: Sequence[int]) -> Iterator[Memory]:
    schedule = Schedule(prepared.split, prepared.regions, streams, prepared.plan)
    for allocator in ALLOCATORS.values():
        buffers = allocate(schedule, allocator)
        hazards = find_hazards(prepared.split, prepared.plan, buffers.offsets)
        yield Memory(allocator.name, buffers.peak_bytes, buffers.peak_live_bytes, len(hazards))
