"""Limits a recording to a part of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_names import plain
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError
from tracer.model.trace import Trace


class TimeRange(NamedTuple):
    """A half-open time span [since, until), ns since the recording's origin; only of `process` if it is given."""

    since: int
    until: int
    process: int | None = None


_KEY: Final = ["process", "correlation"]
_START, _STOP = ("cudaProfilerStart", "cuProfilerStart"), ("cudaProfilerStop", "cuProfilerStop")


def within(trace: Trace, spans: Sequence[TimeRange]) -> Trace:
    """The host calls and ranges that start in any of these spans, and the device activities of these calls."""
    calls = pd.MultiIndex.from_frame(_between(trace["api"], spans)[_KEY])
    for name, table in trace.tables.items():
        if set(_KEY) <= set(table):
            trace.tables[name] = table[pd.MultiIndex.from_frame(table[_KEY]).isin(calls)].reset_index(drop=True)
        elif "start" in table:
            trace.tables[name] = _between(table, spans)
    return trace


def first_steps(trace: Trace, count: int) -> Trace:
    """The first steps. If no or fewer steps are found, the notes say so; without steps the whole recording is
    returned."""
    try:
        steps = find_steps(trace).table
    except EmptyTraceError as problem:
        trace.notes.append(f"--steps has no effect: {problem}")
        return trace
    if len(steps) < count:
        trace.notes.append(f"the recording has only {len(steps)} of the {count} requested steps")
    since, until = int(steps["start"].min()), int(steps["end"].sort_values().iloc[:count].iloc[-1])
    return within(trace, [TimeRange(since, until)])


def profiler_spans(trace: Trace) -> list[TimeRange]:
    """The times between each process's own calls of cudaProfilerStart and cudaProfilerStop."""
    api = trace["api"]
    names = np.array([plain(str(name)) for name in api["name"].cat.categories] or [""])[api["name"].cat.codes]
    calls = api.assign(opens=np.isin(names, _START))[np.isin(names, _START + _STOP)]
    spans = []
    for process, mine in calls.groupby("process"):
        opened: int | None = None
        for opens, start, end in mine[["opens", "start", "end"]].itertuples(index=False):  # a few rows
            if opens and opened is None:
                opened = start
            elif not opens and opened is not None:
                spans.append(TimeRange(opened, end, int(str(process))))
                opened = None
        if opened is not None:
            spans.append(TimeRange(opened, trace.span[1] + 1, int(str(process))))
    return spans


def _between(table: pd.DataFrame, spans: Sequence[TimeRange]) -> pd.DataFrame:
    """The rows that start in any of these spans."""
    start = table["start"].to_numpy()
    kept: NDArray[np.bool_] = np.zeros(len(start), bool)
    for since, until, process in spans:
        kept |= (start >= since) & (start < until) & (process is None or table["process"].to_numpy() == process)
    return table[kept].reset_index(drop=True)
