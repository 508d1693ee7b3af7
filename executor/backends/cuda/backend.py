"""An NVIDIA GPU through CuPy: streams, events, pinned staging, CUDA graphs, and our own kernels.

A host call costs about a microsecond, and between two tokens each one counts. Addresses, arguments and staging
memory are therefore prepared in advance. Nothing is reported: recorders see the calls of the driver.

First the handles: arrays, events, streams, graphs, and host memory that the GPU accesses directly. Then `CudaBackend`.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_float, c_int64, c_uint64
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from executor.backends.cuda.kernels import CudaKernel, bind
from executor.backends.cuda.library import Cuda, Library, Workspaces, load_cuda
from executor.backends.interface import Backend, HostArray
from executor.backends.weight_formats import encoded
from executor.graph import BLOCK_FORMATS, Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.plans import Launch, Plan, Record
from tracer.errors import ExecutionError

SLOTS: Final = 8
_RELAXED: Final = 2


def pinned_array(cuda: Cuda, shape: tuple[int, ...], dtype: str) -> HostArray:
    """Allocate a zeroed array in pinned memory, which is freed with the last array that uses it."""
    size = math.prod(shape)
    memory = cuda.cupy.cuda.alloc_pinned_memory(max(size * np.dtype(dtype).itemsize, 1))
    array: HostArray = np.frombuffer(memory, dtype, size).reshape(shape)
    array[...] = 0
    return array


def address(array: HostArray) -> int:
    """Return the address of the first byte; much cheaper than `array.ctypes.data`."""
    first: int = array.__array_interface__["data"][0]
    return first


class CopyCount:
    """Counts the copies and waits issued to a stream, and those known to be done.

    A wait for a stream that has waited for other streams covers those as well.
    """

    __slots__ = ("_awaited", "done", "issued")

    def __init__(self) -> None:
        self.issued = self.done = 0
        self._awaited: deque[tuple[int, CopyCount, int]] = deque()

    def wait_for(self, other: CopyCount) -> None:
        """Note that the stream waits for everything issued to another one."""
        self.issued += 1
        self._awaited.append((self.issued, other, other.issued))

    def done_to(self, number: int) -> None:
        """Note that copies up to this number are done."""
        self.done = max(self.done, number)
        while self._awaited and self._awaited[0][0] <= number:
            _, other, of_other = self._awaited.popleft()
            other.done_to(of_other)


class Slot:
    """Pinned memory in the shape of one input, and the last copy that read it: its stream, and its number there.

    The copy is done once `copies.done` reaches the number.
    """

    __slots__ = ("address", "copies", "next", "number", "stream", "values")

    def __init__(self, values: HostArray, copies: CopyCount) -> None:
        self.values, self.address, self.copies = values, address(values), copies
        self.number = self.stream = 0
        self.next = self


def staging_ring(cuda: Cuda, shape: tuple[int, ...], dtype: str, slots: int = SLOTS) -> Slot:
    """Create slots for one input, used in turn.

    A slot may be reused only when the copy that read it is done. Usually a sync has already confirmed that, as in any
    decode loop; otherwise the caller waits for the stream.
    """
    memory, nobody = pinned_array(cuda, (slots, *shape), dtype), CopyCount()
    ring = [Slot(memory[i : i + 1].reshape(shape), nobody) for i in range(slots)]
    for i, slot in enumerate(ring):
        slot.next = ring[(i + 1) % slots]
    return ring[0]


@dataclass(eq=False, slots=True)
class CudaArray:
    """A tensor's place in device memory.

    Attributes:
        host_dtype: NumPy dtype, or None for a block format.
        slot: staging slot of the next asynchronous copy to it; set by the first one.
        source: host memory of an earlier copy, which the driver reads directly at `source_ptr`.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    size: int
    nbytes: int
    host_dtype: np.dtype[Any] | None
    slot: Slot | None = None
    source: HostArray | None = None
    source_ptr: int = 0


