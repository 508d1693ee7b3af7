"""When the work of a ring had ended at the latest, by the waits of the program, and when a stamp at the end of a run of
launches came too late to tell."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_letters import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LETTERS, SYNC, WAIT, plain
from tracer.model.schema import MEMCPY_KINDS, MISSING
from tracer.recorders.light_ring import Ring

NEVER: Final = np.iinfo(np.int64).max
_PAUSED_NS, _ARRIVED_NS = 10_000, 20_000
"""The least pause of a host that makes a difference, and the most that a launch takes to an idle device, with the error
of the clocks."""
_LEGACY, _OWN = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD; 0 is the former
_DONE: Final = {"cuStreamQuery", "cuEventQuery"}  # 0 means that the work has ended
_EVERY_STREAM: Final = {"cuCtxSynchronize"}


def letters(ring: Ring) -> NDArray[np.str_]:
    """What each record's call does, as a letter of a sync signature; "" for other calls."""
    return np.asarray(np.array([LETTERS.get(plain(name), "") for name in ring.calls] or [""])[ring.records["call"]])


def stream_keys(records: NDArray[Any]) -> NDArray[np.int64]:
    """A unique key for each stream of a process: the handle, or a number < -1 for default streams.

    Each context has a legacy default stream and one per thread.
    """
    handle, context = records["stream"].astype(np.int64), records["context"].astype(np.int64)
    own = np.where(handle == _OWN, 1 + records["thread"].astype(np.int64), 0)
    return np.where(handle <= _OWN, -2 - (context << 33) - own, handle)


