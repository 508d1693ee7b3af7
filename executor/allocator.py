"""Pass 5: a place in one arena for every tensor that is not a weight or state.

A tensor's bytes are in use from the node that writes them to their last reader, in graph order (`Lifetime`).
With branches in flight graph order is not execution order: a mode says whether its plan holds then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol

from executor.concurrency import Region
from executor.graph import Flag, Tensor
from executor.splits import Split
from tracer.errors import UnsafePlanError

ALIGNMENT: Final = 64
_BEFORE: Final = -1


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The first and last node index at which a tensor's bytes are in use, both included."""

    tensor: Tensor
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are in use at some node."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class BufferPlan:
    """Where tensors lie in the arena.

    Attributes:
        allocator: the mode that made it.
        offsets: tensor -> first byte, a multiple of `ALIGNMENT`.
        peak_bytes: size of the arena.
    """

    allocator: str
    offsets: Mapping[Tensor, int]
    peak_bytes: int


class Allocator(Protocol):
    """Decides how long a tensor's bytes stay its own."""

    name: ClassVar[str]
    holds_with_branches: ClassVar[bool]
    """Whether no two tensors share bytes that streams running side by side may use at once."""

    def extend(self, lifetimes: Sequence[Lifetime], regions: Sequence[Region]) -> list[Lifetime]:
        """The lifetimes as this mode wants them."""


class SequentialReuse:
    """Recycle bytes after their last reader in graph order."""

    name: ClassVar[str] = "sequential"
    holds_with_branches: ClassVar[bool] = False

    def extend(self, lifetimes: Sequence[Lifetime], regions: Sequence[Region]) -> list[Lifetime]:
        """As they are."""
        return list(lifetimes)


class NoAllocFree:
    """Recycle nothing that a concurrent region uses before its join."""

    name: ClassVar[str] = "no_alloc_free"
    holds_with_branches: ClassVar[bool] = True

    def extend(self, lifetimes: Sequence[Lifetime], regions: Sequence[Region]) -> list[Lifetime]:
        """A lifetime that reaches between a fork and its join lasts to the join."""
        return [self._to_joins(lifetime, regions) for lifetime in lifetimes]

    def _to_joins(self, lifetime: Lifetime, regions: Sequence[Region]) -> Lifetime:
        joins = [r.join for r in regions if lifetime.first < r.join and lifetime.last > r.fork]
        return replace(lifetime, last=max([lifetime.last, *joins]))


ALLOCATORS: Final[Mapping[str, Allocator]] = {a.name: a for a in (SequentialReuse(), NoAllocFree())}
"""Name -> allocator."""


def allocate(split: Split, regions: Sequence[Region], allocator: Allocator, mode: str) -> BufferPlan:
    """Place the split's tensors in one arena.

    Args:
        split: inputs and nodes.
        regions: what may run at the same time.
        allocator: how long bytes stay a tensor's own.
        mode: the concurrency mode's name, for the message.

    Raises:
        UnsafePlanError: there are regions, and the allocator's plan would be a race with them.
    """
    if regions and not allocator.holds_with_branches:
        safe = ", ".join(a.name for a in ALLOCATORS.values() if a.holds_with_branches)
        raise UnsafePlanError(
            f"concurrency {mode!r} with allocator {allocator.name!r} is a race: bytes are recycled in graph "
            f"order while branches still use them. Safe there: {safe}"
        )
    return first_fit(allocator.extend(lifetimes(split), regions), allocator.name)


def lifetimes(split: Split) -> list[Lifetime]:
    """When each tensor of the arena is in use, in the order in which they come alive.

    Inputs are written before the first node and kept to the end: the next step's copies may come early.
    Outputs are kept to the end as well.
    """
    end = len(split.nodes)
    first = dict.fromkeys(split.inputs, _BEFORE)
    last = dict.fromkeys(split.inputs, end)
    for i, node in enumerate(split.nodes):
        if node.view_src is None:
            first[node] = i
        for root in (node.root, *(source.root for source in node.src)):
            if root in first:
                flags = root.flags | (node.flags if root is node.root else Flag.NONE)
                last[root] = end if flags & (Flag.INPUT | Flag.OUTPUT) else max(i, last.get(root, i))
    return [Lifetime(tensor, start, last[tensor]) for tensor, start in first.items()]


def first_fit(lifetimes: Sequence[Lifetime], allocator: str) -> BufferPlan:
    """Give each lifetime, largest first, the lowest offset at which no overlapping lifetime lies.

    In the order of coming alive, small tensors would split the room that large ones need.
    """
    offsets: dict[Tensor, int] = {}
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end, lifetime; by offset
    for lifetime in sorted(lifetimes, key=lambda lifetime: -lifetime.tensor.nbytes):
        offset = 0
        for other_offset, other_end, other in placed:
            if other.overlaps(lifetime):
                if offset + _aligned(lifetime.tensor.nbytes) <= other_offset:
                    break
                offset = max(offset, other_end)
        offsets[lifetime.tensor] = offset
        placed.append((offset, offset + _aligned(lifetime.tensor.nbytes), lifetime))
        placed.sort(key=lambda place: place[0])
    return BufferPlan(allocator, offsets, max((end for _, end, _ in placed), default=0))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
