"""graph.json: the graph of a run, its streams and events, and the memory that each allocator would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from executor.graph import Flag, Tensor
from executor.planning import Prepared
from executor.planning.allocator import ALLOCATORS, Schedule, allocate
from executor.planning.concurrency import Region, map_streams
from executor.planning.devices import Device
from executor.planning.hazards import find_hazards
from executor.planning.plans import Launch, Plan, Record, Subplan, Wait
from tracer.model.graph_json import Leaf, Memory, Node, RegionOf, RunGraph, StreamWait


def run_graph(prepared: Prepared) -> RunGraph:
    """Return the contents of a run directory's graph.json. Streams are numbered consecutively over the devices."""
    graph = prepared.step.graph
    nodes, leaves = graph.nodes, [*graph.inputs, *graph.state]
    index = {tensor: i for i, tensor in enumerate(nodes)}
    leaf_index = {leaf: i for i, leaf in enumerate(leaves)}
    placed = list(_placed(prepared, index))
    streams = {node: stream for split in placed for node, stream in split.streams.items()}
    regions = [region for split in placed for region in split.regions]
    region_of = {
        node: number for number, region in enumerate(regions) for node in region.nodes
    }  # inner regions come later and take precedence
    return RunGraph(
        nodes=tuple(
            Node(
                n.name, n.op, n.shape, n.dtype, n.nbytes, streams.get(i),
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
        regions=tuple(region.described for region in regions),
        launches=tuple(node for split in placed for node in split.launches),
        waits=tuple(wait for split in placed for wait in split.waits),
        streams=max(streams.values(), default=0) + 1,
        weights=len(graph.weights),
        weight_bytes=sum(weight.nbytes for weight in graph.weights),
        memory=tuple(_memory(prepared)),
        allocator=prepared.allocator,
        devices=_devices(prepared),
    )  # fmt: skip


@dataclass(frozen=True)
class _Region:
    described: RegionOf
    nodes: Sequence[int]


@dataclass(frozen=True)
class _Placed:
    """A split, with the node numbers of the whole graph."""

    streams: Mapping[int, int]
    regions: Sequence[_Region]
    launches: Sequence[int]
    waits: Sequence[StreamWait]


def _first_streams(prepared: Prepared) -> dict[Device, int]:
    """Return the number of the first stream of every device."""
    used: dict[Device, int] = {}
    for part in prepared.splits:
        used[part.split.device] = max(used.get(part.split.device, 0), part.plan.streams)
    ends = list(accumulate(used.values(), initial=0))
    return dict(zip(used, ends, strict=False))


def _devices(prepared: Prepared) -> tuple[str, ...]:
    """Return the device of every stream; empty if there is only one device."""
    first = _first_streams(prepared)
    if len(first) < 2:
        return ()
    streams = max(first[part.split.device] + part.plan.streams for part in prepared.splits)
    return tuple(str(max((d for d in first if first[d] <= i), key=first.__getitem__)) for i in range(streams))


def _placed(prepared: Prepared, index: Mapping[Tensor, int]) -> Iterator[_Placed]:
    first, events = _first_streams(prepared), 0
    for part in prepared.splits:
        split, plan, base = part.split, part.plan, first[part.split.device]
        whole = {new: index[old] for old, new in split.results.items() if old in index and new.op != "none"}
        at = [whole[node] for node in split.nodes]
        streams = map_streams(split.nodes, part.regions)
        moved = [
            replace(
                wait, event=wait.event + events, source_stream=wait.source_stream + base,
                target_stream=wait.target_stream + base,
                source=None if wait.source is None else at[wait.source],
                target=None if wait.target is None else at[wait.target],
            )
            for wait in stream_waits(plan, split.nodes)
        ]  # fmt: skip
        events += plan.events
        yield _Placed(
            {at[i]: base + streams[i] for i, node in enumerate(split.nodes) if node.has_kernel},
            [
                _Region(
                    RegionOf(at[r.fork], at[r.join], len(r.branches), level),
                    [at[i] for branch in r.branches for i in branch.nodes],
                )
                for r, level in _levels(part.regions)
            ],
            [whole[launch.node] for each in plan.parts if isinstance(each, Subplan) for launch in each.plan.launches],
            moved,
        )


def stream_waits(plan: Plan, nodes: Sequence[Tensor]) -> Iterator[StreamWait]:
    """Yield every wait in issue order, with the kernel before the record and the kernel after the wait."""
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
    """Yield these regions and their inner ones, outer before inner, with their nesting depth."""
    for region in regions:
        yield region, level
        yield from _levels(tuple(chain.from_iterable(branch.inner for branch in region.branches)), level + 1)


def _memory(prepared: Prepared) -> Iterator[Memory]:
    for allocator in ALLOCATORS.values():
        peak = live = hazards = 0
        for part in prepared.splits:
            streams = map_streams(part.split.nodes, part.regions)
            buffers = allocate(Schedule(part.split, part.regions, streams, part.plan), allocator)
            peak, live = peak + buffers.peak_bytes, live + buffers.peak_live_bytes
            hazards += len(find_hazards(part.split, part.plan, buffers.offsets))
        yield Memory(allocator.name, peak, live, hazards)
