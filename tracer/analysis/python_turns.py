"""Detects from Python functions that a thread waits for a lock, a queue or the GIL.

A thread that enters or leaves a Python function holds the global interpreter lock (GIL). So while one thread does that
and another neither enters nor leaves any, the first thread holds the lock, unless it is waiting itself.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import among, rows_named
from tracer.model.intervals import touching, union
from tracer.model.schema import MISSING, PYTHON_FUNCTION
from tracer.model.trace import Trace

Ints = NDArray[np.int64]
Spans = tuple[Ints, Ints]

WAITS: Final = re.compile(
    r"^<(built-in (method|function)|method) '?(acquire|sleep|select|poll|kevent|recv\w*|accept|wait)\b"
)
"""Python functions that wait for another thread or process: the innermost, built-in ones."""


def waits(functions: pd.DataFrame) -> Spans:
    """Periods in which a thread waits; functions are rows of `trace["nvtx"]` of Python functions."""
    chosen = functions[rows_named(functions["text"], WAITS.search)]
    return union(chosen["start"], chosen["end"])


RELEASES: Final = re.compile(r"^<built-in method release of _thread\.|^<(built-in )?method '?put\b.*SimpleQueue")
"""Python functions that release what another thread waits for: the innermost, built-in ones."""

_LOCKED: Final = re.compile(r"^<(built-in method|method) '?acquire\b")


def waits_for(functions: pd.DataFrame, thread: int) -> dict[int, Spans]:
    """Periods in which a thread waits, by the thread that it waits for; `MISSING` where that is unknown.

    Profilers name a lock's method but not the lock, so who releases a lock is known only if no other thread releases
    any lock during the wait. It is unknown for messages, sockets and timers.

    Args:
        functions: those of one process.
        thread: the thread that may be waiting.
    """
    mine = functions["thread"] == thread
    waiting = functions[mine & rows_named(functions["text"], WAITS.search)]
    locked = waiting[rows_named(waiting["text"], _LOCKED.search)]
    start, end = locked["start"].to_numpy(np.int64), locked["end"].to_numpy(np.int64)
    releases = functions[~mine & rows_named(functions["text"], RELEASES.search)]
    releasing = {
        int(str(other)): np.searchsorted(times, end, side="left") > np.searchsorted(times, start, side="left")
        for other, times in releases.groupby("thread")["start"].agg(np.sort).items()
    }
    alone = np.sum([*releasing.values(), np.zeros(len(start), np.int64)], axis=0) == 1
    found = {other: (start[during & alone], end[during & alone]) for other, during in releasing.items()}
    found[MISSING] = waits(waiting)  # what is left of them
    return {other: spans for other, spans in found.items() if len(spans[0])}


def functions_of(trace: Trace, process: int) -> pd.DataFrame:
    """The Python functions of a process."""
    nvtx = trace["nvtx"]
    return nvtx[among(nvtx["process"].to_numpy(), [process]) & (nvtx["domain"] == PYTHON_FUNCTION).to_numpy()]


def turns_of_others(functions: pd.DataFrame, thread: int) -> dict[int, Spans]:
    """Periods in which another thread holds the GIL and this one makes no progress: thread -> spans, ns.

    Args:
        functions: those of one process.
        thread: the thread that may be waiting.
    """
    mine = functions["thread"] == thread
    own = _edges(functions[mine])
    found = {}
    for other, of_other in functions[~mine].groupby("thread", sort=True):
        edges = _edges(of_other)
        low, high = edges[:-1], edges[1:]
        before = np.searchsorted(own, low, side="left")
        steps = np.searchsorted(own, high, side="right") - before
        chosen = (steps == 0) & (before > 0) & (before < len(own)) & ~touching(low, high, waits(of_other))
        if chosen.any():
            found[int(str(other))] = (low[chosen], high[chosen])
    return found


def _edges(functions: pd.DataFrame) -> Ints:
    return np.unique(np.concatenate([functions["start"].to_numpy(np.int64), functions["end"].to_numpy(np.int64)]))
