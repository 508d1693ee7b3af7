"""A run in the minimap: how busy its busiest stream is in each bin, and the phases of the recording outside the steps
that are shown: start-up, graph captures, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.timeline.pyramid import Pyramid, grid
from dashboard.timeline.rows import Row
from tracer.analysis.steps import Steps
from tracer.engines.engine import EAGER, PREFILL
from tracer.model.calls import BEGIN_CAPTURE, END_CAPTURE, letters_of
from tracer.model.intervals import Ints, covered
from tracer.model.trace import Trace

BINS: Final = 256
BEFORE: Final = "before the first step"
AFTER: Final = "after the last step"
CAPTURE: Final = "graph capture"
PHASE_NAMES: Final = {PREFILL: "prefill", EAGER: "eager pass: a prompt or warm-up"}
_COLUMNS: Final = ["what", "start", "end"]
NO_PHASES: Final = pd.DataFrame(
    {"what": pd.Series(dtype="str"), "start": pd.Series(dtype="int64"), "end": pd.Series(dtype="int64")}
)


@dataclass(frozen=True, eq=False)
class Busy:
    """Bins of one width from `low` on, ns of the recording, and the share of each that the busiest stream is busy."""

    low: int
    width: int
    share: NDArray[np.float64]

    @property
    def middles(self) -> Ints:
        """The bins' middles, ns."""
        return self.low + self.width // 2 + self.width * np.arange(len(self.share), dtype=np.int64)


def busy_of(rows: Sequence[Row], low: int, high: int) -> Busy:
    """How busy the streams among these rows are in [low, high], in at most `BINS` + 1 bins."""
    shift, low, high = grid(low, high, BINS)
    width, most = 1 << shift, np.zeros((high - low) >> shift)
    for row in rows:
        if row.role == "stream":
            most = np.maximum(most, _busy(row.pyramid, low, high, shift))
    return Busy(low, width, np.minimum(most / width, 1.0))


def _busy(pyramid: Pyramid, low: int, high: int, shift: int) -> NDArray[np.float64]:
    drawn = pyramid.detail(low, high, (high - low) >> shift)
    edges = np.arange(low, high + 1, 1 << shift, dtype=np.int64)
    busy = covered(pyramid.start[drawn.exact], pyramid.end[drawn.exact], edges[:-1], edges[1:]).astype(np.float64)
    busy[(drawn.start - low) >> shift] += drawn.busy
    return busy


def phases_of(trace: Trace, steps: Steps, whole: tuple[int, int], computed: int = 0) -> pd.DataFrame:
    """Name, start and end (ns) of all phases outside these steps, by start.

    Args:
        trace: the recording.
        steps: the visible steps, from `choose_steps`.
        whole: from the first event to the end of the last, ns.
        computed: the end of the last step's compute, which may be after the end of its host work; ns.
    """
    others = steps.others.frame()
    table = pd.concat([steps.table[["start", "end"]], others[["start", "end"]]])
    first, last = int(table["start"].min()), max(int(table["end"].max()), computed)
    edges = [(BEFORE, whole[0], first), (AFTER, last, whole[1])]
    named = others.assign(what=[PHASE_NAMES.get(phase, f"{phase} step") for phase in steps.others.phase])
    around = pd.DataFrame([edge for edge in edges if edge[2] > edge[1]], columns=_COLUMNS)
    parts = [part[_COLUMNS] for part in (around, named, captures(trace)) if len(part)]
    found = pd.concat(parts, ignore_index=True) if parts else NO_PHASES
    return found.astype({"start": np.int64, "end": np.int64}).sort_values("start", kind="stable", ignore_index=True)


def captures(trace: Trace) -> pd.DataFrame:
    """The periods in which a host records calls into a graph, from begin to end of each capture of its thread."""
    api = trace["api"]
    letters = letters_of(api["name"])
    calls = api.loc[np.isin(letters, [BEGIN_CAPTURE, END_CAPTURE]), ["start", "end", "process", "thread"]]
    calls = calls.assign(begins=letters[calls.index] == BEGIN_CAPTURE)
    calls = calls.sort_values(["process", "thread", "start"], kind="stable")
    after = calls.groupby(["process", "thread"], sort=False)[["end", "begins"]].shift(-1)
    whole = calls["begins"] & (after["begins"] == False)  # noqa: E712  # the last of a thread has none
    return pd.DataFrame({"what": CAPTURE, "start": calls.loc[whole, "start"], "end": after.loc[whole, "end"]})
