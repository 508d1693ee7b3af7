"""What a device must offer to run plans. One file per device kind stands beside this one.

All calls come from one host thread. Streams are numbered from 0 and come into being when first used. Work
issued to one stream runs in the order of issue; work on different streams is ordered by events only.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from executor.concurrency import MAIN_STREAM
from executor.devices import Device
from executor.graph import Tensor
from executor.models.step import random_weight
from executor.plans import Instruction, Launch, Plan, Record
from tracer.errors import ExecutionError, UsageError
from tracer.recorders.host import HostRecorder

HostArray = np.ndarray[Any, np.dtype[Any]]
Buffer = Any
"""Device memory; only the backend that made it looks inside. So are the next four."""
Array = Any
Kernel = Any
Event = Any
GraphExec = Any


class Guarantee(enum.Enum):
    """What a backend promises and a strategy may need. The values appear in messages."""

    COPIES_AND_COMPUTE_IN_ORDER = "copies and compute issued to one stream run in the order of issue"
    ASYNC_SOURCES_STAGED = "the source of an asynchronous copy may be overwritten as soon as the call returns"
    LAUNCHES_IN_ORDER = "a graph launch runs after all launches issued before it to the same streams"
    PEER_COPIES_IN_ORDER = (
        "a copy to another device runs after what was issued to its stream, and before what is issued later to either"
    )


@dataclass(frozen=True)
class EagerGraph:
    """The default of `instantiate`: a plan, its kernels and events, issued one by one at each launch."""

    instructions: Sequence[Instruction]
    kernels: Mapping[Tensor, Kernel]
    events: Sequence[Event]


class Backend(Protocol):
    """A device. Subclass it to get the defaults of the optional methods.

    Attributes:
        name: as in the command line.
        staged: whether it stages what asynchronous copies read; without, the caller must keep the sources.
        weight_dtypes: the dtypes of weight matrices it has kernels for.
        traced_passes: levels at which a profiler can watch it, besides the light pass; see `executor.passes`.
        fuses: whether it wants chains of nodes fused (see `fusion`) unless the user says otherwise.
        default_profile: the cost profile of a device that only simulates, where logits and tokens are zeros; None for
            one that computes.
        clock_name: what `clock` reads.
    """

    name: ClassVar[str]
    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32"})
    fuses: ClassVar[bool] = False
    default_profile: ClassVar[str | None] = None
    clock_name: ClassVar[str] = "perf_counter_ns"
    traced_passes: ClassVar[tuple[str, ...]] = ()
    staged: bool = True

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What it promises. Default: everything, as far as it stages and copies to other devices."""
        lacks = set() if self.staged else {Guarantee.ASYNC_SOURCES_STAGED}
        if type(self).copy_to_peer is Backend.copy_to_peer:
            lacks.add(Guarantee.PEER_COPIES_IN_ORDER)
        return frozenset(Guarantee) - lacks

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its device's library raises; `failures.device_errors` turns it into ExecutionError. Default: nothing."""
        return ()

    @classmethod
    def start(cls, device: Device) -> Backend:
        """Start it. Default: with the device's number and whether it stages, and with costs of its own.

        Raises:
            UsageError: it takes no cost profile.
        """
        if device.profile is not None:
            raise UsageError(f"backend {cls.name!r} takes no cost profile; backend 'sim' does")
        make: Any = cls
        backend: Backend = make(device.index, device.staged)
        return backend

    def clock(self) -> int:
        """The host's time in ns, from any origin. Default: the real one."""
        return time.perf_counter_ns()

    def report_to(self, recorder: HostRecorder) -> None:
        """Report calls and activities to this recorder from now on. Call it while the device is idle."""

    def report_late(self) -> None:
        """Report what the device itself measured since `report_to`, while it is idle. Default: nothing."""
        return

    def stamp_steps(self, steps: int) -> Any:
        """Let the device stamp its clock at head and tail of every plan that is instantiated from now on.

        `report_late` reports the last `steps` of them as graph launches. Default: nothing, for devices that report
        every kernel anyway.
        """
        return None

    def activate(self) -> None:
        """Make this the device that calls refer to, where a process may use several. Default: nothing."""
        return

    def close(self) -> None:
        """End all work and threads; nothing may be called afterwards. Closing twice does no harm."""

    # Memory

    def alloc(self, nbytes: int) -> Buffer:
        """Zeroed device memory, aligned to at least 64 bytes."""

    def array(self, buffer: Buffer, offset: int, tensor: Tensor) -> Array:
        """A part of a buffer in a tensor's shape and dtype."""

    def host_array(self, shape: tuple[int, ...], dtype: str) -> HostArray:
        """Host memory that copies can reach quickly. Default: ordinary memory."""
        return np.zeros(shape, dtype)

    # Copies

    def copy_to_device(self, destination: Array, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy. Whether `source` may change at once is a `Guarantee`."""

    def copy_constant_to_device(self, destination: Array, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy from memory that stays as it is, so that nothing need be staged."""

    def copy_to_host(self, destination: HostArray, source: Array, stream: int) -> None:
        """Issue an asynchronous copy; `destination` holds the values after the next `synchronize`."""

    def copy_to_peer(self, peer: Backend, destination: Array, source: Array, stream: int, after: Event) -> None:
        """Issue an asynchronous copy to another device of the same kind; the host does not wait.

        It runs on the stream of this number of this device, after `after`, an event of the peer that says when the
        destination may be overwritten. What is issued later to that stream of either device comes after it.
        Default: not possible.
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
        """Set a weight to seeded random values while the device is idle. Default: those of `random_weight`."""
        self.load(destination, random_weight(weight, seed))

    # Compute

    def kernel(self, node: Tensor, out: Array, src: Sequence[Array]) -> Kernel:
        """A node's kernel, bound to its memory.

        Raises:
            ExecutionError: the backend has no kernel for the op.
        """

    def kernel_key(self, kernel: Kernel) -> Hashable:
        """Equal for kernels that do the same to the same memory: op, shapes, addresses, parameters. Default: itself."""
        return id(kernel)

    def launch(self, kernel: Kernel, stream: int) -> None:
        """Issue a kernel."""

    def head_of_step(self) -> None:
        """A plan issued eagerly begins; the place for a stamp. Default: nothing."""
        return

    def tail_of_step(self) -> None:
        """A plan issued eagerly ends. Default: nothing."""
        return

    def synchronize(self, stream: int) -> None:
        """Wait until everything issued to the stream is done.

        Raises:
            ExecutionError: something issued to this device, on any stream, failed.
        """

    # Events

    def event(self) -> Event:
        """A new event. It may be recorded again and again; waits refer to the record issued last."""

    def event_record(self, event: Event, stream: int) -> None:
        """Issue a record."""

    def event_wait(self, event: Event, stream: int) -> None:
        """Let later work of a stream wait for the event's last issued record; no wait if there is none."""

    def event_synchronize(self, event: Event) -> None:
        """Wait on the host until the event's last issued record has happened.

        Raises:
            ExecutionError: something issued to this device, on any stream, failed.
        """

    # Graphs

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> GraphExec:
        """Prepare a plan for repeated launches. Default: keep it, to be issued eagerly."""
        return EagerGraph(plan.instructions, kernels, [self.event() for _ in range(plan.events)])

    def update_graph(self, graph: GraphExec, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> bool:
        """Make a graph into that of another plan, in place; False if it cannot be. Default: it cannot."""
        return False

    def free_graph(self, graph: GraphExec) -> None:
        """Give a graph back before the backend is closed. Default: nothing."""
        return

    def launch_graph(self, graph: GraphExec, stream: int = MAIN_STREAM) -> None:
        """Issue a prepared plan with one call, its main stream being this one. Default: one instruction by one."""
        for instruction in graph.instructions:
            own = instruction.stream or stream
            if isinstance(instruction, Launch):
                self.launch(graph.kernels[instruction.node], own)
            elif isinstance(instruction, Record):
                self.event_record(graph.events[instruction.event], own)
            else:
                self.event_wait(graph.events[instruction.event], own)
