"""The vocabulary of host calls: which launch, copy, synchronise, poll or order work, each kind with its letter; which
build graphs, and which allocate memory.

This is the only place that lists their names. Sources: CUDA 13.0's `cupti_runtime_cbid.h` and `cupti_driver_cbid.h`,
which keep the names of earlier versions; HIP's dispatch table (`hip_api_trace.hpp` of ROCm 6.2 and 7), with
`hip_runtime_api.h` for their meaning; the names that this project's backends give their calls. Names are listed without
version suffixes (`_v3020`, `_v2`) and those of per-thread default streams (`_ptsz`, `_ptds`, `_spt`), see `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT, POLL = "s", "a", "c", "k", "g", "e", "w", "q"
"""The letters of a sync signature: sync, asynchronous copy, blocking copy, kernel launch, graph launch, event record,
stream wait, query whether work has completed."""

BEGIN_CAPTURE: Final = "<"
END_CAPTURE: Final = ">"

LAUNCHES: Final = (LAUNCH, GRAPH_LAUNCH)
COPIES: Final = (COPY, BLOCKING_COPY)
CALLS: Final = (SYNC, *COPIES, *LAUNCHES, EVENT, WAIT)
"""The calls that `analysis.calls.host_calls` finds."""

MEANING: Final = {
    SYNC: "sync", COPY: "asynchronous copy", BLOCKING_COPY: "blocking copy", GRAPH_LAUNCH: "graph launch",
    LAUNCH: "kernel launch", EVENT: "event record", WAIT: "stream wait", POLL: "polling loop",
}  # fmt: skip
"""The meaning of each letter of a signature."""

_NAMES: Final = {
    SYNC: """
        cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaThreadSynchronize
        cuStreamSynchronize cuCtxSynchronize cuEventSynchronize
        hipStreamSynchronize hipDeviceSynchronize hipCtxSynchronize hipEventSynchronize
        streamSynchronize eventSynchronize
    """,
    COPY: """
        cudaMemcpyAsync cudaMemcpyPeerAsync cudaMemcpyToSymbolAsync cudaMemcpyFromSymbolAsync cudaMemcpyToArrayAsync
        cudaMemcpyFromArrayAsync cudaMemcpy2DAsync cudaMemcpy2DToArrayAsync cudaMemcpy2DFromArrayAsync
        cudaMemcpy3DAsync cudaMemcpy3DPeerAsync cudaMemcpyBatchAsync cudaMemcpy3DBatchAsync
        cudaMemcpyWithAttributesAsync cudaMemcpy3DWithAttributesAsync
        cuMemcpyAsync cuMemcpyPeerAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync cuMemcpyHtoAAsync
        cuMemcpyAtoHAsync cuMemcpy2DAsync cuMemcpy3DAsync cuMemcpy3DPeerAsync cuMemcpyBatchAsync cuMemcpy3DBatchAsync
        cu64MemcpyHtoDAsync cu64MemcpyDtoHAsync cu64MemcpyDtoDAsync cu64Memcpy2DAsync cu64Memcpy3DAsync
        cuMemcpyWithAttributesAsync cuMemcpy3DWithAttributesAsync
        hipMemcpyAsync hipMemcpyPeerAsync hipMemcpyHtoDAsync hipMemcpyDtoHAsync hipMemcpyDtoDAsync hipMemcpyHtoAAsync
        hipMemcpyAtoHAsync hipMemcpyToSymbolAsync hipMemcpyFromSymbolAsync hipMemcpyToArrayAsync
        hipMemcpyFromArrayAsync hipMemcpy2DAsync hipMemcpy2DToArrayAsync hipMemcpy2DFromArrayAsync
        hipMemcpyParam2DAsync hipMemcpy3DAsync hipMemcpy3DPeerAsync hipDrvMemcpy3DAsync hipMemcpyBatchAsync
        hipMemcpy3DBatchAsync
        memcpyAsync memcpyPeerAsync
    """,
    BLOCKING_COPY: """
        cudaMemcpy cudaMemcpyPeer cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemcpyToArray cudaMemcpyFromArray
        cudaMemcpyArrayToArray cudaMemcpy2D cudaMemcpy2DToArray cudaMemcpy2DFromArray cudaMemcpy2DArrayToArray
        cudaMemcpy3D cudaMemcpy3DPeer
        cuMemcpy cuMemcpyPeer cuMemcpyHtoD cuMemcpyDtoH cuMemcpyDtoD cuMemcpyDtoA cuMemcpyAtoD cuMemcpyAtoA
        cuMemcpyHtoA cuMemcpyAtoH cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DPeer
        cu64MemcpyHtoD cu64MemcpyDtoH cu64MemcpyDtoD cu64MemcpyDtoA cu64MemcpyAtoD cu64Memcpy2D
        cu64Memcpy2DUnaligned cu64Memcpy3D
        hipMemcpy hipMemcpyWithStream hipMemcpyPeer hipMemcpyHtoD hipMemcpyDtoH hipMemcpyDtoD hipMemcpyDtoA
        hipMemcpyAtoD hipMemcpyAtoA hipMemcpyHtoA hipMemcpyAtoH hipMemcpyToSymbol hipMemcpyFromSymbol hipMemcpyToArray
        hipMemcpyFromArray hipMemcpy2D hipMemcpy2DToArray hipMemcpy2DFromArray hipMemcpy2DArrayToArray
        hipMemcpyParam2D hipDrvMemcpy2DUnaligned hipMemcpy3D hipMemcpy3DPeer hipDrvMemcpy3D
        memcpy
    """,
    LAUNCH: """
        cudaLaunch cudaLaunchKernel __cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel
        cudaLaunchCooperativeKernelMultiDevice
        cuLaunch cuLaunchGrid cuLaunchGridAsync cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
        cuLaunchCooperativeKernelMultiDevice
        hipLaunchKernel hipLaunchKernelExC hipLaunchByPtr hipLaunchCooperativeKernel
        hipLaunchCooperativeKernelMultiDevice hipModuleLaunchKernel hipModuleLaunchCooperativeKernel
        hipModuleLaunchCooperativeKernelMultiDevice hipDrvLaunchKernelEx hipExtLaunchKernel hipExtModuleLaunchKernel
        hipExtLaunchMultiKernelMultiDevice hipHccModuleLaunchKernel
        launchKernel
    """,
    GRAPH_LAUNCH: "cudaGraphLaunch cuGraphLaunch hipGraphLaunch graphLaunch",
    EVENT: """
        cudaEventRecord cudaEventRecordWithFlags cuEventRecord cuEventRecordWithFlags hipEventRecord
        hipEventRecordWithFlags eventRecord
    """,
    WAIT: """
        cudaStreamWaitEvent cuStreamWaitEvent cuCtxWaitEvent cuGreenCtxWaitEvent hipStreamWaitEvent streamWaitEvent
    """,
    POLL: "cudaStreamQuery cudaEventQuery cuStreamQuery cuEventQuery hipStreamQuery hipEventQuery",
    BEGIN_CAPTURE: """
        cudaStreamBeginCapture cudaStreamBeginCaptureToGraph cuStreamBeginCapture cuStreamBeginCaptureToGraph
        hipStreamBeginCapture hipStreamBeginCaptureToGraph
    """,
    END_CAPTURE: "cudaStreamEndCapture cuStreamEndCapture hipStreamEndCapture",
    "": "cudaLaunchHostFunc cuLaunchHostFunc hipLaunchHostFunc",  # the host computes for the stream
}
LETTERS: Final[Mapping[str, str]] = {name: letter for letter, names in _NAMES.items() for name in names.split()}
"""Name -> its letter."""

SUFFIX: Final = r"(?:_v\d+|_ptsz|_ptds|_spt)"
"""The expression for one suffix of a call's name: its version, and the per-thread default streams of CUDA and HIP."""
_SUFFIXES: Final = re.compile(rf"(?<=.){SUFFIX}+$")
_TELLING: Final = re.compile(r"aunch|emcpy|ynchronize")
_ON_GRAPHS: Final = re.compile(r"(cuda|cu|hip|hipDrv)Graph(?!Launch)\w+")
_SETUP: Final = re.compile(r"graph.*|stream(begin|end|update)capture.*")
_ALLOCATION: Final = re.compile(
    r"(m?alloc|free).*|host(alloc|malloc|free|register|unregister)"
    r"|mem(alloc|free|hostalloc|hostregister|hostunregister|create|release|map|unmap|address|setaccess|pool).*"
)
_PREFIX: Final = re.compile(r"^(cuda|cu|hip)(?=[A-Z])")


