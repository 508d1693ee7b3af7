"""What each call and activity waits for, and the minimum time of each dependency.

A call continues where the previous call of its thread ended. An activity starts after the call that issued it, after
the previous activity of its stream, and after the events that its stream waits for. A sync or a blocking copy returns
after the work that it waits for. The minimum time of each dependency is estimated from the recording: the median over
those that waited for nothing else, or `fits.Usual` if there are none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.segments import Segments, awaited, ordered_by_events
from tracer.model.calls import BLOCKING_COPY, COPY, SYNC
from tracer.model.fits import Usual, fits_for
from tracer.model.intervals import Ints
from tracer.model.rows import among
from tracer.model.trace import Trace

CALL, HOST, DEVICE, ORDER, LAUNCH, RETURN, EVENT = range(7)
KINDS: Final = ("call", "host", "device", "stream order", "launch", "return", "event")
"""The kinds of edges: inside a call, between two calls of a thread, an activity, from an activity to the next on its
stream, from a call to the activity that it issued, from what a call waited for to its return, from stream to stream."""

_IDLE_SYNC: Final = 0.1  # quantile of a sync's durations that is taken as what it takes without waiting


def find_edges(trace: Trace, segments: Segments) -> Edges:
    """All edges between the points of the segments, with their recorded weights."""
    waits = _waits(trace, segments)
    usual = fits_for(trace).usual
    launches, ready = _launches(segments, usual)
    parts = [
        _host(segments),
        _calls(segments, waits),
        _activities(segments),
        launches,
        _orders(segments, ready, usual),
        _events(trace, segments, usual),
        _returns(segments, waits, usual),
    ]
    return Edges.joined(*parts)


def _host(segments: Segments) -> Edges:
    """From the end of each call to the start of the next one of its thread."""
    calls = segments.calls
    same = _same(calls, ["process", "thread"])
    row = np.flatnonzero(same)
    return Edges.of(
        2 * row + 1, 2 * row + 2, (calls["start"].to_numpy()[1:] - calls["end"].to_numpy()[:-1])[same], HOST
    )


def _same(frame: pd.DataFrame, columns: list[str]) -> NDArray[np.bool_]:
    """Which rows, except the last, have the same values as the next one."""
    equal = np.ones(max(len(frame) - 1, 0), bool)
    for column in columns:
        values = frame[column].to_numpy()
        equal &= values[1:] == values[:-1]
    return equal


def _waits(trace: Trace, segments: Segments) -> pd.DataFrame:
    """(call, activity) for every call that returns after an activity, and whether it `waited` for its end."""
    copies = segments.activities[["call", "start", "end", "table"]].assign(activity=np.arange(len(segments.activities)))
    copies = copies[(copies["call"] >= 0) & copies["table"].isin(["memcpys", "memsets"])]
    letters = segments.calls["letter"].to_numpy()[copies["call"]]
    ends = segments.calls["end"].to_numpy()[copies["call"]]
    is_timed = copies["end"].to_numpy() > copies["start"].to_numpy()  # not by the light recorder
    blocks = among(letters, [BLOCKING_COPY]) | (among(letters, [COPY]) & is_timed)
    blocks &= ends >= copies["end"].to_numpy()
    waits = pd.concat([awaited(trace, segments), copies.loc[blocks, ["call", "activity"]]], ignore_index=True)
    ended = segments.activities["end"].to_numpy()[waits["activity"]]
    began, returned = (segments.calls[c].to_numpy()[waits["call"]] for c in ("start", "end"))
    return waits.assign(waited=(ended > began) & (ended <= returned), took=returned - ended)


def _calls(segments: Segments, waits: pd.DataFrame) -> Edges:
    """The time inside each call; for a call that may wait, its duration without waiting.

    If the recording has no example, it is the time that calls of that name take to return after the work that they wait
    for.
    """
    calls = segments.calls
    took = (calls["end"] - calls["start"]).to_numpy().copy()
    waiting = np.zeros(len(calls), bool)
    waiting[waits.loc[waits["waited"], "call"]] = True
    may_wait = waiting | (calls["letter"] == SYNC).to_numpy()
    names = calls["name"].cat.codes.to_numpy()
    idle = pd.Series(took[may_wait & ~waiting]).groupby(names[may_wait & ~waiting]).quantile(_IDLE_SYNC)
    waited = waits[waits["waited"]]
    returning = waited.groupby(names[waited["call"]])["took"].median()
    base = pd.Series(names[waiting]).map(idle.combine_first(returning)).to_numpy().astype(np.int64)
    took[waiting] = np.minimum(took[waiting], base)
    row = np.arange(len(calls))
    return Edges.of(2 * row, 2 * row + 1, took, CALL)


def _activities(segments: Segments) -> Edges:
    """The time inside each activity.

    An activity that starts before the previous one on its stream ends (programmatic dependent launch) waits for that
    end; its own time is what follows it.
    """
    activities = segments.activities
    start, end = (activities[c].to_numpy() for c in ("start", "end"))
    ahead = np.flatnonzero(_same(activities, ["lane"]))
    ahead = ahead[(start[ahead + 1] < end[ahead]) & (end[ahead] <= end[ahead + 1])]
    own = end - start
    own[ahead + 1] = end[ahead + 1] - end[ahead]
    point = segments.starts(np.arange(len(activities)))
    return Edges.joined(
        Edges.of(point, point + 1, own, DEVICE),
        Edges.of(point[ahead] + 1, point[ahead + 1] + 1, own[ahead + 1], DEVICE),
    )


def _launches(segments: Segments, usual: Usual) -> tuple[Edges, Ints]:
    """From the start of each call to the first activity that it issued on each stream.

    Also returns the earliest time at which each activity could have started as far as its call is concerned, ns.
    """
    activities = segments.activities
    idle = _found_idle(activities)
    first = ~activities.duplicated(["call", "lane"]).to_numpy() & (activities["call"] >= 0).to_numpy()
    chosen = activities[first]
    latency = (chosen["start"] - chosen["issued"]).to_numpy()
    group = _codes(segments.calls["name"].cat.codes.to_numpy()[chosen["call"]], chosen["table"].cat.codes)
    typical = _typical(latency, group, idle[first], usual.launch_ns)
    ready = activities["issued"].to_numpy().copy()
    ready[first] += typical
    target = segments.starts(np.flatnonzero(first))
    return Edges.of(2 * chosen["call"].to_numpy(), target, np.minimum(latency, typical), LAUNCH), ready


def _found_idle(activities: pd.DataFrame) -> NDArray[np.bool_]:
    """Which activities found their stream idle when they were issued."""
    idle = np.ones(len(activities), bool)
    before = activities["end"].to_numpy()[:-1] <= activities["issued"].to_numpy()[1:]
    idle[1:] = ~_same(activities, ["lane"]) | before
    return idle


def _orders(segments: Segments, ready: Ints, usual: Usual) -> Edges:
    """From each activity to the next one of its stream.

    The time between two activities is typical if the second was `ready` before the first ended. An activity that starts
    before the previous one ends follows its start.
    """
    activities = segments.activities
    row = np.flatnonzero(_same(activities, ["lane"]))
    before, after = activities.iloc[row], activities.iloc[row + 1]
    start, end = (frame[c].to_numpy() for frame, c in ((after, "start"), (before, "end")))
    apart = start >= end
    took = start - end
    inside = (before["call"].to_numpy() == after["call"].to_numpy()) & (before["call"].to_numpy() >= 0)
    queued = ready[row + 1] <= end
    group = _codes(before["table"].cat.codes, after["table"].cat.codes, inside)
    weight = np.where(apart, np.minimum(took, _typical(took, group, queued & apart, usual.order_ns)), 0)
    alone = inside & ~_on_several_streams(activities)[row]
    weight[alone & apart] = took[alone & apart]  # a graph on one stream: nothing else can have delayed it
    first, second = segments.starts(row), segments.starts(row + 1)
    return Edges.joined(
        Edges.of(first[apart] + 1, second[apart], weight[apart], ORDER),
        Edges.of(first[~apart], second[~apart], (start - before["start"].to_numpy())[~apart], ORDER),
    )


def _events(trace: Trace, segments: Segments, usual: Usual) -> Edges:
    """Between streams: through events, and inside a graph launch, where only the times show the order."""
    pairs = pd.concat([ordered_by_events(trace, segments), _inside_graphs(segments)], ignore_index=True)
    before, after = pairs["before"].to_numpy(), pairs["after"].to_numpy()
    took = segments.activities["start"].to_numpy()[after] - segments.activities["end"].to_numpy()[before]
    group = np.zeros(len(pairs), np.int64)
    weight = np.minimum(took, _typical(took, group, took >= 0, usual.event_ns))
    return Edges.of(segments.starts(before) + 1, segments.starts(after), weight, EVENT)


def _inside_graphs(segments: Segments) -> pd.DataFrame:
    """Between graph nodes on several streams: a node is taken to wait for the last one that ends before it starts, if
    that is on another stream.
    """
    activities = segments.activities
    rows = np.flatnonzero(_on_several_streams(activities))
    nodes = activities.iloc[rows][["call", "lane", "start", "end"]].assign(activity=rows)
    if not len(nodes):
        return pd.DataFrame({"before": [], "after": []}, dtype="int64")
    found = pd.merge_asof(
        nodes.sort_values("start"),
        nodes.rename(columns={"activity": "before", "lane": "of"}).drop(columns="start").sort_values("end"),
        left_on="start", right_on="end", by="call",
    ).dropna(subset=["before"])  # fmt: skip
    found = found[found["of"] != found["lane"]].rename(columns={"activity": "after"})
    return found[["before", "after"]].astype("int64")


def _on_several_streams(activities: pd.DataFrame) -> NDArray[np.bool_]:
    """Which activities were issued by a call that also issued activities on other streams."""
    lanes = activities.groupby("call")["lane"]
    several = lanes.transform("max") != lanes.transform("min")
    return np.asarray((activities["call"] >= 0) & several)


def _returns(segments: Segments, waits: pd.DataFrame, usual: Usual) -> Edges:
    """From the work that a call waited for to the return of the call."""
    took = waits["took"].to_numpy()
    calls, activities = waits["call"].to_numpy(), waits["activity"].to_numpy()
    group = _codes(
        segments.calls["name"].cat.codes.to_numpy()[calls],
        segments.activities["table"].cat.codes.to_numpy()[activities],
    )
    weight = np.minimum(took, _typical(took, group, waits["waited"].to_numpy(), usual.return_ns))
    return Edges.of(segments.starts(activities) + 1, 2 * calls + 1, weight, RETURN)


def _codes(*columns: object) -> Ints:
    """One number for each distinct row of small non-negative integers."""
    code = np.zeros(1, np.int64)
    for column in columns:
        code = code * 4096 + np.asarray(column, dtype=np.int64)
    return code


def _typical(took: Ints, group: Ints, free: NDArray[np.bool_], usual_ns: int) -> Ints:
    """For each row the median over the `free` rows of its group or, without any, over all its rows, but at most
    `usual_ns`.
    """
    values = pd.Series(took[free])
    overall = min(values.median(), usual_ns) if len(values) else usual_ns
    return pd.Series(group).map(values.groupby(group[free]).median()).fillna(overall).to_numpy().astype(np.int64)
