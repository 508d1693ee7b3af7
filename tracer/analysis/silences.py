"""Periods in which nothing happens: the clock jumped, the program paused, or its host had nothing to do or worked."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.steps import Span, Steps
from tracer.model.intervals import uncovered
from tracer.model.rows import THREAD, grouped
from tracer.model.trace import Trace

LEAST_JUMP_NS: Final = 100_000_000
"""Larger offsets are corrected by setting the clock (ntpd from 128 ms, systemd-timesyncd from 400 ms), smaller ones by
slewing it."""
_LEAST_JUMP_STEPS: Final = 20
_USUAL: Final = 8  # activities with one name, so that their median is a usable duration
_LONG: Final = 2.0  # times a usual step: what its host does in every step takes less, however it varies
_MATTERS: Final = 0.05  # of the time of the steps: less changes no mean that anyone would act on


def silences(trace: Trace, steps: Steps, activities: pd.DataFrame) -> list[Span]:
    """Periods in which nothing begins or ends and no device works, much longer than a step and `LEAST_JUMP_NS`."""
    table = steps.table
    period = float((table["end"] - table["start"]).median()) if len(table) else 0.0
    least = max(LEAST_JUMP_NS, round(_LEAST_JUMP_STEPS * period))
    api = trace["api"]
    starts = np.concatenate([frame["start"].to_numpy() for frame in (api, activities)])
    starts.sort(kind="stable")  # of two sorted halves
    if not (np.diff(starts) >= least).any():  # which every silence lies between
        return []
    edges = np.concatenate([frame[side].to_numpy() for frame in (api, activities) for side in ("start", "end")])
    edges.sort()
    at = np.flatnonzero(np.diff(edges) >= least)
    if not len(at):
        return []
    busy = activities[(activities["end"] - activities["start"] >= least).to_numpy()]
    usual = _usual(activities) if len(busy) else {}
    busy = busy[(busy["name"].astype(str).map(usual).fillna(least) >= least / _LEAST_JUMP_STEPS).to_numpy()]
    spans = [(int(edges[i]), int(edges[i + 1])) for i in at]
    return [(a, b) for a, b in spans if not ((busy["start"] <= a) & (busy["end"] >= b)).any()]


def _usual(activities: pd.DataFrame) -> dict[str, float]:
    """Name of each frequent activity -> its median duration, ns."""
    length = (activities["end"] - activities["start"]).groupby(activities["name"], observed=True)
    table = length.agg(["size", "median"])
    often = table[table["size"] >= _USUAL]["median"]
    return {str(name): float(value) for name, value in often.items()}


def quiet(trace: Trace, steps: Steps, activities: pd.DataFrame) -> list[Span]:
    """Periods longer than `_LONG` usual steps, in a chain of steps, in which their process is in no call and nothing
    runs on a device for it. A server that waits for a request looks like this, and slow host code too."""
    found: list[Span] = []
    calls = dict(grouped(trace["api"], ["process"]))
    for host, rows in grouped(steps.table, THREAD):
        table = steps.table.iloc[rows]
        start, until = (trace["api"][side].to_numpy()[calls.get(host[:1], rows[:0])] for side in ("start", "end"))
        chains = table.groupby("group").agg(begin=("start", "min"), until=("end", "max"))
        apart = table["start"].diff()[table["group"].eq(table["group"].shift())]
        least = _LONG * float(apart.median()) if len(apart) else np.inf
        if not (np.diff(start) > least).any():
            continue
        work = activities[(activities["process"] == host[0]).to_numpy()]
        starts, ends = np.append(start, work["start"]), np.append(until, work["end"])
        begin, end, _ = uncovered(starts, ends, chains["begin"].to_numpy(), chains["until"].to_numpy())
        long = end - begin > least
        found += zip(begin[long].tolist(), end[long].tolist(), strict=True)
    return found


def quiet_in_words(steps: Steps, spans: list[Span]) -> str | None:
    """What those periods may be, if they are a noticeable part of the time of the steps."""
    lasted = [end - begin for begin, end in spans]
    chains = steps.table.groupby([*THREAD, "group"]).agg(begin=("start", "min"), until=("end", "max"))
    share = sum(lasted) / max(int((chains["until"] - chains["begin"]).sum()), 1)
    if share < _MATTERS:
        return None
    times = "once" if len(spans) == 1 else f"{len(spans)} times"
    return (
        f"no call and nothing on the device for up to {max(lasted) / 1e6:,.1f} ms, longer than two usual steps, "
        f"{times}, {share:.0%} of the time: the host waited, as for a request, or its own code took so long, which is "
        "not recorded; rates, and means of idle times and gaps, contain it"
    )
