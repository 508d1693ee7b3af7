"""The names of calls that launch, copy, synchronise, poll or order work: the only place that lists them.

Sources: CUDA 13.0's `cupti_runtime_cbid.h` and `cupti_driver_cbid.h`, which keep the names of earlier versions; HIP's
dispatch table (`hip_api_trace.hpp` of ROCm 6.2 and 7), with `hip_runtime_api.h` for their meaning; the names that this
project's backends give their calls. Names are listed without version suffixes (`_v3020`, `_v2`) and those of per-thread
default streams (`_ptsz`, `_ptds`, `_spt`), see `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT, POLL = "s", "a", "c", "k", "g", "e", "w", "q"
"""The letters of a sync signature: sync, asynchronous copy, blocking copy, kernel launch, graph launch, event record,
stream wait, query whether work has completed."""

BEGIN_CAPTURE: Final = "<"
END_CAPTURE: Final = ">"
NONE: Final = ""

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
    NONE: "cudaLaunchHostFunc cuLaunchHostFunc hipLaunchHostFunc",  # the host computes for the stream
}
LETTERS: Final[Mapping[str, str]] = {name: letter for letter, names in _NAMES.items() for name in names.split()}
"""Name -> its letter."""

SUFFIX: Final = r"(?:_v\d+|_ptsz|_ptds|_spt)"
"""The expression for one suffix of a call's name: its version, and the per-thread default streams of CUDA and HIP."""
_SUFFIXES: Final = re.compile(rf"(?<=.){SUFFIX}+$")
_TELLING: Final = re.compile(r"aunch|emcpy|ynchronize")
_ON_GRAPHS: Final = re.compile(r"(cuda|cu|hip|hipDrv)Graph(?!Launch)\w+")


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
    return LETTERS.get(plain(name), NONE)


def is_unknown(name: str) -> bool:
    """Whether the name of an unlisted call (of a newer or another driver) suggests a launch, copy or synchronization.

    Example:
        >>> is_unknown("hipLaunchKernelTwice"), is_unknown("cudaLaunchKernel"), is_unknown("cudaFuncSetAttribute")
        (True, False, False)
    """
    known = plain(name) in LETTERS or _ON_GRAPHS.fullmatch(name) is not None
    return not known and _TELLING.search(name) is not None
