"""Cuts a recording to its first steps."""

from __future__ import annotations

import pandas as pd

from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError
from tracer.trace import Trace

_KEY = ["process", "correlation"]


def first_steps(trace: Trace, count: int) -> Trace:
    """The host calls of the first steps and their device activities. If no or fewer steps are found, the notes say so;
    without steps the whole recording is returned."""
    try:
        steps = find_steps(trace).table
    except EmptyTraceError as problem:
        trace.notes.append(f"--steps has no effect: {problem}")
        return trace
    if len(steps) < count:
        trace.notes.append(f"the recording has only {len(steps)} of the {count} requested steps")
    since, until = int(steps["start"].min()), int(steps["end"].sort_values().iloc[:count].iloc[-1])
    calls = pd.MultiIndex.from_frame(_between(trace["api"], since, until)[_KEY])
    for name, table in trace.tables.items():
        if set(_KEY) <= set(table):
            trace.tables[name] = table[pd.MultiIndex.from_frame(table[_KEY]).isin(calls)].reset_index(drop=True)
        elif "start" in table:
            trace.tables[name] = _between(table, since, until)
    return trace


def _between(table: pd.DataFrame, since: int, until: int) -> pd.DataFrame:
    """The rows that start in this interval."""
    return table[(table["start"] >= since) & (table["start"] < until)].reset_index(drop=True)
