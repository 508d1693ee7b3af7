"""How far the host runs ahead: which step's result it reads while it launches a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import LAUNCHES, match_rows
from tracer.analysis.waits import Targets
from tracer.schema import MISSING
from tracer.trace import Trace

_THREAD: Final = ["process", "thread"]


@dataclass(frozen=True)
class FetchLag:
    """Which step's result a fetch reads.

    Attributes:
        median: 0 for the step that was launched last, 1 for the one before it: the host launches a step before it has
            the result of the one before (asynchronous scheduling).
        share: of the fetches that read just so.
        fetches: how many there are.
    """

    median: float
    share: float
    fetches: int


def fetch_lag(trace: Trace, calls: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> FetchLag | None:
    """How far fetches lag behind launches; None where the trace tells of too few copies who waits for them.

    A fetch is the first wait for a copy to the host. Its result is of the step whose launch came last before that copy
    was issued; it is read when the step is under way whose launch came last before the wait returned.

    Args:
        trace: the recording.
        calls: its host calls: start (ns) process thread letter and at (position of the step, MISSING outside of all).
        waits: syncs, blocking copies and polling loops: start end (ns) process thread.
        asked: what these wait for.
    """
    launched = calls[calls["letter"].isin(LAUNCHES)].sort_values("start")[["start", *_THREAD, "at"]]
    copies = _copies_to_host(trace)
    fetches = _of_launching_threads(_fetches(copies, waits, asked), launched)
    read, result = (_at(launched, fetches, moment) for moment in ("end", "issued"))
    lag = (read - result)[(result != MISSING) & (read >= result)]
    inside = _at(launched, _of_launching_threads(copies, launched), "issued") != MISSING
    if len(lag) * 2 < max(int(inside.sum()), 1):
        return None
    median = float(np.median(lag))
    return FetchLag(median, float((lag == median).mean()), len(lag))


def _copies_to_host(trace: Trace) -> pd.DataFrame:
    """Process, thread, stream and issued (start of its call, ns) of each, in that order."""
    copies = trace["memcpys"].loc[trace["memcpys"]["kind"] == "DtoH", ["process", "stream", "correlation"]]
    call = match_rows(trace["api"], copies)
    calls = trace["api"].iloc[call[call >= 0]]
    found = copies[call >= 0].assign(issued=calls["start"].to_numpy(), thread=calls["thread"].to_numpy())
    return found.drop(columns="correlation").sort_values("issued", ignore_index=True)


def _fetches(copies: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> pd.DataFrame:
    """One row per copy to the host that something waits for: process and thread (that waits), issued and end (of the
    first such wait), ns."""
    copies = copies.drop(columns="thread").assign(copy=np.arange(len(copies)))
    found = waits[[*_THREAD, "end"]].reset_index(drop=True).join(asked.table[["stream", "until"]])
    found = found[asked.known].sort_values("until")
    everywhere = found["stream"] == MISSING
    awaited = [
        pd.merge_asof(part.drop(columns=drop), copies.drop(columns=drop), left_on="until", right_on="issued", by=by)
        for part, by, drop in (
            (found[~everywhere], ["process", "stream"], []),
            (found[everywhere], ["process"], ["stream"]),
        )
    ]
    first = pd.concat(awaited).dropna(subset=["issued"]).sort_values("end").drop_duplicates("copy")
    return first[[*_THREAD, "issued", "end"]].astype(np.int64)


def _of_launching_threads(fetches: pd.DataFrame, launched: pd.DataFrame) -> pd.DataFrame:
    """The fetches, those of a thread that launches nothing given to the one of its process that launches most."""
    most = launched.groupby("process")["thread"].agg(lambda threads: threads.mode().iloc[0])
    own = pd.MultiIndex.from_frame(fetches[_THREAD]).isin(pd.MultiIndex.from_frame(launched[_THREAD]))
    other = most.reindex(fetches["process"]).fillna(MISSING).to_numpy(np.int64)
    return fetches.assign(thread=np.where(own, fetches["thread"], other))


def _at(launched: pd.DataFrame, fetches: pd.DataFrame, moment: str) -> NDArray[np.int64]:
    """The step of the last launch of the fetch's thread before a moment of it."""
    asking = fetches[[*_THREAD, moment]].assign(row=np.arange(len(fetches))).sort_values(moment)
    found = pd.merge_asof(asking, launched, left_on=moment, right_on="start", by=_THREAD)
    return np.asarray(found.sort_values("row")["at"].fillna(MISSING).to_numpy(np.int64))