def plain(name: str) -> str:
    """A call's name without the suffixes for its version and for per-thread default streams.

    Example:
        >>> plain("cudaMemcpyAsync_ptsz_v7000"), plain("hipLaunchKernel_spt"), plain("cuMemcpyDtoH_v2")
        ('cudaMemcpyAsync', 'hipLaunchKernel', 'cuMemcpyDtoH')
    """
    return _SUFFIXES.sub("", name)


def letter(name: str) -> str:
    """The letter of an API call's name, or "" for any other kind of call.

    Example:
        >>> letter("cudaMemcpyAsync_v3020"), letter("hipExtModuleLaunchKernel"), letter("cudaMalloc_v3020")
        ('a', 'k', '')
    """
    return LETTERS.get(plain(name), "")


def is_unknown(name: str) -> bool:
    """Whether the name of an unlisted call (of a newer or another driver) suggests a launch, copy or synchronization.

    Example:
        >>> is_unknown("hipLaunchKernelTwice"), is_unknown("cudaLaunchKernel"), is_unknown("cudaFuncSetAttribute")
        (True, False, False)
    """
    known = plain(name) in LETTERS or _ON_GRAPHS.fullmatch(name) is not None
    return not known and _TELLING.search(name) is not None


def _bare(name: str) -> str:
    return _PREFIX.sub("", plain(name)).casefold()


def is_setup(name: str) -> bool:
    """Whether a call builds, instantiates, updates, uploads or destroys a CUDA graph."""
    return _SETUP.fullmatch(_bare(name)) is not None and letter(name) != GRAPH_LAUNCH


def is_allocation(name: str) -> bool:
    """Whether a call allocates, registers, maps or frees device or host memory.

    Example:
        >>> is_allocation("cudaMallocAsync_v11020"), is_allocation("cuMemHostRegister_v2"), is_allocation("cuMemsetD8")
        (True, True, False)
    """
    return _ALLOCATION.fullmatch(_bare(name)) is not None


def letters_of(names: pd.Series) -> NDArray[np.str_]:
    """The letter for each row of a categorical name column; each distinct name is looked up once."""
    if not len(names):
        return np.zeros(0, dtype="U1")
    table = np.array([letter(str(name)) for name in names.cat.categories] or [""], dtype="U1")
    return np.asarray(table[names.cat.codes.to_numpy()])
