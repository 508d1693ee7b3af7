"""What the device computes for each token step."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import match_rows
from tracer.analysis.steps import Steps
from tracer.schema import MISSING
from tracer.trace import Trace

SPAN_COLUMNS: Final = ["step", "device", "group", "start", "end", "correlation", "process"]


def launch_rows(trace: Trace, activities: pd.DataFrame) -> NDArray[np.int64]:
    """For each device activity, the position in trace["api"] of the call that launched it, or -1."""
    return match_rows(trace["api"], activities)


def activity_steps(trace: Trace, steps: Steps, activities: pd.DataFrame) -> NDArray[np.int64]:
    """For each device activity, the position in `steps.table` of the step that launched it, or -1.

    An activity belongs to the step that contains its call, however late it executed. Its own start decides only if the
    trace lacks the call.
    """
    api = trace["api"]
    rows = launch_rows(trace, activities)
    known = rows >= 0
    times = activities["start"].to_numpy().copy()
    processes = activities["process"].to_numpy()
    first = steps.table.drop_duplicates("process").set_index("process")["thread"]
    threads = np.full(len(activities), first.iloc[0])
    if len(first) > 1:
        threads = first.reindex(processes, fill_value=MISSING).to_numpy(copy=True)
    times[known] = api["start"].to_numpy()[rows[known]]
    threads[known] = api["thread"].to_numpy()[rows[known]]
    return steps.of(times, processes, threads)


def all_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """All compute without collectives: kernels and whole graphs. `at` is the position of the step that launched it, or
    -1."""
    compute = trace.compute()
    compute["at"] = activity_steps(trace, steps, compute)
    return compute


def step_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """The part of `all_compute` that the steps launched."""
    compute = all_compute(trace, steps)
    return compute[compute["at"] >= 0].reset_index(drop=True)


def step_spans(trace: Trace, steps: Steps, compute: pd.DataFrame | None = None) -> pd.DataFrame:
    """The start of the first and the end of the last compute of every step on every device.

    Returns:
        Columns step device group start end (ns), correlation and process (of the first activity), ordinal (of the
        step in its group), step_process and step_thread (the step's own), sorted by (device, start).
    """
    compute = step_compute(trace, steps) if compute is None else compute
    spans = compute.groupby(["device", "at"], sort=True).agg(
        start=("start", "min"),
        end=("end", "max"),
        correlation=("correlation", "first"),
        process=("process", "first"),
    )
    spans = spans.reset_index()
    table = steps.table.assign(
        ordinal=steps.table.groupby("group").cumcount(),
        step_process=steps.table["process"],
        step_thread=steps.table["thread"],
    )
    added = ["step", "group", "ordinal", "step_process", "step_thread"]
    spans[added] = table[added].to_numpy()[spans["at"]]
    return spans[[*SPAN_COLUMNS, *added[2:]]]
