"""An NVIDIA GPU through CuPy: streams, events, pinned staging, CUDA graphs, and our own kernels.

A host call costs about a microsecond, and between two tokens each one counts. Addresses, arguments and staging
memory are therefore prepared in advance. Nothing is reported: recorders see the calls of the driver.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from ctypes import c_float, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar, Final

import numpy as np

from executor.backends.cuda.copies import CudaCopies
from executor.backends.cuda.handles import (
    CopyCount,
    CudaArray,
    CudaEvent,
    CudaGraph,
    Streams,
    instantiate,
    pinned_array,
    update,
)
from executor.backends.cuda.kernels import CudaKernel, bind
from executor.backends.cuda.library import KernelCall, Library
from executor.backends.cuda.runtime import load_cuda
from executor.backends.interface import HostArray
from executor.graph import BLOCK_FORMATS, Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.plans import Plan
from tracer.errors import ExecutionError

_NON_BLOCKING, _NO_TIMING = 1, 2
MADE_ON_DEVICE: Final = 1 << 20
"""Larger weight matrices get random values generated on the GPU; the others get the same values as on any backend."""


class CudaBackend(CudaCopies):
    """The CUDA backend, see the module's docstring.

    Args:
        device: number of the GPU.
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
        self._copied: CudaEvent | None = None
        self._reached: set[int] = set()

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
        _random_on_device(self._library, destination, weight, seed).issue(self._cuda, self._streams[0])
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
        """Capture the plan as a CUDA graph."""
        self.activate()
        graph = instantiate(self._cuda, plan, kernels, self._streams.__getitem__, early=self._early)
        self._graphs.append(graph)
        return graph

    def update_graph(self, graph: CudaGraph, plan: Plan, kernels: Mapping[Tensor, CudaKernel]) -> bool:
        """Capture the plan and try to apply it with `cuGraphExecUpdate`."""
        self.activate()
        return update(self._cuda, graph, plan, kernels, self._streams.__getitem__, early=self._early)

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


def _random_on_device(library: Library, destination: Any, weight: Tensor, seed: int) -> KernelCall:
    """Return a call that fills a matrix like `random_weight`, but with different random numbers."""
    arguments = (
        c_void_p(destination.ptr), c_uint64(seed << 32 | zlib.crc32(weight.name.encode())),
        c_int64(destination.size), c_float(weight.shape[-1] ** -0.5),
    )  # fmt: skip
    name = {"float32": "normal_f32", "float16": "normal_f16", "q8_0": "normal_q8_0"}[weight.dtype]
    return library.call("random.cu", name, (2048, 1), 256, arguments)
