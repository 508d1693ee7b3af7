"""Where in the program the host is while the device idles: the idle time of the steps by call site (self time)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_chains import with_chains
from tracer.analysis.call_sites import call_sites, host_ranges, stacks
from tracer.analysis.calls import by_thread
from tracer.analysis.idle import IdleReport
from tracer.analysis.tokens import Steps
from tracer.model.intervals import covered
from tracer.model.trace import Trace

_KEYS = ["site", "source"]


def idle_by_site(trace: Trace, steps: Steps, idle: IdleReport) -> pd.DataFrame:
    """Attribute the idle time of each step to what its thread does during it.

    Args:
        trace: the recording, read with its Python functions if it has any.
        steps: its steps.
        idle: their idle time.

    Returns:
        Columns site, source (as in `call_sites`), idle_us (mean per step; the rows add up to the idle time), share,
        calls_us (the part inside CUDA calls), the largest first; no rows if nothing idles.
    """
    pieces = pieces_of(steps, idle)
    parts = [
        _of_host(trace, process, thread, of_device)
        for process, thread, rows in by_thread(pieces)
        for _, of_device in pieces.iloc[rows].groupby("device", sort=False)
    ]
    if not parts:
        return pd.DataFrame(columns=[*_KEYS, "idle_us", "share", "calls_us"])
    table = pd.concat(parts).groupby(_KEYS, sort=False)[["ns", "calls_ns"]].sum().reset_index()
    count = 1e3 * len(idle.steps)
    table = table.assign(
        idle_us=table["ns"] / count, share=table["ns"] / table["ns"].sum(), calls_us=table["calls_ns"] / count
    )
    table = table.sort_values("ns", ascending=False, kind="stable", ignore_index=True)
    return table[[*_KEYS, "idle_us", "share", "calls_us"]]


def pieces_of(steps: Steps, idle: IdleReport) -> pd.DataFrame:
    """The idle pieces, with the process and thread of their step."""
    hosts = steps.table.set_index("step")[["process", "thread"]]
    return idle.table[["step", "device", "start", "end"]].join(hosts, on="step")


def idle_stacks(trace: Trace, steps: Steps, idle: IdleReport) -> pd.Series[int]:
    """The idle time as collapsed stacks: stack (see `call_sites.stacks`) -> idle time of all steps together, ns."""
    pieces = pieces_of(steps, idle)
    parts = []
    for process, thread, rows in by_thread(pieces):
        for _, of_device in pieces.iloc[rows].groupby("device", sort=False):
            low, high = _cut(trace, process, thread, of_device)
            stack = stacks(trace, process, thread, low)
            sums = pd.DataFrame({"stack": stack, "ns": high - low}).groupby("stack", observed=True)["ns"].sum()
            parts.append(sums.set_axis(sums.index.astype(str)))
    found = pd.concat(parts) if parts else pd.Series(dtype="int64")
    return found.groupby(level=0).sum().sort_values(ascending=False, kind="stable")


def _of_host(trace: Trace, process: int, thread: int, pieces: pd.DataFrame) -> pd.DataFrame:
    """Idle pieces of one device with the activity of its thread: site source ns calls_ns."""
    low, high = _cut(trace, process, thread, pieces)
    api = trace["api"]
    calls = api[_on(api, process, thread)]
    points = pd.DataFrame({"start": low, "process": process, "thread": thread})
    return call_sites(trace, points)[_KEYS].assign(
        ns=high - low, calls_ns=covered(calls["start"], calls["end"], low, high)
    )


def _cut(trace: Trace, process: int, thread: int, pieces: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the idle pieces of one device, cut where a range of the thread, or a call with a chain, begins
    or ends."""
    nvtx = host_ranges(trace)
    ranges = nvtx[_on(nvtx, process, thread)]
    pieces = pieces.sort_values("start", kind="stable")
    begin, finish = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    calls = with_chains(trace, process, thread)
    edges = np.concatenate([frame[name].to_numpy() for frame in (ranges, calls) for name in ("start", "end")])
    cuts = np.unique(np.concatenate([begin, finish, edges[(edges > begin[0]) & (edges < finish.max())]]))
    low, high = cuts[:-1], cuts[1:]
    at = np.searchsorted(begin, low, side="right") - 1
    inside = (at >= 0) & (low < finish[at])
    return low[inside], high[inside]


def _on(frame: pd.DataFrame, process: int, thread: int) -> NDArray[np.bool_]:
    return np.asarray((frame["process"] == process) & (frame["thread"] == thread))
