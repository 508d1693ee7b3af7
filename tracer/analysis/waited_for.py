"""The threads for which a host waits while it makes no call: who holds the GIL, releases a lock, or is at work.

That a host waits for a thread inside an NVTX range is a guess, because ranges say nothing about locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import python_turns
from tracer.analysis.call_chains import BELOW_PROGRAM, PYTHON_FILE
from tracer.analysis.calls import by_thread
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

RELEASED, UNKNOWN, RANGE, GIL = "released", "unknown", "range", "gil"
HOW: Final = {
    RELEASED: "the only one that released a lock during the wait",
    UNKNOWN: "waiting for a lock, queue or message: the recording does not show for which thread",
    RANGE: "inside a range at that time: may hold a lock",
    GIL: "holds the interpreter's lock (GIL)",
}

Spans = python_turns.Spans


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
    for other, spans in python_turns.waits_for(functions, thread).items():
        yield "host_wait", spans, Thread(process, other, UNKNOWN if other == MISSING else RELEASED)
    for _, other, rows in by_thread(ranges):
        start, end = (ranges[side].to_numpy()[rows] for side in ("start", "end"))
        yield "host_lock", (start, end), Thread(process, int(other), RANGE)
    for other, spans in python_turns.turns_of_others(functions, thread).items():
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
    functions = python_turns.functions_of(trace, one.process)
    here = functions[functions["thread"] == one.thread].sort_values("start", kind="stable")
    texts = (str(text) for text in here["text"].unique())
    return next((text for text in texts if PYTHON_FILE.search(text) and not BELOW_PROGRAM.search(text)), "")
