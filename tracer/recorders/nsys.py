"""Records any command with Nsight Systems.

Requires `nsys` on PATH (part of Nsight Systems, and also of Nsight Compute).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracer.errors import RecordError
from tracer.recorders import foreground

REPORT: Final = "recording.nsys-rep"


def available() -> bool:
    """Whether nsys is on PATH."""
    return shutil.which("nsys") is not None


def run(command: Sequence[str], graph_trace: str, report: Path, *, call_sites: bool = False) -> int:
    """Run a command under `nsys profile`, in the foreground.

    Args:
        command: program and arguments.
        graph_trace: "node" or "graph".
        report: the .nsys-rep file to create; it may be missing afterwards.
        call_sites: whether to keep the stack of each CUDA call, for which nsys must sample as well.

    Returns:
        The exit code of the command; -N if signal N ended nsys.

    Raises:
        RecordError: nsys is missing.
    """
    stacks = ("--sample=process-tree", "--cudabacktrace=all:0") if call_sites else ("--sample=none",)
    options = ("--trace=cuda,nvtx", *stacks, "--cpuctxsw=none", f"--cuda-graph-trace={graph_trace}")
    try:
        return foreground.run(("nsys", "profile", *options, "-o", str(report), *command))
    except OSError as error:
        raise RecordError(f"nsys cannot be run: {error.strerror}; install Nsight Systems") from error
