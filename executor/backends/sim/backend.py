"""A simulated device: host and device run in virtual time, at the costs given by a profile.

It computes nothing: logits and tokens are zeros, no memory is allocated, no weights are generated. The profile also
models the host, including its share of a hybrid run (`host`), so the speed of Python does not matter, and a
repeated run is identical to the ns.

- A host call starts `between_ns` after the previous one returned and takes its `calls_ns`.
- A kernel or graph starts `launch_latency_ns` after its launch returned, or when its stream reaches it, if later. The
  copies of a stream run in sequence.
- A sync returns `wake_up_ns` after the work that it waits for has ended.
- If the profile has batches, issued work waits on the host until a sync, or until the batch is full.

Not modelled: arithmetic (a kernel costs its fixed time and its bytes, so prompts come out too fast), contention of
copies on the bus, full queues, and the longer sampling time of a larger vocabulary.

`SimHostBackend` is the host of a simulated device, as a device: layers and experts on it take the times that the
profile gives.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import ClassVar, Final

from executor.backends.interface import Array, Backend, HostArray, Immediate
from executor.backends.sim.device import (
    Fence,
    FenceWait,
    Item,
    SimGraph,
    SimKernel,
    Span,
    Stage,
    Task,
    VirtualDevice,
    instantiate,
    moved_bytes,
)
from executor.backends.sim.profiles import FETCH, CopyCost, Profile, load_profile
from executor.graph import BLOCK_FORMATS, Tensor
from executor.graph.fusion import reads_of
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.devices import Device
from executor.planning.plans import Plan
from tracer.errors import ExecutionError
from tracer.model.schema import HOST_COMPUTE, MISSING
from tracer.recorders import annotate
from tracer.recorders.host import FIRST_CALL, HostRecorder

_DEVICE: Final = 0
MOST_KERNELS: Final = 20_000
"""Graph launches are reported kernel by kernel up to this number of kernels in a recording, and as a whole beyond
it."""


@dataclass(slots=True)
class VirtualHost:
    """The host of a run, whose time its simulated devices and its own compute share; ns."""

    now: int = 0


@dataclass(frozen=True, slots=True)
class SimArray:
    """Shape and dtype of an array that is not allocated."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(slots=True)
class SimEvent:
    """An event: the fence of its latest record, and whether a copy to the host precedes it."""

    id: int
    fence: Fence | None = None
    fetches: bool = False


class InVirtualTime(Backend):
    """What a simulated device and its host have in common: the time, and memory that has a size but no values."""

    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float16", *BLOCK_FORMATS})
    host: VirtualHost

    def clock(self) -> int:
        """Return the virtual time of the host, ns."""
        return self.host.now

    def close(self) -> None:
        """Do nothing: there are no threads to end."""

    def alloc(self, nbytes: int) -> int:
        """Return the size."""
        return nbytes

    def array(self, buffer: object, offset: int, tensor: Tensor) -> SimArray:
        """Return shape and dtype."""
        return SimArray(tensor.shape, tensor.dtype, tensor.nbytes)

    def load_random(self, destination: SimArray, weight: Tensor, seed: int) -> None:
        """Do nothing: there are no values."""


