"""CUPTI's records and the ranges of `annotate` -> a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.trace import Trace
from tracer.recorders.cupti_nvtx import OwnRanges, nvtx_table
from tracer.recorders.cupti_records import Parsed
from tracer.recorders.cupti_tables import Sources, overheads, tables


def build(
    parsed: Parsed, sources: Sources, own: OwnRanges, last: int, dropped: int = 0, ranges: pd.DataFrame | None = None
) -> Trace:
    """Build the trace of a recording.

    Args:
        parsed: the contents of its buffers.
        sources: origin, process and names.
        own: the ranges of `annotate`.
        last: the end of the recording, in CUPTI's clock (ns).
        dropped: the number of records dropped because there was no buffer.
        ranges: the nvtx table, if neither CUPTI nor `annotate` recorded the ranges.
    """
    notes: list[str] = []
    if dropped:
        notes.append(f"{dropped} activity records were dropped: there was no buffer or no space for them")
    for kind, count in parsed.unknown.items():
        notes.append(f"unknown records of kind {kind}: {count} of CUPTI's buffers were read only up to the first one")
    if parsed.unread_bytes:
        notes.append(f"{parsed.unread_bytes} bytes of CUPTI's buffers could not be read")
    frames = tables(parsed.records, sources, notes)
    nvtx = nvtx_table(parsed.records, own, sources, last, notes) if ranges is None else ranges
    calling = frames["api"]["thread"] if "api" in frames else np.empty(0, np.int64)
    host = _host(calling, nvtx["thread"].to_numpy(np.int64), sources)
    metadata: dict[str, Any] = {
        "clock": {"name": "CLOCK_REALTIME", "origin_ns": sources.origin},
        "start_utc_ns": sources.origin,
        "overhead": overheads(parsed.records),
    }
    trace = Trace.from_columns(metadata, **frames, nvtx=nvtx, **host)
    trace.notes += notes
    return trace


def _host(calling: NDArray[np.int64], annotating: NDArray[np.int64], sources: Sources) -> dict[str, pd.DataFrame]:
    process, threads = sources.process, pd.unique(np.concatenate([calling, annotating])).tolist()
    names = [sources.threads.get(thread, "") for thread in threads]
    return {
        "threads": pd.DataFrame({"process": process, "thread": threads, "name": names}),
        "processes": pd.DataFrame({"process": [process], "name": [sources.program]}),
    }
