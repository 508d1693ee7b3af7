"""Passes 3 and 4: find branches that may run at the same time, and give every node a stream.

A fork is a node whose result several branches read; its join is its immediate post-dominator, the first node
that every path from the fork passes. In a decoder layer the fork is the attention norm, the branches make Q,
K and V, and the join is attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import networkx as nx

from executor.graph import Tensor, memory_order

MAIN_STREAM: Final = 0
FAN_OUT: Final = 3


@dataclass(frozen=True)
class Region:
    """A fork, its branches and its join, as indices into the nodes they were found in.

    Attributes:
        fork: the node whose result all branches read.
        join: the first node that needs all of them.
        branches: the nodes between, branch by branch, in the order of their first nodes.
    """

    fork: int
    join: int
    branches: tuple[tuple[int, ...], ...]


class ConcurrencyMode(Protocol):
    """Which parts of a split may run at the same time."""

    name: ClassVar[str]
    allocator: ClassVar[str]
    """The allocator it takes unless another is asked for."""

    def regions(self, nodes: Sequence[Tensor]) -> list[Region]:
        """The regions whose branches get streams of their own; they do not overlap."""


class Sequential:
    """Everything on one stream."""

    name: ClassVar[str] = "sequential"
    allocator: ClassVar[str] = "sequential"

    def regions(self, nodes: Sequence[Tensor]) -> list[Region]:
        """None."""
        return []


class Branches:
    """The Q, K and V branches of attention on streams of their own."""

    name: ClassVar[str] = "branches"
    allocator: ClassVar[str] = "no_alloc_free"

    def regions(self, nodes: Sequence[Tensor]) -> list[Region]:
        """Every fork into three closed branches."""
        return find_branches(nodes)


MODES: Final[Mapping[str, ConcurrencyMode]] = {mode.name: mode for mode in (Sequential(), Branches())}
"""Name -> concurrency mode."""


def find_branches(nodes: Sequence[Tensor], fan_out: int = FAN_OUT) -> list[Region]:
    """All forks into `fan_out` closed branches, in graph order.

    A branch is closed if its nodes depend on nothing later than the fork outside the branch, and nothing
    before the join outside the branch depends on them, through memory as little as through sources.
    """
    flow = _data_flow(nodes)
    joins = _post_dominators(flow)
    order = memory_order(nodes)
    regions: list[Region] = []
    for fork in range(len(nodes)):
        if flow.out_degree(fork) != fan_out or (regions and fork < regions[-1].join):
            continue
        join = joins[fork]
        if join is None:
            continue
        branches = tuple(_between(flow, start, join) for start in sorted(flow.successors(fork)))
        if all(_is_closed(branch, fork, join, order) for branch in branches):
            regions.append(Region(fork, join, branches))
    return regions


def map_streams(nodes: Sequence[Tensor], regions: Sequence[Region]) -> list[int]:
    """The stream of every node: branches on streams 1, 2, ..., everything else on the main stream."""
    streams = [MAIN_STREAM] * len(nodes)
    for region in regions:
        for stream, branch in enumerate(region.branches, start=MAIN_STREAM + 1):
            for node in branch:
                streams[node] = stream
    return streams


def _data_flow(nodes: Sequence[Tensor]) -> nx.DiGraph[int]:
    index = {node: i for i, node in enumerate(nodes)}
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(range(len(nodes)))
    flow.add_edges_from((index[s], i) for i, node in enumerate(nodes) for s in node.src if s in index)
    return flow


def _post_dominators(flow: nx.DiGraph[int]) -> dict[int, int | None]:
    """Immediate dominators of the reversed graph, from an end that follows every last node."""
    end = len(flow)
    backwards = flow.reverse()
    backwards.add_edges_from((end, last) for last in flow if flow.out_degree(last) == 0)
    found = nx.immediate_dominators(backwards, end)
    return {node: None if found[node] == end else found[node] for node in flow}


def _between(flow: nx.DiGraph[int], start: int, join: int) -> tuple[int, ...]:
    """The nodes reachable from `start` before the join."""
    seen, todo = {join}, [start]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(flow.successors(node))
    return tuple(sorted(seen - {join}))


def _is_closed(branch: Sequence[int], fork: int, join: int, order: Sequence[set[int]]) -> bool:
    inside = set(branch)
    depends = {before for node in branch for before in order[node]} - inside
    between = [i for i in range(fork + 1, join) if i not in inside]
    return (
        bool(inside)
        and max(inside) < join
        and all(before <= fork for before in depends)
        and not any(order[i] & inside for i in between)
    )
