"""A program's recording by `nsys profile`, for benchmarks that compare ours with it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracer.errors import RecordError
from tracer.formats import nsys_sqlite
from tracer.model.trace import Trace
from tracer.recorders import foreground


def profile(command: Sequence[str], graph_trace: str = "node") -> tuple[Trace, int]:
    """Record a command with nsys; returns the trace and the exit code.

    Raises:
        RecordError: nsys is missing, or wrote no report.
    """
    with tempfile.TemporaryDirectory(prefix="intertoken-") as directory:
        report = Path(directory) / foreground.NSYS_REPORT
        code = foreground.run_under_nsys(command, graph_trace, report)
        if not report.exists():
            raise RecordError(f"nsys wrote no report (exit code {code})")
        return nsys_sqlite.read_report(report), code
