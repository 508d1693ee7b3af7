"""An NVIDIA GPU through CuPy: streams, events, pinned staging, CUDA graphs, and our own kernels.

A host call costs about a microsecond, and between two tokens each one counts: addresses, arguments and staging
memory are prepared beforehand, and a call is stamped for the host recorder only while one is recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ClassVar, Final

import numpy as np

from executor.backends.cuda_graph import CudaGraph, instantiate
from executor.backends.cuda_handles import CudaArray, CudaEvent, Streams
from executor.backends.cuda_kernels import CudaKernel, bind
from executor.backends.cuda_library import Library
from executor.backends.cuda_light import LightPass
from executor.backends.cuda_runtime import load_cuda
from executor.backends.cuda_staging import CopyCount, address, pinned_array, staging_ring
from executor.backends.cuda_stamps import Stamps
from executor.backends.cuda_weights import encoded, random_on_device
from executor.backends.interface import Backend, Guarantee, HostArray
from executor.concurrency import MAIN_STREAM
from executor.graph import BLOCK_FORMATS, Tensor
from executor.plans import Plan
from tracer.errors import ExecutionError
from tracer.recorders.host import HostRecorder
from tracer.schema import MISSING

_DEVICE: Final = 0
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_NON_BLOCKING, _NO_TIMING = 1, 2
TAKEN_BY_DRIVER: Final = 256
"""Bytes up to which a copy reads the caller's pageable memory: the driver puts them into its command buffer before the
call returns. For 4 bytes that saves the GPU 1 of 2.5 us against pinned memory (H200); for 2 KiB it costs the host more.
"""
MADE_ON_DEVICE: Final = 1 << 20
"""Larger weight matrices get their random values on the GPU; the others get those of every other backend."""


class CudaBackend(Backend):
    """See the module's docstring.

    Args:
        early: let kernels inside a graph begin before their predecessor has ended (programmatic dependent launch).
    """

    name: ClassVar[str] = "cuda"
    weight_dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float16", "q8_0"})
    fuses: ClassVar[bool] = True
    traced_passes: ClassVar[tuple[str, ...]] = ("graph", "node")

    def __init__(self, early: bool = True) -> None:
        self.guarantees = frozenset(Guarantee)
        self._cuda = cuda = load_cuda()
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
        self._event_ids, self._graph_ids = count(1), count(1)
        self._closed = False
        self._light: LightPass | None = None
        self._at_head = False
        self.report_to(HostRecorder())

    def report_to(self, recorder: HostRecorder) -> None:
        """Report to this recorder from now on."""
        self._recorder = recorder
        self._clock, self._called = recorder.clock, recorder.calls.append
        recorder.describe_device(_DEVICE, self._cuda.gpu)
        for stream in self._streams:
            recorder.describe_stream(_DEVICE, stream)
        if self._light is not None:
            self._light.begin(self._clock)

    def report_late(self) -> None:
        """Report the stamped steps."""
        if self._light is not None:
            self._light.report(self._recorder, _DEVICE)

    def close(self) -> None:
        """Wait for the GPU, then destroy graphs, events and streams, in this order."""
        if self._closed:
            return
        self._closed = True
        runtime = self._cuda.runtime
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
            for memory in self._memory:
                runtime.free(memory)
            self._memory.clear()

    # Memory

    def alloc(self, nbytes: int) -> int:
        """Zeroed device memory, which is held until `close`: its address."""
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
        """A part of a buffer."""
        size = int(np.prod(tensor.shape))
        host_dtype = None if tensor.dtype in BLOCK_FORMATS else np.dtype(tensor.dtype)
        return CudaArray(buffer + offset, tensor.shape, tensor.dtype, size, tensor.nbytes, host_dtype)

    def host_array(self, shape: tuple[int, ...], dtype: str) -> HostArray:
        """Pinned memory."""
        return pinned_array(self._cuda, shape, dtype)

    # Copies

    def copy_to_device(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        """Take the values now, the driver a few and a pinned slot many; the GPU copies from there."""
        if self._recorder.recording:
            start = self._clock()
            self._copy_in(destination, source, stream)
            self._called(("memcpyAsync", start, self._clock(), _DEVICE, stream, MISSING))
        else:
            self._copy_in(destination, source, stream)

    def _copy_in(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        if source is destination.source:  # as in the steps before
            self._copy(destination.ptr, destination.source_ptr, destination.nbytes, _TO_DEVICE, self._streams[stream])
            return
        if destination.host_dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        if destination.nbytes <= TAKEN_BY_DRIVER and source.flags.c_contiguous:
            destination.source, destination.source_ptr = source, address(source)
            self._copy_in(destination, source, stream)
        else:
            self._copy_staged(destination, source, stream)

    def _copy_staged(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        slot, handle, copies = destination.slot, self._streams[stream], self._copies[stream]
        if slot is None:
            slot = staging_ring(self._cuda, destination.shape, destination.dtype)
        destination.slot = slot.next
        if slot.number > slot.copies.done:
            self._wait(slot.stream)
        slot.values[...] = source
        self._copy(destination.ptr, slot.address, destination.nbytes, _TO_DEVICE, handle)
        copies.issued = slot.number = copies.issued + 1
        slot.copies, slot.stream = copies, handle

    def copy_to_host(self, destination: HostArray, source: CudaArray, stream: int) -> None:
        """Write into the caller's memory later; asynchronous only if that is pinned (`host_array`)."""
        start = self._clock() if self._recorder.recording else 0
        if source.host_dtype != destination.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        self._copy(address(destination), source.ptr, source.nbytes, _TO_HOST, self._streams[stream])
        if start:
            self._called(("memcpyAsync", start, self._clock(), _DEVICE, stream, MISSING))

    def copy_on_device(self, tensor: Tensor, destination: CudaArray, source: CudaArray, stream: int) -> None:
        """Copy later."""
        start = self._clock() if self._recorder.recording else 0
        self._copy(destination.ptr, source.ptr, tensor.nbytes, _ON_DEVICE, self._streams[stream])
        if start:
            self._called(("memcpyAsync", start, self._clock(), _DEVICE, stream, MISSING))

    def load(self, destination: CudaArray, source: HostArray) -> None:
        """One blocking call; float32 values are encoded in the weight's dtype."""
        start = self._clock() if self._recorder.recording else 0
        values = encoded(source, destination.dtype)
        if destination.shape != source.shape or destination.nbytes != values.nbytes:
            raise _unlike(source, destination)
        self._copy(destination.ptr, address(values), values.nbytes, _TO_DEVICE, self._streams[0])
        self._wait(self._streams[0])
        if start:
            self._called(("memcpy", start, self._clock(), _DEVICE, MAIN_STREAM, MISSING))

    def load_random(self, destination: CudaArray, weight: Tensor, seed: int) -> None:
        """Large matrices are made on the GPU: the same for a name, a size and a seed, but not the host's values."""
        if destination.size <= MADE_ON_DEVICE:
            super().load_random(destination, weight, seed)
            return
        random_on_device(self._library, destination, weight, seed).issue(self._cuda, self._streams[0])
        self._wait(self._streams[0])

    # Compute

    def kernel(self, node: Tensor, out: CudaArray, src: Sequence[CudaArray]) -> CudaKernel:
        """A call of a kernel with its arguments packed."""
        return bind(self._library, node, out, src)

    def launch(self, kernel: CudaKernel, stream: int) -> None:
        """One launch (a product of several tokens with f16 weights takes two)."""
        start = self._clock() if self._recorder.recording else 0
        kernel.issue(self._cuda, self._streams[stream])
        if start:
            self._called(("launchKernel", start, self._clock(), _DEVICE, stream, MISSING))
            if self._at_head and self._light is not None:
                self._light.launched(len(self._recorder.calls) - 1, MISSING)
            self._at_head = False

    def head_of_step(self) -> None:
        """Stamp the head, if steps are stamped."""
        if self._light is not None:
            self._light.stamps.kernels[0].issue(self._cuda, self._streams[0])
            self._at_head = True

    def tail_of_step(self) -> None:
        """Stamp the tail, if steps are stamped."""
        if self._light is not None:
            self._light.stamps.kernels[1].issue(self._cuda, self._streams[0])

    def synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        start = self._clock() if self._recorder.recording else 0
        self._check(self._wait, self._streams[stream])
        end = self._clock()
        copies = self._copies[stream]
        copies.done = copies.issued
        if start:
            self._called(("streamSynchronize", start, end, _DEVICE, stream, MISSING))

    # Events

    def event(self) -> CudaEvent:
        """A new event."""
        handle = self._cuda.runtime.eventCreateWithFlags(_NO_TIMING)
        self._events.append(handle)
        return CudaEvent(next(self._event_ids), handle)

    def event_record(self, event: CudaEvent, stream: int) -> None:
        """Issue a record."""
        start = self._clock() if self._recorder.recording else 0
        self._cuda.runtime.eventRecord(event.handle, self._streams[stream])
        event.stream, event.copies = stream, self._copies[stream].issued
        if start:
            self._called(("eventRecord", start, self._clock(), _DEVICE, stream, event.id))

    def event_wait(self, event: CudaEvent, stream: int) -> None:
        """Issue a wait."""
        start = self._clock() if self._recorder.recording else 0
        self._cuda.runtime.streamWaitEvent(self._streams[stream], event.handle)
        if start:
            self._called(("streamWaitEvent", start, self._clock(), _DEVICE, stream, event.id))

    def event_synchronize(self, event: CudaEvent) -> None:
        """Wait for the event; copies issued before it are done then."""
        start = self._clock() if self._recorder.recording else 0
        self._check(self._cuda.runtime.eventSynchronize, event.handle)
        end = self._clock()
        copies = self._copies[event.stream]
        copies.done = max(copies.done, event.copies)
        if start:
            self._called(("eventSynchronize", start, end, _DEVICE, event.stream, event.id))

    # Graphs

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, CudaKernel]) -> CudaGraph:
        """Capture the plan as a CUDA graph."""
        around = self._light.stamps.kernels if self._light and plan.whole else None
        graph = instantiate(
            self._cuda, plan, kernels, self._streams.__getitem__, next(self._graph_ids),
            early=self._early, around=around,
        )  # fmt: skip
        self._graphs.append(graph)
        return graph

    def stamp_steps(self, steps: int) -> Stamps:
        """Let plans instantiated from now on stamp the GPU's clock at head and tail of each launch.

        Args:
            steps: how many launches the history keeps.
        """
        self._light = LightPass(self._library, steps, self._streams[0])
        return self._light.stamps

    def launch_graph(self, graph: CudaGraph, stream: int = MAIN_STREAM) -> None:
        """One call."""
        start = self._clock() if self._recorder.recording else 0
        self._launch(graph.handle, self._streams[stream])
        if start:
            self._called(("graphLaunch", start, self._clock(), _DEVICE, stream, MISSING))
            if self._light is not None and (graph.whole or self._at_head):
                self._light.launched(len(self._recorder.calls) - 1, graph.id)
        self._at_head = False

    def _check(self, wait: Callable[[int], None], handle: int) -> None:
        try:
            wait(handle)
        except self._cuda.error as error:
            raise ExecutionError(f"{self._cuda.gpu} failed: {error}") from error

    def _create_stream(self, number: int) -> int:
        if self._closed:
            raise ExecutionError("backend 'cuda' is closed")
        self._copies[number] = CopyCount()
        self._recorder.describe_stream(_DEVICE, number)
        stream: int = self._cuda.runtime.streamCreateWithFlags(_NON_BLOCKING)
        return stream


def _unlike(source: HostArray | CudaArray, destination: HostArray | CudaArray) -> ExecutionError:
    return ExecutionError(
        f"cannot copy {source.dtype}{list(source.shape)} to {destination.dtype}{list(destination.shape)}"
    )
