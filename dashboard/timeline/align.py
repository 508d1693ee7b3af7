"""The whole of a run: the moment that is time 0, and the default range of the time axis; and the run in the minimap:
how busy its busiest stream is in each bin, and the phases of the recording outside the steps that are shown (start-up,
graph captures, prompts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.timeline.pyramid import grid
from dashboard.timeline.rows import Row
from dashboard.view import span
from tracer.analysis.steps import Steps
from tracer.engines.engine import EAGER, PREFILL
from tracer.model.calls import BEGIN_CAPTURE, END_CAPTURE, letters_of
from tracer.model.intervals import Ints, covered
from tracer.model.trace import Trace


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a run on the device that computes most, by their order there; times in ns.

    Attributes:
        start, end: of each step's compute.
        gap: the gap after each step, MISSING (-1) after the last one.
        launch: start of the host call that launched each step's first compute; `start` if it is unknown.
    """

    step: Ints
    start: Ints
    end: Ints
    gap: Ints
    launch: Ints

    def __len__(self) -> int:
        return len(self.step)

    def anchor(self, token: int, align: str) -> int:
        """Time 0 when the run is aligned at its token number `token` (its last one if it has fewer)."""
        return int({"start": self.start, "launch": self.launch}.get(align, self.end)[self.clamp(token)])

    def clamp(self, token: int) -> int:
        """The position of token number `token` in this run; the last one if it has fewer."""
        return min(max(token, 0), len(self) - 1)

    @property
    def period(self) -> int:
        """Median time from token to token, or the first token's length if there is no second."""
        steps = np.diff(self.start)[self.gap[:-1] >= 0]
        return int(np.median(steps)) if len(steps) else int(self.end[0] - self.start[0])


def tokens_of(spans: pd.DataFrame, gaps: pd.DataFrame | None, api: pd.DataFrame) -> Tokens | None:
    """The tokens of a run from its step spans, gap table and host calls; None if it has no step."""
    if not len(spans):
        return None
    busy = (spans["end"] - spans["start"]).groupby(spans["device"]).sum()
    device = busy.idxmax()
    mine = spans[spans["device"] == device].sort_values("start", kind="stable")
    gap = pd.Series(-1, index=mine["step"].to_numpy(), dtype="int64")
    if gaps is not None:
        of_device = gaps[gaps["device"] == device]
        gap.loc[of_device["step"].to_numpy()] = of_device["gap"].to_numpy()
    step, start, end = (mine[c].to_numpy(dtype=np.int64) for c in ("step", "start", "end"))
    return Tokens(step, start, end, np.asarray(gap, dtype=np.int64), _launches(mine, api))


def _launches(spans: pd.DataFrame, api: pd.DataFrame) -> Ints:
    """Start of the call that launched the first compute of each span; the span's start if there is no such call."""
    by = ["process", "correlation"]
    known = api.loc[api["correlation"].isin(spans["correlation"]), [*by, "start"]].drop_duplicates(by)
    calls = spans[by].merge(known, on=by, how="left")["start"]
    start = spans["start"].to_numpy(dtype=np.int64)
    launch: Ints = np.minimum(np.where(calls.isna(), start, calls.fillna(0)).astype(np.int64), start)
    return launch


def typical_token(runs: Sequence[Tokens]) -> int:
    """The token whose gaps are nearest to the median gap of each run: the one shown first."""
    count = min((len(run) for run in runs), default=0)
    if count == 0:
        return 0
    distance = np.zeros(count)
    for run in runs:
        known = run.gap[run.gap >= 0]
        if len(known):
            middle = max(float(np.median(known)), 1.0)
            gap = run.gap[:count]
            distance += np.where(gap >= 0, np.abs(gap - middle) / middle, 1e6)
    return int(np.argmin(distance))


def default_range(runs: Sequence[Tokens], token: int, align: str) -> tuple[int, int]:
    """One token and a margin around its gap, ns from time 0; at the end of all runs the last such range of any."""
    period = max((run.period for run in runs), default=1_000_000)
    low, high = (-0.2 * period, 1.15 * period) if align == "end" else (-0.15 * period, 1.2 * period)
    last = max((int(run.end[-1]) - run.anchor(token, align) for run in runs if len(run)), default=high)
    beyond = max(high - last - 0.15 * period, 0)
    return span(low - beyond, high - beyond)


def gap_range(runs: Sequence[Tokens], token: int, align: str) -> tuple[int, int]:
    """The gaps after the token, with a margin."""
    starts, ends = [], []
    for run in runs:
        at = run.clamp(token)
        start = int(run.end[at]) - run.anchor(token, align)
        starts.append(start)
        ends.append(start + max(int(run.gap[at]), 0))
    low, high = min(starts, default=0), max(ends, default=1_000_000)
    margin = 0.12 * max(high - low, 1_000)
    return span(low - margin, high + margin)


def token_range(tokens: Tokens, at: int, anchor: int) -> tuple[int, int]:
    """A token by its order, to the start of the next one, with a margin; ns from time 0, which is `anchor`."""
    start = int(tokens.start[at])
    end = int(tokens.start[at + 1]) if at + 1 < len(tokens) and tokens.gap[at] >= 0 else int(tokens.end[at])
    margin = 0.08 * (end - start)
    return span(start - anchor - margin, end - anchor + margin)


def token_at(tokens: Tokens, percentile: float) -> int | None:
    """The token whose gap is at a percentile (0 to 100, nearest rank) of the run's gaps; None if it has none.

    Of tokens with equal gaps the first one is taken.
    """
    known = np.flatnonzero(tokens.gap >= 0)
    if not len(known):
        return None
    ordered = np.sort(tokens.gap[known])
    rank = max(ceil(min(max(percentile, 0.0), 100.0) / 100 * len(ordered)), 1)
    return int(known[np.argmax(tokens.gap[known] == ordered[rank - 1])])


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
    edges = np.arange(low, high + 1, width, dtype=np.int64)
    for row in rows:
        if row.role == "stream":
            drawn = row.pyramid.detail(low, high, len(most))
            busy = covered(row.start[drawn.exact], row.end[drawn.exact], edges[:-1], edges[1:]).astype(np.float64)
            busy[(drawn.start - low) >> shift] += drawn.busy
            most = np.maximum(most, busy)
    return Busy(low, width, np.minimum(most / width, 1.0))


def phases_of(trace: Trace, steps: Steps, whole: tuple[int, int], computed: int = 0) -> pd.DataFrame:
    """Name, start and end (ns) of all phases outside these steps, by start.

    Args:
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
    phases = pd.concat(parts, ignore_index=True) if parts else NO_PHASES
    return phases.astype({"start": np.int64, "end": np.int64}).sort_values("start", kind="stable", ignore_index=True)


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
