"""The host as a device, like an engine's CPU backend: compute is a function call, without any CUDA call.

A CUDA recorder therefore sees none of it. Products and attention, which take most of the time, are NVTX ranges of the
domain `schema.HOST_COMPUTE` on the launching thread, inside the range of their split: every recorder captures these,
on the host's clock. A product also reports the bytes of the weights that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from executor.backends.cpu.backend import CpuArray, CpuBackend
from executor.backends.cpu.handles import CpuKernel
from executor.backends.interface import Backend, Event, HostArray
from executor.graph import Tensor
from executor.graph.fusion import PARTS, outer_sources
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder
from tracer.schema import HOST_COMPUTE


class Immediate(Backend):
    """Work is done when its call returns, so nothing waits."""

    def synchronize(self, stream: int) -> None:
        """Do nothing."""

    def event_record(self, event: Event, stream: int) -> None:
        """Do nothing."""

    def event_wait(self, event: Event, stream: int) -> None:
        """Do nothing."""

    def event_synchronize(self, event: Event) -> None:
        """Do nothing."""


class HostBackend(Immediate, CpuBackend):
    """The host backend, see the module's docstring."""

    name: ClassVar[str] = "host"

    def report_to(self, recorder: HostRecorder) -> None:
        """Do nothing: the host makes no CUDA calls to report."""

    def copy_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    copy_constant_to_device = copy_to_host = copy_to_device

    def copy_on_device(self, tensor: Tensor, destination: CpuArray, source: CpuArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def load(self, destination: CpuArray, source: HostArray) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def kernel(self, node: Tensor, out: CpuArray, src: Sequence[CpuArray]) -> CpuKernel:
        """Bind the kernel, and the bytes it will report as read."""
        kernel, reads = super().kernel(node, out, src), reads_of(node)
        if reads is None:
            return kernel
        sources = outer_sources(node.params[PARTS]) if PARTS in node.params else node.src
        return replace(kernel, reads=partial(reads.now, dict(zip(sources, src, strict=True))))

    def launch(self, kernel: CpuKernel, stream: int) -> None:
        """Run the kernel."""
        if kernel.reads is None:
            self._attempt(kernel.run, f"kernel {kernel.label} on the host")
        else:
            with annotate(kernel.label, index=kernel.reads(), domain=HOST_COMPUTE):
                self._attempt(kernel.run, f"kernel {kernel.label} on the host")
        self._raise_failure()


@dataclass(frozen=True)
class Reads:
    """The weights that a node's products read.

    Attributes:
        nbytes: bytes of the weights that are read as a whole.
        experts: weights of all experts, and the numbers of those that are used, each read once.
        known: False if the node computes attention: the cells that it reads depend on the mask.
    """

    nbytes: int = 0
    experts: tuple[tuple[Tensor, Tensor], ...] = ()
    known: bool = True

    def now(self, arrays: Mapping[Tensor, CpuArray]) -> int | None:
        """Return the bytes that a step reads, given the node's sources."""
        used = sum(_each(weight) * len(set(arrays[ids].ravel().tolist())) for weight, ids in self.experts)
        return self.nbytes + used if self.known else None

    @property
    def at_most(self) -> int | None:
        """Return the bytes if no two tokens use the same expert."""
        used = sum(_each(weight) * min(math.prod(ids.shape), weight.shape[0]) for weight, ids in self.experts)
        return self.nbytes + used if self.known else None


def reads_of(node: Tensor) -> Reads | None:
    """Return what the products and the attention of a node, fused or not, read; None if it has none."""
    parts = [part for part in node.params.get(PARTS, (node,)) if part.op in ("mul_mat", "mul_mat_id", "flash_attn_ext")]
    if not parts:
        return None
    weights = [part.src[0] for part in parts if part.op == "mul_mat"]
    experts = [part for part in parts if part.op == "mul_mat_id"]
    return Reads(
        sum(weight.nbytes for weight in weights),
        tuple((part.src[0], part.src[2]) for part in experts),
        all(part.op != "flash_attn_ext" for part in parts),
    )


def _each(weight: Tensor) -> int:
    """Return the bytes of one expert."""
    return weight.nbytes // weight.shape[0]
