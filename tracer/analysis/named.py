"""Token steps that begin with a call or kernel of a given name."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from tracer.analysis.calls import by_thread, match_rows, rows_named
from tracer.analysis.steps import Steps, as_steps
from tracer.errors import EmptyTraceError
from tracer.intervals import within_any
from tracer.trace import Trace


def steps_by_name(trace: Trace, pattern: str, window: pd.DataFrame | None = None) -> Steps:
    """Steps that begin with each call whose name matches, or that launches a kernel whose name does.

    The last step of a thread takes as long as the median one, or until the thread's last call.

    Args:
        trace: the recording.
        pattern: regular expression, searched in API names; in kernels' names if none of these has it.
        window: NVTX rows; only calls inside them begin steps.

    Raises:
        EmptyTraceError: nothing matches.
    """
    api, kernels = trace["api"], trace["kernels"]

    def matches(name: str) -> bool:
        return re.search(pattern, name) is not None

    chosen = rows_named(api["name"], matches)
    if not chosen.any():
        rows = match_rows(api, kernels[rows_named(kernels["name"], matches)])
        chosen[rows[rows >= 0]] = True
    if window is not None:
        chosen &= within_any(api, window)
    if not chosen.any():
        raise EmptyTraceError(f"no NVTX range, API call or kernel matches {pattern!r}")
    tables = []
    for group, (process, thread, rows) in enumerate(by_thread(api)):
        heads = np.flatnonzero(chosen[rows])
        if not len(heads):
            continue
        starts = api["start"].to_numpy()[rows[heads]]
        last = int(api["end"].to_numpy()[rows].max())
        end = min(last, int(starts[-1] + np.median(np.diff(starts)))) if len(heads) > 1 else last
        table = pd.DataFrame({"start": starts, "end": np.append(starts[1:], end), "process": process})
        tables.append(table.assign(thread=thread, group=group, phase=""))
    return as_steps(pd.concat(tables), "calls", f"calls and kernels that match {pattern!r}", 1.0)
