"""Parts of a graph that is too large for one picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tracer.model.graph_json import RunGraph

MOST_KERNELS: Final = 150
"""Maximum number of kernels of a graph that is shown as one part."""
_CHUNK: Final = 40


def parts_of(graph: RunGraph) -> list[range]:
    """Ranges of node indices: all of a small graph, else one part per outermost region, cut at the forks.

    Nodes before the second region belong to the first. A part without regions is cut into chunks of kernels.
    """
    total = len(graph.nodes)
    if len(graph.launches) < MOST_KERNELS:
        return [range(total)]
    forks = sorted({region.fork for region in graph.regions if region.level == 0})
    return [
        part for low, high in pairwise([0, *forks[1:], total]) if low < high for part in _chunks(graph, low, high)
    ]  # fmt: skip


def _chunks(graph: RunGraph, low: int, high: int) -> list[range]:
    kernels = [i for i in range(low, high) if graph.nodes[i].stream is not None]
    if len(kernels) < MOST_KERNELS:
        return [range(low, high)]
    return [range(first, last) for first, last in pairwise([low, *kernels[_CHUNK::_CHUNK], high])]


def part_of(parts: Sequence[range], node: int) -> int:
    """The number of the part that contains a node."""
    return next(number for number, part in enumerate(parts) if node in part)


def first_part(graph: RunGraph, parts: Sequence[range]) -> int:
    """The first part with branches, or else the first one."""
    return part_of(parts, min(region.fork for region in graph.regions)) if graph.regions else 0
