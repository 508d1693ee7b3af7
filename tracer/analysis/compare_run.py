"""One side of a comparison, and what its tokens/s come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from tracer.analysis.recorded import Recording, Untraced, counts_per_token
from tracer.errors import UsageError

Basis = Literal["untraced", "light", "traced"]
"""Where tokens/s come from: measured without a profiler, the recorded steps of a light pass, or traced steps."""


@dataclass(frozen=True, eq=False)
class Run:
    """One side of a comparison: a recording, or several of the same configuration.

    `place` is how a command line names it, where it came from one.
    """

    name: str
    recordings: tuple[Recording, ...]
    place: str = ""

    @classmethod
    def of(cls, *recordings: Recording, place: str = "") -> Run:
        """A run under the name of its first recording."""
        return cls(recordings[0].name, recordings, place)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """`Recording.steps` of all recordings, one behind the other."""
        return pd.concat([r.steps for r in self.recordings])

    @property
    def counts(self) -> dict[str, float]:
        """Syncs, copies and launches per token: medians over the steps."""
        return counts_per_token(self.steps)

    @property
    def gap_us(self) -> dict[str, float]:
        """p50, p90 and mean, of several recordings their median."""
        gaps = pd.DataFrame([r.gaps.gap_us for r in self.recordings]).median()
        return {str(name): float(value) for name, value in gaps.items()}

    @property
    def causes_us(self) -> dict[str, float]:
        """Cause's name -> mean over the recordings; they add up to the mean gap of one."""
        causes = pd.DataFrame([r.gaps.causes_us for r in self.recordings]).mean()
        return {str(name): float(value) for name, value in causes.items()}

    @property
    def traced(self) -> bool:
        """Whether a profiler was there at any of the recordings."""
        return any(recording.traced for recording in self.recordings)

    @property
    def inflated(self) -> bool:
        """Whether any of the gaps are longer than without a profiler."""
        return any(recording.inflated for recording in self.recordings)

    @property
    def least_share(self) -> float:
        """What of a step's recorded period is there without a profiler, too, whatever it added."""
        return min(recording.least_share for recording in self.recordings)

    @property
    def untraced(self) -> Untraced | None:
        """The rate without a profiler; of several recordings each one's is a repeat. None if one lacks it."""
        known = [r.untraced for r in self.recordings if r.untraced is not None]
        if len(known) < len(self.recordings) or len(known) == 1:
            return known[0] if len(self.recordings) == 1 and known else None
        rates = [rate.median for rate in known]
        return Untraced(float(np.median(rates)), tuple(rates), given=all(rate.given for rate in known))

    @property
    def basis(self) -> Basis:
        """The best that it has."""
        return best_basis(self)

    def tokens_per_s(self, basis: Basis) -> float:
        """The rate on that basis; of several recordings it is the median.

        Raises:
            UsageError: the untraced rate is unknown.
        """
        if basis != "untraced":
            return float(np.median([r.tokens_per_s for r in self.recordings]))
        if self.untraced is None:
            raise UsageError(f"{self.name}: no untraced rate is known; give --untraced-tokens-per-s")
        return self.untraced.median


def best_basis(*runs: Run) -> Basis:
    """Untraced rates if every run has them, else the recorded steps, of which those of light passes come before a rate
    without repeats or a spread."""
    rates = [run.untraced for run in runs]
    traced = any(run.traced for run in runs)
    if all(rate is not None and (traced or rate.error is not None or rate.given) for rate in rates):
        return "untraced"
    return "traced" if traced else "light"
