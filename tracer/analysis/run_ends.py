"""When the last run of eager launches of a step ended, in light recordings: the gap behind it begins there.

A run without stamps lasts as long as it can: until the next work of its stream, so that the device may have been idle
for any part of it, or until a wait returned. The end is known only if the host waited for the run in that call, and not
merely for a copy that it had put behind it: then the run had ended at some time before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.idle import MOST_RUNS
from tracer.analysis.waits import poll_loops
from tracer.model.calls import POLL, letters_of
from tracer.model.intervals import Ints
from tracer.model.rows import match_rows, positions, taken
from tracer.model.trace import RUN, Trace

_WAITED_NS: Final = 10_000
"""The least duration of a call in which the host waited: one that finds the work done takes less."""
_COPY_NS, _BYTES_PER_NS = 20_000, 4
"""A light recording does not tell how long a copy takes: at most so long, and longer by its size."""


def ended_at_known_times(trace: Trace, table: pd.DataFrame, compute: pd.DataFrame) -> NDArray[np.bool_]:
    """Of which gaps it is known when they begin.

    Args:
        trace: the recording.
        table: from `gaps.gap_table`.
        compute: of the steps.
    """
    if not trace.has_runs:
        return np.ones(len(table), bool)
    runs = taken(compute, (compute["name"] == RUN).to_numpy(), ["device", "start", "end"])
    at = positions(table.rename(columns={"start": "end", "end": "until"}), runs, ["device", "end"])
    end, this, following = (table[name].to_numpy() for name in ("start", "this_start", "next_start"))
    begun = np.append(runs["start"].to_numpy(), 0)[at]
    is_long = end - begun > MOST_RUNS * (following - this)
    return np.asarray((at < 0) | (following > end) & ~(is_long & _came_late(trace, begun, end)))


def _came_late(trace: Trace, begun: Ints, ended: Ints) -> NDArray[np.bool_]:
    """Whether each run may have ended long before: its end is the return of a wait that took no longer than finding it
    done, and than the copies called since the run begun, may take."""
    api, times = trace["api"], ["start", "end"]
    queries = taken(api, letters_of(api["name"]) == POLL, times)
    waits = pd.concat([trace["syncs"][times], poll_loops(trace)[times], queries]).sort_values(["end", "start"])
    ends = waits["end"].to_numpy(np.int64)
    at = np.searchsorted(ends, ended)  # the longest of those that end then
    found = np.append(ends, -1)[at] == ended
    since = np.append(waits["start"].to_numpy(np.int64), 0)[at]
    return np.asarray(found & (ended - since < _WAITED_NS + _copied(trace, begun, since)))


def _copied(trace: Trace, since: Ints, until: Ints) -> Ints:
    """How long the copies called between these times may take."""
    api, copies = trace["api"], trace["memcpys"]
    call = match_rows(api, copies)
    known = np.flatnonzero(call >= 0)
    called = api["start"].to_numpy()[call[known]]
    order = np.argsort(called, kind="stable")
    most = _COPY_NS + copies["bytes"].to_numpy()[known[order]].clip(0) // _BYTES_PER_NS
    first, last = (np.searchsorted(called[order], each) for each in (since, until))
    total = np.append(0, np.cumsum(most))
    return np.asarray(total[np.maximum(first, last)] - total[first])
