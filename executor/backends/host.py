"""The host as a device, as an engine's CPU backend: compute is a call, and nothing of it is a CUDA call.

So it reports nothing, as a profiler of CUDA would see nothing of it either; the range of its split says where it was.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from executor.backends.cpu import CpuArray, CpuBackend
from executor.backends.cpu_handles import CpuEvent, CpuKernel
from executor.backends.interface import HostArray
from executor.graph import Tensor
from tracer.recorders.host import HostRecorder


class HostBackend(CpuBackend):
    """See the module's docstring."""

    name: ClassVar[str] = "host"

    def report_to(self, recorder: HostRecorder) -> None:
        """There is nothing to report."""

    def copy_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Now."""
        np.copyto(destination, source)

    def copy_constant_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Now."""
        np.copyto(destination, source)

    def copy_to_host(self, destination: HostArray, source: CpuArray, stream: int) -> None:
        """Now."""
        np.copyto(destination, source)

    def copy_on_device(self, tensor: Tensor, destination: CpuArray, source: CpuArray, stream: int) -> None:
        """Now."""
        np.copyto(destination, source)

    def load(self, destination: CpuArray, source: HostArray) -> None:
        """Now."""
        np.copyto(destination, source)

    def launch(self, kernel: CpuKernel, stream: int) -> None:
        """Run it."""
        self._attempt(kernel.run, f"kernel {kernel.label} on the host")
        self._raise_failure()

    def synchronize(self, stream: int) -> None:
        """Nothing is under way."""

    def event_record(self, event: CpuEvent, stream: int) -> None:
        """It has happened."""

    def event_wait(self, event: CpuEvent, stream: int) -> None:
        """It has happened."""

    def event_synchronize(self, event: CpuEvent) -> None:
        """It has happened."""
