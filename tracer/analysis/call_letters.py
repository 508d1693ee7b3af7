"""The letters of host calls: which call has which, and what the letters of a step say, its sync signature.

This is the only place that lists the names of calls that launch, copy, synchronise, poll or order work. Sources: CUDA
13.0's `cupti_runtime_cbid.h` and `cupti_driver_cbid.h`, which keep the names of earlier versions; HIP's dispatch table
(`hip_api_trace.hpp` of ROCm 6.2 and 7), with `hip_runtime_api.h` for their meaning; the names that this project's
backends give their calls. Names are listed without version suffixes (`_v3020`, `_v2`) and those of per-thread default
streams (`_ptsz`, `_ptds`, `_spt`), see `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT, POLL = "s", "a", "c", "k", "g", "e", "w", "q"
"""The letters of a sync signature: sync, asynchronous copy, blocking copy, kernel launch, graph launch, event record,
stream wait, query whether work has completed."""

BEGIN_CAPTURE: Final = "<"
END_CAPTURE: Final = ">"

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

MIXED: Final = "mixed"
NONE: Final = "none"
WITHOUT_COPIES: Final = ("ggg", NONE)
"""Classes of steps without input copies."""
MIN_SHARE: Final = 0.6
"""Below this share of copies that follow it, a class is called mixed."""

_TOKEN: Final = re.compile(f"{LAUNCH}+|.")
_GROUP: Final = re.compile(r"\(([^()]*)\)×(\d+)")
_LAUNCH: Final = re.compile(f"[{LAUNCH}{GRAPH_LAUNCH}]")
_LONGEST_UNIT = 24


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


def compress(letters: str) -> str:
    """Compress letters: repeats become `s×3` or `(sc)×6`, everything else is separated by spaces; a run of kernel
    launches is never split.

    Example:
        >>> compress("scscscscscscgass"), compress("akkakkakkk")
        ('(sc)×6 g a s×2', '(a k×2)×2 a k×3')
    """
    tokens = _TOKEN.findall(letters)
    words: list[str] = []
    i = 0
    while i < len(tokens):
        length, times = _best_repeat(tokens, i)
        unit = [_run(token) for token in tokens[i : i + length]]
        if times > 1:
            apart = " " if any(len(part) > 1 for part in unit) else ""
            words.append(f"{unit[0]}×{times}" if length == 1 else f"({apart.join(unit)})×{times}")
        else:
            words += unit
        i += length * times
    return " ".join(words)


def expand(signature: str) -> str:
    """The letters of a signature that was written by `compress`.

    Example:
        >>> expand("(sc)×3 g a k×2")
        'scscscgakk'
    """
    while _GROUP.search(signature):
        signature = _GROUP.sub(lambda group: expand(group[1]) * int(group[2]), signature)
    return "".join(letter * int(times or 1) for letter, times in re.findall(r"([^\s×()])(?:×(\d+))?", signature))


def _run(token: str) -> str:
    return token if len(token) == 1 else f"{token[0]}×{len(token)}"


def _best_repeat(tokens: Sequence[str], i: int) -> tuple[int, int]:
    """(length, times) of the repeat at `i` that covers most letters; the shortest unit wins ties; (1, 1) if none."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_UNIT, (len(tokens) - i) // 2) + 1):
        unit = tokens[i : i + length]
        times = 1
        while tokens[i + length * times : i + length * (times + 1)] == unit:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def strategies_followed(letters: str) -> dict[str, int]:
    """Count how many of a step's input copies follow each strategy.

    Only copies before a launch count, since the logits are read after it. A blocking copy is sccc. An asynchronous copy
    before the launch is saaas if a sync follows the last copy (aaas if nothing synchronised before the first
    asynchronous one), else aaag. A blocking copy also synchronises, as does a polling loop. Steps without such copies
    are ggg or none.

    Example:
        >>> strategies_followed("scaaaaasgas")
        {'sccc': 1, 'saaas': 5}
    """
    counts: dict[str, int] = {}
    *before, _after_last = _LAUNCH.split(letters.replace(POLL, SYNC))
    for part in before:
        blocking = part.count(BLOCKING_COPY)
        if blocking:
            counts["sccc"] = counts.get("sccc", 0) + blocking
        asynchronous = part.count(COPY)
        if asynchronous:
            name = _asynchronous_strategy(part)
            counts[name] = counts.get(name, 0) + asynchronous
    return counts


def _asynchronous_strategy(part: str) -> str:
    last_copy = max(part.rfind(COPY), part.rfind(BLOCKING_COPY))
    if SYNC not in part[last_copy:]:
        return "aaag"
    before_first = part[: part.find(COPY)]
    return "saaas" if SYNC in before_first or BLOCKING_COPY in before_first else "aaas"


def without_copies(letters: str) -> str:
    """The class of a step without input copies: ggg if the host waits for nothing in it, else none.

    Example:
        >>> without_copies("ggg"), without_copies("gs")
        ('ggg', 'none')
    """
    return NONE if set(letters) & {SYNC, POLL, BLOCKING_COPY} else "ggg"


def classify(copies: Mapping[str, int], steps: Mapping[str, int]) -> tuple[str, float]:
    """The class, and the share that follows it: of the copies, or of the steps if most have no input copies.

    Args:
        copies: `strategies_followed`, summed over the steps.
        steps: the number of steps without input copies, by `without_copies`; under "" the number with some.
    """
    bare = {name: count for name, count in steps.items() if name}
    most_are_bare = sum(bare.values()) >= MIN_SHARE * sum(steps.values())
    found = bare if most_are_bare or not copies else copies
    name = max(found, key=lambda n: found[n])
    share = found[name] / (sum(steps.values()) if found is bare else sum(copies.values()))
    return (name if share >= MIN_SHARE else MIXED), share