@dataclass(eq=False, slots=True)
class CudaEvent:
    """An event without timing, the stream of its latest record, and how many copies that stream had then."""

    handle: int
    stream: int = 0
    copies: int = 0


class Streams(dict[int, int]):
    """Maps a stream number to the address of a non-blocking stream, created on first use."""

    def __init__(self, create: Callable[[int], int]) -> None:
        self._create = create

    def __missing__(self, number: int) -> int:
        self[number] = stream = self._create(number)
        return stream


@dataclass(slots=True, eq=False)
class CudaGraph:
    """An instantiated graph: its handle, and the objects that must outlive it."""

    handle: int
    kernels: Mapping[Tensor, CudaKernel]
    workspaces: Workspaces


_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_PEER_ACCESS_ALREADY_ENABLED: Final = 704  # cudaErrorPeerAccessAlreadyEnabled
TAKEN_BY_DRIVER: Final = 256
"""Up to this many bytes a copy reads the caller's pageable memory: the driver puts them into its command buffer before
the call returns. For 4 bytes this saves the GPU 1 of 2.5 us over pinned memory (H200), but 2 KiB cost the host more.
"""
_NON_BLOCKING, _NO_TIMING = 1, 2
MADE_ON_DEVICE: Final = 1 << 20
"""Larger weight matrices get random values generated on the GPU; the others get the same values as on any backend."""


