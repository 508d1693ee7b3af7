"""The host of a simulated device, as a device: layers and experts on it take the times that the profile gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

from executor.backends.interface import Array, Backend, Immediate
from executor.backends.sim.backend import InVirtualTime, SimArray, SimBackend, VirtualHost
from executor.backends.sim.device import moved_bytes
from executor.backends.sim.profiles import Profile, load_profile
from executor.graph import Tensor
from executor.graph.fusion import reads_of
from executor.planning.devices import Device
from tracer.model.schema import HOST_COMPUTE
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder


@dataclass(frozen=True, slots=True)
class SimHostKernel:
    """A kernel: its label, whether it is recorded with the bytes that it reads (None if unknown), and its time."""

    label: str
    recorded: bool
    reads: int | None
    ns: int


class SimHostBackend(Immediate, InVirtualTime):
    """The host in virtual time.

    Args:
        profile: the costs of the machine.
        threads: number of threads for products; None for the profile's largest number.
    """

    name: ClassVar[str] = "host"

    def __init__(self, profile: Profile, threads: int | None = None) -> None:
        self._cost, self._rate = profile.host, profile.host.rate(threads)
        self.host = VirtualHost()

    @classmethod
    def start(cls, device: Device) -> SimHostBackend:
        """Start the backend with the profile of its simulated device."""
        return cls(load_profile(device.profile or SimBackend.default_profile), device.threads)

    def accompany(self, others: Sequence[Backend]) -> None:
        """Share the time of the simulated device."""
        self.host = next((other.host for other in others if isinstance(other, SimBackend)), self.host)

    def report_to(self, recorder: HostRecorder) -> None:
        """Set the recorder's clock: the host makes no CUDA calls to report."""
        recorder.clock = self.clock

    def copy_to_device(self, destination: Array, source: Array, stream: int) -> None:
        """Do nothing: the inputs of a step are small."""

    copy_constant_to_device = copy_to_host = copy_to_device

    def kernel(self, node: Tensor, out: SimArray, src: Sequence[SimArray]) -> SimHostKernel:
        """Return the kernel's cost."""
        reads, label = reads_of(node), f"{node.op}({node.name})"
        if reads is None:
            return SimHostKernel(label, False, None, self._cost.other_ns)
        nbytes = reads.at_most if reads.known else moved_bytes(node)
        return SimHostKernel(label, True, reads.at_most, self._cost.fixed_ns + math.ceil((nbytes or 0) / self._rate))

    def launch(self, kernel: SimHostKernel, stream: int) -> None:
        """Advance the virtual time by the kernel's duration."""
        recorded = annotate(kernel.label, index=kernel.reads, domain=HOST_COMPUTE)
        with recorded if kernel.recorded else nullcontext():
            self.host.now += kernel.ns

    def event(self) -> None:
        """Return nothing: all work is done."""
