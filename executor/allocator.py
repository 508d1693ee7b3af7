"""Pass 6: how long the bytes of every tensor that is neither weight nor state stay its own, and so its place.

An allocator need not be right when streams run side by side: `executor.hazards` checks every plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar, Final, Protocol

from executor.concurrency import MAIN_STREAM, Region
from executor.graph import Flag, Tensor
from executor.placement import BufferPlan, Lifetime, place
from executor.plans import Launch, Plan, Record
from executor.splits import Split

_BEFORE: Final = -1


@dataclass(frozen=True, slots=True)
class Use:
    """The kernels that read or write a tensor's bytes.

    Attributes:
        nodes: their indices, rising. The copy of an input comes before the first node, at -1. Inputs and outputs are
            in use to the end, at the number of nodes: the host reads outputs then, and the next step's copies may come
            early.
    """

    tensor: Tensor
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """What an allocator knows: a split, the regions in it, the stream of every node, and the plan."""

    split: Split
    regions: Sequence[Region]
    streams: Sequence[int]
    plan: Plan


class Allocator(Protocol):
    """Decides how long a tensor's bytes stay its own."""

    name: ClassVar[str]

    def lifetimes(self, uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
        """One for every use."""


class SequentialReuse:
    """Recycle bytes after their last reader in graph order."""

    name: ClassVar[str] = "sequential"

    def lifetimes(self, uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
        """From the first to the last kernel."""
        return _until([use.nodes[0] for use in uses], [use.nodes[-1] for use in uses], uses, schedule)


class Interleaved:
    """The same, but as if the kernels of a region's branches came in turn, one of each branch.

    That is how ggml first kept branches apart. Lifetimes overlap as far as branches keep step, no further.
    """

    name: ClassVar[str] = "interleaved"

    def lifetimes(self, uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
        """From the first to the last kernel in that order."""
        position = list(range(len(schedule.split.nodes)))
        for region in schedule.regions:
            order = _in_turn(region)
            for slot, node in zip(sorted(order), order, strict=True):
                position[node] = slot
        positions = dict(enumerate(position)) | {_BEFORE: _BEFORE, len(position): len(position)}
        moved = [[positions[i] for i in use.nodes] for use in uses]
        return _until([min(m) for m in moved], [max(m) for m in moved], uses, schedule)


class NoAllocFree:
    """Recycle nothing that is used between a region's fork and its join before the join."""

    name: ClassVar[str] = "no_alloc_free"

    def lifetimes(self, uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
        """From the first kernel to the last, or to the joins of the regions that this touches."""
        return _until([u.nodes[0] for u in uses], [self._last(u, schedule.regions) for u in uses], uses, schedule)

    def _last(self, use: Use, regions: Sequence[Region]) -> int:
        first, last = use.nodes[0], use.nodes[-1]
        for region in regions:  # by rising forks: what an extension touches comes later
            if first < region.join and last > region.fork:
                last = max(last, region.join)
        return last


class StreamAware:
    """Recycle bytes once all kernels that use them are visible to the stream that wants the bytes."""

    name: ClassVar[str] = "stream_aware"

    def lifetimes(self, uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
        """Free for a stream from the first kernel that comes after all uses, through stream order and events."""
        end, streams = len(schedule.split.nodes), range(schedule.plan.streams)
        visible = becomes_visible_at(schedule.split.nodes, schedule.plan)
        visible |= {_BEFORE: [_BEFORE + 1 for _ in streams], end: [end + 1 for _ in streams]}
        return [
            Lifetime(
                use.tensor,
                _stream(use.nodes[0], schedule),
                use.nodes[0],
                tuple(max(visible[node][stream] for node in use.nodes) for stream in streams),
            )
            for use in uses
        ]


ALLOCATORS: Final[Mapping[str, Allocator]] = {
    a.name: a for a in (SequentialReuse(), Interleaved(), NoAllocFree(), StreamAware())
}
"""Name -> allocator."""


def allocate(schedule: Schedule, allocator: Allocator) -> BufferPlan:
    """Place the split's tensors in one arena."""
    return place(allocator.lifetimes(find_uses(schedule.split), schedule), allocator.name)


def find_uses(split: Split) -> list[Use]:
    """Who uses each tensor of the arena, in the order in which they come alive."""
    end = len(split.nodes)
    nodes: dict[Tensor, list[int]] = {tensor: [_BEFORE] for tensor in split.inputs}
    kept = set(split.inputs)
    for i, node in enumerate(split.nodes):
        if node.view_src is None:
            nodes[node] = []
        if node.flags & Flag.OUTPUT:
            kept.add(node.root)
        for root in {node.root, *(source.root for source in node.src)} if node.has_kernel else ():
            if root in nodes:
                nodes[root].append(i)
    return [Use(tensor, (*used, *([end] if tensor in kept else []))) for tensor, used in nodes.items()]


def becomes_visible_at(nodes: Sequence[Tensor], plan: Plan) -> dict[int, list[int]]:
    """For every kernel and stream the first kernel of that stream that comes after it, computed back to front.

    Returns:
        node -> for every stream a node, or the number of nodes where none comes after it.
    """
    index = {node: i for i, node in enumerate(nodes)}
    streams = range(plan.streams)
    seen = [[len(nodes) for _ in streams] for _ in streams]  # what sees the work done on a stream so far
    awaited: dict[int, list[int]] = {}
    visible: dict[int, list[int]] = {}
    for instruction in reversed(plan.instructions):
        row = seen[instruction.stream]
        if isinstance(instruction, Launch):
            node = index[instruction.node]
            visible[node] = list(row)
            row[instruction.stream] = node
        elif isinstance(instruction, Record):
            seen[instruction.stream] = _earlier(row, awaited.get(instruction.event, row))
        else:
            awaited[instruction.event] = _earlier(row, awaited.get(instruction.event, row))
    return visible


def _until(first: Iterable[int], last: Iterable[int], uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
    """Lifetimes from one position to another, both included, whatever the stream."""
    return [
        Lifetime(use.tensor, _stream(use.nodes[0], schedule), start, (stop + 1,) * schedule.plan.streams)
        for use, start, stop in zip(uses, first, last, strict=True)
    ]


def _stream(node: int, schedule: Schedule) -> int:
    return MAIN_STREAM if node == _BEFORE else schedule.streams[node]


def _in_turn(region: Region) -> list[int]:
    """The nodes of a region, one of each branch in turn; an inner region counts as part of its branch."""
    branches = []
    for branch in region.branches:
        order = list(branch.nodes)
        for inner in branch.inner:
            turns = _in_turn(inner)
            slots = sorted(order.index(node) for node in turns)
            for slot, node in zip(slots, turns, strict=True):
                order[slot] = node
        branches.append(order)
    return [node for turn in zip_longest(*branches) for node in turn if node is not None]


def _earlier(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [min(pair) for pair in zip(one, other, strict=True)]
