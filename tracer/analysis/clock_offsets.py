"""How far a device's clock can be ahead of the host's.

Work cannot start before the call that launched it begins, and a wait for it cannot return before it ends. So each
activity gives a lower and an upper bound. Sequences of activities that are consistent with one offset are windows; if
that offset is not 0, the clocks differ.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.waits import targets
from tracer.model.calls import BLOCKING_COPY, SYNC
from tracer.model.intervals import Ints
from tracer.model.rows import LANE, among, groups_of, last_at, match_rows
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

TOLERANCE_NS: Final = 1000
"""Older versions of Kineto write whole microseconds, which rounds both of the compared times."""

NO_BOUND: Final = np.iinfo(np.int64).max // 4


def offsets(trace: Trace, activities: pd.DataFrame, call: Ints, calls: pd.DataFrame) -> tuple[Ints, Ints]:
    """How far the device's clock can be ahead of the host's, according to each activity.

    Args:
        trace: the recording.
        activities: `trace.activities().frame()`.
        call: the positions in `trace["api"]` of the calls that launched them, or -1.
        calls: `host_calls(trace)`.

    Returns:
        The lower and the upper bound from each activity, ns; `-NO_BOUND` and `NO_BOUND` if there is none.
    """
    api = trace["api"]
    high = activities["start"].to_numpy() - np.append(api["start"].to_numpy(), MISSING)[call]
    high[call < 0] = NO_BOUND
    low = np.full(len(activities), -NO_BOUND)
    waits = calls[among(calls["letter"].to_numpy(), (SYNC, BLOCKING_COPY))]
    failed = api.loc[(api["return_value"] > 0).to_numpy(), ["process", "correlation"]]
    waits = waits[match_rows(failed, waits) < 0].reset_index(drop=True)
    awaited = _awaited(trace, waits, activities, call)
    known = awaited >= 0
    ended = activities["end"].to_numpy()[awaited[known]] - waits["end"].to_numpy()[known]
    np.maximum.at(low, awaited[known], ended)
    return low, high


def _awaited(trace: Trace, waits: pd.DataFrame, activities: pd.DataFrame, call: Ints) -> Ints:
    """For each wait, the position of the last activity issued to its stream before it; -1 if unknown.

    For a blocking copy it is the copy itself. A wait for an event whose record is unknown may wait for any earlier
    work of the stream.
    """
    asked = targets(trace, waits)
    given = np.append(trace["api"]["end"].to_numpy(), NO_BOUND)[call]  # the call had returned: it was enqueued by then
    last = _last_of_calls(activities, call)
    last = last[np.lexsort((activities["end"].to_numpy()[last], given[last]))]
    works = activities[LANE].iloc[last].assign(given=given[last])
    wanted = asked.table.assign(process=waits["process"].to_numpy())
    found = np.append(last, -1)[last_at(wanted, wanted["until"], works, "given", LANE)]
    types = trace["syncs"]["type"].cat
    of_event = np.append(types.codes.to_numpy() == types.categories.get_loc("event"), False)
    unknown = of_event[match_rows(trace["syncs"], waits)] & ~asked.of_event
    found[~asked.known | unknown | (wanted["stream"] == MISSING).to_numpy()] = -1
    copies = (waits["letter"] == BLOCKING_COPY).to_numpy()
    own = match_rows(activities, waits)
    found[copies] = np.where((activities["table"] == "memcpys").to_numpy()[own[copies]], own[copies], -1)
    return found


def _last_of_calls(activities: pd.DataFrame, call: Ints) -> Ints:
    """The positions of the last activity to end among those that each call issued to each stream."""
    known = np.flatnonzero(call >= 0)
    lane, lanes = groups_of(activities, LANE)
    of, end = call[known] * lanes + lane[known], activities["end"].to_numpy()[known]
    order = np.argsort(of, kind="stable")  # fast, since most are in order
    known, of, end = known[order], of[order], end[order]
    first = np.flatnonzero(np.append(True, of[1:] != of[:-1]))[: len(of)]
    if not len(first):
        return known
    latest = np.repeat(np.maximum.reduceat(end, first), np.diff(first, append=len(of)))
    return known[np.maximum.reduceat(np.where(end == latest, np.arange(len(of)), 0), first)]


def windows(low: Ints, high: Ints) -> list[tuple[int, int]]:
    """Consecutive runs of bounds, each as long as possible, in which all bounds are consistent with a single offset."""
    windows, start = [], 0
    while start < len(low):
        size, end = 64, start
        while True:
            part = slice(start, start + size)
            least, most = np.maximum.accumulate(low[part]), np.minimum.accumulate(high[part])
            apart = np.flatnonzero(least > most + TOLERANCE_NS)
            if len(apart) or start + size >= len(low):
                end = start + max(int(apart[0]) if len(apart) else len(least), 1)
                break
            size *= 4
        windows.append((start, end))
        start = end
    return windows


def agrees(low: Ints, high: Ints, ahead: int = TOLERANCE_NS) -> bool:
    """Whether all bounds allow both clocks to agree."""
    return bool(low.max() <= ahead and high.min() >= -TOLERANCE_NS)


def in_words(low: Ints, high: Ints) -> str:
    """The offset of a window in words.

    Example:
        >>> in_words(np.array([-2_010_000]), np.array([-1_996_000])), in_words(np.array([5000]), np.array([NO_BOUND]))
        ('1,996 to 2,010 µs behind', 'at least 5 µs ahead')
    """
    least, most = int(low.max()), int(high.min())
    word, near, far = ("behind", -most, -least) if most < -TOLERANCE_NS else ("ahead", least, most)
    if far >= NO_BOUND:
        return f"at least {near / 1e3:,.0f} µs {word}"
    return f"{min(near, far) / 1e3:,.0f} to {max(near, far) / 1e3:,.0f} µs {word}"
