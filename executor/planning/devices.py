"""Passes 1 and 2: assign every node to a device, and cut the graph into separate graphs where the device changes.

Layers are assigned as in llama.cpp: blocks count as layers, followed by the output. The last layers go to the
accelerators, and if any layer stays on the host, so does the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from executor.graph import Flag, Graph, Tensor
from tracer.errors import UsageError

BLOCK_NAME: Final = re.compile(r"blk\.(\d+)\.")
"""Matches the block number in the name of a node."""
EXPERT_WEIGHTS: Final = "_exps.weight"
"""The end of the names of expert weights."""

_HOST_DTYPES: Final = {"float16": "float32"}
"""Dtype on the device -> dtype of the same values on the host, for dtypes in which NumPy is slow."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a backend, or the host.

    Attributes:
        backend: name of the backend; "host" computes on the calling thread.
        profile: name or file of the cost profile of a simulated device.
        staged: whether it stages the sources of asynchronous copies (`Guarantee.ASYNC_SOURCES_STAGED`).
        threads: number of threads for products on a CPU or the host; None for the machine's default.
        pinned: whether each of these threads is pinned to its own core.
    """

    backend: str
    index: int = 0
    staged: bool = True
    profile: str | None = None
    threads: int | None = None
    pinned: bool = False

    @property
    def is_host(self) -> bool:
        """Whether its memory is host memory and its compute a blocking call."""
        return self.backend == HOST.backend

    def __str__(self) -> str:
        return f"{self.backend}:{self.index}" if self.index else self.backend


HOST: Final = Device("host")


@dataclass(frozen=True)
class Placement:
    """The assignment of a model to devices.

    Attributes:
        devices: the devices that share the layers, in order.
        gpu_layers: number of layers that they get, counted from the last, including the output; None for all and the
            embedding.
        experts: place of the experts: "device"; "cpu" if they stay on the host; "copy" if only their weights do, and
            the rows of the experts that a step uses are copied to the device.
        host: the device for everything else.
    """

    devices: Sequence[Device]
    gpu_layers: int | None = None
    experts: str = "device"
    host: Device = HOST


def only(backend: str) -> Placement:
    """Place everything on the first device of a backend."""
    return Placement((Device(backend),))


def assign_devices(graph: Graph, placement: Placement) -> dict[Tensor, Device]:
    """Return the device of every node.

    Raises:
        UsageError: experts are placed on the host, but the model has none.
    """
    layers = _layers(graph.nodes)
    last = max(layers.values(), default=0)
    here = last + 1 if placement.gpu_layers is None else min(placement.gpu_layers, last + 1)
    first, here = last + 1 - here, max(here, 1)
    assigned = {}
    for node, layer in layers.items():
        if placement.gpu_layers is not None and layer < first:  # always true of the embedding
            assigned[node] = placement.host
        else:
            assigned[node] = placement.devices[max(layer - first, 0) * len(placement.devices) // here]
    if placement.experts == "copy" and not any(reads_experts(node) for node in graph.nodes):
        raise UsageError("experts cannot be copied: the model has none")
    if placement.experts == "cpu":
        _move_experts([node for node in graph.nodes if node.has_kernel], assigned, placement.host)
    return assigned


def _layers(nodes: Sequence[Tensor]) -> dict[Tensor, int]:
    """Return the layer of every node: -1 before the first block, the number of blocks after the last one."""
    named = [int(match[1]) if (match := BLOCK_NAME.match(node.name)) else None for node in nodes]
    end = max((i for i, block in enumerate(named) if block is not None), default=-1)
    blocks = 1 + max((block for block in named if block is not None), default=-1)
    layers, reached = {}, -1
    for i, (node, block) in enumerate(zip(nodes, named, strict=True)):
        reached = reached if block is None else block
        layers[node] = blocks if i > end >= 0 else reached
    return layers


def _move_experts(kernels: Sequence[Tensor], assigned: dict[Tensor, Device], host: Device) -> None:
    """Move products with experts to the host, and everything computed only from their results."""
    moved: set[Tensor] = set()
    for node in kernels:
        sources = _computed(node)
        if reads_experts(node) or (sources and sources <= moved):
            moved.add(node)
    if not moved:
        raise UsageError("experts cannot stay on the host: the model has none")
    assigned.update(dict.fromkeys(moved, host))


def reads_experts(node: Tensor) -> bool:
    """Whether a node is a product with experts."""
    return any(s.flags & Flag.WEIGHT and s.name.endswith(EXPERT_WEIGHTS) for s in node.src)


def _computed(node: Tensor) -> set[Tensor]:
    """Return the kernels whose results a node reads, directly or through nodes without kernels."""
    return {source.computed for source in node.src if not source.computed.is_leaf}


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value that a split needs: the index of the split that computes it, and the node in its graph."""

    split: int
    node: Tensor


@dataclass(frozen=True)
class Split:
    """Consecutive nodes of one device, as a separate graph.

    Attributes:
        inputs: leaves that are copied to the device before the nodes run: the host's inputs in graph order, then
            results of other devices.
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
