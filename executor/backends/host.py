"""The host as a device, like an engine's CPU backend: compute is a function call, without any CUDA call.

A CUDA recorder therefore sees none of it. Products and attention, which take most of the time, are NVTX ranges of the
domain `schema.HOST_COMPUTE` on the launching thread, inside the range of their split: every recorder captures these,
on the host's clock. A product also reports the bytes of the weights that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from executor.backends.cpu import CpuArray, CpuBackend
from executor.backends.cpu_handles import CpuEvent, CpuKernel
from executor.backends.interface import HostArray
from executor.graph import Tensor
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder
from tracer.schema import HOST_COMPUTE


class HostBackend(CpuBackend):
    """The host backend, see the module's docstring."""

    name: ClassVar[str] = "host"

    def report_to(self, recorder: HostRecorder) -> None:
        """Do nothing: the host makes no CUDA calls to report."""

    def copy_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def copy_constant_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def copy_to_host(self, destination: HostArray, source: CpuArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def copy_on_device(self, tensor: Tensor, destination: CpuArray, source: CpuArray, stream: int) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def load(self, destination: CpuArray, source: HostArray) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    def kernel(self, node: Tensor, out: CpuArray, src: Sequence[CpuArray]) -> CpuKernel:
        """Bind the kernel, and the bytes it will report as read."""
        kernel = super().kernel(node, out, src)
        match node.op:
            case "mul_mat":
                return replace(kernel, reads=partial(int, src[0].nbytes))
            case "mul_mat_id":
                return replace(kernel, reads=partial(_of_experts, src[0].nbytes // len(src[0]), src[2]))
            case "flash_attn_ext":
                return replace(kernel, reads=_unknown)
        return kernel

    def launch(self, kernel: CpuKernel, stream: int) -> None:
        """Run the kernel."""
        if kernel.reads is None:
            self._attempt(kernel.run, f"kernel {kernel.label} on the host")
        else:
            with annotate(kernel.label, index=kernel.reads(), domain=HOST_COMPUTE):
                self._attempt(kernel.run, f"kernel {kernel.label} on the host")
        self._raise_failure()

    def synchronize(self, stream: int) -> None:
        """Do nothing: all work is done."""

    def event_record(self, event: CpuEvent, stream: int) -> None:
        """Do nothing: all work is done."""

    def event_wait(self, event: CpuEvent, stream: int) -> None:
        """Do nothing: all work is done."""

    def event_synchronize(self, event: CpuEvent) -> None:
        """Do nothing: all work is done."""


def _of_experts(nbytes: int, ids: CpuArray) -> int:
    """Return the bytes of the experts that a step uses, each read once."""
    return nbytes * len(set(ids.ravel().tolist()))


def _unknown() -> None:
    """Return None: the cells that attention reads depend on the mask."""
