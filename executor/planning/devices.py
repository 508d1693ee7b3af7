"""Pass 1: assign every node to a device.

Layers are assigned as in llama.cpp: blocks count as layers, followed by the output. The last layers go to the
accelerators, and if any layer stays on the host, so does the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.graph import Flag, Graph, Tensor
from tracer.errors import UsageError

BLOCK_NAME: Final = re.compile(r"blk\.(\d+)\.")
"""Matches the block number in the name of a node."""
EXPERT_WEIGHTS: Final = "_exps.weight"
"""The end of the names of expert weights."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a backend, or the host.

    Attributes:
        backend: name of the backend; "host" computes on the calling thread.
        index: its number among the backend's devices.
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
