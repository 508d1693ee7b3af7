"""Records any command with Nsight Systems and converts its reports to traces.

Requires `nsys` on PATH (part of Nsight Systems, and also of Nsight Compute).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracer.errors import RecordError
from tracer.formats import nsys_rep
from tracer.model.trace import Trace
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


def profile(command: Sequence[str], graph_trace: str = "node") -> tuple[Trace, int]:
    """Record a command with `run`; returns the trace and the exit code.

    Raises:
        RecordError: nsys is missing, or wrote no report.
    """
    with tempfile.TemporaryDirectory(prefix="intertoken-") as directory:
        report = Path(directory) / REPORT
        code = run(command, graph_trace, report)
        if not report.exists():
            raise RecordError(f"nsys wrote no report (exit code {code})")
        return nsys_rep.read(report), code
