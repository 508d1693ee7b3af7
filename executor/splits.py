"""Passes 1 and 2: give every node a backend, and cut the graph where the backend changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from executor.graph import Flag, Graph, Tensor


@dataclass(frozen=True)
class Split:
    """Successive nodes of one backend.

    Attributes:
        backend: the backend's name.
        nodes: in graph order.
        inputs: what must be copied to the backend before the nodes run: the host's inputs, in graph order.
    """

    backend: str
    nodes: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]


def assign_backends(graph: Graph, backend: str) -> dict[Tensor, str]:
    """Every node to one backend: there is no offload yet."""
    return dict.fromkeys(graph.nodes, backend)


def split_graph(graph: Graph, assigned: Mapping[Tensor, str]) -> list[Split]:
    """Cut the nodes, in graph order, where their backend changes."""
    runs: list[list[Tensor]] = []
    for node in graph.nodes:
        if not runs or assigned[runs[-1][-1]] != assigned[node]:
            runs.append([])
        runs[-1].append(node)
    return [Split(assigned[run[0]], tuple(run), _inputs(graph, run)) for run in runs]


def _inputs(graph: Graph, nodes: list[Tensor]) -> tuple[Tensor, ...]:
    read = {source.root for node in nodes for source in node.src}
    return tuple(leaf for leaf in graph.leaves if leaf.flags & Flag.INPUT and leaf in read)
