"""Run-ahead: how far the host is ahead of the device when the device starts a step.

The time is from the return of the call that launched the step's first compute to the start of that compute, 0 if it
starts before; the launches are those that the host's thread has made behind that call by then. A host that is never
ahead has the few µs that a launch is on its way, and 0 launches: then each µs of host time makes the step longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.calls import Calls
from tracer.analysis.clocks import AHEAD_TOLERANCE_NS
from tracer.analysis.step_work import StepSpans
from tracer.model.calls import LAUNCHES
from tracer.model.columns import among, grouped, positions
from tracer.model.intervals import Ints
from tracer.model.trace import RUN, Trace, stated_error

_LOW: Final = 5.0
"""The percentile that says how near the device comes to waiting for the host."""
_LEAST: Final = 0.5
"""Figures need this share of the steps."""
_EXACT: Final = 0.1
"""An error of the clock of at most this share of the median time changes nothing that it says."""


@dataclass(frozen=True, eq=False)
class RunAhead:
    """How far the host is ahead at the start of each step on a device.

    Attributes:
        ns: since the return of its first launch.
        launches: that the host has made since then.
        unknown: why there are no figures; "" if there are.
    """

    ns: Ints
    launches: Ints
    unknown: str = ""

    @property
    def figures(self) -> dict[str, dict[str, float]] | None:
        """Median and 5th percentile of the time (µs) and of the launches; None if they are unknown."""
        if self.unknown:
            return None
        return {"time_us": _quantiles(self.ns / 1e3), "launches": _quantiles(self.launches)}


def run_ahead(trace: Trace, calls: Calls, spans: StepSpans) -> RunAhead:
    """How far the host is ahead of the device.

    Args:
        calls: from `calls.host_calls`.
        spans: the compute of the steps, from `step_work.step_spans`.
    """
    row = trace.api.of(spans)
    chosen = np.flatnonzero((row >= 0) & ~_of_runs(trace, spans))
    starts, row = spans.start[chosen], row[chosen]
    ns = (starts - trace.api.end[row]).clip(0)
    launches = np.zeros(len(row), np.int64)
    made = calls[among(calls.letter, LAUNCHES)]
    times = dict(grouped(made.process, made.thread))
    for key, mine in grouped(trace.api.process[row], trace.api.thread[row]):
        of_thread = made[times.get(key, np.zeros(0, np.int64))]
        until = np.searchsorted(np.sort(of_thread.end), starts[mine], side="right")
        since = np.searchsorted(np.sort(of_thread.start), trace.api.start[row[mine]], side="right")
        launches[mine] = (until - since).clip(0)
    return RunAhead(ns, launches, _unknown(trace, ns, len(spans)))


def _of_runs(trace: Trace, spans: StepSpans) -> NDArray[np.bool_]:
    """Which steps begin with a run of eager launches of which a light recording may know no more than its launch."""
    if not trace.has_runs:
        return np.zeros(len(spans), bool)
    runs = trace.activities(("graph_launches",))
    runs = runs[runs.name.rows(RUN)]
    return positions([spans.device, spans.start], [runs.device, runs.start]) >= 0


def _unknown(trace: Trace, ns: Ints, steps: int) -> str:
    if len(ns) < _LEAST * steps or not steps:
        return (
            "when the first eager kernels of most steps ran is not known" if trace.has_runs
            else "the recording has no calls that launched most steps"
        )  # fmt: skip
    error = stated_error(trace)
    if error > max(AHEAD_TOLERANCE_NS, _EXACT * float(np.median(ns))):
        return f"device times are known to within {error / 1e3:,.0f} µs of the host's"
    return ""


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    return {"p50": float(np.median(values)), "p5": float(np.percentile(values, _LOW))}
