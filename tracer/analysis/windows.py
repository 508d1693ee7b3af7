"""Windows: times in which a device runs no compute, each nanosecond of which has one cause, and one part of it.

An inter-token gap, a bubble inside a step, any piece of a step's idle time. Each part is what one set of intervals
covers of the window and none before it did, so parts add up to their cause and causes to the window, exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import GRAPH_LAUNCH, by_thread, letters_of
from tracer.analysis.causes import PART_COLUMNS, PARTS, Near, Spans, on_device, on_host
from tracer.analysis.step_work import launch_rows
from tracer.analysis.tokens import Steps
from tracer.intervals import covered, touching, union
from tracer.schema import MOST_NS
from tracer.trace import Trace


def split_windows(trace: Trace, steps: Steps, compute: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """The causes of windows and the parts of them.

    Args:
        trace: the recording.
        steps: its token steps.
        compute: what they compute, as `step_compute` gives it.
        windows: as of `parts_of`.

    Returns:
        A row per window, all ns: the columns of `CAUSES`, of `PART_COLUMNS`, and two counts: calls, how many of the
        thread's CUDA calls begin in it, and graph_launch, 1 where the compute behind it comes from a graph launch.
    """
    call = launch_rows(trace, windows)
    found, none = parts_of(trace, steps, compute, windows), np.zeros(len(windows), np.int64)
    parts = {part: found.get(part, none) for part in PART_COLUMNS}
    causes = {cause: sum(parts[part] for part in inner) for cause, inner in PARTS.items()}
    launch = np.append(letters_of(trace["api"]["name"]), "")[call]
    return pd.DataFrame(
        causes | parts | {"calls": _begun(trace, _with_thread(trace, call, windows))}
        | {"graph_launch": (launch == GRAPH_LAUNCH).astype(np.int64)}
    )  # fmt: skip


def parts_of(trace: Trace, steps: Steps, compute: pd.DataFrame, windows: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    """What the device waits for in each window.

    Args:
        trace: the recording.
        steps: its token steps.
        compute: what they compute, as `step_compute` gives it.
        windows: one row per window, index 0, 1, ...; those of one thread and device do not overlap: start end (ns)
            device, correlation and process of the compute behind it, step_process and step_thread of the step that
            launched that.

    Returns:
        Column of `PART_COLUMNS` -> ns of each window; none of a part that is 0 in all of them.
    """
    parts: dict[str, NDArray[np.int64]] = {}
    windows = _with_thread(trace, launch_rows(trace, windows), windows)
    near = Near.of(trace, steps, compute, windows)
    queued = _queued(trace, windows)
    keys = ["device", "process", "thread", "step_process", "step_thread"]
    for positions in windows.groupby(keys, sort=False).indices.values():
        rows = np.asarray(positions)
        mine, waits = windows.iloc[rows], ~queued[rows]
        cover = _Cover(parts, len(windows), rows, mine)
        for part, spans in on_device(trace, near, mine):
            cover.by(part, spans)
        cover.rest("launch_queued", ~waits)
        if waits.any():
            for part, spans in on_host(trace, near, mine[waits]):
                cover.by(part, spans)
            cover.rest("host_code", np.ones(int(waits.sum()), dtype=bool))
    return parts


class _Cover:
    """How much of some windows is explained: whatever covers a nanosecond first has it.

    Args:
        parts: what is filled, see `parts_of`.
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

    def by(self, part: str, spans: Spans) -> None:
        """What these intervals cover of the windows and nothing did before is this part."""
        spans = union(*spans)
        met = np.flatnonzero(touching(self._start, self._end, spans))
        if not len(met):
            return
        self._done = union(*(np.concatenate(both) for both in zip(self._done, spans, strict=True)))
        now = covered(*self._done, self._start[met], self._end[met])
        self._add(part, met, now - self._explained[met])
        self._explained[met] = now

    def rest(self, part: str, chosen: NDArray[np.bool_]) -> None:
        """What is left of the chosen windows is this part; they are done with."""
        self._add(part, chosen, (self._end - self._start - self._explained)[chosen])
        self._rows, self._start, self._end, self._explained = (
            values[~chosen] for values in (self._rows, self._start, self._end, self._explained)
        )

    def _add(self, part: str, met: NDArray[Any], ns: NDArray[np.int64]) -> None:
        if ns.any():
            self._parts.setdefault(part, np.zeros(self._length, np.int64))[self._rows[met]] += ns


def _with_thread(trace: Trace, call: NDArray[np.int64], windows: pd.DataFrame) -> pd.DataFrame:
    """The windows with `call` and with process and thread of that call; the step's own where the trace lacks it."""
    found, changed = call >= 0, {"call": call}
    for column in ("process", "thread"):
        values = windows[f"step_{column}"].to_numpy().copy()
        values[found] = trace["api"][column].to_numpy()[call[found]]
        changed[column] = values
    return windows.assign(**changed)


def _queued(trace: Trace, windows: pd.DataFrame) -> NDArray[np.bool_]:
    """Before which windows the launch of the compute behind them had returned: the device takes that time."""
    call = windows["call"].to_numpy()
    returned = np.append(trace["api"]["end"].to_numpy(), MOST_NS)[call]
    return np.asarray(returned <= windows["start"].to_numpy())


def _begun(trace: Trace, windows: pd.DataFrame) -> NDArray[np.int64]:
    """How many calls of its thread begin in each window."""
    found, api = np.zeros(len(windows), np.int64), trace["api"]
    starts = {(process, thread): np.sort(api["start"].to_numpy()[rows]) for process, thread, rows in by_thread(api)}
    for process, thread, rows in by_thread(windows):
        mine = starts.get((process, thread), np.zeros(0, np.int64))
        first, last = (np.searchsorted(mine, windows[side].to_numpy()[rows]) for side in ("start", "end"))
        found[rows] = last - first
    return found
