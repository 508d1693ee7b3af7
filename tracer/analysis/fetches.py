"""How far the host runs ahead: the step whose result it reads while it launches another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import LAUNCHES, between_devices, last_before, match_rows
from tracer.analysis.waits import Targets
from tracer.model.rows import grouped
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

_THREAD: Final = ["process", "thread"]


@dataclass(frozen=True)
class FetchLag:
    """Which step's result a fetch reads.

    Attributes:
        median: 0 if it reads the result of the step launched last, 1 if that of the previous step: the host launches a
            step before it has the result of the previous one (asynchronous scheduling).
        share: the share of fetches that do exactly this.
        fetches: their number.
    """

    median: float
    share: float
    fetches: int


def fetch_lag(trace: Trace, calls: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> FetchLag | None:
    """How far fetches lag behind launches; None if the trace shows for too few copies what waits for them.

    A fetch is the first wait for a copy to the host. Its result is that of the step with the last launch before the
    copy was issued. It is read during the step with the last launch before the wait returned.

    Args:
        trace: the recording.
        calls: its host calls: start (ns) process thread letter and at (position of the step, MISSING outside of all).
        waits: syncs, blocking copies and polling loops: start end (ns) process thread.
        asked: what these wait for.
    """
    launched = calls[calls["letter"].isin(LAUNCHES)].sort_values("start")
    copies = _copies_to_host(trace)
    fetches = _of_launching_threads(_fetches(copies, waits, asked), launched)
    inside = _of_launching_threads(copies, launched)
    step = np.append(launched["at"], MISSING)
    read, result = (step[last_before(fetches, fetches[moment], launched)] for moment in ("end", "issued"))
    lag = (read - result)[(result != MISSING) & (read >= result)]
    if len(lag) * 2 < max((step[last_before(inside, inside["issued"], launched)] != MISSING).sum(), 1):
        return None
    return FetchLag(float(np.median(lag)), float((lag == np.median(lag)).mean()), len(lag))


def _copies_to_host(trace: Trace) -> pd.DataFrame:
    """Process, thread, issue time (start of the call, ns) and stream of each copy that ends there, in that order."""
    copies = trace["memcpys"][trace["memcpys"]["kind"] == "DtoH"]
    call = match_rows(trace["api"], copies)
    calls = trace["api"].iloc[call[call >= 0]]
    found = calls[[*_THREAD, "start"]].rename(columns={"start": "issued"})
    found = found.assign(stream=copies["stream"].to_numpy()[call >= 0])
    return found[~between_devices(trace, calls)].sort_values("issued", ignore_index=True)


def _fetches(copies: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> pd.DataFrame:
    """One row per copy to the host that something waits for: process and thread (of the waiter), issued and end (of
    the first such wait), ns."""
    copies = copies.drop(columns="thread").assign(copy=np.arange(len(copies)))
    copies = pd.concat([copies, copies.assign(stream=MISSING)]).sort_values("issued")  # some wait for every stream
    found = waits[[*_THREAD, "end"]].reset_index(drop=True).join(asked.table[["stream", "until"]])
    found = found[asked.known].sort_values("until")
    awaited = pd.merge_asof(found, copies, left_on="until", right_on="issued", by=["process", "stream"])
    first = awaited.dropna(subset=["issued"]).sort_values("end").drop_duplicates("copy")
    return first[[*_THREAD, "issued", "end"]].astype(np.int64)


def _of_launching_threads(fetches: pd.DataFrame, launched: pd.DataFrame) -> pd.DataFrame:
    """The fetches; those of a thread that launches nothing are attributed to the busiest launcher of its process."""
    count = {key: len(rows) for key, rows in grouped(launched, _THREAD)}
    busiest: dict[int, int] = {}
    for process, thread in sorted(count, key=lambda key: (-count[key], key)):
        busiest.setdefault(process, thread)
    threads = fetches["thread"].to_numpy(copy=True)
    for (process, thread), rows in grouped(fetches, _THREAD):
        if (process, thread) not in count:
            threads[rows] = busiest.get(process, MISSING)
    return fetches.assign(thread=threads)
