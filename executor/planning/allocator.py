"""Pass 6: the lifetime, and so the place in memory, of every tensor that is neither a weight nor state.

They share one arena, in which tensors whose lifetimes conflict share no bytes. An allocator need not be correct for
concurrent streams: `executor.planning.hazards` checks every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from executor.graph import Flag, Tensor
from executor.planning.concurrency import MAIN_STREAM, Region, bits
from executor.planning.devices import Split
from executor.planning.plans import Launch, Plan, Record

_BEFORE: Final = -1
ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Use:
    """The kernels that read or write a tensor's bytes.

    Attributes:
        nodes: their indices, ascending. The copy of an input has index -1, before the first node. Inputs and outputs
            are in use until the end, whose index is the number of nodes: the host reads outputs then, and the next
            step's copies may start early.
    """

    tensor: Tensor
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The input of an allocator: a split, its regions, the stream of every node, and the plan."""

    split: Split
    regions: Sequence[Region]
    streams: Sequence[int]
    plan: Plan


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time during which a tensor owns its bytes.

    Attributes:
        stream: stream of the kernel that writes it first.
        first: position of that kernel.
        free_at: for every stream, the position from which its kernels may reuse the bytes.
    """

    tensor: Tensor
    stream: int
    first: int
    free_at: tuple[int, ...]


@dataclass(frozen=True)
class BufferPlan:
    """The places of tensors in the arena.

    Attributes:
        offsets: tensor -> first byte, a multiple of `ALIGNMENT`.
        peak_bytes: size of the arena.
        peak_live_bytes: the largest total size of mutually conflicting tensors, a lower bound for any placement.
        tensor_bytes: total size of all tensors, without reuse.
    """

    allocator: str
    offsets: Mapping[Tensor, int]
    peak_bytes: int
    peak_live_bytes: int
    tensor_bytes: int


Allocator = Callable[[Sequence[Use], Schedule], list[Lifetime]]
"""Decides how long each tensor owns its bytes."""


def sequential(uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
    """Recycle bytes after their last reader in graph order."""
    return _until([use.nodes[0] for use in uses], [use.nodes[-1] for use in uses], uses, schedule)


def interleaved(uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
    """Like `sequential`, but with the kernels of a region's branches taken in turn, one from each branch.

    ggml first separated branches this way. It is correct only while the branches run in lockstep.
    """
    position = list(range(len(schedule.split.nodes)))
    for region in schedule.regions:
        order = _in_turn(region)
        for slot, node in zip(sorted(order), order, strict=True):
            position[node] = slot
    positions = dict(enumerate(position)) | {_BEFORE: _BEFORE, len(position): len(position)}
    moved = [[positions[i] for i in use.nodes] for use in uses]
    return _until([min(m) for m in moved], [max(m) for m in moved], uses, schedule)


def no_alloc_free(uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
    """Recycle bytes used between a region's fork and its join only after the join."""
    ends = []
    for first, last in ((use.nodes[0], use.nodes[-1]) for use in uses):
        for region in schedule.regions:  # ascending forks: an extension can only overlap later regions
            if first < region.join and last > region.fork:
                last = max(last, region.join)
        ends.append(last)
    return _until([use.nodes[0] for use in uses], ends, uses, schedule)


def stream_aware(uses: Sequence[Use], schedule: Schedule) -> list[Lifetime]:
    """Recycle bytes once all kernels that use them are visible to the stream that needs the bytes.

    They are free for a stream at its first kernel that stream order and events place after all uses.
    """
    end, streams = len(schedule.split.nodes), range(schedule.plan.streams)
    visible = becomes_visible_at(schedule.split.nodes, schedule.plan)
    visible |= {_BEFORE: [_BEFORE + 1 for _ in streams], end: [end + 1 for _ in streams]}
    free_at = [tuple(max(visible[node][stream] for node in use.nodes) for stream in streams) for use in uses]
    return [
        Lifetime(use.tensor, _stream(use.nodes[0], schedule), use.nodes[0], free)
        for use, free in zip(uses, free_at, strict=True)
    ]


ALLOCATORS: Final[Mapping[str, Allocator]] = {
    "sequential": sequential, "interleaved": interleaved, "no_alloc_free": no_alloc_free, "stream_aware": stream_aware
}  # fmt: skip
"""Maps a name to its allocator."""


