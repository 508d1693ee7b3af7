"""The events of one table, each with the token step that it belongs to."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import ALL_STEPS, Bounds, choose_steps
from tracer.errors import EmptyTraceError, UsageError
from tracer.model.schema import MISSING
from tracer.model.trace import Trace


def events_of(trace: Trace, name: str, within: str | None = None, bounds: Bounds = ALL_STEPS) -> pd.DataFrame:
    """The rows of a table. If the table has times, its first column is `step`, MISSING outside of all steps.

    Args:
        trace: the recording.
        name: the table, one of `schema.TABLES`.
        within: only events of the steps inside the NVTX ranges with this text.
        bounds: only events of these steps.

    Raises:
        EmptyTraceError: steps were requested, and there are none.
        UsageError: steps were requested for a table without times.
    """
    table = trace[name]
    chosen = within is not None or bounds != ALL_STEPS
    if "start" not in table:
        if chosen:
            raise UsageError(f"{name} has no times, so --range, --steps, --phase and --pattern cannot select its rows")
        return table
    try:
        steps = choose_steps(trace, within, bounds if chosen else Bounds(phase="all"))
    except EmptyTraceError:
        if chosen:
            raise
        return table.assign(step=np.int64(MISSING))[["step", *table]]
    if "thread" in table:
        at = steps.of(*(table[c].to_numpy() for c in ("start", "process", "thread")))
    else:
        at = activity_steps(trace, steps, table)
    numbers = np.append(steps.table["step"].to_numpy(), MISSING)  # position -1 is its last
    rows = table.assign(step=numbers[at])[["step", *table]]
    return rows[rows["step"] != MISSING].reset_index(drop=True) if chosen else rows
