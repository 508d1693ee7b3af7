"""Order of the kernels as bit sets: bit i of an int represents node i.

Dependencies pass through nodes without a kernel. Closing and reducing thousands of nodes takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from executor.graph import Tensor, memory_order


@dataclass(frozen=True)
class Dependencies:
    """The order of the kernels of a split. Earlier nodes have lower indices.

    Attributes:
        kernels: the nodes that have a kernel.
        needs: the kernels that each node must run after, without those implied by others (the transitive reduction).
        before: all kernels that each node must run after (the transitive closure).
        after: all kernels that must run after each node.
    """

    kernels: int
    needs: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def find_dependencies(nodes: Sequence[Tensor], tie: bool = True) -> Dependencies:
    """Order nodes by their sources and by the memory that views share.

    Args:
        nodes: nodes of a split, in graph order.
        tie: also tie kernels that would otherwise be parallel to the rest of the graph, so that forks and joins close
            regions. A kernel whose result no later kernel reads (an update of state) runs before the first later kernel
            that shares a predecessor with it, and after the node that all other paths pass by then. A kernel that reads
            only leaves runs after the last earlier kernel that shares a successor with it, or before the first later
            one.
    """
    kernels = sum(1 << i for i, node in enumerate(nodes) if node.has_kernel)
    direct: list[int] = []
    for before in memory_order(nodes):
        mask = 0
        for i in before:
            mask |= 1 << i if kernels >> i & 1 else direct[i]
        direct.append(mask)
    order = _closed(direct, kernels)
    return _closed(_tied(direct, order), kernels) if tie else order


def _closed(direct: Sequence[int], kernels: int) -> Dependencies:
    needs: list[int] = []
    before: list[int] = []
    after = [0] * len(direct)
    for left in direct:
        kept, seen = 0, 0
        while left:
            last = left.bit_length() - 1
            kept |= 1 << last
            seen |= before[last] | 1 << last
            left &= ~seen
        needs.append(kept)
        before.append(seen)
    for i in reversed(range(len(direct))):
        if kernels >> i & 1:
            for need in bits(needs[i]):
                after[need] |= after[i] | 1 << i
    return Dependencies(kernels, needs, before, after)


def _tied(direct: Sequence[int], order: Dependencies) -> list[int]:
    tied = list(direct)
    unread = sum(1 << i for i in bits(order.kernels) if not order.after[i])
    for i in bits(order.kernels):
        if unread >> i & 1:
            tied[i] |= _closing(i, order, unread)
            if (reader := _next_relative(i, order)) is not None:
                tied[reader] |= 1 << i
        elif not order.before[i]:
            relatives = order.before[next(bits(order.after[i]))]
            if earlier := relatives & ((1 << i) - 1):
                tied[i] |= 1 << (earlier.bit_length() - 1)
            elif later := relatives >> (i + 1):
                tied[i + 1 + next(bits(later))] |= 1 << i
    return tied


def _next_relative(i: int, order: Dependencies) -> int | None:
    """Return the first later kernel that depends on the latest possible predecessor of this kernel."""
    for last in reversed(list(bits(order.before[i]))):
        if later := order.after[last] >> (i + 1):
            return i + 1 + next(bits(later))
    return None


def _closing(i: int, order: Dependencies, unread: int) -> int:
    """Return the last kernel before this one that all paths from its latest predecessor pass (its post-dominator)."""
    last = order.before[i].bit_length() - 1
    if last < 0:
        return 0
    read = order.after[last] & ~unread
    for q in reversed(list(bits(order.after[last] & ((1 << i) - 1)))):
        if not read & ~(order.before[q] | order.after[q] | 1 << q):
            return 1 << q
    return 0
