"""The CPU as an asynchronous device: NumPy and compiled kernels on one worker thread per stream.

A host call enqueues work on a stream and returns; the stream's thread runs it later, in order.
Every call and every piece of work is reported to the host recorder with its start and end.

`HostBackend` is the host as a device, like an engine's CPU backend: compute is a function call, without any CUDA call.
A CUDA recorder therefore sees none of it. Products and attention, which take most of the time, are NVTX ranges of the
domain `schema.HOST_COMPUTE` on the launching thread, inside the range of their split: every recorder captures these,
on the host's clock. A product also reports the bytes of the weights that it reads.

Then the handles of both: bound kernels, events and graphs; the streams that run them; staging memory.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle
from queue import SimpleQueue
from typing import Any, ClassVar, Final

import numpy as np

from executor.backends.cpu.compiled import CompiledKernels, is_compiled
from executor.backends.cpu.kernels import KERNELS, BoundKernel, NumpyKernel
from executor.backends.interface import Backend, HostArray, Immediate
from executor.backends.weight_formats import Quantised, address
from executor.graph import BLOCK_FORMATS, Tensor
from executor.graph.fusion import PARTS, outer_sources, reads_of
from executor.graph.models.step import write_random
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.devices import Device
from executor.planning.plans import Instruction, Launch, Plan, Record, Wait
from tracer.errors import ExecutionError
from tracer.model.schema import HOST_COMPUTE, MISSING
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder

_ALIGNMENT: Final = 64
_BYTE: Final = np.dtype(np.uint8)

CpuArray = Any
"""A NumPy array or a `Quantised` weight."""


class CpuBackend(Backend):
    """The CPU backend, see the module's docstring.

    Args:
        device: its number in recordings.
        staged: whether asynchronous copies to the device read a staging slot instead of the caller's memory.
        staging_slots: how many asynchronous copies to the device may be in flight before the next one waits.
        threads: how many threads compute a large product, see `CompiledKernels`.
        pinned: whether each of these threads is pinned to its own core.
    """

    name: ClassVar[str] = "cpu"
    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float16", *BLOCK_FORMATS})
    _correlations, _event_ids, _graph_ids = count(1), count(1), count(1)  # unique in a recording

    def __init__(
        self, device: int = 0, staged: bool = True, kernels: Mapping[str, NumpyKernel] = KERNELS,
        staging_slots: int = 32, threads: int | None = None, pinned: bool = False,
    ) -> None:  # fmt: skip
        self._device, self.staged = device, staged
        self._kernels, self._compiled = kernels, CompiledKernels(threads, pinned)
        self._slots = cycle([StagingSlot() for _ in range(staging_slots)])  # if all are taken, a copy waits
        self._streams: dict[int, CpuStream] = {}
        self._failure: ExecutionError | None = None
        self._closed = False
        self.report_to(HostRecorder())

    @classmethod
    def start(cls, device: Device) -> Backend:
        """Start the backend with the device's threads."""
        if device.profile is not None:
            return super().start(device)  # which raises
        return cls(device.index, device.staged, threads=device.threads, pinned=device.pinned)

    def report_to(self, recorder: HostRecorder) -> None:
        """Report to this recorder from now on."""
        self._recorder = recorder
        self._clock = recorder.clock
        self._announced: set[int] = set()
        recorder.describe_device(self._device, "CPU")

    def close(self) -> None:
        """Finish all queued work, then end the threads."""
        self._closed = True
        for stream in self._streams.values():
            stream.put(None)
        for stream in self._streams.values():
            stream.thread.join()
        self._streams.clear()

    def alloc(self, nbytes: int) -> CpuArray:
        """Allocate zeroed bytes, aligned to 64."""
        try:
            raw = np.zeros(nbytes + _ALIGNMENT, _BYTE)
        except MemoryError as error:
            raise ExecutionError(f"backend 'cpu' cannot allocate {nbytes:,} bytes: choose a smaller batch") from error
        skip = -raw.ctypes.data % _ALIGNMENT
        return raw[skip : skip + nbytes]

    def array(self, buffer: CpuArray, offset: int, tensor: Tensor) -> CpuArray:
        """Return a view of the buffer."""
        data = buffer[offset : offset + tensor.nbytes]
        if tensor.dtype in BLOCK_FORMATS:
            return Quantised.of(data, tensor.shape)
        return data.view(tensor.dtype).reshape(tensor.shape)

    def copy_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Copy the values to a staging slot now and to the device later. Without staging, read them later."""
        self._copy_in(destination, source, stream, self.staged)

    def copy_constant_to_device(self, destination: CpuArray, source: HostArray, stream: int) -> None:
        """Enqueue a copy from memory that does not change."""
        self._copy_in(destination, source, stream, staged=False)

    def _copy_in(self, destination: CpuArray, source: HostArray, stream: int, staged: bool) -> None:
        start, correlation = self._clock(), next(self._correlations)
        _check_copy(destination, source)
        slot = next(self._slots) if staged else None
        values = slot.fill(source) if slot else source
        copy = partial(self._run_copy, "HtoD", destination, values, stream, correlation, slot)
        self._stream(stream).put(copy)
        self._recorder.api("memcpyAsync", start, self._clock(), correlation)

    def copy_to_host(self, destination: HostArray, source: CpuArray, stream: int) -> None:
        """Enqueue a copy to the caller's memory."""
        start, correlation = self._clock(), next(self._correlations)
        _check_copy(destination, source)
        self._stream(stream).put(partial(self._run_copy, "DtoH", destination, source, stream, correlation))
        self._recorder.api("memcpyAsync", start, self._clock(), correlation)

    def copy_to_peer(
        self, peer: Backend, destination: CpuArray, source: CpuArray, stream: int, after: CpuEvent
    ) -> None:
        """Copy on this device's stream while the peer's stream waits."""
        if not isinstance(peer, CpuBackend):
            raise ExecutionError(f"backend 'cpu' cannot copy to backend {peer.name!r}")
        _check_copy(destination, source)
        self.event_wait(after, stream)
        start, correlation = self._clock(), next(self._correlations)
        self._stream(stream).put(partial(self._run_copy, "PtoP", destination, source, stream, correlation))
        self._stream(stream).put(partial(self._pass_failure, peer))
        self._recorder.api("memcpyPeerAsync", start, self._clock(), correlation)
        done = self.event()
        self.event_record(done, stream)
        peer.event_wait(done, stream)

    def _pass_failure(self, peer: CpuBackend) -> None:
        peer._failure = peer._failure or self._failure

    def copy_on_device(self, tensor: Tensor, destination: CpuArray, source: CpuArray, stream: int) -> None:
        """Enqueue a copy."""
        start, correlation = self._clock(), next(self._correlations)
        self._stream(stream).put(partial(self._run_copy, "DtoD", destination, source, stream, correlation))
        self._recorder.api("memcpyAsync", start, self._clock(), correlation)

    def load(self, destination: CpuArray, source: HostArray) -> None:
        """Copy from the caller's memory in one blocking call."""
        start, correlation = self._clock(), next(self._correlations)
        _check_copy(destination, source)
        self._stream(0).put(partial(self._run_copy, "HtoD", destination, source, 0, correlation))
        self._wait_for(0)
        self._recorder.api("memcpy", start, self._clock(), correlation)
        self._raise_failure()

    def load_random(self, destination: CpuArray, weight: Tensor, seed: int) -> None:
        """Write the values directly to the destination."""
        write_random(destination, weight, seed)

    def kernel(self, node: Tensor, out: CpuArray, src: Sequence[CpuArray]) -> CpuKernel:
        """Bind the compiled or NumPy kernel of the op."""
        memory = tuple((address(a), a.shape, str(a.dtype)) for a in (out, *src))
        key = (node.op, memory, repr(sorted(node.params.items())))
        return CpuKernel(f"{node.op}({node.name})", self._run_of(node, out, src), key)

    def kernel_key(self, kernel: CpuKernel) -> Hashable:
        """Return a key of op, addresses, shapes and parameters."""
        return kernel.key

    def _run_of(self, node: Tensor, out: CpuArray, src: Sequence[CpuArray]) -> BoundKernel:
        """Bind the kernel of a node; a fused node computes its parts in sequence."""
        if PARTS not in node.params:
            if node.op not in self._kernels:
                raise ExecutionError(f"backend 'cpu' has no kernel for op {node.op!r} of node {node.name}")
            if is_compiled(node.op, src):
                return self._compiled.bound(node.op, out, src, **node.params)
            return partial(self._kernels[node.op], out, *src, **node.params)
        parts: Sequence[Tensor] = node.params[PARTS]
        arrays = dict(zip(outer_sources(parts), src, strict=True))
        work = []
        for part in parts:
            if part.has_kernel:
                arrays[part] = out if part is parts[-1] else np.empty(part.shape, part.dtype)
                work.append(self._run_of(part, arrays[part], [arrays[s] for s in part.src]))
            else:
                arrays[part] = arrays[part.src[0]].reshape(part.shape)
        return partial(_run_all, work)

    def launch(self, kernel: CpuKernel, stream: int) -> None:
        """Queue a kernel."""
        start, correlation = self._clock(), next(self._correlations)
        self._stream(stream).put(partial(self._run_kernel, kernel, stream, correlation))
        self._recorder.api("launchKernel", start, self._clock(), correlation)

    def synchronize(self, stream: int) -> None:
        """Wait for the work queued on the stream."""
        start, correlation = self._clock(), next(self._correlations)
        self._wait_for(stream)
        self._recorder.api("streamSynchronize", start, end := self._clock(), correlation)
        self._report_sync("stream", start, end, correlation, stream)
        self._raise_failure()

    def event(self) -> CpuEvent:
        """Create an event."""
        return CpuEvent(next(self._event_ids))

    def event_record(self, event: CpuEvent, stream: int) -> None:
        """Queue a ticket that the stream's thread completes."""
        start, correlation = self._clock(), next(self._correlations)
        event.recorded = Ticket()
        self._stream(stream).put(event.recorded.happen)
        self._recorder.api("eventRecord", start, self._clock(), correlation)
        self._recorder.event_record(event.id, device=self._device, stream=stream, correlation=correlation)

    def event_wait(self, event: CpuEvent, stream: int) -> None:
        """Queue a wait for the ticket of the latest record."""
        start, correlation = self._clock(), next(self._correlations)
        if event.recorded is not None:
            self._stream(stream).put(event.recorded.wait)
        self._recorder.api("streamWaitEvent", start, end := self._clock(), correlation)
        self._report_sync("stream wait", start, end, correlation, stream, event.id)

    def event_synchronize(self, event: CpuEvent) -> None:
        """Wait for the ticket of the latest record."""
        start, correlation = self._clock(), next(self._correlations)
        if event.recorded is not None:
            event.recorded.wait()
        self._recorder.api("eventSynchronize", start, end := self._clock(), correlation)
        self._report_sync("event", start, end, correlation, MISSING, event.id)
        self._raise_failure()

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, CpuKernel]) -> CpuGraph:
        """Sort the instructions by stream."""
        programs: defaultdict[int, list[tuple[Instruction, CpuKernel | None, int]]] = defaultdict(list)
        recorded: set[int] = set()
        for number, instruction in enumerate(plan.instructions):
            kernel = kernels[instruction.node] if isinstance(instruction, Launch) else None
            if isinstance(instruction, Wait) and instruction.event not in recorded:
                raise ExecutionError(f"event {instruction.event} of the plan is waited for before it is recorded")
            if isinstance(instruction, Record):
                recorded.add(instruction.event)
            programs[instruction.stream].append((instruction, kernel, number))
        return CpuGraph(next(self._graph_ids), dict(programs), plan.events)

    def update_graph(self, graph: CpuGraph, plan: Plan, kernels: Mapping[Tensor, CpuKernel]) -> bool:
        """Update the graph where CUDA would allow it: if kernels, records and waits keep their places."""
        start, correlation = self._clock(), next(self._correlations)
        new = self.instantiate(plan, kernels)
        same: bool = topology(graph) == topology(new)
        if same:
            graph.programs = new.programs
        self._recorder.api("graphExecUpdate", start, self._clock(), correlation)
        return same

    def launch_graph(self, graph: CpuGraph, stream: int = MAIN_STREAM) -> None:
        """Queue the instructions of each stream as one piece of work."""
        start, correlation = self._clock(), next(self._correlations)
        tickets = [Ticket() for _ in range(graph.events)]
        for number, program in graph.programs.items():
            own = number or stream
            self._stream(own).put(partial(self._run_program, program, graph.id, own, tickets, correlation))
        self._recorder.api("graphLaunch", start, self._clock(), correlation)

    def _stream(self, number: int) -> CpuStream:
        if self._closed:
            raise ExecutionError("backend 'cpu' is closed")
        if number not in self._announced:
            self._announced.add(number)
            self._recorder.describe_stream(self._device, number)
        if number not in self._streams:
            self._streams[number] = CpuStream(number)
        return self._streams[number]

    def _wait_for(self, stream: int) -> None:
        done = Ticket()
        self._stream(stream).put(done.happen)
        done.wait()

    def _report_sync(
        self, kind: str, start: int, end: int, correlation: int, stream: int, event: int = MISSING
    ) -> None:
        self._recorder.sync(kind, start, end, device=self._device, stream=stream, correlation=correlation, event=event)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise ExecutionError(str(self._failure)) from self._failure.__cause__

    # The methods below run on the worker threads. After a failure kernels and copies are skipped, but events
    # still complete and slots are freed, so that no wait hangs.

    def _run_program(
        self, program: Program, graph: int, stream: int, tickets: Sequence[Ticket], correlation: int
    ) -> None:
        for instruction, kernel, number in program:
            if kernel is not None:
                self._run_kernel(kernel, stream, correlation, number, graph)
            elif isinstance(instruction, Record):
                tickets[instruction.event].happen()
            elif isinstance(instruction, Wait):
                tickets[instruction.event].wait()

    def _run_kernel(
        self, kernel: CpuKernel, stream: int, correlation: int, node: int = MISSING, graph: int = MISSING
    ) -> None:
        start = self._clock()
        if self._attempt(kernel.run, f"kernel {kernel.label} on stream {stream}"):
            self._recorder.kernel(
                kernel.label, start, self._clock(),
                device=self._device, stream=stream, correlation=correlation, graph_node=node, graph=graph,
            )  # fmt: skip

    def _run_copy(
        self, kind: str, destination: CpuArray, source: CpuArray, stream: int, correlation: int,
        slot: StagingSlot | None = None,
    ) -> None:  # fmt: skip
        start = self._clock()
        done = self._attempt(partial(np.copyto, destination, source), f"{kind} copy on stream {stream}")
        end = self._clock()
        if slot is not None:
            slot.free()
        if done:
            host = "pageable" if kind == "HtoD" and slot is None else "pinned"
            kinds = [host if end == "H" else "device" for end in (kind[0], kind[-1])]
            self._recorder.memcpy(
                kind, source.nbytes, start, end,
                device=self._device, stream=stream, correlation=correlation, src_kind=kinds[0], dst_kind=kinds[1],
            )  # fmt: skip

    def _attempt(self, work: BoundKernel, what: str) -> bool:
        """Run work unless earlier work failed; keep the first failure for the host."""
        if self._failure is not None:
            return False
        try:
            work()
        except BaseException as error:  # the host must learn of any failure, and the thread must survive it
            failure = ExecutionError(f"{what} failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failure = failure
            return False
        return True


def _run_all(work: Sequence[BoundKernel]) -> None:
    for part in work:
        part()


def _check_copy(destination: CpuArray, source: CpuArray) -> None:
    if destination.shape != source.shape or destination.dtype != source.dtype:
        raise ExecutionError(
            f"cannot copy {source.dtype}{list(source.shape)} to {destination.dtype}{list(destination.shape)}"
        )


class HostBackend(Immediate, CpuBackend):
    """The host backend, see the module's docstring."""

    name: ClassVar[str] = "host"

    def report_to(self, recorder: HostRecorder) -> None:
        """Do nothing: the host makes no CUDA calls to report."""

    def copy_to_device(self, destination: CpuArray, source: HostArray, stream: int = MAIN_STREAM) -> None:
        """Copy immediately."""
        np.copyto(destination, source)

    copy_constant_to_device = copy_to_host = load = copy_to_device

    def copy_on_device(self, tensor: Tensor, destination: CpuArray, source: CpuArray, stream: int) -> None:
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


class Ticket:
    """A one-time event for any number of waiting threads. A bare lock is far cheaper than `threading.Event`."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def happen(self) -> None:
        """Release all present and future waiters. Call it once."""
        self._lock.release()

    def wait(self) -> None:
        """Return once it has happened."""
        with self._lock:
            pass


class StagingSlot:
    """Memory for one copy; taken from `fill` until the copy that reads it calls `free`."""

    def __init__(self) -> None:
        self._bytes: HostArray = np.empty(0, np.uint8)
        self._taken = threading.Lock()

    def fill(self, source: HostArray) -> HostArray:
        """Wait until the slot is free, take it, and return its copy of the source."""
        self._taken.acquire()
        if self._bytes.nbytes < source.nbytes:
            self._bytes = np.empty(source.nbytes, np.uint8)
        staged = self._bytes[: source.nbytes].view(source.dtype).reshape(source.shape)
        staged[...] = source
        return staged

    def free(self) -> None:
        """Release the slot after its copy. Any thread may call this."""
        self._taken.release()


Program = Sequence[tuple[Instruction, "CpuKernel | None", int]]
"""Instructions with their kernels and their numbers in the plan."""


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A kernel bound to its arrays; its label `op(node)` takes the place of a demangled name.

    Attributes:
        key: identifies the computation and its memory.
        reads: returns the bytes of weights that a run reads, or None; set for kernels shown as a host activity.
    """

    label: str
    run: BoundKernel
    key: Hashable = None
    reads: Callable[[], int | None] | None = None


@dataclass(slots=True)
class CpuEvent:
    """An event and the ticket of its latest issued record."""

    id: int
    recorded: Ticket | None = None


@dataclass(slots=True)
class CpuGraph:
    """An instantiated plan: the instructions of each stream, with bound kernels and numbered nodes."""

    id: int
    programs: Mapping[int, Program]
    events: int


class CpuStream:
    """A queue and the thread that processes it; None ends the thread."""

    def __init__(self, number: int) -> None:
        self._queue: SimpleQueue[BoundKernel | None] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._work, name=f"cpu stream {number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def topology(graph: CpuGraph) -> Any:
    """Return the kind, event and number of every instruction, by stream."""
    return {
        stream: [(type(i), getattr(i, "event", None), number) for i, _, number in program]
        for stream, program in graph.programs.items()
    }
