"""The interface that a device implements to run plans. Each device kind has a folder next to this file.

All calls come from one host thread. Streams are numbered from 0 and created on first use. Work issued to
one stream runs in issue order; only events order work on different streams.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from executor.graph import Tensor
from executor.graph.models.step import random_weight
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.devices import Device
from executor.planning.plans import Instruction, Launch, Plan, Record
from tracer.errors import ExecutionError, UsageError
from tracer.recorders.host import HostRecorder

HostArray = np.ndarray[Any, np.dtype[Any]]
Buffer = Any
"""Device memory. This type and the next four are opaque to all but the backend that made them."""
Array = Any
Kernel = Any
Event = Any
GraphExec = Any


class Guarantee(enum.Enum):
    """Guarantees of a backend, which a strategy may require. The values appear in messages."""

    COPIES_AND_COMPUTE_IN_ORDER = "copies and compute issued to one stream run in issue order"
    ASYNC_SOURCES_STAGED = "the source of an asynchronous copy may be overwritten as soon as the call returns"
    LAUNCHES_IN_ORDER = "a graph launch runs after all launches issued before it to the same streams"
    PEER_COPIES_IN_ORDER = (
        "a copy to another device runs after earlier work on its stream and before later work on that stream of both "
        "devices"
    )


@dataclass(frozen=True)
class EagerGraph:
    """The default result of `instantiate`: a plan, its kernels and events, issued one by one at each launch."""

    instructions: Sequence[Instruction]
    kernels: Mapping[Tensor, Kernel]
    events: Sequence[Event]


class Backend(Protocol):
    """A device. Subclass it to get the defaults of the optional methods.

    Attributes:
        staged: whether it stages the sources of asynchronous copies; if not, the caller must keep them unchanged.
        weight_dtypes: the dtypes of weight matrices that it has kernels for.
        traced_passes: levels at which a profiler can trace it, besides the light pass; see `executor.run.passes`.
        reports: whether it reports its calls and activities to a host recorder. Otherwise the light recorder records
            its calls of the CUDA driver, see `executor.run.light_pass`.
        fuses: whether chains of nodes are fused by default, see `fusion`.
        default_profile: cost profile of a simulated device, whose logits and tokens are zeros; None for a device that
            computes.
        clock_name: the clock that `clock` reads.
    """

    name: ClassVar[str]
    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    fuses: ClassVar[bool] = False
    default_profile: ClassVar[str | None] = None
    clock_name: ClassVar[str] = "perf_counter_ns"
    traced_passes: ClassVar[tuple[str, ...]] = ()
    reports: ClassVar[bool] = True
    staged: bool = True

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """The backend's guarantees. Default: everything that its staging and its copies to other devices allow."""
        lacks = set() if self.staged else {Guarantee.ASYNC_SOURCES_STAGED}
        if type(self).copy_to_peer is Backend.copy_to_peer:
            lacks.add(Guarantee.PEER_COPIES_IN_ORDER)
        return frozenset(Guarantee) - lacks

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions of the device's library, which `backends.device_errors` converts. Default: none."""
        return ()

    @classmethod
    def start(cls, device: Device) -> Backend:
        """Start the backend. Default: pass it the device's number and whether it stages.

        Raises:
            UsageError: the backend takes no cost profile.
        """
        if device.profile is not None:
            raise UsageError(f"backend {cls.name!r} takes no cost profile; backend 'sim' does")
        make: Any = cls
        backend: Backend = make(device.index, device.staged)
        return backend

    def clock(self) -> int:
        """Return the host's time in ns, from any origin. Default: real time."""
        return time.perf_counter_ns()

    def report_to(self, recorder: HostRecorder) -> None:
        """Report calls and activities to this recorder from now on. The device must be idle. Default: nothing."""
        return

    def report_late(self) -> None:
        """Report any work since `report_to` that has not been reported. The device must be idle. Default: nothing."""
        return

    def expect_steps(self, steps: int) -> None:
        """Set the number of steps that will be reported together. Default: nothing."""
        return

    def accompany(self, others: Sequence[Backend]) -> None:
        """Receive the backends of the run that it is part of. Default: nothing."""
        return

    def activate(self) -> None:
        """Make this the current device, where a process may use several. Default: nothing."""
        return

    def close(self) -> None:
        """End all work and threads. Only `close` may be called afterwards."""

    # Memory

    def alloc(self, nbytes: int) -> Buffer:
        """Allocate zeroed device memory, aligned to at least 64 bytes."""

    def array(self, buffer: Buffer, offset: int, tensor: Tensor) -> Array:
        """Return a part of a buffer in a tensor's shape and dtype."""

    def host_array(self, shape: tuple[int, ...], dtype: str) -> HostArray:
        """Allocate host memory suited to fast copies. Default: ordinary memory."""
        return np.zeros(shape, dtype)

    # Copies

    def copy_to_device(self, destination: Array, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy. A `Guarantee` states whether `source` may change immediately."""

    def copy_constant_to_device(self, destination: Array, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy from memory that does not change, without staging."""

    def copy_to_host(self, destination: HostArray, source: Array, stream: int) -> None:
        """Issue an asynchronous copy; `destination` is valid after the next `synchronize`."""

    def copy_to_peer(self, peer: Backend, destination: Array, source: Array, stream: int, after: Event) -> None:
        """Issue an asynchronous copy to another device of the same kind; the host does not wait.

        The copy runs on the given stream of this device, after `after`, an event of the peer that marks when the
        destination may be overwritten. Later work on that stream of either device runs after the copy.
        Default: unsupported.
        """
        raise ExecutionError(f"backend {self.name!r} cannot copy to another device")

    def copy_on_device(self, tensor: Tensor, destination: Array, source: Array, stream: int) -> None:
        """Issue an asynchronous copy between arrays of a tensor's shape. Default: blocking, through the host."""
        values = self.host_array(tensor.shape, tensor.dtype)
        self.copy_to_host(values, source, stream)
        self.synchronize(stream)
        self.copy_to_device(destination, values, stream)
        self.synchronize(stream)

    def load(self, destination: Array, source: HostArray) -> None:
        """Set weights or state while the device is idle. Default: a copy and a sync."""
        self.copy_to_device(destination, source, MAIN_STREAM)
        self.synchronize(MAIN_STREAM)

    def load_random(self, destination: Array, weight: Tensor, seed: int) -> None:
        """Set a weight to seeded random values while the device is idle. Default: the values of `random_weight`."""
        self.load(destination, random_weight(weight, seed))

    # Compute

    def kernel(self, node: Tensor, out: Array, src: Sequence[Array]) -> Kernel:
        """Bind a node's kernel to its memory.

        Raises:
            ExecutionError: the backend has no kernel for the op.
        """

    def kernel_key(self, kernel: Kernel) -> Hashable:
        """Return a key equal for kernels with the same op, shapes, addresses and parameters. Default: the kernel."""
        return id(kernel)

    def launch(self, kernel: Kernel, stream: int) -> None:
        """Issue a kernel."""

    def synchronize(self, stream: int) -> None:
        """Wait until everything issued to the stream is done.

        Raises:
            ExecutionError: something issued to this device, on any stream, failed.
        """

    # Events

    def event(self) -> Event:
        """Create an event. It may be recorded repeatedly; waits refer to the latest record."""

    def event_record(self, event: Event, stream: int) -> None:
        """Issue a record."""

    def event_wait(self, event: Event, stream: int) -> None:
        """Make later work of a stream wait for the event's latest record; no wait if there is none."""

    def event_synchronize(self, event: Event) -> None:
        """Wait on the host for the event's latest record.

        Raises:
            ExecutionError: something issued to this device, on any stream, failed.
        """

    # Graphs

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> GraphExec:
        """Prepare a plan for repeated launches. Default: keep it and issue it eagerly."""
        return EagerGraph(plan.instructions, kernels, [self.event() for _ in range(plan.events)])

    def update_graph(self, graph: GraphExec, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> bool:
        """Update a graph in place to another plan; return whether that was possible. Default: False."""
        return False

    def free_graph(self, graph: GraphExec) -> None:
        """Free a graph before the backend is closed. Default: nothing."""
        return

    def launch_graph(self, graph: GraphExec, stream: int = MAIN_STREAM) -> None:
        """Launch a prepared plan with this main stream in one call. Default: issue its instructions one by one."""
        for instruction in graph.instructions:
            own = instruction.stream or stream
            if isinstance(instruction, Launch):
                self.launch(graph.kernels[instruction.node], own)
            elif isinstance(instruction, Record):
                self.event_record(graph.events[instruction.event], own)
            else:
                self.event_wait(graph.events[instruction.event], own)


class Immediate(Backend):
    """Work is done when its call returns, so nothing waits."""

    def synchronize(self, stream: int) -> None:
        """Do nothing."""

    def event_record(self, event: Event, stream: int) -> None:
        """Do nothing."""

    event_wait = event_record

    def event_synchronize(self, event: Event) -> None:
        """Do nothing."""
