"""What belongs to an event: related events, and the operator and NVTX ranges around it.

Flows: a launch and what it started, a sync and what it waited for, the record of a CUDA event and the waits for it, on
the host and between streams. All positions are those of `rows.Row` tables, all times ns of the recording.

The operator is the innermost one of PyTorch's profiler that was open on the event's thread when it was launched or, in
recordings without, the innermost NVTX range. Work of a replayed CUDA graph belongs to what was open when the graph was
launched, because recordings contain no more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from dashboard.timeline.rows import Row
from tracer.analysis.call_sites import innermost_ranges
from tracer.analysis.path.segments import Segments
from tracer.model.columns import match_rows, of_thread
from tracer.model.intervals import Ints
from tracer.model.schema import DEVICE_DOMAINS, MISSING, OTHER_DOMAINS, PROFILER_DOMAINS
from tracer.model.trace import Trace

COLUMNS: Final = ["kind", "row0", "event0", "time0", "row1", "event1", "time1"]
LAUNCH, WAIT, EVENT = "launch", "wait", "event"
PAIR_COLUMNS: Final = ["process", "record_thread", "recorded", "wait_thread", "waited",
                       "before_stream", "ended", "after_stream", "began"]  # fmt: skip
_MOST: Final = 60
_KEY: Final = ["process", "event"]


def flows_of(
    rows: Sequence[Row], row: int, event: int, waits: pd.DataFrame, pairs: pd.DataFrame
) -> tuple[pd.DataFrame, int]:
    """Arrows from and to an event, and the number of those beyond the `_MOST` that are returned.

    Args:
        row, event: positions of the event.
        waits: as returned by `marks.waits_of`.
        pairs: as returned by `event_pairs`.

    Returns:
        kind (LAUNCH, WAIT or EVENT), and for both ends the row, the event and the time: a launch's start and an
        activity's start, an activity's end and a sync's return, a record's start and a wait's start, or the end of the
        last activity before the record and the start of the first one after the wait.
    """
    of = {"stream": _of_activity, "api": _of_call}.get(rows[row].role)
    flows = [] if of is None else list(of(rows, row, event, waits, pairs))
    return pd.DataFrame(flows[:_MOST], columns=COLUMNS), max(len(flows) - _MOST, 0)


Flow = tuple[str, int, int, int, int, int, int]


def _of_call(rows: Sequence[Row], row: int, event: int, waits: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[Flow]:
    call = rows[row]
    start, end, number = int(call.start[event]), int(call.end[event]), _correlation(call)[event]
    if number != MISSING:
        for at, other in _rows(rows, "stream", call.process):
            first = int(np.searchsorted(other.start, start))
            for launched in (first + np.flatnonzero(_correlation(other)[first:] == number)).tolist():
                yield LAUNCH, row, event, start, at, launched, int(other.start[launched])
    mine = of_thread(waits.iloc[slice(*waits["start"].searchsorted([start, start + 1]))], call.process, call.thread)
    for stream, until in mine[["stream", "waited_until"]].itertuples(index=False):
        for at, other in _rows(rows, "stream", call.process):
            cause = other.ending(until) if until != MISSING and stream in (other.stream, MISSING) else None
            if cause is not None:
                yield WAIT, at, cause, until, row, event, end
    for side, other_side in (("record", "wait"), ("wait", "record")):
        yield from _of_pair(rows, row, event, pairs, side, other_side)


def _of_pair(rows: Sequence[Row], row: int, event: int, pairs: pd.DataFrame, side: str, other: str) -> Iterator[Flow]:
    """The waits for a record, or the record that a wait is for."""
    times = {"record": "recorded", "wait": "waited"}
    call, start = rows[row], int(rows[row].start[event])
    mine = pairs[(pairs["process"] == call.process) & (pairs[f"{side}_thread"] == call.thread)]
    mine = mine[mine[times[side]] == start]
    for thread, time in mine[[f"{other}_thread", times[other]]].itertuples(index=False):
        for at, calls in _rows(rows, "api", call.process):
            partner = calls.starting(time) if calls.thread == thread else None
            if partner is not None:
                ends = (row, event, start), (at, partner, int(time))
                yield EVENT, *(ends[0] + ends[1] if side == "record" else ends[1] + ends[0])


def _of_activity(rows: Sequence[Row], row: int, event: int, waits: pd.DataFrame, pairs: pd.DataFrame) -> Iterator[Flow]:
    activity = rows[row]
    start, end, number = int(activity.start[event]), int(activity.end[event]), _correlation(activity)[event]
    for at, calls in _rows(rows, "api", activity.process):
        last = int(np.searchsorted(calls.start, start, side="right"))
        same = np.flatnonzero(_correlation(calls)[: last if number != MISSING else 0] == number)
        for caller in same.tolist():
            yield LAUNCH, at, caller, int(calls.start[caller]), row, event, start
    mine = waits[(waits["waited_until"] == end) & (waits["process"] == activity.process)]
    mine = mine[mine["stream"].isin([activity.stream, MISSING])]
    for thread, began in mine[["thread", "start"]].itertuples(index=False):
        for at, calls in _rows(rows, "api", activity.process):
            call = calls.starting(began) if calls.thread == thread else None
            if call is not None:
                yield WAIT, row, event, end, at, call, int(calls.end[call])
    mine = pairs[(pairs["process"] == activity.process) & (pairs["began"] != MISSING)]
    for column, edge, own in (("before_stream", "ended", end), ("after_stream", "began", start)):
        for pair in mine[(mine[column] == activity.stream) & (mine[edge] == own)].to_dict("records"):
            yield from _across(rows, row, event, pair, edge)


def _across(rows: Sequence[Row], row: int, event: int, pair: dict[Hashable, int], edge: str) -> Iterator[Flow]:
    """From the last activity before a record to the first one after the wait for it; this event is one of them."""
    stream, time = ("after_stream", "began") if edge == "ended" else ("before_stream", "ended")
    for at, other in _rows(rows, "stream", pair["process"]):
        partner = other.starting(pair[time]) if time == "began" else other.ending(pair[time])
        if other.stream == pair[stream] and partner is not None:
            here, there = (row, event, pair[edge]), (at, partner, pair[time])
            yield EVENT, *(here + there if edge == "ended" else there + here)


def _rows(rows: Sequence[Row], role: str, process: int) -> Iterator[tuple[int, Row]]:
    return ((at, row) for at, row in enumerate(rows) if row.role == role and row.process == process)


def _correlation(row: Row) -> Ints:
    return row.events["correlation"].to_numpy()


def event_pairs(trace: Trace) -> pd.DataFrame:
    """Every wait for a CUDA event, with the last record of that event before it.

    Columns: process, for both calls the thread and the start (ns): record_thread, recorded, wait_thread, waited; and
    for a stream's wait the last activity before the record and the first one after the wait, with their streams and the
    end of the former and the start of the latter (ns): before_stream, ended, after_stream, began. MISSING where there
    are none.
    """
    syncs, events = trace["syncs"], trace["cuda_events"]
    waits = _calls(trace, syncs[syncs["event"] != MISSING]).rename(columns={"start": "waited", "thread": "wait_thread"})
    records = _calls(trace, events).rename(columns={"start": "recorded", "thread": "record_thread"})
    if not len(waits) or not len(records):
        return pd.DataFrame(columns=PAIR_COLUMNS, dtype="int64")
    matched = pd.merge_asof(waits.sort_values("waited"), records.drop(columns="api").sort_values("recorded"),
                          left_on="waited", right_on="recorded", by=_KEY, allow_exact_matches=False)  # fmt: skip
    matched = matched.dropna(subset=["recorded"])
    if (syncs["type"] == "stream wait").any():
        segments = Segments.of(trace)
        matched["call"] = segments.outermost[matched["api"]]
        matched = matched.merge(_ordered(segments), on="call", how="left")
    return matched.reindex(columns=PAIR_COLUMNS).fillna(MISSING).astype("int64")


def _calls(trace: Trace, made: pd.DataFrame) -> pd.DataFrame:
    """Process, event, thread, start and row in trace["api"] of the calls that made these rows, as far as known."""
    api = trace["api"]
    at = match_rows(api, made)
    known = made.loc[at >= 0, _KEY].reset_index(drop=True)
    calls = api.iloc[at[at >= 0]][["thread", "start"]].reset_index(drop=True)
    return pd.concat([known, calls], axis=1).assign(api=at[at >= 0])


def _ordered(segments: Segments) -> pd.DataFrame:
    """Per call that makes a stream wait: before_stream, ended, after_stream, began, as in `event_pairs`."""
    work, ordered = segments.activities, segments.ordered
    return pd.DataFrame(
        {
            "call": ordered.call,
            "before_stream": work.stream[ordered.before],
            "ended": work.end[ordered.before],
            "after_stream": work.stream[ordered.after],
            "began": work.start[ordered.after],
        }
    ).drop_duplicates("call")


def counterpart(row: Row, event: int, span: Sequence[int], other: Row, other_span: Sequence[int]) -> int | None:
    """The event of another run's row that matches this one: the same occurrence of its name in the same token.

    Args:
        row, event: the event.
        span: when its token starts and ends, ns.
        other, other_span: the matching row in the other run, and the token there.
    """
    name = row.events["full"].iloc[event]
    before = _named(row, name, (span[0], int(row.start[event]) + 1))
    there = _named(other, name, other_span)
    order = int(np.searchsorted(before, event))
    return int(there[order]) if order < len(there) else None


def _named(row: Row, name: str, span: Sequence[int]) -> Ints:
    """The events of this full name that begin in a span, ns."""
    first, last = np.searchsorted(row.start, span).tolist()
    return np.asarray(first + np.flatnonzero((row.events["full"].iloc[first:last] == name).to_numpy()))


OPERATORS: Final = "cpu_op"
NO_OPERATOR: Final = "(no operator or range around its launch)"


def operators_of(trace: Trace, row: Row) -> pd.Series:
    """The operator of each event of a device's row, categorical."""
    correlation = row.events["correlation"].to_numpy()
    at = trace.api.of(_Caused(np.full(len(correlation), row.process), correlation))
    ranges = trace.nvtx
    of_torch = ranges.domain.rows(OPERATORS)
    if not of_torch.any():
        of_torch = ~ranges.domain.rows(*PROFILER_DOMAINS)
    names = np.full(len(row.events), NO_OPERATOR, object)
    operators = innermost_ranges(ranges[of_torch & ranges.kind.rows("push/pop")], trace.api[at[at >= 0]]).texts
    names[at >= 0] = np.where(operators == "", NO_OPERATOR, operators)
    return pd.Series(names).astype("category")


