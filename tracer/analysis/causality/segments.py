"""Host calls and device activities of a trace as one list, each with its lane: the thread or stream it runs on.

What waits for them: the activities that a host sync waits for, and those that a stream's wait for an event orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from tracer.analysis.calls import outermost_calls
from tracer.model.calls import SYNC
from tracer.model.intervals import Ints
from tracer.model.rows import LANE, match_rows
from tracer.model.schema import MISSING
from tracer.model.trace import Trace


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
    activities = trace.activities().frame()
    activities["row"] = activities.groupby("table", observed=True).cumcount()
    activities["call"] = Segments(calls, activities, outermost).calls_of(trace, activities)
    known = activities["call"].to_numpy() >= 0
    issued = activities["start"].to_numpy().copy()
    issued[known] = calls["start"].to_numpy()[activities["call"].to_numpy()[known]]
    activities["issued"] = issued
    activities["lane"] = activities.groupby(LANE, sort=False).ngroup()
    order = np.lexsort((activities["end"], activities["start"], activities["lane"]))
    return Segments(calls, activities.iloc[order].reset_index(drop=True), outermost)


def awaited(trace: Trace, segments: Segments) -> pd.DataFrame:
    """The activity that each host sync waits for: the last one issued to its stream before it.

    A sync of a context waits for all its streams, a sync of an event for the work issued to its stream before the
    record. If the trace has no information on a sync, it is taken to wait for the last activity of its process that
    ended before it did: that activity may have ended earlier, but if it ends later in a what-if, the sync waits for
    it.

    Returns:
        Columns call, activity (positions in `segments`); no row for a sync that has nothing to wait for.
    """
    asked = _asked(trace, segments)
    found = _issued(segments, asked, "backward")
    is_sync = (segments.calls["letter"] == SYNC).to_numpy()
    recorded = np.zeros(len(is_sync), bool)
    recorded[asked["call"].to_numpy()] = True
    return pd.concat([found, _last_ended(segments, np.flatnonzero(is_sync & ~recorded))], ignore_index=True)


def sync_lanes(trace: Trace, segments: Segments) -> pd.DataFrame:
    """The streams that each host sync waits for, if the trace shows them.

    Returns:
        Columns call, lane (as in `Segments`; MISSING for a stream without work) and until (the sync waits for work
        issued to the stream before this time, ns).
    """
    found = _asked(trace, segments).merge(_lanes(segments), on=LANE, how="left")
    return found.fillna({"lane": MISSING}).astype({"lane": "int64"})[["call", "lane", "until"]]


def _asked(trace: Trace, segments: Segments) -> pd.DataFrame:
    """(`LANE`, call, until): the streams that each host sync waits for, and the time before which their work was
    issued.
    """
    syncs = trace["syncs"][[*LANE, "event", "type", "correlation"]].copy()
    syncs["call"] = segments.calls_of(trace, syncs)
    syncs = syncs[(syncs["call"] >= 0) & (syncs["type"] != "stream wait")]
    syncs["until"] = segments.calls["start"].to_numpy()[syncs["call"]]
    of_event = (syncs["type"] == "event").to_numpy()
    recorded = _last_record(trace, segments, syncs[of_event])
    of_stream = syncs[~of_event & (syncs["stream"] != MISSING)]
    of_context = syncs[~of_event & (syncs["stream"] == MISSING)].drop(columns="stream")
    everywhere = of_context.merge(_lanes(segments)[LANE].drop_duplicates(), on=LANE[:-1])
    columns = [*LANE, "call", "until"]
    return pd.concat([of_stream[columns], everywhere[columns], recorded[columns]], ignore_index=True)


def ordered_by_events(trace: Trace, segments: Segments) -> pd.DataFrame:
    """The activities ordered by event waits between streams: the last one before the record, and the first one after
    the wait.

    Returns:
        Columns call (the one that makes its stream wait, a position in `segments`), before, after (positions of
        activities).
    """
    waits = trace["syncs"][[*LANE, "event", "type", "correlation"]].copy()
    waits["call"] = segments.calls_of(trace, waits)
    waits = waits[(waits["call"] >= 0) & (waits["type"] == "stream wait")]
    waits["until"] = segments.calls["start"].to_numpy()[waits["call"]]
    records = _last_record(trace, segments, waits)
    before = _issued(segments, records, "backward").rename(columns={"activity": "before"})
    after = _issued(segments, waits, "forward").rename(columns={"activity": "after"})
    return before.merge(after, on="call")[["call", "before", "after"]]


def _lanes(segments: Segments) -> pd.DataFrame:
    return segments.activities[[*LANE, "lane"]].drop_duplicates()


def _last_record(trace: Trace, segments: Segments, waits: pd.DataFrame) -> pd.DataFrame:
    """For each wait for an event: the stream (`LANE`) and time (`until`) of its last record before `until`."""
    events = trace["cuda_events"][[*LANE, "event", "correlation"]].copy()
    events["record"] = segments.calls_of(trace, events)
    events = events[events["record"] >= 0]
    events["recorded"] = segments.calls["start"].to_numpy()[events["record"]]
    if not len(events) or not len(waits):
        return waits.iloc[:0][[*LANE, "call", "until"]]
    keys = ["process", "event"]
    found = pd.merge_asof(
        waits[[*keys, "call", "until"]].sort_values("until"),
        events[[*LANE, "event", "recorded"]].sort_values("recorded"),
        left_on="until", right_on="recorded", by=keys, allow_exact_matches=False,
    ).dropna(subset=["recorded"])  # fmt: skip
    found["until"] = found["recorded"]
    return found[[*LANE, "call", "until"]].astype("int64")


def _issued(segments: Segments, asked: pd.DataFrame, direction: Literal["backward", "forward"]) -> pd.DataFrame:
    """For each (`LANE`, call, until), the last activity of the stream that was issued before `until`, or the first one
    after it."""
    issued = segments.activities[["lane", "issued"]].assign(activity=np.arange(len(segments.activities)))
    if direction == "forward":  # merge_asof takes the last of equal ones backward, and the first forward
        issued = issued.drop_duplicates(["lane", "issued"])
    asked = asked.merge(_lanes(segments), on=LANE)
    if not len(asked):
        return pd.DataFrame({"call": [], "activity": []}, dtype="int64")
    found = pd.merge_asof(
        asked[["lane", "call", "until"]].sort_values("until"),
        issued.sort_values(["issued", "activity"]),
        left_on="until", right_on="issued", by="lane", direction=direction, allow_exact_matches=False,
    )  # fmt: skip
    return found.dropna(subset=["activity"])[["call", "activity"]].astype("int64")


def _last_ended(segments: Segments, calls: np.ndarray) -> pd.DataFrame:
    """For each call, the last activity of its process that ended before the call did."""
    spans = segments.calls.loc[calls, ["process", "end"]].assign(call=calls)
    ends = segments.activities[["process", "end"]].rename(columns={"end": "ended"})
    ends["activity"] = np.arange(len(ends))
    found = pd.merge_asof(
        spans.sort_values("end"), ends.sort_values("ended"), left_on="end", right_on="ended", by="process"
    )
    return found.dropna(subset=["activity"])[["call", "activity"]].astype("int64")
