"""A place in one arena for every tensor, so that no two share bytes that must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.dependencies import bits
from executor.graph import Tensor

ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a tensor's bytes are its own.

    Attributes:
        stream: of the kernel that writes it first.
        first: position of that kernel.
        free_at: for every stream the position from which its kernels may write other tensors there.
    """

    tensor: Tensor
    stream: int
    first: int
    free_at: tuple[int, ...]


@dataclass(frozen=True)
class BufferPlan:
    """Where tensors lie in the arena.

    Attributes:
        allocator: the mode that made it.
        offsets: tensor -> first byte, a multiple of `ALIGNMENT`.
        peak_bytes: size of the arena.
        peak_live_bytes: the most that tensors need of which no two may share bytes: no placement can take less.
        tensor_bytes: what all tensors together would take without reuse.
    """

    allocator: str
    offsets: Mapping[Tensor, int]
    peak_bytes: int
    peak_live_bytes: int
    tensor_bytes: int


def place(lifetimes: Sequence[Lifetime], allocator: str) -> BufferPlan:
    """Give each tensor, largest first, the lowest offset at which none lies that it must not share bytes with.

    In the order of coming alive, small tensors would split the room that large ones need.
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
    """For every lifetime those that must not share bytes with it, as a bit set."""
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
    """The heaviest set of tensors of which no two may share bytes.

    Its last member conflicts with all others, which come alive before: one search for every last member, the most
    promising first.
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
    """The greatest sum of sizes of candidates of which no two may share bytes.

    Groups between which nothing is shared add up. In a group, either its most sharing member is in, or it is not.
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
