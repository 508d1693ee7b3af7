"""Order the kernels; passes 3 and 4: find branches that may run concurrently, and assign every node to a stream.

The order is given as bit sets: bit i of an int represents node i. Dependencies pass through nodes without a kernel.
Closing and reducing thousands of nodes takes milliseconds.

A region is between a fork and a join: each of its kernels comes after the fork and before the join. It consists of
mutually independent branches, which may contain inner regions. In a decoder layer the attention norm forks into Q, K
and V, which attention joins, and the FFN norm forks into gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.graph import Flag, Tensor, memory_order

MAIN_STREAM: Final = 0


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


@dataclass(frozen=True)
class Branch:
    """Kernels independent of the other branches: their node indices, ascending, and the regions among them."""

    nodes: tuple[int, ...]
    inner: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Region:
    """A fork, its branches and its join.

    Attributes:
        fork: index of the node that all branches come after; an inner region may share it with the outer one.
        join: index of the node that comes after all of them.
        branches: the first stays on the region's stream; the others are in the order of their first nodes.
    """

    fork: int
    join: int
    branches: tuple[Branch, ...]


def all_regions(regions: Sequence[Region], level: int = 0) -> Iterator[tuple[Region, int]]:
    """Yield these regions and their inner ones, outer before inner, with their nesting depth."""
    for region in regions:
        yield region, level
        for branch in region.branches:
            yield from all_regions(branch.inner, level + 1)


@dataclass(frozen=True)
class ConcurrencyMode:
    """Which parts of a split may run concurrently.

    Attributes:
        allocator: the default allocator.
        branches: whether the branches of every region get separate streams.
        cut: whether each part of the plan between events is a separate graph, launched on its stream.
    """

    name: str
    allocator: str
    branches: bool
    cut: bool

    def regions(self, nodes: Sequence[Tensor], order: Dependencies) -> list[Region]:
        """Return the regions whose branches get separate streams, in graph order."""
        return find_regions(nodes, order) if self.branches else []


MODES: Final[Mapping[str, ConcurrencyMode]] = {
    mode.name: mode
    for mode in (
        ConcurrencyMode("sequential", "sequential", branches=False, cut=False),
        ConcurrencyMode("branches", "stream_aware", branches=True, cut=False),
        ConcurrencyMode("subgraphs", "stream_aware", branches=True, cut=True),
    )
}
"""Maps a name to its concurrency mode."""


def worth_a_stream(kernels: Sequence[Tensor]) -> bool:
    """Whether a branch gains more than its events cost: if it has a matrix product, which takes most of the time."""
    return any(part.startswith("mul_mat") for node in kernels for part in node.op.split("+"))


def weight_bytes(kernels: Sequence[Tensor]) -> int:
    """Return the bytes of weights that a branch reads. They determine its time; the largest branch keeps the stream."""
    return sum(source.nbytes for node in kernels for source in node.src if source.flags & Flag.WEIGHT)


def find_regions(
    nodes: Sequence[Tensor],
    order: Dependencies,
    worth: Callable[[Sequence[Tensor]], bool] = worth_a_stream,
    weight: Callable[[Sequence[Tensor]], int] = weight_bytes,
) -> list[Region]:
    """Find all regions, in graph order, with inner regions nested.

    Nodes ordered relative to all others of a set cut it into a series. The nodes between two cuts form connected
    components, the branches, and each branch is cut again. A set with neither cuts nor several components stays on one
    stream, as do nodes without a fork or a join.

    Args:
        worth: whether these kernels should get a stream; others stay with the first branch.
        weight: the branch with the largest weight comes first.
    """
    return _Finder(nodes, order, worth, weight).series(order.kernels, None, None)


@dataclass(frozen=True)
class _Finder:
    nodes: Sequence[Tensor]
    order: Dependencies
    worth: Callable[[Sequence[Tensor]], bool]
    weight: Callable[[Sequence[Tensor]], int]

    def series(self, inside: int, fork: int | None, join: int | None) -> list[Region]:
        """Find the regions in a set of kernels between fork and join (None: start and end)."""
        before, after = self.order.before, self.order.after
        cuts = [i for i in bits(inside) if not inside & ~(before[i] | after[i] | 1 << i)]
        if not cuts and len(self._components(inside)) < 2:
            return []
        regions = []
        for first, last in zip([fork, *cuts], [*cuts, join], strict=True):
            between = inside
            if first is not None:
                between &= after[first]
            if last is not None:
                between &= before[last]
            regions += self._parallel(between, first, last)
        return regions

    def _parallel(self, inside: int, fork: int | None, join: int | None) -> list[Region]:
        components = self._components(inside)
        if len(components) < 2:
            return []
        inner = {part: tuple(self.series(part, fork, join)) for part in components}
        kernels = {part: [self.nodes[i] for i in bits(part)] for part in components}
        able = [part for part in components if self.worth(kernels[part])]
        if fork is None or join is None or len(able) < 2:
            return sorted((region for part in components for region in inner[part]), key=lambda region: region.fork)
        main = max(able, key=lambda part: self.weight(kernels[part]))
        others = [part for part in able if part != main]
        stay = inside & ~sum(others)
        first = Branch(tuple(bits(stay)), tuple(r for part in components if part & stay for r in inner[part]))
        return [Region(fork, join, (first, *(Branch(tuple(bits(part)), inner[part]) for part in others)))]

    def _components(self, inside: int) -> list[int]:
        """Return the connected components, in the order of their first nodes."""
        components: list[int] = []
        for i in bits(inside):
            joined = 1 << i
            for part in [part for part in components if part & self.order.before[i]]:
                components.remove(part)
                joined |= part
            components.append(joined)
        return sorted(components, key=lambda part: part & -part)


def map_streams(nodes: Sequence[Tensor], regions: Sequence[Region]) -> list[int]:
    """Return the stream of every node: the main stream, unless its branch has another."""
    streams = [MAIN_STREAM] * len(nodes)
    _map(streams, regions, MAIN_STREAM, MAIN_STREAM + 1)
    return streams


def _map(streams: list[int], regions: Sequence[Region], stream: int, free: int) -> int:
    """Map consecutive regions on a stream, using streams from `free` on; return the first stream still free.

    Branches of a region never share a stream, at any depth; regions in series do.
    """
    most = free
    for region in regions:
        next_free = free
        for number, branch in enumerate(region.branches):
            own = stream
            if number:
                own, next_free = next_free, next_free + 1
            for node in branch.nodes:
                streams[node] = own
            next_free = _map(streams, branch.inner, own, next_free)
        most = max(most, next_free)
    return most
