"""The operator and the NVTX ranges of an event: those open on its thread when it was launched.

The operator is the innermost one of PyTorch's profiler or, in recordings without, the innermost NVTX range. Work of a
replayed CUDA graph belongs to what was open when the graph was launched, because recordings contain no more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.timeline.rows import Row
from tracer.analysis.call_sites import innermost_ranges
from tracer.model.rows import match_rows, of_thread
from tracer.model.schema import DEVICE_DOMAINS, OTHER_DOMAINS, PROFILER_DOMAINS
from tracer.model.trace import Trace

OPERATORS: Final = "cpu_op"
NO_OPERATOR: Final = "(no operator or range around its launch)"


def operators_of(trace: Trace, row: Row) -> pd.Series:
    """The operator of each event of a device's row, categorical."""
    calls, known = _calls(trace, row)
    ranges = trace["nvtx"]
    of_torch = (ranges["domain"] == OPERATORS).to_numpy()
    if not of_torch.any():
        of_torch = (~ranges["domain"].isin(PROFILER_DOMAINS)).to_numpy()
    names = np.full(len(row.events), NO_OPERATOR, object)
    found = innermost_ranges(ranges[of_torch & (ranges["kind"] == "push/pop").to_numpy()], calls)
    names[known] = np.where(found == "", NO_OPERATOR, found)
    return pd.Series(names).astype("category")


def _calls(trace: Trace, row: Row) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """The calls that made a row's events, and which events have one."""
    numbers = pd.DataFrame({"process": row.process, "correlation": row.events["correlation"]})
    at = match_rows(trace["api"], numbers)
    return trace["api"].iloc[at[at >= 0]].reset_index(drop=True), at >= 0


def launch_of(trace: Trace, row: Row, event: int) -> pd.Series | None:
    """The host call behind an event: itself, or the one that launched it; None if it is not recorded."""
    if row.role == "nvtx":
        return None
    api = trace["api"]
    if row.role == "api":
        first, last = np.searchsorted(api["start"], (row.start[event], row.start[event] + 1))
        near = of_thread(api.iloc[first:last], row.process, row.thread)
        near = near[near["end"] == row.end[event]]
    else:
        number = int(row.events["correlation"].iloc[event])
        near = api[(api["correlation"] == number) & (api["process"] == row.process)] if number >= 0 else api[:0]
    return None if near.empty else near.iloc[0]


def open_ranges(trace: Trace, process: int, thread: int, time: int) -> pd.DataFrame:
    """The rows of `nvtx` that are open on a thread of the host at a time, outermost first."""
    nvtx = trace["nvtx"]
    begun = nvtx.iloc[: int(nvtx["start"].searchsorted(time, side="right"))]
    begun = of_thread(begun[begun["end"] > time], process, thread)
    begun = begun[~begun["domain"].isin(DEVICE_DOMAINS | OTHER_DOMAINS)]
    return begun.sort_values(["start", "end"], ascending=[True, False], kind="stable", ignore_index=True)


def own_ranges(ranges: pd.DataFrame) -> list[str]:
    """The texts of the ranges that the program itself opened."""
    return [str(text) for text in ranges.loc[~ranges["domain"].isin(PROFILER_DOMAINS), "text"]]


def operator_in(ranges: pd.DataFrame) -> str:
    """The innermost operator of PyTorch's profiler among open ranges, "" for none."""
    texts = ranges.loc[ranges["domain"] == OPERATORS, "text"].tolist()
    return str(texts[-1]) if texts else ""
