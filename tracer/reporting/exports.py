"""Writes recordings, with the counts of their steps in formats that show counters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tracer import formats
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.model.trace import Trace


def write(
    trace: Trace, path: str | Path, *, replace: bool = False, is_part: Callable[[Path], bool] | None = None
) -> list[str]:
    """Write a trace in the format that the path's suffix names (a directory without one).

    With `replace`, the old recording stays unchanged until the new one is complete. `is_part`: whether a file in a
    directory is part of a recording, and is replaced with it; None for those of the recording's format.

    Returns:
        Notes on what the file lacks or states differently.

    Raises:
        FormatError: no writable format has that suffix; the path exists, and `replace` is not given or anything
            other than a recording would be lost; or the path cannot be written.
        TraceError: the disk is full, the directory is not writable, ...
    """
    return formats.write(trace, path, replace=replace, is_part=is_part, counters=step_counts)


def step_counts(trace: Trace) -> pd.DataFrame:
    """The start of each step, and its syncs, copies and launches.

    Raises:
        EmptyTraceError: the trace has no steps.
    """
    return sync_report(trace, find_steps(trace)).counts
