"""Pass 2: cut the graph into separate graphs where the device changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from executor.graph import Flag, Graph, Tensor
from executor.planning.devices import EXPERT_WEIGHTS, Device, reads_experts

_HOST_DTYPES: Final = {"float16": "float32"}
"""Dtype on the device -> dtype of the same values on the host, for dtypes in which NumPy is slow."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value that a split needs: the index of the split that computes it, and the node in its graph."""

    split: int
    node: Tensor


@dataclass(frozen=True)
class Split:
    """Consecutive nodes of one device, as a separate graph.

    Attributes:
        device: the device that runs them.
        nodes: the nodes in graph order.
        inputs: leaves that are copied to the device before the nodes run: the host's inputs in graph order, then
            results of other devices.
        leaves: all leaves.
        origins: origins of the inputs that the host does not send, and of leaves that need no copy because an earlier
            split of the same device computes them.
        results: tensor of the whole graph -> tensor of the split.
        copied: expert weights that stay on the host, and the origins of the numbers of the experts that a step uses.
    """

    device: Device
    nodes: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...] = ()
    origins: Mapping[Tensor, Origin] = field(default_factory=dict)
    results: Mapping[Tensor, Tensor] = field(default_factory=dict)
    copied: Mapping[Tensor, Origin] = field(default_factory=dict)

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that are loaded once."""
        return [leaf for leaf in self.leaves if leaf.flags & Flag.WEIGHT]

    @property
    def state(self) -> list[Tensor]:
        """The tensors that stay on the device between steps."""
        return [leaf for leaf in self.leaves if leaf.is_state and leaf not in self.origins and leaf not in self.copied]


def split_graph(graph: Graph, assigned: Mapping[Tensor, Device], *, copy_experts: bool = False) -> list[Split]:
    """Cut the nodes, in graph order, where their device changes.

    A graph of one accelerator is used unchanged. Nodes without kernels belong to the split that reads them.

    Args:
        copy_experts: expert weights stay on the host. The graph is then also cut before products with experts, because
            the experts that a step uses must be known before the product.
    """
    kernels = [node for node in graph.nodes if node.has_kernel]
    devices = list(dict.fromkeys(assigned[node] for node in kernels or graph.nodes))
    if len(devices) < 2 and not copy_experts and not devices[0].is_host:
        read = {source.root for node in graph.nodes for source in node.src}
        inputs, same = [leaf for leaf in graph.inputs if leaf in read], {t: t for t in (*graph.leaves, *graph.nodes)}
        return [Split(devices[0], tuple(graph.nodes), tuple(inputs), tuple(graph.leaves), results=same)]
    runs = [list(run) for _, run in groupby(kernels, key=assigned.__getitem__)]
    if copy_experts:
        runs = [part for run in runs for part in _before_experts(run)]
    home = {node: number for number, run in enumerate(runs) for node in run}
    away = {s.computed for node in kernels for s in node.src if home.get(s.computed) != home[node]}
    splits: list[Split] = []
    for number, run in enumerate(runs):
        builder = _Builder(graph, assigned[run[0]], number, home, away, splits, copy_experts)
        splits.append(builder.build(run))
    return splits


def _before_experts(run: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut a run so that no part computes the numbers of the experts that it uses."""
    part: list[Tensor] = []
    for node in run:
        if reads_experts(node) and _ids_of(node) in part:
            yield part
            part = []
        part.append(node)
    yield part


def _ids_of(node: Tensor) -> Tensor:
    """Return the node that computes the expert numbers of a product."""
    return next(s for s in node.src if s.dtype == "int32").computed


class _Builder:
    """Rebuilds one run of kernels as a graph."""

    def __init__(
        self, whole: Graph, device: Device, number: int, home: Mapping[Tensor, int], away: set[Tensor],
        before: Sequence[Split], copy_experts: bool,
    ) -> None:  # fmt: skip
        self._copy_experts, self._copied = copy_experts, dict[Tensor, Origin]()
        self._device, self._number, self._home, self._away, self._before = device, number, home, away, before
        self._graph = Graph()
        self._new: dict[Tensor, Tensor] = {}
        self._origins: dict[Tensor, Origin] = {}
        self._order = {leaf: i for i, leaf in enumerate(whole.leaves)}

    def build(self, run: Sequence[Tensor]) -> Split:
        for node in run:
            for source in node.src:
                self._tensor(source)
            if self._copy_experts and reads_experts(node) and not self._device.is_host:
                self._copied |= dict.fromkeys(
                    (self._new[s] for s in node.src if s.name.endswith(EXPERT_WEIGHTS)), self._ids(node)
                )
            self._node(node, node.flags | (Flag.OUTPUT if node in self._away else Flag.NONE))
        graph, old = self._graph, {new: whole for whole, new in self._new.items()}
        sent = [leaf for leaf in graph.inputs if leaf not in self._origins]
        copied = [leaf for leaf in graph.inputs if leaf in self._origins]
        inputs = (*sorted(sent, key=lambda leaf: self._order[old[leaf]]), *copied)
        return Split(
            self._device, tuple(graph.nodes), inputs, tuple(graph.leaves), self._origins, self._new, self._copied
        )

    def _ids(self, node: Tensor) -> Origin:
        """Return the origin of a product's expert numbers."""
        ids = _ids_of(node)
        number = self._home[ids]
        return Origin(number, self._before[number].results[ids])

    def _tensor(self, tensor: Tensor) -> Tensor:
        """Return the tensor in this split, creating leaves, names of memory and results of other splits."""
        if tensor not in self._new:
            if tensor.is_leaf and not tensor.flags & Flag.INPUT:
                copied = self._copy_experts and tensor.name.endswith(EXPERT_WEIGHTS) and not self._device.is_host
                flags = Flag.NONE if copied else tensor.flags
                self._new[tensor] = self._graph.leaf(tensor.name, tensor.shape, self._dtype(tensor), flags)
            elif tensor.is_leaf or tensor.has_kernel:
                self._new[tensor] = self._brought(tensor)
            else:
                for source in tensor.src:
                    self._tensor(source)
                self._node(tensor, tensor.flags)
        return self._new[tensor]

    def _brought(self, tensor: Tensor) -> Tensor:
        """Return a leaf for an input of the step or another split's result; not an input if already on this device."""
        here = [i for i, s in enumerate(self._before) if s.device == self._device and tensor in s.results]
        number = here[0] if here else self._home.get(tensor)
        leaf = self._graph.leaf(tensor.name, tensor.shape, tensor.dtype, Flag.NONE if here else Flag.INPUT)
        if number is not None:
            self._origins[leaf] = Origin(number, self._before[number].results[tensor])
        return leaf

    def _node(self, node: Tensor, flags: Flag) -> None:
        new = self._new
        self._new[node] = self._graph.node(
            node.name, node.op, node.shape, self._dtype(node), [new[s] for s in node.src],
            view_src=None if node.view_src is None else new[node.view_src],
            updates=[new[s] for s in node.updates], flags=flags, **node.params,
        )  # fmt: skip

    def _dtype(self, tensor: Tensor) -> str:
        kept = tensor.flags & Flag.WEIGHT or not self._device.is_host
        return tensor.dtype if kept else _HOST_DTYPES.get(tensor.dtype, tensor.dtype)
