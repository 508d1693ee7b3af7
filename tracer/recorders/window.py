"""The part of a run that is recorded: while processes run, by a switch, or cut from the recording afterwards.

Recording is switched on and off from outside or by the program. After the window, graphs keep writing stamps, which
would eventually overwrite those of the window. So the rings are copied when the window closes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import plain
from tracer.model.trace import Pause, Trace, add_pauses
from tracer.recorders.light_ring import copy_small, facts_of, repeating, switch_recording

PAUSED: Final = "INTERTOKEN_LIGHT_PAUSED"
"""The environment variable that makes a process start paused; its value specifies who opens the window."""

_KEPT: Final = "kept"
_EVERY_S: Final = 0.05


@dataclass(frozen=True)
class Window:
    """The part of a run to record: from `after` seconds on, for `seconds` (None: to the end), or between the program's
    own calls of cuProfilerStart and cuProfilerStop."""

    after: float = 0.0
    seconds: float | None = None
    is_programs: bool = False

    @property
    def is_all(self) -> bool:
        """Whether the whole run is recorded."""
        return not self.after and self.seconds is None and not self.is_programs

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the processes of the run."""
        return {} if self.is_all else {PAUSED: "program" if self.is_programs else "recorder"}

    def holds(self, since: float) -> bool:
        """Whether the window is open `since` seconds after the start."""
        return since >= self.after and (self.seconds is None or since < self.after + self.seconds)


WHOLE: Final = Window()


@contextmanager
def switched(rings: Path, window: Window) -> Iterator[None]:
    """Let every process record while the window is open, including processes that start later: they start paused, by
    the variable `PAUSED`."""
    if window.is_all:
        yield
        return
    begun = time.monotonic()
    seen: dict[Path, int] = {}

    def switch() -> None:
        on = window.holds(time.monotonic() - begun)
        for path in rings.glob("*.ring"):
            with suppress(OSError, ValueError):  # it is being created, or its process is another user's
                if not window.is_programs:
                    switch_recording(path, on=on)
                _copy_when_closed(path, seen)

    with repeating(switch, _EVERY_S):
        yield


def newest(path: Path) -> Path:
    """The copy of a ring from the end of its window, if nothing was recorded since; otherwise the ring itself."""
    kept = path.parent / _KEPT / path.name
    with suppress(OSError):
        if facts_of(kept).turns == facts_of(path).turns:
            return kept
    return path


def _copy_when_closed(path: Path, seen: dict[Path, int]) -> None:
    """Copy a ring once its window has been closed for at least one check; by then most launched work has ended. `seen`
    has the turns of each ring at the last check, negative once it was copied or could not be."""
    turns = facts_of(path).turns
    before = seen.get(path)
    if before == -turns:
        return
    is_over = turns > 1 and turns % 2 == 1 and before == turns
    seen[path] = -turns if is_over else turns
    if not is_over:
        return
    kept = path.parent / _KEPT / path.name
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    new = kept.with_suffix(".new")
    try:
        copy_small(path, new)
        new.rename(kept)
    finally:
        new.unlink(missing_ok=True)


class TimeRange(NamedTuple):
    """A half-open time span [since, until), ns since the recording's origin; only of `process` if it is given."""

    since: int
    until: int
    process: int | None = None


_KEY: Final = ["process", "correlation"]
_START, _STOP = ("cudaProfilerStart", "cuProfilerStart"), ("cudaProfilerStop", "cuProfilerStop")


def within(trace: Trace, spans: Sequence[TimeRange]) -> Trace:
    """The host calls and ranges that start in any of these spans, and the device activities of these calls. The
    metadata say when nothing was recorded in between (`pauses_ns`)."""
    add_pauses(trace, pauses_between(spans))
    calls = pd.MultiIndex.from_frame(_between(trace["api"], spans)[_KEY])
    for name, table in trace.tables.items():
        if set(_KEY) <= set(table):
            trace.tables[name] = table[pd.MultiIndex.from_frame(table[_KEY]).isin(calls)].reset_index(drop=True)
        elif "start" in table:
            trace.tables[name] = _between(table, spans)
    return trace


def profiler_spans(trace: Trace) -> list[TimeRange]:
    """The times between each process's own calls of cudaProfilerStart and cudaProfilerStop."""
    api = trace["api"]
    names = np.array([plain(str(name)) for name in api["name"].cat.categories] or [""])[api["name"].cat.codes]
    calls = api.assign(opens=np.isin(names, _START))[np.isin(names, _START + _STOP)]
    spans = []
    for process, mine in calls.groupby("process"):
        opened: int | None = None
        for opens, start, end in mine[["opens", "start", "end"]].itertuples(index=False):  # a few rows
            if opens and opened is None:
                opened = start
            elif not opens and opened is not None:
                spans.append(TimeRange(opened, end, int(str(process))))
                opened = None
        if opened is not None:
            spans.append(TimeRange(opened, trace.span[1] + 1, int(str(process))))
    return spans


def pauses_between(spans: Sequence[TimeRange]) -> list[Pause]:
    """The times between the spans of each process, in order."""
    pauses = []
    for process in dict.fromkeys(span.process for span in spans):
        edges = np.array(sorted(span[:2] for span in spans if span.process == process), np.int64)
        ended, begun = np.maximum.accumulate(edges[:, 1])[:-1], edges[1:, 0]
        between = np.column_stack([ended, begun])[ended < begun].tolist()
        pauses += [Pause(since, until, process) for since, until in between]
    return pauses


def _between(table: pd.DataFrame, spans: Sequence[TimeRange]) -> pd.DataFrame:
    """The rows that start in any of these spans."""
    start = table["start"].to_numpy()
    kept: NDArray[np.bool_] = np.zeros(len(start), bool)
    for since, until, process in spans:
        kept |= (start >= since) & (start < until) & (process is None or table["process"].to_numpy() == process)
    return table[kept].reset_index(drop=True)
