"""One side of a comparison, and the source of its tokens/s."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from tracer.analysis.recorded import Measured, Unit, Untraced, counts_per_token
from tracer.errors import UsageError

Basis = Literal["untraced", "light", "traced"]
"""The source of tokens/s: measured without a profiler, the recorded steps of a light pass, or traced steps."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a recording, or several of the same configuration.

    `place` is the command-line argument that named it, if any.
    """

    name: str
    recordings: tuple[Measured, ...]
    place: str = ""

    @classmethod
    def of(cls, *recordings: Measured, place: str = "") -> Side:
        """A side named after its first recording."""
        return cls(recordings[0].name, recordings, place)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """`Measured.steps` of all recordings, concatenated."""
        return pd.concat([r.steps for r in self.recordings])

    @property
    def counts(self) -> dict[str, float]:
        """Syncs, copies and launches per token: medians over the steps."""
        return counts_per_token(self.steps)

    @property
    def gap_us(self) -> dict[str, float]:
        """p50, mean and, unless corrected by a rate, p90; the median over several recordings."""
        gaps = pd.DataFrame([r.gaps.gap_us for r in self.recordings]).dropna(axis=1).median()
        return {str(name): float(value) for name, value in gaps.items()}

    @property
    def causes_us(self) -> dict[str, float]:
        """Name of each cause -> mean over the recordings; within one recording they add up to the mean gap."""
        causes = pd.DataFrame([r.gaps.causes_us for r in self.recordings]).mean()
        return {str(name): float(value) for name, value in causes.items()}

    @property
    def traced(self) -> bool:
        """Whether any of the recordings was made under a profiler."""
        return any(recording.traced for recording in self.recordings)

    @property
    def inflated(self) -> bool:
        """Whether any of the gaps are longer than they would be without a profiler."""
        return any(recording.inflated for recording in self.recordings)

    @property
    def least_share(self) -> float:
        """The minimum share of a step's recorded period that would remain without a profiler."""
        return min(recording.least_share for recording in self.recordings)

    @property
    def untraced(self) -> Untraced | None:
        """The rate without a profiler; with several recordings, the rate of each is a repeat. None if one lacks it, or
        if some count tokens and some steps."""
        known = [r.untraced for r in self.recordings if r.untraced is not None]
        if len(known) < len(self.recordings) or len(known) == 1:
            return known[0] if len(self.recordings) == 1 and known else None
        rates = [rate.median for rate in known]
        units = {rate.unit for rate in known}
        if len(units) > 1:
            return None
        return Untraced(units.pop(), float(np.median(rates)), tuple(rates), given=all(rate.given for rate in known))

    @property
    def basis(self) -> Basis:
        """The best available basis."""
        return best_basis(self)

    @property
    def tokens_per_step(self) -> float | None:
        """The median over several recordings; None if one of them lacks it."""
        known = [r.tokens_per_step for r in self.recordings if r.tokens_per_step is not None]
        return float(np.median(known)) if len(known) == len(self.recordings) else None

    def rates(self, basis: Basis) -> dict[Unit, float]:
        """The rate on that basis, of tokens and of steps as far as known; the median over several recordings.

        Raises:
            UsageError: the untraced rate is unknown.
        """
        gained = self.tokens_per_step
        if basis != "untraced":
            steps = float(np.median([r.steps_per_s for r in self.recordings]))
            return _both("steps/s", steps, "tokens/s", steps * gained if gained else None)
        if self.untraced is None:
            raise UsageError(f"{self.name}: the untraced rate is unknown; give --untraced-tokens-per-s")
        rate = self.untraced.median
        if self.untraced.unit == "steps/s":
            return {"steps/s": rate}
        return _both("tokens/s", rate, "steps/s", rate / gained if gained else None)


def _both(unit: Unit, rate: float, other: Unit, converted: float | None) -> dict[Unit, float]:
    return {unit: rate} if converted is None else {unit: rate, other: converted}


def best_basis(*runs: Side) -> Basis:
    """Untraced rates if every run has them, all in tokens or all in steps; else the recorded steps. Those of light
    passes are preferred to a rate without repeats or spread."""
    rates = [run.untraced for run in runs]
    traced = any(run.traced for run in runs)
    units = {None if rate is None else rate.unit for rate in rates}
    if len(units) == 1 and all(rate and (traced or rate.error is not None or rate.given) for rate in rates):
        return "untraced"
    return "traced" if traced else "light"
