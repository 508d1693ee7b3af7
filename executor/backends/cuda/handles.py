"""The handles of the CUDA backend: arrays, events, streams, graphs, and host memory that the GPU accesses directly."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.backends.cuda.kernels import CudaKernel
from executor.backends.cuda.runtime import Cuda
from executor.backends.interface import HostArray
from executor.graph import Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.plans import Launch, Plan, Record
from tracer.errors import ExecutionError

SLOTS: Final = 8
_RELAXED: Final = 2
_NO_TIMING: Final = 2


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
    """Pinned memory in the shape of one input, and the last copy that read it.

    Attributes:
        values: the memory.
        address: address of its first byte.
        copies: count of the stream that read it last.
        number: number of that copy on its stream; it is done once `copies.done` reaches it.
        stream: that stream.
        next: the slot to take after this one.
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
    """An event without timing.

    Attributes:
        stream: stream of the latest record.
        copies: number of copies issued to that stream before the record.
    """

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


def instantiate(
    cuda: Cuda, plan: Plan, kernels: Mapping[Tensor, CudaKernel], stream_of: Callable[[int], int], *, early: bool
) -> CudaGraph:
    """Capture a plan and instantiate it.

    Raises:
        ExecutionError: an event is waited for before it is recorded.
    """
    graph = _captured(cuda, plan, kernels, stream_of, early)
    handle = cuda.runtime.graphInstantiate(graph)
    cuda.runtime.graphDestroy(graph)
    return CudaGraph(handle, kernels)


def update(
    cuda: Cuda, old: CudaGraph, plan: Plan, kernels: Mapping[Tensor, CudaKernel], stream_of: Callable[[int], int],
    *, early: bool,
) -> bool:  # fmt: skip
    """Capture a plan and update an instantiated graph with it. Return False if they differ too much.

    The CUDA programming guide ("Updating Instantiated Graphs") lists what may differ; the topology may not.
    """
    graph, b = _captured(cuda, plan, kernels, stream_of, early), cuda.bindings
    status, _ = b.cuGraphExecUpdate(b.CUgraphExec(old.handle), b.CUgraph(graph))
    cuda.runtime.graphDestroy(graph)
    if status == b.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
        return False
    if status != b.CUresult.CUDA_SUCCESS:
        raise ExecutionError(f"graph update failed: {status.name}")
    old.kernels = kernels
    return True


def _captured(
    cuda: Cuda, plan: Plan, kernels: Mapping[Tensor, CudaKernel], stream_of: Callable[[int], int],
    early: bool,
) -> int:  # fmt: skip
    """Capture a plan as a graph.

    Args:
        stream_of: stream number -> address.
        early: let a kernel that directly follows another on its stream start before that one has ended.

    Raises:
        ExecutionError: an event is waited for before it is recorded.
    """
    runtime, main = cuda.runtime, stream_of(MAIN_STREAM)
    events = [runtime.eventCreateWithFlags(_NO_TIMING) for _ in range(plan.events)]
    for stream in range(plan.streams):
        stream_of(stream)
    runtime.streamBeginCapture(main, _RELAXED)
    try:
        _issue(cuda, plan, kernels, stream_of, events, early)
    finally:
        graph = runtime.streamEndCapture(main)
        for event in events:
            runtime.eventDestroy(event)
    return int(graph)


def _issue(
    cuda: Cuda, plan: Plan, kernels: Mapping[Tensor, CudaKernel], stream_of: Callable[[int], int], events: list[int],
    early: bool,
) -> None:  # fmt: skip
    recorded: set[int] = set()
    after_kernel: set[int] = set()  # streams whose latest item is a kernel
    for instruction in plan.instructions:
        number = instruction.stream
        stream = stream_of(number)
        if isinstance(instruction, Launch):
            kernels[instruction.node].issue(cuda, stream, early and number in after_kernel)
            after_kernel.add(number)
        elif isinstance(instruction, Record):
            cuda.runtime.eventRecord(events[instruction.event], stream)
            recorded.add(instruction.event)
        else:
            if instruction.event not in recorded:
                raise ExecutionError(f"event {instruction.event} of the plan is waited for before it is recorded")
            cuda.runtime.streamWaitEvent(stream, events[instruction.event])
            after_kernel.discard(number)
