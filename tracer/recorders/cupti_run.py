"""Records any program and its children through CUPTI, which our library sets up inside them; see `native/cupti.h`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tracer.model.trace import Trace
from tracer.recorders import cupti_activity as activity
from tracer.recorders import cupti_library, light_program
from tracer.recorders.cupti_file import cupti_trace
from tracer.recorders.light import read_rings
from tracer.recorders.light_folder import SETTINGS, has_rings
from tracer.recorders.light_program import Outcome, library
from tracer.recorders.window import WHOLE, TimeRange, Window, profiler_spans, within

KINDS: Final = tuple(kind for kind in activity.SETS["all"] if kind != "nvtx")
"""The kinds of activity to record. The library itself receives the NVTX ranges, because the Python package `nvtx` finds
the default domain disabled if CUPTI does."""

SKIPPED: Final = """
    cudaGetDevice cudaGetDeviceCount cudaDeviceGetAttribute cudaDeviceGetStreamPriorityRange cudaGetLastError
    cudaPeekAtLastError cudaFuncGetAttributes cudaPointerGetAttributes cudaStreamIsCapturing cudaStreamGetCaptureInfo
    cudaStreamGetPriority cudaStreamGetId cudaOccupancyMaxActiveBlocksPerMultiprocessor
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags __cudaPushCallConfiguration __cudaPopCallConfiguration
    cuCtxGetCurrent cuCtxGetDevice cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDevicePrimaryCtxGetState
    cuFuncGetAttribute cuKernelGetAttribute cuKernelGetFunction cuGetProcAddress cuPointerGetAttribute
    cuPointerGetAttributes cuStreamIsCapturing cuStreamGetCaptureInfo cuStreamGetCtx cuKernelGetName
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
"""
"""Calls that only query, of which PyTorch makes hundreds per token, and those with which C++ prepares a launch."""

_BYTES: Final = "INTERTOKEN_LIGHT_BYTES"
_LIMIT: Final = 4 << 30


def record(command: Sequence[str], graph_trace: str, rings: Path, window: Window = WHOLE) -> Outcome:
    """Run a command in the foreground and read the files that it and its children left in a folder.

    Args:
        command: program and arguments.
        graph_trace: "node" or "graph".
        rings: the folder.
        window: what of the run to record.

    Raises:
        RecordError: there is no library for this machine, no libcupti, another profiler, or the command cannot be
            started.
    """
    cupti_library.refuse_other_profilers()
    (rings / SETTINGS).touch(mode=0o600)
    (rings / SETTINGS).write_text(settings(graph_trace, cupti_library.find()))
    # The program's own window is cut out of the whole afterwards.
    switching = WHOLE if window.is_programs else window
    given = environment(library(), rings)
    begun = time.time_ns()
    code = light_program.run(command, given, rings, switching)
    failures: list[str] = []
    trace = read_folder(rings, failures)
    if trace is None:
        return Outcome(None, code, _why_nothing(rings, failures))
    if not window.is_all:
        trace = within(trace, _spans(trace, window, begun))
        if not len(trace):
            return Outcome(None, code, "nothing was recorded while the window was open")
    return Outcome(trace, code)


def settings(graph_trace: str, libcupti: str) -> str:
    """The library's configuration: the libcupti to load if the program has none, the kinds of activity in the order
    in which to enable them, and the calls to skip."""
    kinds = [kind for name in KINDS for kind in activity.KINDS[name]]
    if graph_trace == "graph":
        kinds.insert(0, activity.GRAPH_TRACE)
    lines = [f"library {libcupti}", *(f"kind {kind}" for kind in kinds), *(f"skip {name}" for name in SKIPPED.split())]
    return "\n".join([*lines, ""])


def environment(ours: Path, rings: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the program to record: the library is preloaded, so that each program is known, and injected
    by the driver, even if LD_PRELOAD is cleared.

    Raises:
        RecordError: the library's path cannot be preloaded.
    """
    return {_BYTES: str(_LIMIT), **light_program.environment(ours, rings, base), cupti_library.PROFILER: str(ours)}


def is_folder_of_ours(rings: Path) -> bool:
    """Whether the processes of a folder were recorded through CUPTI."""
    return (rings / SETTINGS).is_file()


def read_folder(rings: Path, failures: list[str] | None = None) -> Trace | None:
    """Read the recording in a folder; None if it is empty. `failures` receives why processes are missing."""
    missing = [] if failures is None else failures
    is_graph = f"kind {activity.GRAPH_TRACE}\n" in (rings / SETTINGS).read_text(errors="replace")
    found = read_rings(rings, missing)
    trace = cupti_trace(found, "graph" if is_graph else "node", KINDS, missing)
    if trace is not None:
        trace.notes += light_program.without_room(rings)
    return trace


def _spans(trace: Trace, window: Window, begun: int) -> list[TimeRange]:
    """The parts of the recording that a window shows."""
    if window.is_programs:
        return profiler_spans(trace)
    since = begun - trace.metadata["clock"]["origin_ns"] + round(window.after * 1e9)
    end = trace.span[1] + 1
    return [TimeRange(since, end if window.seconds is None else since + round(window.seconds * 1e9))]


def _why_nothing(rings: Path, failures: Sequence[str]) -> str:
    """Which programs ran, and why nothing was recorded."""
    if has_rings(rings):
        return "; ".join([*failures, "no CUDA program did any work that CUPTI reports"])
    return light_program.why_nothing(
        rings, f"made no CUDA call, or set {cupti_library.PROFILER} themselves, or the driver is older than CUDA 11"
    )
