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

from executor.backends.cpu.backend import CpuArray, CpuBackend
from executor.backends.cpu.handles import CpuKernel
from executor.backends.interface import HostArray, Immediate
from executor.graph import Tensor
from executor.graph.fusion import PARTS, outer_sources, reads_of
from tracer.model.schema import HOST_COMPUTE
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder


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