@dataclass(frozen=True)
class _Caused:
    """What calls caused: the process and the number of the call of each."""

    process: Ints
    correlation: Ints


def launch_of(trace: Trace, row: Row, event: int) -> pd.Series | None:
    """The host call behind an event: itself, or the one that launched it; None if it is not recorded."""
    if row.role == "nvtx":
        return None
    api = trace["api"]
    if row.role == "api":
        first, last = np.searchsorted(api["start"], (row.start[event], row.start[event] + 1))
        near = of_thread(api.iloc[first:last], row.process, row.thread)
        near = near[near["end"] == row.end[event]]
    else:
        number = int(row.events["correlation"].iloc[event])
        near = api[(api["correlation"] == number) & (api["process"] == row.process)] if number >= 0 else api[:0]
    return None if near.empty else near.iloc[0]


def open_ranges(trace: Trace, process: int, thread: int, time: int) -> pd.DataFrame:
    """The rows of `nvtx` that are open on a thread of the host at a time, outermost first."""
    nvtx = trace["nvtx"]
    begun = nvtx.iloc[: int(nvtx["start"].searchsorted(time, side="right"))]
    begun = of_thread(begun[begun["end"] > time], process, thread)
    begun = begun[~begun["domain"].isin(DEVICE_DOMAINS | OTHER_DOMAINS)]
    return begun.sort_values(["start", "end"], ascending=[True, False], kind="stable", ignore_index=True)


def own_ranges(ranges: pd.DataFrame) -> list[str]:
    """The texts of the ranges that the program itself opened."""
    return [str(text) for text in ranges.loc[~ranges["domain"].isin(PROFILER_DOMAINS), "text"]]


def operator_in(ranges: pd.DataFrame) -> str:
    """The innermost operator of PyTorch's profiler among open ranges, "" for none."""
    texts = ranges.loc[ranges["domain"] == OPERATORS, "text"].tolist()
    return str(texts[-1]) if texts else ""
