"""The threads for which a host waits while it makes no call: who holds the GIL, releases a lock, or is at work.

A thread that enters or leaves a Python function holds the global interpreter lock (GIL). So while one thread does that
and another neither enters nor leaves any, the first thread holds the lock, unless it is waiting itself. That a host
waits for a thread inside an NVTX range is a guess, because ranges say nothing about locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from tracer.analysis.call_sites import BELOW_PROGRAM, PYTHON_FILE
from tracer.model.columns import grouped
from tracer.model.intervals import Ints, touching, union
from tracer.model.schema import MISSING, PYTHON_FUNCTION
from tracer.model.tables import Nvtx
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


def waits(functions: Nvtx) -> Spans:
    """Periods in which a thread waits; functions are rows of `trace["nvtx"]` of Python functions."""
    chosen = functions[functions.text.chosen(WAITS.search)]
    return union(chosen.start, chosen.end)


RELEASES: Final = re.compile(r"^<built-in method release of _thread\.|^<(built-in )?method '?put\b.*SimpleQueue")
"""Python functions that release what another thread waits for: the innermost, built-in ones."""

_LOCKED: Final = re.compile(r"^<(built-in method|method) '?acquire\b")


def waits_for(functions: Nvtx, thread: int) -> dict[int, Spans]:
    """Periods in which a thread waits, by the thread that it waits for; `MISSING` where that is unknown.

    Profilers name a lock's method but not the lock, so who releases a lock is known only if no other thread releases
    any lock during the wait. It is unknown for messages, sockets and timers.

    Args:
        functions: those of one process.
    """
    mine = functions.thread == thread
    waiting = functions[mine & functions.text.chosen(WAITS.search)]
    locked = waiting[waiting.text.chosen(_LOCKED.search)]
    releases = functions[~mine & functions.text.chosen(RELEASES.search)]
    releasing = {}
    for (other,), rows in sorted(grouped(releases.thread), key=itemgetter(0)):
        times = np.sort(releases.start[rows])
        before, after = (np.searchsorted(times, each, side="left") for each in (locked.start, locked.end))
        releasing[other] = after > before
    alone = np.sum([*releasing.values(), np.zeros(len(locked), np.int64)], axis=0) == 1
    waited = {other: (locked.start[during & alone], locked.end[during & alone]) for other, during in releasing.items()}
    waited[MISSING] = waits(waiting)  # what is left of them
    return {other: spans for other, spans in waited.items() if len(spans[0])}


def functions_of(trace: Trace, process: int) -> Nvtx:
    """The Python functions of a process."""
    is_function = trace.nvtx.domain.rows(PYTHON_FUNCTION)
    return trace.nvtx[is_function & (trace.nvtx.process == process)] if is_function.any() else trace.nvtx[:0]


def turns_of_others(functions: Nvtx, thread: int) -> dict[int, Spans]:
    """Periods in which another thread holds the GIL and this one makes no progress: thread -> spans, ns.

    Args:
        functions: those of one process.
    """
    own = _edges(functions[functions.thread == thread])
    turns = {}
    for (other,), rows in sorted(grouped(functions.thread), key=itemgetter(0)):
        if other == thread:
            continue
        of_other = functions[rows]
        edges = _edges(of_other)
        low, high = edges[:-1], edges[1:]
        before = np.searchsorted(own, low, side="left")
        steps = np.searchsorted(own, high, side="right") - before
        chosen = (steps == 0) & (before > 0) & (before < len(own)) & ~touching(low, high, waits(of_other))
        if chosen.any():
            turns[other] = (low[chosen], high[chosen])
    return turns


def _edges(functions: Nvtx) -> Ints:
    return np.unique(np.concatenate([functions.start, functions.end]))


class Thread(NamedTuple):
    """A thread that is waited for, and how that is known (of `HOW`); thread is `MISSING` if it is unknown."""

    process: int
    thread: int
    how: str


Waited = Mapping[Thread, Ints]
"""Thread -> how long it is waited for in each idle span, ns."""


def on_threads(functions: Nvtx, ranges: Nvtx, process: int, thread: int) -> Iterator[tuple[str, Spans, Thread]]:
    """(part, its intervals, the thread waited for) of a thread that makes no call.

    Args:
        functions: the Python functions of its process.
        ranges: the ranges of the other threads of its process.
    """
    for other, spans in waits_for(functions, thread).items() if len(functions) else ():
        yield "host_wait", spans, Thread(process, other, UNKNOWN if other == MISSING else RELEASED)
    for (_, other), rows in grouped(ranges.process, ranges.thread):
        yield "host_lock", (ranges.start[rows], ranges.end[rows]), Thread(process, other, RANGE)
    for other, spans in turns_of_others(functions, thread).items() if len(functions) else ():
        yield "host_lock", spans, Thread(process, other, GIL)


@dataclass(frozen=True)
class WaitedThread:
    """A thread that is waited for.

    Attributes:
        process, thread: `MISSING` if unknown.
        name: of the thread; "" if unknown.
        runs: the outermost Python function of the program on it; "" if none is recorded.
        how: that is known, a text of `HOW`.
        idle_us: per step.
    """

    process: int
    thread: int
    name: str
    runs: str
    how: str
    idle_us: float


def waited_threads(trace: Trace, waited: Waited, periods: int) -> list[WaitedThread]:
    """The threads that are waited for, the longest first.

    Args:
        waited: the idle time, by thread.
        periods: the number of steps.
    """
    if not waited:
        return []
    names = {
        (process, thread): str(name)
        for process, thread, name in trace["threads"][["process", "thread", "name"]].itertuples(index=False)
    }
    threads = [
        WaitedThread(
            one.process, one.thread, names.get((one.process, one.thread), ""), _runs(trace, one), HOW[one.how],
            float(ns.sum()) / max(periods, 1) / 1e3,
        )
        for one, ns in waited.items()
    ]  # fmt: skip
    return sorted(threads, key=lambda each: -each.idle_us)


def named(row: Mapping[str, Any]) -> str:
    """A `WaitedThread`, by its fields, in words."""
    if row["thread"] == MISSING:
        return "unknown"
    known = ", ".join(text for text in (row["name"], row["runs"]) if text)
    number = "" if str(row["thread"]) in row["name"] else f"thread {row['thread']}"
    return " ".join(text for text in (number, f"({known})" if number and known else known) if text)


def _runs(trace: Trace, one: Thread) -> str:
    """The outermost function of the program that a thread is in."""
    functions = functions_of(trace, one.process)
    here = functions[functions.thread == one.thread]
    texts = dict.fromkeys(here.text[np.argsort(here.start, kind="stable")])
    return next((text for text in texts if PYTHON_FILE.search(text) and not BELOW_PROGRAM.search(text)), "")
