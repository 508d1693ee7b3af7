"""CUPTI's raw buffers and the ranges of `annotate` -> a trace."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.recorders.cupti_nvtx import OwnRanges, nvtx_table
from tracer.recorders.cupti_records import parse
from tracer.recorders.cupti_tables import Sources, overheads, tables
from tracer.trace import Trace


def build(
    buffers: Sequence[bytes], sizes: Mapping[int, int], sources: Sources, own: OwnRanges, last: int, dropped: int = 0
) -> Trace:
    """Build the trace of a recording.

    Args:
        buffers: the valid part of each activity buffer.
        sizes: record kind -> bytes.
        sources: origin, process and names.
        own: the ranges of `annotate`.
        last: the end of the recording, in CUPTI's clock (ns).
        dropped: the number of records dropped by CUPTI.
    """
    parsed = parse(buffers, sizes)
    notes: list[str] = []
    if dropped:
        notes.append(f"{dropped} activity records were dropped: CUPTI found no free buffer")
    for kind, count in parsed.unknown.items():
        notes.append(f"unknown records of kind {kind}: {count} of CUPTI's buffers were read only up to the first one")
    if parsed.unread_bytes:
        notes.append(f"{parsed.unread_bytes} bytes of CUPTI's buffers could not be read")
    frames = tables(parsed.records, sources, notes)
    nvtx = nvtx_table(parsed.records, own, sources, last, notes)
    host = _host([frames["api"]["thread"]] if "api" in frames else [], nvtx["thread"], sources.process)
    metadata: dict[str, Any] = {
        "clock": {"name": "CLOCK_REALTIME", "origin_ns": sources.origin},
        "start_utc_ns": sources.origin,
        "overhead": overheads(parsed.records),
    }
    trace = Trace.from_columns(metadata, **frames, nvtx=nvtx, **host)
    trace.notes += notes
    return trace


def _host(calling: Sequence[NDArray[np.int64]], annotating: pd.Series[int], process: int) -> dict[str, pd.DataFrame]:
    threads = pd.unique(np.concatenate([*calling, annotating.to_numpy(np.int64)])).tolist()
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return {
        "threads": pd.DataFrame({"process": process, "thread": threads, "name": [names.get(t, "") for t in threads]}),
        "processes": pd.DataFrame({"process": [process], "name": [Path(sys.executable).name]}),
    }
