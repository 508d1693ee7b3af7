"""Polling loops: a host that repeatedly queries whether work has completed waits for it, as in a sync."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import POLL, letters_of, match_rows, outer_calls
from tracer.model.rows import taken
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import Trace

MANY: Final = 3
"""Minimum number of queries in a loop whose results are unknown; two may be an allocator that queries two events."""

_COLUMNS: Final = ["start", "end", "process", "thread", "correlation", "name"]
_THREAD: Final = ["process", "thread"]
_ENDED: Final = 0  # what a query returns once the work has completed; cudaErrorNotReady and hipErrorNotReady are 600


def poll_loops(trace: Trace) -> pd.DataFrame:
    """Find polling loops: two or more queries by one thread, of the same stream or event, without another call between.

    If the trace records return values, a loop ends with the query that finds the work completed. A single query is not
    a wait. Neither are several queries that may refer to different events: allocators query which blocks they can
    reuse. If a trace has neither return values nor events, a loop needs at least `MANY` queries, and work of the
    process must end between the last two.

    Returns:
        Columns start (of the first query) end (of the last) process thread correlation name (both of the last) letter
        (`POLL`) and queries (their number), sorted by (process, thread, start).
    """
    api = trace["api"]
    queried = letters_of(api["name"]) == POLL
    if not queried.any():
        return taken(api, queried, _COLUMNS).assign(letter=POLL, queries=0)
    threads = api.loc[queried, _THREAD].drop_duplicates()
    calls = outer_calls(api[[*_COLUMNS, "return_value"]].merge(threads, on=_THREAD))
    poll = letters_of(calls["name"]) == POLL
    event, stream = _asked(trace, calls)
    recorded = (event != MISSING) | (stream != MISSING) | (calls["return_value"] != MISSING).to_numpy()
    again = np.zeros(len(calls), dtype=bool)
    again[1:] = poll[1:] & poll[:-1] & (calls["return_value"].to_numpy()[:-1] != _ENDED)
    for values in (*(calls[c].to_numpy() for c in _THREAD), calls["name"].cat.codes.to_numpy(), event, stream):
        again[1:] &= values[1:] == values[:-1]
    last_start = calls["start"].shift(1, fill_value=0)
    queries = calls.assign(queries=1, recorded=recorded, before=last_start)[poll]
    loops = queries.groupby(np.cumsum(poll & ~again)[poll])
    of_last = dict.fromkeys([*_COLUMNS, "recorded", "before"], "last")
    found: pd.DataFrame = loops.agg(of_last | {"start": "first", "queries": "size"})
    sure = found["recorded"] | ((found["queries"] >= MANY) & _work_ended(trace, found))
    found = found[(found["queries"] > 1) & sure].assign(letter=POLL)
    return found[[*_COLUMNS, "letter", "queries"]].reset_index(drop=True)


def _asked(trace: Trace, calls: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The event and the stream that each call queries, as far as the trace records them."""
    rows = match_rows(trace["syncs"], calls)
    event, stream = (np.append(trace["syncs"][c].to_numpy(), MISSING)[rows] for c in ("event", "stream"))
    return event, stream


def _work_ended(trace: Trace, loops: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether work of the process ended between the start of the second-to-last query and the end of the last."""
    ended = np.zeros(len(loops), dtype=bool)
    for process in loops["process"].unique():
        ends = np.sort(
            np.concatenate([t.loc[t["process"] == process, "end"] for t in map(trace.__getitem__, DEVICE_TABLES)])
        )
        first, last = (np.searchsorted(ends, loops[column]) for column in ("before", "end"))
        ended |= (loops["process"] == process).to_numpy() & (last > first)
    return ended
