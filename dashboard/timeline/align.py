"""Alignment: the moment of a run that is time 0, and the default range of the time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import pandas as pd

from dashboard.view import span
from tracer.model.intervals import Ints


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a run on the device that computes most, by their order there; times in ns.

    Attributes:
        step: the steps' numbers.
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


def default_range(runs: Sequence[Tokens], align: str) -> tuple[int, int]:
    """One token and a margin around its gap, ns from time 0."""
    period = max((run.period for run in runs), default=1_000_000)
    return span(-0.2 * period, 1.15 * period) if align == "end" else span(-0.15 * period, 1.2 * period)


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