def allocate(schedule: Schedule, allocator: str) -> BufferPlan:
    """Place the split's tensors in one arena."""
    return place(ALLOCATORS[allocator](find_uses(schedule.split), schedule), allocator)


def find_uses(split: Split) -> list[Use]:
    """Find the uses of each tensor of the arena, in the order in which the tensors become live."""
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
    """Find, for every kernel and stream, the first kernel of that stream ordered after it, in one backward sweep.

    Where there is none, the number of nodes stands for it.
    """
    index = {node: i for i, node in enumerate(nodes)}
    streams = range(plan.streams)
    seen = [[len(nodes) for _ in streams] for _ in streams]  # which kernels see a stream's work
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
    """Return lifetimes from one position to another, inclusive, the same for all streams."""
    return [
        Lifetime(use.tensor, _stream(use.nodes[0], schedule), start, (stop + 1,) * schedule.plan.streams)
        for use, start, stop in zip(uses, first, last, strict=True)
    ]


def _stream(node: int, schedule: Schedule) -> int:
    return MAIN_STREAM if node == _BEFORE else schedule.streams[node]


def _in_turn(region: Region) -> list[int]:
    """Interleave the nodes of a region, one from each branch in turn; inner regions are part of their branch."""
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


def place(lifetimes: Sequence[Lifetime], allocator: str) -> BufferPlan:
    """Place each tensor, largest first, at the lowest offset that is free of conflicting tensors.

    If tensors were placed in the order of their lifetimes, small ones would fragment the space for large ones.
    """
    sizes = [-(-lifetime.tensor.nbytes // ALIGNMENT) * ALIGNMENT for lifetime in lifetimes]
    apart = find_conflicts(lifetimes)
    offsets = [0] * len(lifetimes)
    placed = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: -sizes[i]):
        for start, end in sorted((offsets[j], offsets[j] + sizes[j]) for j in bits(apart[i] & placed)):
            if offsets[i] + sizes[i] <= start:
                break
            offsets[i] = max(offsets[i], end)
        placed |= 1 << i
    return BufferPlan(
        allocator,
        {lifetime.tensor: offset for lifetime, offset in zip(lifetimes, offsets, strict=True)},
        max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0),
        _peak_live(lifetimes, sizes, apart),
        sum(sizes),
    )


def find_conflicts(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Return, for every lifetime, the bit set of lifetimes that conflict with it."""
    apart = [0] * len(lifetimes)
    free = [max(lifetime.free_at) for lifetime in lifetimes]
    alive: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        first, stream = lifetimes[i].first, lifetimes[i].stream
        alive = [j for j in alive if free[j] > first]
        for j in alive:
            if lifetimes[j].free_at[stream] > first:
                apart[i] |= 1 << j
                apart[j] |= 1 << i
        alive.append(i)
    return apart


def _peak_live(lifetimes: Sequence[Lifetime], sizes: Sequence[int], apart: Sequence[int]) -> int:
    """Return the largest total size of mutually conflicting tensors.

    The last member to become live conflicts with all others, so there is one search per last member, most promising
    first.
    """
    searches: list[tuple[int, int, int]] = []  # upper bound, last member, the others
    begun = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        others = apart[i] & begun
        searches.append((sizes[i] + sum(sizes[j] for j in bits(others)), i, others))
        begun |= 1 << i
    most = 0
    for bound, i, others in sorted(searches, reverse=True):
        if bound <= most:
            break
        most = max(most, sizes[i] + _heaviest(others, sizes, apart))
    return most


def _heaviest(candidates: int, sizes: Sequence[int], apart: Sequence[int]) -> int:
    """Return the largest total size of mutually conflicting candidates.

    Groups that conflict with each other completely add up. Within a group, branch on its member with the fewest
    conflicts.
    """
    total = 0
    while candidates:
        group, grown = 0, candidates & -candidates
        while grown != group:
            group = grown
            for i in bits(group):
                grown |= candidates & ~apart[i]
        candidates &= ~group
        member = max(bits(group), key=lambda i: (group & ~apart[i]).bit_count())
        with_it, without = group & apart[member], group & ~(1 << member)
        total += max(
            sizes[member] + _heaviest(with_it, sizes, apart),
            _heaviest(without, sizes, apart) if without != with_it else 0,
        )
    return total
