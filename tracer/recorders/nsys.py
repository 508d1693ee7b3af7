"""Records any command with Nsight Systems and converts its reports to traces.

Requires `nsys` on PATH (part of Nsight Systems, and also of Nsight Compute).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracer.errors import FormatError, RecordError
from tracer.formats import nsys_sqlite
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
        return read_report(report), code


def read_report(report: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a .nsys-rep file through a temporary SQLite export.

    Raises:
        FormatError: nsys is missing (the message says what to run where it is installed), or cannot read the file.
    """
    with tempfile.TemporaryDirectory(prefix="intertoken-") as directory:
        export = Path(directory) / "export.sqlite"
        options = ("--type", "sqlite", "--force-overwrite", "true", "-o", str(export))
        command = ("nsys", "export", *options, str(report.absolute()))
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise FormatError(
                f"{report}: reading a .nsys-rep needs nsys on PATH; on a machine that has it, run "
                f"`nsys export --type sqlite -o {report.with_suffix('.sqlite').name} {report.name}` and open the result"
            ) from error
        if done.returncode or not export.exists():
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise FormatError(f"{report}: nsys export failed (exit code {done.returncode}): {output}")
        try:
            return nsys_sqlite.read(export, whole=whole, samples=samples)
        except FormatError as error:
            raise FormatError(str(error).replace(str(export), str(report))) from error