def context_keys(context: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """A key for all streams of a context."""
    return -2 - (1 << 50) - context.astype(np.int64)


def ended(work: pd.DataFrame, waits: pd.DataFrame) -> NDArray[np.int64]:
    """When the first wait for each row's work returned, host ns; NEVER if nothing waited for it."""
    found = np.full(len(work), NEVER)
    stream, end = work["stream"].to_numpy(np.int64), work["end"].to_numpy(np.int64)
    of_context = context_keys(work["context"].to_numpy(np.int64))
    for key, facts in waits.groupby("stream", sort=False):
        rows = (stream == key) | (of_context == key)
        at = np.searchsorted(facts["since"], end[rows])
        earliest = np.minimum.accumulate(facts["end"].to_numpy()[::-1])[::-1]  # any later wait may be first
        found[rows] = np.minimum(found[rows], np.append(earliest, NEVER)[at])
    return found


def waits_of(ring: Ring) -> pd.DataFrame:
    """Completion facts: all work enqueued on `stream` (or in that context) before `since` had ended by `end`."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls])[records["call"]]
    done = ((letter == SYNC) | np.isin(names, sorted(_DONE))) & (records["result"] == 0)
    rows = np.flatnonzero(done)
    since, stream = records["begin"].copy(), stream_keys(records)
    of_context = np.isin(names, sorted(_EVERY_STREAM))
    stream[of_context] = context_keys(records["context"][of_context])
    of_event = np.isin(names, ["cuEventSynchronize", "cuEventQuery"])
    recorded = pd.DataFrame({"event": records["object"], "begin": records["begin"], "stream": stream})[letter == EVENT]
    queried = pd.DataFrame({"event": records["object"], "begin": records["begin"], "row": np.arange(len(records))})
    queried = queried[done & of_event]
    last = pd.merge_asof(
        queried.sort_values("begin"), recorded.sort_values("begin").assign(since=recorded["begin"].sort_values()),
        on="begin", by="event",
    ).dropna()  # fmt: skip
    since[last["row"]], stream[last["row"]] = last["since"], last["stream"]
    rows = rows[~of_event[rows] | np.isin(rows, last["row"])]
    found = pd.DataFrame({"stream": stream[rows], "since": since[rows], "end": records["end"][rows]})
    found = found.sort_values("since", kind="stable")
    return pd.concat([found, _implied(found, recorded, records[letter == WAIT])]).sort_values("since", kind="stable")


def _implied(waits: pd.DataFrame, recorded: pd.DataFrame, ordered: NDArray[Any]) -> pd.DataFrame:
    """What the same waits imply for other streams, whose events the awaited stream had been made to wait for."""
    if not len(ordered) or not len(recorded):
        return waits[:0]
    order = pd.DataFrame({
        "event": ordered["object"], "begin": ordered["begin"], "awaited": stream_keys(ordered),
    }).sort_values("begin")  # fmt: skip
    marks = recorded.sort_values("begin").assign(since=lambda frame: frame["begin"])
    links = pd.merge_asof(order, marks, on="begin", by="event").dropna()
    links = links.astype({"stream": np.int64, "since": np.int64}).rename(columns={"since": "marked", "begin": "since"})
    known = waits.rename(columns={"stream": "awaited"})
    found = pd.merge_asof(known, links[["since", "awaited", "stream", "marked"]], on="since", by="awaited").dropna()
    return found.assign(since=found["marked"])[["stream", "since", "end"]].astype(np.int64)


def until(left: pd.DataFrame, stamped: pd.DataFrame, waits: pd.DataFrame) -> NDArray[np.int64]:
    """The latest end of runs without a stamp there: a wait for it, or the next stamped work of the stream; NEVER if
    there is neither."""
    order = pd.concat([stamped.assign(is_left=False), left.assign(is_left=True)], ignore_index=True)
    order = order.sort_values("record", kind="stable")
    heads = order["head"].where((order["head"] != MISSING) & ~order["is_left"]).groupby(order["stream"]).bfill()
    next_head = heads[order["is_left"]].sort_index().fillna(MISSING).to_numpy(np.int64)
    return np.minimum(ended(left, waits), np.where(next_head == MISSING, NEVER, next_head))


def without_late_ends(
    ring: Ring, table: pd.DataFrame, is_resolved: NDArray[np.bool_], launches: pd.DataFrame, waits: pd.DataFrame
) -> pd.DataFrame:
    """The table, in which runs whose kernels are unknown lose a stamp at their end that says nothing: the host paused
    before the call that ended the run, and the stamp, launched right before that call, found the device idle."""
    runs = table[(table["graph"] == MISSING) & table["is_stamped"].astype(bool) & ~is_resolved]
    last = runs[["number"]].merge(launches[launches["graph"] == 0], on="number", how="left")
    called = _ending_call(ring, last["last"].to_numpy(np.int64), runs["stream"].to_numpy(np.int64))
    is_late = (runs["end"] <= called + _ARRIVED_NS) & (called - last["end"].to_numpy() > _PAUSED_NS)
    late = runs[is_late.to_numpy()]
    if not len(late):
        return table
    latest = until(late.assign(end=last["end"].to_numpy()[is_late]), table[table["is_stamped"].astype(bool)], waits)
    table.loc[late.index, "end"] = np.where(latest < NEVER, np.maximum(latest, late["end"]), late["end"])
    table.loc[late.index, "is_stamped"] = False
    return table


def _ending_call(ring: Ring, last: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the call began that ended a run at the latest, of the thread that launched its last kernel: the next wait or
    query for its stream, event, graph or copy to the host there, or wait for everything; NEVER without one, and 0 for
    a query, behind which there is a stamp only if it found the device at work.

    Args:
        ring: the recording.
        last: the record of the last launch of each run.
        stream: of each run.
    """
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls] or [""])[records["call"]]
    fetches = np.isin(letter, [COPY, BLOCKING_COPY]) & (records["copy_kind"] == MEMCPY_KINDS["DtoH"])
    there = np.isin(letter, [EVENT, GRAPH_LAUNCH]) | fetches
    there |= np.isin(names, ["cuStreamSynchronize", "cuStreamQuery"])
    everywhere = np.isin(names, sorted(_EVERY_STREAM))
    thread, first = records["thread"].astype(np.int64), np.full(len(last), len(records))
    for ends, of_call, of_run in (
        (there, stream_keys(records), stream),
        (everywhere, np.zeros(len(records), np.int64), np.zeros(len(last), np.int64)),
    ):
        rows = np.flatnonzero(ends)
        calls = pd.DataFrame({"row": rows, "thread": thread[rows], "key": of_call[rows], "call": rows})
        runs = pd.DataFrame({"row": last, "thread": thread[last], "key": of_run, "run": np.arange(len(last))})
        runs = runs.sort_values("row", kind="stable")
        after = pd.merge_asof(runs, calls, on="row", by=["thread", "key"], direction="forward").sort_values("run")
        first = np.minimum(first, after["call"].fillna(len(records)).to_numpy(np.int64))
    begin = np.where(names == "cuStreamQuery", 0, records["begin"].astype(np.int64))
    return np.asarray(np.append(begin, NEVER)[first])
