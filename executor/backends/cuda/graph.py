"""A plan as a CUDA graph: captured from streams, instantiated, then launched with one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from executor.backends.cuda.kernels import CudaKernel
from executor.backends.cuda.runtime import Cuda
from executor.graph import Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.plans import Launch, Plan, Record
from tracer.errors import ExecutionError

_RELAXED: Final = 2
_NO_TIMING: Final = 2


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
