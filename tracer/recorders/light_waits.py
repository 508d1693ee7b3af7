"""The streams of a ring, and what the waits of the program tell of the work on them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import EVENT, LETTERS, SYNC, WAIT, plain
from tracer.model.schema import MISSING
from tracer.recorders.light_ring import Ring

NEVER: Final = np.iinfo(np.int64).max
EVERY_STREAM: Final = {"cuCtxSynchronize"}
_LEGACY, _OWN = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD; 0 is the former
_DONE: Final = {"cuStreamQuery", "cuEventQuery"}  # 0 means that the work has ended


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
    returned = np.full(len(work), NEVER)
    stream, end = work["stream"].to_numpy(np.int64), work["end"].to_numpy(np.int64)
    of_context = context_keys(work["context"].to_numpy(np.int64))
    for key, facts in waits.groupby("stream", sort=False):
        rows = (stream == key) | (of_context == key)
        at = np.searchsorted(facts["since"], end[rows])
        earliest = np.minimum.accumulate(facts["end"].to_numpy()[::-1])[::-1]  # any later wait may be first
        returned[rows] = np.minimum(returned[rows], np.append(earliest, NEVER)[at])
    return returned


def waits_of(ring: Ring) -> pd.DataFrame:
    """Completion facts: all work enqueued on `stream` (or in that context) before `since` had ended by `end`."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls])[records["call"]]
    done = ((letter == SYNC) | np.isin(names, sorted(_DONE))) & (records["result"] == 0)
    rows = np.flatnonzero(done)
    since, stream = records["begin"].copy(), stream_keys(records)
    of_context = np.isin(names, sorted(EVERY_STREAM))
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
    waits = pd.DataFrame({"stream": stream[rows], "since": since[rows], "end": records["end"][rows]})
    waits = waits.sort_values("since", kind="stable")
    return pd.concat([waits, _implied(waits, recorded, records[letter == WAIT])]).sort_values("since", kind="stable")


_MOST_LINKS: Final = 4  # streams of which each waits for the next
_MOST_SOURCES: Final = 32  # streams that others wait for; of more than that, each wait tells only of the last


def _implied(waits: pd.DataFrame, recorded: pd.DataFrame, ordered: NDArray[Any]) -> pd.DataFrame:
    """What the same waits imply for other streams, whose events the awaited stream had been made to wait for, and for
    those whose events these had been made to wait for."""
    if not len(ordered) or not len(recorded):
        return waits[:0]
    order = pd.DataFrame({
        "event": ordered["object"], "begin": ordered["begin"], "awaited": stream_keys(ordered),
    }).sort_values("begin")  # fmt: skip
    marks = recorded.sort_values("begin").assign(since=lambda frame: frame["begin"])
    links = pd.merge_asof(order, marks, on="begin", by="event").dropna()
    links = links.astype({"stream": np.int64, "since": np.int64}).rename(columns={"since": "marked", "begin": "since"})
    links = links[["since", "awaited", "stream", "marked"]]
    of_source = [each for _, each in links.groupby("stream", sort=False)]
    if len(of_source) > _MOST_SOURCES:
        of_source = [links]
    known, every = waits, list[pd.DataFrame]()
    for _ in range(_MOST_LINKS):
        at = known.rename(columns={"stream": "awaited"}).sort_values("since", kind="stable")
        implied = [pd.merge_asof(at, each, on="since", by="awaited").dropna() for each in of_source]
        new = pd.concat(implied, ignore_index=True).assign(since=lambda frame: frame["marked"])
        new = new[["stream", "since", "end"]].astype(np.int64)
        known = new.groupby(["stream", "since"])["end"].min().reset_index()
        if not len(known):
            break
        every.append(known)
    return pd.concat(every, ignore_index=True) if every else waits[:0]


def until(left: pd.DataFrame, stamped: pd.DataFrame, waits: pd.DataFrame) -> NDArray[np.int64]:
    """The latest end of runs without a stamp there: a wait for it, or the next stamped work of the stream; NEVER if
    there is neither."""
    order = pd.concat([stamped.assign(is_left=False), left.assign(is_left=True)], ignore_index=True)
    order = order.sort_values("record", kind="stable")
    heads = order["head"].where((order["head"] != MISSING) & ~order["is_left"]).groupby(order["stream"]).bfill()
    next_head = heads[order["is_left"]].sort_index().fillna(MISSING).to_numpy(np.int64)
    return np.minimum(ended(left, waits), np.where(next_head == MISSING, NEVER, next_head))
