"""How large the gap would be without tracing, estimated from the traced gap alone.

A profiler lengthens a gap where the host makes calls: a graph launch by a large part of its own length (graph-level
tracing prepares a record per graph, node-level tracing one per node, about 0.6 µs each), any other call by a nearly
constant time in and around it. So for each gap

    untraced = traced - launch_share · (graph launch and its latency) - per_call · (calls that begin in the gap)

where the launch counts only if the compute behind the gap comes from a graph launch. The interval is conformal: `low`
and `high` are the 2.5 % and 97.5 % quantiles, over recordings whose untraced gap is known, of what tracing really
added over what this says it added, each recording estimated with constants fitted to the others; `FLOOR_US` is what the
records of the kernels themselves move a gap in which the host makes no call.
Source: `benchmarks/gap_estimate.py`, of 64 passes of `intertoken run` and `nsys profile` on an H200 and their untraced
light passes (`benchmarks/results/gap_estimate.json`). Eager launches were not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray


@dataclass(frozen=True)
class Inflation:
    """What tracing adds, at one level.

    Attributes:
        launch_share: share of a traced graph launch (call and latency) that is tracing.
        per_call_us: what it adds per call, µs.
        low, high: added in truth / added as estimated, 95 % interval.
    """

    launch_share: float
    per_call_us: float
    low: float
    high: float

    def added_us(self, launch_us: NDArray[np.float64], calls: NDArray[np.float64]) -> NDArray[np.float64]:
        """What tracing adds to gaps with these graph launches (µs) and as many calls, µs."""
        return np.asarray(self.launch_share * launch_us + self.per_call_us * calls)


INFLATIONS: Final = {
    ("graph", True): Inflation(0.79, 0.75, 0.6, 1.4),
    ("graph", False): Inflation(0.79, 0.75, 0.6, 1.4),
    ("node", True): Inflation(0.95, 0.75, 0.6, 1.4),
    ("node", False): Inflation(0.95, 0.75, 0.6, 1.4),
}
"""(level of tracing, whether the device's copies were recorded, as nsys always does) -> what it adds."""

FLOOR_US: Final = 1.0


@dataclass(frozen=True)
class Estimate:
    """An untraced gap, µs: the estimate and its 95 % interval."""

    estimate: float
    low: float
    high: float


def estimated_gap(table: pd.DataFrame, inflation: Inflation) -> Estimate:
    """The median untraced gap of a table of gaps (`GapReport.table`)."""
    launch = (table["launch_call"] + table["launch_latency"]) * table["graph_launch"]
    gap = table["gap"].to_numpy() / 1e3
    added = inflation.added_us(launch.to_numpy() / 1e3, table["calls"].to_numpy(dtype=np.float64))
    middle, low, high = (
        float(np.median(np.clip(gap - added * factor, 0, None))) for factor in (1, inflation.high, inflation.low)
    )
    return Estimate(middle, max(low - FLOOR_US, 0.0), high + FLOOR_US)


def is_estimable(table: pd.DataFrame) -> bool:
    """Whether the gaps are of a kind that the model was checked on: not mostly host compute."""
    return bool(table["host_compute"].sum() <= table["gap"].sum() / 2)
