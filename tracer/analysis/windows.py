"""Windows: periods in which a device runs no compute. Each nanosecond of a window has one cause, and one part of it.

An inter-token gap, a bubble inside a step, or any piece of a step's idle time. A part is what a set of intervals covers
of the window that no earlier set covered, so parts add up exactly to their cause, and causes to the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.causes import PART_COLUMNS, PARTS, Near, Spans, on_device, on_host, on_other_threads
from tracer.analysis.waited_for import Thread
from tracer.model.calls import GRAPH_LAUNCH, letters_of
from tracer.model.intervals import covered, touching, union
from tracer.model.rows import by_thread, grouped, match_rows
from tracer.model.schema import MOST_NS
from tracer.model.trace import Trace


def split_windows(trace: Trace, near: Near, windows: pd.DataFrame) -> pd.DataFrame:
    """The causes of windows and their parts.

    Args:
        trace: the recording.
        near: what may explain windows between the compute of its steps.
        windows: as in `parts_of`.

    Returns:
        A row per window, all in ns: the columns of `CAUSES` and `PART_COLUMNS`, and two counts: calls, the number of
        CUDA calls of the thread that begin in it, and graph_launch, 1 if a graph launch produced the compute that
        follows it.
    """
    call = match_rows(trace["api"], windows)
    found, none = parts_of(trace, near, windows), np.zeros(len(windows), np.int64)
    parts = {part: found.get(part, none) for part in PART_COLUMNS}
    causes = {cause: sum(parts[part] for part in inner) for cause, inner in PARTS.items()}
    launch = np.append(letters_of(trace["api"]["name"]), "")[call]
    return pd.DataFrame(
        causes | parts | {"calls": _begun(trace, _with_thread(trace, call, windows))}
        | {"graph_launch": (launch == GRAPH_LAUNCH).astype(np.int64)}
    )  # fmt: skip


def parts_of(
    trace: Trace, near: Near, windows: pd.DataFrame, waited: dict[Thread, NDArray[np.int64]] | None = None
) -> dict[str, NDArray[np.int64]]:
    """What the device waits for in each window.

    Args:
        trace: the recording.
        near: what may explain windows between the compute of its steps.
        windows: one row per window, index 0, 1, ...; windows of one thread and device do not overlap: start end (ns)
            device, correlation and process of the compute that follows, step_process and step_thread of the step that
            launched it.
        waited: receives how long the host waits for which thread, ns of each window.

    Returns:
        Column of `PART_COLUMNS` -> ns of each window; parts that are 0 in all windows are missing.
    """
    parts: dict[str, NDArray[np.int64]] = {}
    windows = _with_thread(trace, match_rows(trace["api"], windows), windows)
    queued = _queued(trace, windows)
    keys = ["device", "process", "thread", "step_process", "step_thread"]
    for _, rows in grouped(windows, keys):
        of_thread, waits = windows.iloc[rows], ~queued[rows]
        cover = _Cover(parts, len(windows), rows, of_thread)
        for part, spans in on_device(trace, near, of_thread):
            cover.by(part, spans)
        cover.rest("launch_queued", ~waits)
        if waits.any():
            for part, spans in on_host(trace, near, of_thread[waits]):
                cover.by(part, spans)
            for part, spans, other in on_other_threads(trace, near, of_thread[waits]):
                ns = cover.by(part, spans)
                if waited is not None and ns.any():
                    waited[other] = waited.get(other, 0) + ns
            cover.rest("host_code", np.ones(int(waits.sum()), dtype=bool))
    return parts


class _Cover:
    """The explained part of some windows; each nanosecond belongs to the first set of intervals that covers it.

    Args:
        parts: the output, see `parts_of`.
        length: of its arrays.
        rows: the windows' positions in them.
        windows: the windows.
    """

    def __init__(
        self, parts: dict[str, NDArray[np.int64]], length: int, rows: NDArray[np.int64], windows: pd.DataFrame
    ) -> None:
        self._parts, self._length, self._rows = parts, length, rows
        self._start, self._end = windows["start"].to_numpy(), windows["end"].to_numpy()
        self._done = (self._start[:0], self._end[:0])
        self._explained = np.zeros(len(rows), np.int64)

    def by(self, part: str, spans: Spans) -> NDArray[np.int64]:
        """Assign to this part the time in the windows that these intervals cover and no earlier part covers; returns
        that time, ns of each of all windows."""
        spans = union(*spans)
        met = np.flatnonzero(touching(self._start, self._end, spans))
        if not len(met):
            return np.zeros(self._length, np.int64)
        self._done = union(*(np.concatenate(both) for both in zip(self._done, spans, strict=True)))
        now = covered(*self._done, self._start[met], self._end[met])
        added = np.zeros(self._length, np.int64)
        added[self._rows[met]] = now - self._explained[met]
        self._add(part, met, now - self._explained[met])
        self._explained[met] = now
        return added

    def rest(self, part: str, chosen: NDArray[np.bool_]) -> None:
        """Assign the rest of the chosen windows to this part; nothing remains of them."""
        self._add(part, chosen, (self._end - self._start - self._explained)[chosen])
        self._rows, self._start, self._end, self._explained = (
            values[~chosen] for values in (self._rows, self._start, self._end, self._explained)
        )

    def _add(self, part: str, met: NDArray[Any], ns: NDArray[np.int64]) -> None:
        if ns.any():
            self._parts.setdefault(part, np.zeros(self._length, np.int64))[self._rows[met]] += ns


def _with_thread(trace: Trace, call: NDArray[np.int64], windows: pd.DataFrame) -> pd.DataFrame:
    """The windows with `call`, its process and its thread; those of the step if the trace lacks the call."""
    found, changed = call >= 0, {"call": call}
    for column in ("process", "thread"):
        values = windows[f"step_{column}"].to_numpy().copy()
        values[found] = trace["api"][column].to_numpy()[call[found]]
        changed[column] = values
    return windows.assign(**changed)


def _queued(trace: Trace, windows: pd.DataFrame) -> NDArray[np.bool_]:
    """Windows in which the launch of the following compute had already returned: the device takes that time."""
    call = windows["call"].to_numpy()
    returned = np.append(trace["api"]["end"].to_numpy(), MOST_NS)[call]
    return np.asarray(returned <= windows["start"].to_numpy())


def _begun(trace: Trace, windows: pd.DataFrame) -> NDArray[np.int64]:
    """The number of calls of its thread that begin in each window."""
    found, api = np.zeros(len(windows), np.int64), trace["api"]
    starts = {(process, thread): np.sort(api["start"].to_numpy()[rows]) for process, thread, rows in by_thread(api)}
    for process, thread, rows in by_thread(windows):
        of_thread = starts.get((process, thread), np.zeros(0, np.int64))
        first, last = (np.searchsorted(of_thread, windows[side].to_numpy()[rows]) for side in ("start", "end"))
        found[rows] = last - first
    return found
