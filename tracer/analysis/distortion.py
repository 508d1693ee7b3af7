"""How large the gap would be without tracing, estimated from the traced gap alone.

A profiler lengthens a gap where the host makes calls: a graph launch by a large part of its own length (graph-level
tracing prepares a record per graph, node-level tracing one per node, about 0.6 µs each), any other call by a nearly
constant time in and around it. So for each gap

    untraced = traced - launch_share · (graph launch and its latency) - per_call · (calls that begin in the gap)

where the launch counts only if the compute behind the gap comes from a graph launch. The constants are medians over
recordings whose untraced gap is known. The interval is Student's 95 % prediction interval of per_call over them, so it
grows with the calls; `FLOOR_US` is what the records of the kernels themselves move a gap without any call.
Source: `benchmarks/gap_estimate.py` (`results/gap_estimate.json`): passes of `intertoken run` and of `nsys profile`
over the same loop on an H200, against its light passes. Checked there with each run left out, and on other programs:
it holds for llama.cpp, but of a CuPy loop with much Python between its calls only for one strategy of three.
Eager launches, and gaps that are mostly compute of the host or of another device, were not checked: no estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.interval import Interval


@dataclass(frozen=True)
class Inflation:
    """What tracing adds, at one level.

    Attributes:
        launch_share: share of a traced graph launch (call and latency) that is tracing.
        per_call_us: what else it adds, per call in the gap, µs.
        low, high: 95 % interval of per_call_us in one recording, µs; below 0 where runs differ by more than tracing.
    """

    launch_share: float
    per_call_us: float
    low: float
    high: float

    def added_us(self, table: pd.DataFrame, per_call_us: float) -> NDArray[np.float64]:
        """What tracing adds to each gap of a table (`GapReport.table`) at that cost of a call, µs."""
        return np.asarray(self.launch_share * launch_us(table) + per_call_us * table["calls"])


INFLATIONS: Final = {
    ("graph", True): Inflation(0.79, 0.994, 0.324, 1.757),
    ("graph", False): Inflation(0.813, 0.677, -10.345, 16.1),
    ("node", True): Inflation(0.955, 1.08, -0.367, 3.107),
    ("node", False): Inflation(0.96, 0.721, -3.806, 7.642),
}
"""(level of tracing, whether the device's copies were recorded, as nsys always does) -> what it adds."""

FLOOR_US: Final = 1.0

_AT_WORK: Final = ["host_compute", "communication_device", "other_device", "other_process"]
COUNTED: Final = ["gap", "launch_call", "launch_latency", "graph_launch", "calls", *_AT_WORK]
"""The columns of `GapReport.table` that an estimate needs."""


def estimated_gap(table: pd.DataFrame, inflation: Inflation) -> Interval:
    """The median untraced gap of a table of gaps (`GapReport.table`)."""
    gap = table["gap"].to_numpy() / 1e3
    middle, low, high = (
        float(np.median(np.clip(gap - inflation.added_us(table, per_call_us), 0, gap)))
        for per_call_us in (inflation.per_call_us, inflation.high, inflation.low)
    )
    return Interval(middle, max(low - FLOOR_US, 0.0), high + FLOOR_US)


def launch_us(table: pd.DataFrame) -> pd.Series:
    """What each gap spends in the graph launch of the step behind it and on its way to the device, µs."""
    return (table["launch_call"] + table["launch_latency"]) * table["graph_launch"] / 1e3


def estimate_of(table: pd.DataFrame, level: str, copies_recorded: bool) -> Interval | None:
    """The estimate for a recording at that level; None where the model was not checked on its like (`is_estimable`)."""
    inflation = INFLATIONS.get((level, copies_recorded))
    return estimated_gap(table, inflation) if inflation is not None and is_estimable(table) else None


def is_estimable(table: pd.DataFrame) -> bool:
    """Whether the gaps are of calls and the code between them, not mostly of somebody's work: compute of the host, of
    another device or of others on this one, and communication."""
    return bool(table[_AT_WORK].to_numpy().sum() <= table["gap"].sum() / 2)