class CudaBackend(Backend):
    """The CUDA backend, see the module's docstring.

    Args:
        staged: whether asynchronous copies to the GPU read pinned staging memory instead of the caller's.
        early: let kernels inside a graph start before their predecessor has ended (programmatic dependent launch).
    """

    name: ClassVar[str] = "cuda"
    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float16", "q8_0"})
    fuses: ClassVar[bool] = True
    traced_passes: ClassVar[tuple[str, ...]] = ("graph", "node")
    reports: ClassVar[bool] = False

    def __init__(self, device: int = 0, staged: bool = True, early: bool = True) -> None:
        self.staged = staged
        self._device, self._cuda = device, load_cuda(device)
        cuda = self._cuda
        self._library = Library(cuda)
        self._copy, self._wait, self._launch = (
            cuda.runtime.memcpyAsync, cuda.runtime.streamSynchronize, cuda.runtime.graphLaunch
        )  # fmt: skip
        self._early = early
        self._streams = Streams(self._create_stream)
        self._copies: dict[int, CopyCount] = {}
        self._events: list[int] = []
        self._memory: list[int] = []
        self._graphs: list[CudaGraph] = []
        self._closed = False
        self._copied: CudaEvent | None = None  # recorded after copies to other GPUs; created on first use
        self._reached: set[int] = set()  # GPUs for which peer access has been tried

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of CuPy."""
        return self._cuda.errors

    def close(self) -> None:
        """Wait for the GPU, then destroy graphs, events and streams, in that order."""
        if self._closed:
            return
        self._closed = True
        runtime = self._cuda.runtime
        self.activate()
        try:
            runtime.deviceSynchronize()
            for graph in self._graphs:
                runtime.graphExecDestroy(graph.handle)
            for event in self._events:
                runtime.eventDestroy(event)
            self._library.close()
            for stream in self._streams.values():
                runtime.streamDestroy(stream)
        except self._cuda.error as error:
            raise ExecutionError(f"{self._cuda.gpu} failed: {error}") from error
        finally:
            self._graphs.clear()
            self._streams.clear()
            with suppress(*self.errors):  # a failed GPU frees nothing, and the first failure is raised already
                for memory in self._memory:
                    runtime.free(memory)
            self._memory.clear()

    # Copies

    def activate(self) -> None:
        """Make this GPU the current one."""
        self._cuda.runtime.setDevice(self._device)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Make this GPU current in the context: a strategy may need an event of one GPU between calls to another."""
        runtime = self._cuda.runtime
        before = runtime.getDevice()
        runtime.setDevice(self._device)
        try:
            yield
        finally:
            runtime.setDevice(before)

    def copy_to_device(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        """Take the values now, in the driver if they are few, else in a pinned slot; the GPU copies from there."""
        if (slot := destination.slot) is not None and slot.number > slot.copies.done:
            self.synchronize(slot.stream)
        self._copy_in(destination, source, stream)

    def _copy_in(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        if source is destination.source:  # as in earlier steps
            self._copy(destination.ptr, destination.source_ptr, destination.nbytes, _TO_DEVICE, self._streams[stream])
            return
        if destination.host_dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        if (destination.nbytes <= TAKEN_BY_DRIVER or not self.staged) and source.flags.c_contiguous:
            destination.source, destination.source_ptr = source, address(source)
            self._copy_in(destination, source, stream)
        else:
            self._copy_staged(destination, source, stream)

    def _copy_staged(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        slot, copies = destination.slot, self._copies[stream]
        if slot is None:
            slot = staging_ring(self._cuda, destination.shape, destination.dtype)
        destination.slot = slot.next
        slot.values[...] = source
        self._copy(destination.ptr, slot.address, destination.nbytes, _TO_DEVICE, self._streams[stream])
        copies.issued = slot.number = copies.issued + 1
        slot.copies, slot.stream = copies, stream

    def copy_constant_to_device(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        """Copy directly from the caller's memory; asynchronous only if that is pinned (`host_array`)."""
        if destination.host_dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        self._copy(destination.ptr, address(source), destination.nbytes, _TO_DEVICE, self._streams[stream])

    def copy_to_host(self, destination: HostArray, source: CudaArray, stream: int) -> None:
        """Copy directly to the caller's memory; asynchronous only if that is pinned (`host_array`)."""
        if source.host_dtype != destination.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        self._copy(address(destination), source.ptr, source.nbytes, _TO_HOST, self._streams[stream])

    def copy_on_device(self, tensor: Tensor, destination: CudaArray, source: CudaArray, stream: int) -> None:
        """Issue a copy."""
        self._copy(destination.ptr, source.ptr, tensor.nbytes, _ON_DEVICE, self._streams[stream])

    def copy_to_peer(
        self, peer: Backend, destination: CudaArray, source: CudaArray, stream: int, after: CudaEvent
    ) -> None:
        """Copy on this GPU's stream; the peer's stream waits for the copy."""
        if not isinstance(peer, CudaBackend):
            raise ExecutionError(f"backend 'cuda' cannot copy to backend {peer.name!r}")
        if destination.dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        if self._copied is None:
            self._copied = self.event()
        self._reach(peer._device)
        self.event_wait(after, stream)
        own, runtime = self._streams[stream], self._cuda.runtime
        runtime.memcpyPeerAsync(destination.ptr, peer._device, source.ptr, self._device, source.nbytes, own)
        self.event_record(self._copied, stream)
        peer.event_wait(self._copied, stream)
        peer._copies[stream].wait_for(self._copies[stream])

    def _reach(self, device: int) -> None:
        """Enable direct writes to the memory of another GPU if the machine can; else copies go through the host."""
        runtime = self._cuda.runtime
        if device not in self._reached:
            self._reached.add(device)
            if runtime.deviceCanAccessPeer(self._device, device):
                with self._here():
                    try:
                        runtime.deviceEnablePeerAccess(device)
                    except runtime.CUDARuntimeError as error:
                        if error.status != _PEER_ACCESS_ALREADY_ENABLED:  # enabled by another backend or library
                            raise

    def load(self, destination: CudaArray, source: HostArray) -> None:
        """Copy in one blocking call; float32 values are encoded in the weight's dtype."""
        self.activate()
        values = encoded(source, destination.dtype)
        if destination.shape != source.shape or destination.nbytes != values.nbytes:
            raise _unlike(source, destination)
        self._copy(destination.ptr, address(values), values.nbytes, _TO_DEVICE, self._streams[0])
        self._wait(self._streams[0])

    # Memory

    def alloc(self, nbytes: int) -> int:
        """Allocate zeroed device memory, held until `close`; return its address."""
        self.activate()
        runtime, size = self._cuda.runtime, max(nbytes, 1)
        try:
            memory: int = runtime.malloc(size)
        except self._cuda.error as error:
            free, total = (n / 2**20 for n in runtime.memGetInfo())
            raise ExecutionError(
                f"{self._cuda.gpu} cannot hold {nbytes / 2**20:.0f} MiB more: {free:.0f} of {total:.0f} MiB are free. "
                "Choose a smaller model, context or batch"
            ) from error
        self._memory.append(memory)
        runtime.memsetAsync(memory, 0, size, self._streams[0])
        self._wait(self._streams[0])
        return memory

    def array(self, buffer: int, offset: int, tensor: Tensor) -> CudaArray:
        """Return a tensor's part of a buffer."""
        size = int(np.prod(tensor.shape))
        host_dtype = None if tensor.dtype in BLOCK_FORMATS else np.dtype(tensor.dtype)
        return CudaArray(buffer + offset, tensor.shape, tensor.dtype, size, tensor.nbytes, host_dtype)

    def host_array(self, shape: tuple[int, ...], dtype: str) -> HostArray:
        """Allocate pinned memory."""
        self.activate()
        return pinned_array(self._cuda, shape, dtype)

    def load_random(self, destination: CudaArray, weight: Tensor, seed: int) -> None:
        """Generate large matrices on the GPU: the same for equal name, size and seed, but not equal to the host's."""
        self.activate()
        if destination.size <= MADE_ON_DEVICE:
            super().load_random(destination, weight, seed)
            return
        name = {"float32": "normal_f32", "float16": "normal_f16", "q8_0": "normal_q8_0"}[weight.dtype]
        numbers = c_uint64(seed << 32 | zlib.crc32(weight.name.encode()))
        size, scale = c_int64(destination.size), c_float(weight.shape[-1] ** -0.5)
        call = self._library.call("random.cu", name, (2048, 1), 256, destination, numbers, size, scale)
        call.issue(self._cuda, self._streams[0])
        self._wait(self._streams[0])

    # Compute

    def kernel(self, node: Tensor, out: CudaArray, src: Sequence[CudaArray]) -> CudaKernel:
        """Bind a kernel, with its arguments packed."""
        self.activate()
        return bind(self._library, node, out, src)

    def launch(self, kernel: CudaKernel, stream: int) -> None:
        """Launch a kernel (two for a product of several tokens with f16 weights)."""
        kernel.issue(self._cuda, self._streams[stream])

    def synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        self._check(self._wait, self._streams[stream])
        self._copies[stream].done_to(self._copies[stream].issued)

    # Events

    def event(self) -> CudaEvent:
        """Create an event."""
        with self._here():
            handle = self._cuda.runtime.eventCreateWithFlags(_NO_TIMING)
        self._events.append(handle)
        return CudaEvent(handle)

    def event_record(self, event: CudaEvent, stream: int) -> None:
        """Issue a record."""
        self._cuda.runtime.eventRecord(event.handle, self._streams[stream])
        event.stream, event.copies = stream, self._copies[stream].issued

    def event_wait(self, event: CudaEvent, stream: int) -> None:
        """Issue a wait."""
        self._cuda.runtime.streamWaitEvent(self._streams[stream], event.handle)

    def event_synchronize(self, event: CudaEvent) -> None:
        """Wait for the event, and with it for the copies issued before it."""
        self._check(self._cuda.runtime.eventSynchronize, event.handle)
        self._copies[event.stream].done_to(event.copies)

    # Graphs

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, CudaKernel]) -> CudaGraph:
        """Capture the plan as a CUDA graph.

        Raises:
            ExecutionError: an event is waited for before it is recorded.
        """
        runtime, workspaces = self._cuda.runtime, Workspaces()
        captured = self._captured(plan, kernels, workspaces)
        graph = CudaGraph(runtime.graphInstantiate(captured), kernels, workspaces)
        runtime.graphDestroy(captured)
        self._graphs.append(graph)
        return graph

    def update_graph(self, graph: CudaGraph, plan: Plan, kernels: Mapping[Tensor, CudaKernel]) -> bool:
        """Capture the plan and try to apply it with `cuGraphExecUpdate`.

        The CUDA programming guide ("Updating Instantiated Graphs") lists what may differ; the topology may not.
        """
        captured, b = self._captured(plan, kernels, graph.workspaces), self._cuda.bindings
        status, _ = b.cuGraphExecUpdate(b.CUgraphExec(graph.handle), b.CUgraph(captured))
        self._cuda.runtime.graphDestroy(captured)
        if status == b.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
            return False
        if status != b.CUresult.CUDA_SUCCESS:
            raise ExecutionError(f"graph update failed: {status.name}")
        graph.kernels = kernels
        return True

    def _captured(self, plan: Plan, kernels: Mapping[Tensor, CudaKernel], workspaces: Workspaces) -> int:
        """Capture a plan as a graph, whose products use these workspaces."""
        self.activate()
        runtime, main = self._cuda.runtime, self._streams[MAIN_STREAM]
        events = [runtime.eventCreateWithFlags(_NO_TIMING) for _ in range(plan.events)]
        for stream in range(plan.streams):
            self._streams[stream]  # creates it: a capture must not
        runtime.streamBeginCapture(main, _RELAXED)
        try:
            with self._library.with_workspaces(workspaces):
                self._issue(plan, kernels, events)
        finally:
            graph: int = runtime.streamEndCapture(main)
            for event in events:
                runtime.eventDestroy(event)
        return graph

    def _issue(self, plan: Plan, kernels: Mapping[Tensor, CudaKernel], events: list[int]) -> None:
        recorded: set[int] = set()
        after_kernel: set[int] = set()  # streams whose latest item is a kernel
        for instruction in plan.instructions:
            number = instruction.stream
            stream = self._streams[number]
            if isinstance(instruction, Launch):
                kernels[instruction.node].issue(self._cuda, stream, self._early and number in after_kernel)
                after_kernel.add(number)
            elif isinstance(instruction, Record):
                self._cuda.runtime.eventRecord(events[instruction.event], stream)
                recorded.add(instruction.event)
            else:
                if instruction.event not in recorded:
                    raise ExecutionError(f"event {instruction.event} of the plan is waited for before it is recorded")
                self._cuda.runtime.streamWaitEvent(stream, events[instruction.event])
                after_kernel.discard(number)

    def free_graph(self, graph: CudaGraph) -> None:
        """Wait until the GPU is done with the graph, then destroy it."""
        self.activate()
        self._graphs.remove(graph)
        self._wait(self._streams[MAIN_STREAM])
        self._cuda.runtime.graphExecDestroy(graph.handle)

    def kernel_key(self, kernel: CudaKernel) -> Hashable:
        """Return a key of functions, grids and arguments."""
        return kernel.key

    def launch_graph(self, graph: CudaGraph, stream: int = MAIN_STREAM) -> None:
        """Launch the graph in one call."""
        self._launch(graph.handle, self._streams[stream])

    def _check(self, wait: Callable[[int], None], handle: int) -> None:
        try:
            wait(handle)
        except self._cuda.error as error:
            raise ExecutionError(f"{self._cuda.gpu} failed: {error}") from error

    def _create_stream(self, number: int) -> int:
        if self._closed:
            raise ExecutionError("backend 'cuda' is closed")
        self._copies[number] = CopyCount()
        with self._here():
            stream: int = self._cuda.runtime.streamCreateWithFlags(_NON_BLOCKING)
        return stream


def _unlike(source: HostArray | CudaArray, destination: HostArray | CudaArray) -> ExecutionError:
    return ExecutionError(
        f"cannot copy {source.dtype}{list(source.shape)} to {destination.dtype}{list(destination.shape)}"
    )
