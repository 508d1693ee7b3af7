"""The tracks on which viewers draw the events of a trace, and the arrows between them, for all viewer formats.

There is a track per host thread, per stream of a device, and per stream for its syncs. Viewers drop a slice that
partially overlaps another, so events that would overlap others get an additional track (lane).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.columns import match_rows
from tracer.model.intervals import Ints
from tracer.model.schema import CARRIED, DEVICE_TABLES, MISSING
from tracer.model.trace import Trace

THREAD, STREAM, SYNCS = "thread", "stream", "syncs"
_ON_THREAD: Final = ("process", "thread")
_ON_STREAM: Final = ("device", "process", "context", "stream")
_KINDS: Final = (
    (THREAD, ("api", "nvtx"), _ON_THREAD),
    (STREAM, DEVICE_TABLES, _ON_STREAM),
    (SYNCS, ("syncs", "cuda_events"), _ON_STREAM),
)
SYNC_NAMES: Final = {
    "unknown": "Unknown", "event": "Event Sync", "stream wait": "Stream Wait Event", "stream": "Stream Sync",
    "context": "Context Sync",
}  # fmt: skip
"""Kineto's names of the sync types, which viewers show."""
CATEGORY_OF: Final = {
    "kernels": "kernel", "graph_launches": "graph", "memcpys": "memcpy", "memsets": "memset", "api": "cuda api",
    "nvtx": "nvtx", "syncs": "sync", "cuda_events": "event record",
}  # fmt: skip
"""Table -> the category of its events in Perfetto's traces."""
COLUMNS: Final = ("kind", "process", "thread", "device", "context", "stream", "lane")


@dataclass(frozen=True)
class Tracks:
    """The tracks of a trace.

    Attributes:
        table: one row per track: kind (THREAD, STREAM or SYNCS), process, thread, device, context, stream (MISSING
            where not applicable), lane (0, or the number of the additional track).
        of: table of the trace -> the position in `table` of each row's track.
    """

    table: pd.DataFrame
    of: dict[str, Ints]

    def names(self) -> list[str]:
        """The name of each track within its device; "" for threads, which have their own names."""
        on_device = self.table[self.table["kind"] != THREAD]
        shown = [c for c in ("process", "context") if len(on_device[c].unique()) > 1]

        def name(track: Any) -> str:
            stream = f"stream {track.stream}" if track.stream != MISSING else f"context {track.context}"
            where = "".join(f", {c} {getattr(track, c)}" for c in shown if f"{c} " not in stream)
            return "" if track.kind == THREAD else stream + where + (" syncs" if track.kind == SYNCS else "")

        return [name(track) for track in self.table.itertuples()]


def tracks_of(trace: Trace) -> Tracks:
    """Assign every event to a track. On threads, API calls take precedence over ranges that overlap them."""
    of: dict[str, Ints] = {}
    tracks: list[pd.DataFrame] = []
    for kind, names, keys in _KINDS:
        rows = pd.concat([spans(trace, name)[["start", "end", *keys]] for name in names], ignore_index=True)
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        is_call = np.arange(len(rows)) < (len(trace["api"]) if kind == THREAD else 0)
        lane = np.zeros(len(rows), np.int64)
        for at in rows.groupby(list(keys), sort=False).indices.values():
            lane[at] = _lanes_of_thread(start[at], end[at], is_call[at], nest=kind != STREAM)
        rows["lane"] = lane
        group = rows.groupby([*keys, "lane"], sort=True).ngroup().to_numpy()
        offset = sum(map(len, tracks))
        tracks.append(rows.iloc[np.unique(group, return_index=True)[1]][[*keys, "lane"]].assign(kind=kind))
        bounds = np.cumsum([len(trace[name]) for name in names])[:-1]
        of |= dict(zip(names, np.split(group + offset, bounds), strict=True))
    table = pd.concat(tracks, ignore_index=True).reindex(columns=list(COLUMNS))
    numbers = list(COLUMNS[1:])
    table[numbers] = table[numbers].fillna(MISSING).astype(np.int64)
    return Tracks(table, of)


def no_place_for(trace: Trace) -> list[str]:
    """A note on carried data and samples of an nsys export, which no viewer's format can hold."""
    columns = sum(str(column).startswith(CARRIED) for frame in trace.tables.values() for column in frame)
    counts = {"tables": len(trace.carried), "columns": columns, "samples": len(trace["samples"])}
    left = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
    return [f"left out: {left} that only nsys's own formats can hold"] if left else []


