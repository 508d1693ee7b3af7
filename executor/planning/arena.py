"""Places tensors in one arena so that conflicting tensors share no bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.graph import Tensor
from executor.planning.dependencies import bits

ALIGNMENT: Final = 64


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
        allocator: name of the allocator.
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


def place(lifetimes: Sequence[Lifetime], allocator: str) -> BufferPlan:
    """Place each tensor, largest first, at the lowest offset that is free of conflicting tensors.

    If tensors were placed in the order of their lifetimes, small ones would fragment the space for large ones.
    """
    sizes = [_aligned(lifetime.tensor.nbytes) for lifetime in lifetimes]
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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