class SimBackend(InVirtualTime):
    """The simulated backend, see the module's docstring."""

    name: ClassVar[str] = "sim"
    fuses: ClassVar[bool] = True
    default_profile: ClassVar[str] = "h200-linux"
    clock_name: ClassVar[str] = "virtual"

    def __init__(
        self, profile: Profile | None = None, most_kernels: int = MOST_KERNELS, *, staged: bool = True
    ) -> None:  # fmt: skip
        self.staged = staged
        self.profile = profile or load_profile(self.default_profile)
        self._most_kernels, self._steps = most_kernels, 1
        self._device = VirtualDevice(self.profile.bytes_per_ns, self.profile.edge_ns)
        self.host = VirtualHost()
        self._unsent: list[tuple[int, Item, int]] = []
        self._event_ids, self._graph_ids = count(1), count(1)
        self.report_to(HostRecorder())

    @classmethod
    def start(cls, device: Device) -> SimBackend:
        """Start the backend with a shipped profile or one from a file."""
        return cls(load_profile(device.profile or cls.default_profile), staged=device.staged)

    def report_to(self, recorder: HostRecorder) -> None:
        """Report to this recorder from now on, in virtual time. Earlier work is not reported."""
        recorder.clock = self.clock
        self._recorder = recorder
        self._announced: set[int] = set()
        self._last_call: str | None = None
        self._fetching: defaultdict[int, bool] = defaultdict(bool)  # per stream: a copy to the host since its last sync
        recorder.describe_device(_DEVICE, f"{self.profile.device} (simulated)")

    def report_late(self) -> None:
        """Run the device to the end, so that all its work is reported."""
        self._send()
        self._device.drain()

    def expect_steps(self, steps: int) -> None:
        """Set the number of steps that will be reported together."""
        self._steps = steps

    # Copies

    def copy_to_device(self, destination: SimArray, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy."""
        self._copy("copy_in", self.profile.copy_in, destination, source, stream)

    def copy_constant_to_device(self, destination: SimArray, source: HostArray, stream: int) -> None:
        """Issue an asynchronous copy: profiles have no cost for staging."""
        self.copy_to_device(destination, source, stream)

    def copy_to_host(self, destination: HostArray, source: SimArray, stream: int) -> None:
        """Issue an asynchronous copy that leaves the destination unchanged."""
        self._copy("copy_out", self.profile.copy_out, source, destination, stream)
        self._fetching[stream] = True

    def _copy(self, call: str, cost: CopyCost, array: SimArray, host: HostArray, stream: int) -> None:
        if array.shape != host.shape or array.dtype != host.dtype:
            raise ExecutionError(
                f"cannot copy between {host.dtype}{list(host.shape)} and {array.dtype}{list(array.shape)}"
            )
        kinds = ("HtoD", "pinned", "device") if call == "copy_in" else ("DtoH", "device", "pinned")
        done = partial(self._copied, kinds, array.nbytes, stream, self._next_call)
        stage = Stage(cost.fixed_ns + math.ceil(array.nbytes / cost.bytes_per_ns))
        self._issue(call, "memcpyAsync", stream, Task(0, [stage], done=done), 0)

    def _copied(
        self, kinds: tuple[str, str, str], nbytes: int, stream: int, correlation: int, spans: list[Span]
    ) -> None:
        kind, src_kind, dst_kind = kinds
        start, end = spans[0]
        self._recorder.memcpy(
            kind, nbytes, start, end,
            device=_DEVICE, stream=stream, correlation=correlation, src_kind=src_kind, dst_kind=dst_kind,
        )  # fmt: skip

    # Compute

    def kernel(self, node: Tensor, out: SimArray, src: Sequence[SimArray]) -> SimKernel:
        """Return the kernel's cost."""
        cost = self.profile.kernel(node.op)
        return SimKernel(f"{node.op}({node.name})", Stage(cost.fixed_ns, moved_bytes(node), cost.ns_per_byte))

    def launch(self, kernel: SimKernel, stream: int) -> None:
        """Launch a kernel."""
        done = partial(self._ran, kernel.label, stream, self._next_call)
        work = Task(0, [kernel.stage], done=done)
        self._issue("launch", "launchKernel", stream, work, self.profile.launch_latency_ns)

    def _ran(self, label: str, stream: int, correlation: int, spans: list[Span]) -> None:
        start, end = spans[0]
        self._recorder.kernel(label, start, end, device=_DEVICE, stream=stream, correlation=correlation)

    def synchronize(self, stream: int) -> None:
        """Wait for all work issued to the stream."""
        fetches, self._fetching[stream] = self._fetching[stream], False
        self._wait("streamSynchronize", lambda: self._device.fence(self._queue(stream)), stream, MISSING, fetches)

    def _wait(self, api: str, fence: Callable[[], Fence | None], stream: int, event: int, fetches: bool) -> None:
        """Make a call that returns when the work issued before the fence is done."""
        start = self._begin("sync")
        self._send()
        awaited = fence()
        done = 0 if awaited is None else self._device.finish(awaited)
        woken = done + self.profile.wake_up_ns if done > self.host.now else 0
        self.host.now = max(self.host.now + self.profile.calls_ns["sync"], woken)
        self._end(api, start, stream, event)
        self._last_call = FETCH if fetches else "sync"

    # Events

    def event(self) -> SimEvent:
        """Create an event."""
        return SimEvent(next(self._event_ids))

    def event_record(self, event: SimEvent, stream: int) -> None:
        """Issue a record."""
        event.fence, event.fetches = Fence(self._queue(stream)), self._fetching[stream]
        self._issue("event_record", "eventRecord", stream, event.fence, 0, event.id)

    def event_wait(self, event: SimEvent, stream: int) -> None:
        """Issue a wait."""
        waiting = FenceWait(event.fence) if event.fence is not None else None
        self._issue("event_wait", "streamWaitEvent", stream, waiting, 0, event.id)

    def event_synchronize(self, event: SimEvent) -> None:
        """Wait for the event's latest record."""
        self._wait("eventSynchronize", lambda: event.fence, MISSING, event.id, event.fetches)

    # Graphs

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, SimKernel]) -> SimGraph:
        """Run the plan once on a separate device."""
        as_kernels = len(plan.launches) * self._steps <= self._most_kernels
        return instantiate(self.profile, plan, kernels, next(self._graph_ids), as_kernels=as_kernels)

    def launch_graph(self, graph: SimGraph, stream: int = MAIN_STREAM) -> None:
        """Launch the graph in one call."""
        done = partial(self._ran_graph, graph, stream, self._next_call)
        work = Task(0, graph.stages, self.profile.graph.start_ns, done)
        self._issue("graph_launch", "graphLaunch", stream, work, self.profile.launch_latency_ns, extra_ns=graph.host_ns)

    def _ran_graph(self, graph: SimGraph, stream: int, correlation: int, spans: list[Span]) -> None:
        if not self._recorder.recording:
            return
        first = spans[0][0]
        if not graph.as_kernels:
            self._recorder.graph_launch(
                first, spans[-1][1], device=_DEVICE, stream=stream, correlation=correlation, graph=graph.id
            )
            return
        alone = len(spans) == 1
        for i, execution in enumerate(graph.executions):
            own = execution.stream or stream
            self._announce(own)
            start, end = (first + execution.span[0], first + execution.span[1]) if alone else spans[i]
            self._recorder.kernel(
                execution.kernel.label, start, end, device=_DEVICE, stream=own,
                correlation=correlation, graph_node=execution.node, graph=graph.id,
            )  # fmt: skip

    # The host

    def _begin(self, call: str) -> int:
        """Advance the host to its next call; return the call's start."""
        if self._last_call is not None:
            self.host.now += self.profile.between(self._last_call, call)
        return self.host.now

    def _end(self, api: str, start: int, stream: int, event: int) -> None:
        if self._recorder.recording:
            if stream != MISSING:
                self._announce(stream)
            self._recorder.calls.append((api, start, self.host.now, _DEVICE, stream, event))

    def _issue(
        self, call: str, api: str, stream: int, item: Item | None, latency_ns: int, event: int = MISSING,
        *, extra_ns: int = 0,
    ) -> None:  # fmt: skip
        """Make a call that submits an item to the device and returns."""
        start = self._begin(call)
        self.host.now += self.profile.calls_ns[call] + extra_ns
        if item is not None:
            self._unsent.append((self._queue(stream), item, latency_ns))
        batch = self.profile.batch
        if batch is None or len(self._unsent) >= batch.size:
            self._send()
        self._end(api, start, stream, event)
        self._last_call = call

    def _send(self) -> None:
        """Submit the issued items to the device."""
        if not self._unsent:
            return
        if self.profile.batch is not None:
            self.host.now += self.profile.batch.submit_ns
        for queue, item, latency_ns in self._unsent:
            item.ready = self.host.now + latency_ns
            self._device.submit(queue, item)
        self._unsent.clear()

    @property
    def _next_call(self) -> int:
        """Return the correlation of the current call."""
        return FIRST_CALL + len(self._recorder.calls)

    def _queue(self, stream: int) -> int:
        return stream % self.profile.streams

    def _announce(self, stream: int) -> None:
        if stream not in self._announced:
            self._announced.add(stream)
            self._recorder.describe_stream(_DEVICE, stream)


@dataclass(frozen=True, slots=True)
class SimHostKernel:
    """A kernel: its label, whether it is recorded with the bytes that it reads (None if unknown), and its time."""

    label: str
    recorded: bool
    reads: int | None
    ns: int


class SimHostBackend(Immediate, InVirtualTime):
    """The host in virtual time, with the profile's largest number of threads unless another is given."""

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
