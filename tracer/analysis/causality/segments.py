"""Host calls and device activities of a trace as one list, each with its lane: the thread or stream it runs on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import match_rows, outermost_calls
from tracer.model.trace import Trace

Ints = NDArray[np.int64]

LANE = ["process", "device", "context", "stream"]
"""The columns that identify a stream."""


@dataclass(frozen=True)
class Segments:
    """Calls and activities, the calls first; segment i starts at point 2 i and ends at point 2 i + 1.

    Attributes:
        calls: one row per host call that is not inside another: start end process thread name correlation row letter,
            see `calls.outermost_calls`; by thread and start.
        activities: one row per device activity: those of `Trace.activities`, row (in its table), lane (number of the
            stream), call (position in `calls` of the call that issued it, or -1) and issued (start of that call, or its
            own); by lane and start.
        outermost: for each row of trace["api"], the position in `calls` of the call that contains it.
    """

    calls: pd.DataFrame
    activities: pd.DataFrame
    outermost: Ints

    def calls_of(self, trace: Trace, rows: pd.DataFrame) -> Ints:
        """For rows with process and correlation, the position of the call that they belong to, or -1."""
        found = match_rows(trace["api"], rows)
        return np.where(found >= 0, self.outermost[found], -1) if len(self.outermost) else found

    def __len__(self) -> int:
        return len(self.calls) + len(self.activities)

    def times(self) -> Ints:
        """The time of every point, ns."""
        spans = [frame[["start", "end"]].to_numpy(np.int64) for frame in (self.calls, self.activities)]
        return np.concatenate(spans).reshape(-1)

    def starts(self, activities: Ints) -> Ints:
        """The points at which the activities at these positions start; each ends at the following point."""
        return np.asarray(2 * (activities + len(self.calls)), dtype=np.int64)


def find_segments(trace: Trace) -> Segments:
    """The segments of a trace."""
    calls, outermost = outermost_calls(trace)
    activities = trace.activities()
    activities["row"] = activities.groupby("table", observed=True).cumcount()
    activities["call"] = Segments(calls, activities, outermost).calls_of(trace, activities)
    known = activities["call"].to_numpy() >= 0
    issued = activities["start"].to_numpy().copy()
    issued[known] = calls["start"].to_numpy()[activities["call"].to_numpy()[known]]
    activities["issued"] = issued
    activities["lane"] = activities.groupby(LANE, sort=False).ngroup()
    order = np.lexsort((activities["end"], activities["start"], activities["lane"]))
    return Segments(calls, activities.iloc[order].reset_index(drop=True), outermost)