def spans(trace: Trace, name: str) -> pd.DataFrame:
    """A table with start and end of each row, ns.

    Event records have no timestamps; they get the start of their call, or of the trace if the call is missing.
    """
    frame = trace[name]
    if name != "cuda_events":
        return frame.assign(end=np.maximum(frame["start"].to_numpy(), frame["end"].to_numpy()))
    starts = np.append(trace["api"]["start"].to_numpy(), trace.span[0])
    times = starts[match_rows(trace["api"], frame)]  # -1 takes the last
    return frame.assign(start=times, end=times)


def arrows(trace: Trace) -> pd.DataFrame:
    """The arrows from each launch to the activities it launched, in order of the calls: id (1, 2, ...; a graph launch
    has one arrow for each of its nodes), call (position in `api`), table (of DEVICE_TABLES), row (position in that
    table)."""
    calls_of = [match_rows(trace["api"], trace[name]) for name in DEVICE_TABLES]
    parts = [
        pd.DataFrame({"call": calls, "table": name, "row": np.arange(len(calls))})[calls >= 0]
        for name, calls in zip(DEVICE_TABLES, calls_of, strict=True)
    ]
    result = pd.concat(parts, ignore_index=True).sort_values("call", kind="stable", ignore_index=True)
    return result.assign(id=np.arange(1, len(result) + 1))


def lanes(starts: Ints, ends: Ints, *, nest: bool) -> Ints:
    """For each interval, the first lane in which it overlaps no interval that starts before it. Intervals in a lane are
    disjoint, or if they may `nest`, contain each other.

    Example:
        >>> lanes(np.array([0, 2, 5]), np.array([10, 4, 12]), nest=True)
        array([0, 0, 1])
    """
    order = np.lexsort((-ends if nest else ends, starts))
    first, last = starts[order], ends[order]
    alone = _outside_earlier(first, last)
    alone &= np.append(alone[1:], True)  # and the next one does not begin inside it
    result = np.zeros(len(starts), np.int64)
    open_ends: list[list[int]] = []
    for at in np.flatnonzero(~alone):
        start, end = int(first[at]), int(last[at])
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], start, end, nest=nest):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end)
        result[order[at]] = lane
    return result


def _fits(open_ends: list[int], start: int, end: int, *, nest: bool) -> bool:
    """Whether an interval fits into a lane; removes ends before its start from `open_ends`."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or (nest and end <= open_ends[-1])


def slice_order(starts: Ints, ends: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The order in which the nested slices of one track begin and end: for each of the 2n edges, the position of its
    slice and whether the slice begins there."""
    order = np.lexsort((-ends, starts))
    first, last = starts[order], ends[order]
    number = np.arange(len(order))
    after = np.maximum(number + 1, np.searchsorted(first, last, side="left"))  # the first that begins after its end
    edges = np.lexsort((np.append(0 * number, -number), np.repeat([1, 0], len(order)), np.append(number, after)))
    return order[edges % max(len(order), 1)], edges < len(order)


def _lanes_of_thread(starts: Ints, ends: Ints, is_call: NDArray[np.bool_], *, nest: bool) -> Ints:
    crossing = ~is_call & _crosses(starts, ends, starts[is_call], ends[is_call])
    result = np.zeros(len(starts), np.int64)
    result[~crossing] = lanes(starts[~crossing], ends[~crossing], nest=nest)
    result[crossing] = 1 + result.max(initial=0) + lanes(starts[crossing], ends[crossing], nest=nest)
    return result


def _crosses(starts: Ints, ends: Ints, call_starts: Ints, call_ends: Ints) -> NDArray[np.bool_]:
    """Which intervals overlap an outermost call without either containing the other."""
    order = np.lexsort((-call_ends, call_starts))
    first, last = call_starts[order], call_ends[order]
    outer = _outside_earlier(first, last)
    first, last = np.append(first[outer], 0), np.append(last[outer], 0)  # position -1 is no call

    def call_open_at(times: Ints) -> tuple[Ints, Ints]:
        at = np.searchsorted(first[:-1], times, side="left") - 1
        return np.where(at >= 0, first[at], times), np.where(at >= 0, last[at], times)

    _, its_end = call_open_at(starts)
    enters = (starts < its_end) & (its_end < ends)
    its_start, its_end = call_open_at(ends)
    leaves = (starts < its_start) & (ends < its_end)
    return np.asarray(enters | leaves)


def _outside_earlier(first: Ints, last: Ints) -> NDArray[np.bool_]:
    """Which intervals, sorted by start, begin after all earlier ones have ended."""
    result = np.ones(len(first), dtype=bool)
    result[1:] = first[1:] >= np.maximum.accumulate(last)[:-1]
    return result
