"""The threads for which a host waits while it makes no call: who holds the GIL, releases a lock, or is at work.

A thread that enters or leaves a Python function holds the global interpreter lock (GIL). So while one thread does that
and another neither enters nor leaves any, the first thread holds the lock, unless it is waiting itself. That a host
waits for a thread inside an NVTX range is a guess, because ranges say nothing about locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_chains import BELOW_PROGRAM, PYTHON_FILE
from tracer.model.intervals import Ints, touching, union
from tracer.model.rows import among, by_thread, rows_named
from tracer.model.schema import MISSING, PYTHON_FUNCTION
from tracer.model.trace import Trace

RELEASED, UNKNOWN, RANGE, GIL = "released", "unknown", "range", "gil"
HOW: Final = {
    RELEASED: "the only one that released a lock during the wait",
    UNKNOWN: "waiting for a lock, queue or message: the recording does not show for which thread",
    RANGE: "inside a range at that time: may hold a lock",
    GIL: "holds the interpreter's lock (GIL)",
}
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


class Thread(NamedTuple):
    """A thread that is waited for, and how that is known (of `HOW`); thread is `MISSING` if it is unknown."""

    process: int
    thread: int
    how: str


Waited = Mapping[Thread, NDArray[np.int64]]
"""Thread -> how long it is waited for in each window, ns."""


def on_threads(
    functions: pd.DataFrame, ranges: pd.DataFrame, process: int, thread: int
) -> Iterator[tuple[str, Spans, Thread]]:
    """(part, its intervals, the thread waited for) of a thread that makes no call.

    Args:
        functions: the Python functions of its process.
        ranges: the ranges of the other threads of its process.
        process: its process.
        thread: the thread.
    """
    for other, spans in waits_for(functions, thread).items() if len(functions) else ():
        yield "host_wait", spans, Thread(process, other, UNKNOWN if other == MISSING else RELEASED)
    for _, other, rows in by_thread(ranges):
        start, end = (ranges[side].to_numpy()[rows] for side in ("start", "end"))
        yield "host_lock", (start, end), Thread(process, int(other), RANGE)
    for other, spans in turns_of_others(functions, thread).items() if len(functions) else ():
        yield "host_lock", spans, Thread(process, other, GIL)


def waited_table(trace: Trace, waited: Waited, periods: int) -> pd.DataFrame:
    """The threads that are waited for: process, thread, name, runs (the outermost Python function of the program on it;
    "" if none is recorded), how (a text of `HOW`) and idle_us per step; the longest first.

    Args:
        trace: the recording.
        waited: the idle time, by thread.
        periods: the number of steps.
    """
    names = {
        (process, thread): str(name)
        for process, thread, name in trace["threads"][["process", "thread", "name"]].itertuples(index=False)
    }
    rows: list[dict[str, Any]] = [
        {
            "process": one.process, "thread": one.thread, "name": names.get((one.process, one.thread), ""),
            "runs": _runs(trace, one), "how": HOW[one.how], "idle_us": float(ns.sum()) / max(periods, 1) / 1e3,
        }
        for one, ns in waited.items()
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["process", "thread", "name", "runs", "how", "idle_us"])
    return table.sort_values("idle_us", ascending=False, kind="stable", ignore_index=True)


def named(row: Mapping[Any, Any]) -> str:
    """A thread of `waited_table` in words."""
    if row["thread"] == MISSING:
        return "unknown"
    known = ", ".join(text for text in (row["name"], row["runs"]) if text)
    number = "" if str(row["thread"]) in row["name"] else f"thread {row['thread']}"
    return " ".join(text for text in (number, f"({known})" if number and known else known) if text)


def _runs(trace: Trace, one: Thread) -> str:
    """The outermost function of the program that a thread is in."""
    functions = functions_of(trace, one.process)
    here = functions[functions["thread"] == one.thread].sort_values("start", kind="stable")
    texts = (str(text) for text in here["text"].unique())
    return next((text for text in texts if PYTHON_FILE.search(text) and not BELOW_PROGRAM.search(text)), "")
