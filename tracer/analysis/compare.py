"""Did it change: runs against a base, with 95 % intervals.

Which values an interval is made from, the first that there is:

1. Several recordings on both sides: each is one value, so that what differs between processes counts (clusters).
2. For tokens/s, the untraced repeats of run.json or of the engine's own benchmark.
3. The token steps of the recordings, resampled in blocks. Runs with the same steps are paired, step by step, because
   both read a cache of the same length then; its growth cancels instead of widening the interval.

Figures are medians where they are a run's headline (tokens/s, gap p50) and means where they must add up (causes,
kernels). `tracer.analysis.estimates` makes the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot, log
from typing import Final, Literal

import numpy as np
import pandas as pd

from tracer.analysis.causes import CAUSES
from tracer.analysis.comparable import cautions, obstacles
from tracer.analysis.compare_kernels import compare_kernels
from tracer.analysis.estimates import FEWEST, Floats, means, medians, needed, welch
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import Recording, Untraced, counts_per_token
from tracer.errors import IncomparableError, UsageError

Basis = Literal["untraced", "light", "traced"]
"""Where tokens/s come from: measured without a profiler, the recorded steps of a light pass, or traced steps."""

_BASE, _OTHER = 0, 1  # seeds, so that runs which are not paired are resampled independently
_TOTAL_DIFFERS: Final = 0.01
_ONE_EACH: Final = (
    "of one recording on a side, intervals are over its steps: what differs from process to process (clocks, memory "
    "layout) is not in them; several recordings of each run, joined by commas, show that"
)


@dataclass(frozen=True, eq=False)
class Run:
    """One side of a comparison: a recording, or several of the same configuration."""

    name: str
    recordings: tuple[Recording, ...]

    @classmethod
    def of(cls, *recordings: Recording) -> Run:
        """A run under the name of its first recording."""
        return cls(recordings[0].name, recordings)

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
    def untraced(self) -> Untraced | None:
        """The rate without a profiler; of several recordings each one's is a repeat. None if one lacks it."""
        known = [r.untraced for r in self.recordings if r.untraced is not None]
        if len(known) < len(self.recordings) or len(known) == 1:
            return known[0] if len(self.recordings) == 1 and known else None
        rates = [rate.median for rate in known]
        return Untraced(float(np.median(rates)), tuple(rates), given=all(rate.given for rate in known))

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


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run against the base. Differences are the other's figure minus the base's.

    Attributes:
        base, other: the runs.
        basis: what `speedup` is made from; `method` says how its interval was made; `paired` step by step.
        speedup: tokens/s of the other over the base's; above 1 the other is faster.
        total_speedup: the same of all recorded steps' time together, where a few slow steps count in full.
        gap_us: difference of the median gaps, µs; `mean_gap_us` of the means.
        causes_us: cause's name -> difference of the means, µs; they add up to `mean_gap_us`.
        busy_us: difference of the mean time that the device computes for a step, µs.
        counts: "syncs", "copies", "launches" -> difference per token.
        kernels: see `compare_kernels`.
        verdict: "faster", "slower", "no difference shown" (the interval holds 1) or "no interval".
        needed: how many of `unit` would show a speed-up of this size (`estimates.needed`), where none is shown.
        unit: "steps", "repeats" or "recordings", what the interval of `speedup` is made from.
        cautions: what a reader must know.
    """

    base: Run
    other: Run
    basis: Basis
    method: str
    paired: bool
    speedup: Interval
    total_speedup: float
    gap_us: Interval
    mean_gap_us: Interval
    causes_us: dict[str, Interval]
    busy_us: Interval
    counts: dict[str, float]
    kernels: pd.DataFrame
    verdict: str
    needed: int | None
    unit: str
    cautions: list[str]


def compare(base: Run, other: Run, *, basis: Basis | None = None, force: bool = False) -> Comparison:
    """Compare a run with a base.

    Args:
        base: the run that speed-ups and differences refer to.
        other: the run in question.
        basis: where tokens/s come from; by default the best that both have (`best_basis`).
        force: compare also what is not comparable; the obstacles become cautions.

    Raises:
        IncomparableError: another GPU, model or batch, or no kernel in common.
    """
    pairs = [(b, o) for b in base.recordings for o in other.recordings]
    against = list(dict.fromkeys(text for pair in pairs for text in obstacles(*pair)))
    if against and not force:
        raise IncomparableError(f"{base.name} and {other.name} are not comparable: {'; '.join(against)}")
    notes = [f"not comparable, compared by force: {text}" for text in against]
    notes += dict.fromkeys(text for pair in pairs for text in cautions(*pair))
    notes += _warnings([*base.recordings, *other.recordings])
    basis = best_basis([base, other]) if basis is None else basis
    if basis != "untraced" and not _clusters(base, other):
        notes.append(_ONE_EACH)
    paired = _paired(base, other)
    speedup, method, unit, units = _speedup(base, other, basis, paired)
    total = _time_per_token(base) / _time_per_token(other)
    if basis != "untraced" and abs(total - speedup.estimate) > _TOTAL_DIFFERS * speedup.estimate:
        notes.append(f"by total time instead of the median step it is {total:.3f}: some steps are much slower")
    mean_columns = ["gap", *CAUSES, "busy"]
    mean = dict(zip(mean_columns, _mean_differences(base, other, mean_columns, paired), strict=True))
    verdict = _verdict(speedup)
    counts = {kind: other.counts[kind] - value for kind, value in base.counts.items() if kind in other.counts}
    return Comparison(
        base=base,
        other=other,
        basis=basis,
        method=method,
        paired=paired,
        speedup=speedup,
        total_speedup=total,
        gap_us=_gap_difference(base, other, paired),
        mean_gap_us=mean["gap"].widened(_gap_error(base, other)),
        causes_us={CAUSES[column]: mean[column].widened(_gap_error(base, other, column)) for column in CAUSES},
        busy_us=mean["busy"],
        counts=counts,
        kernels=compare_kernels(base.recordings, other.recordings, paired),
        verdict=verdict,
        needed=needed(units, _logarithm(speedup)) if verdict == "no difference shown" and units else None,
        unit=unit,
        cautions=notes,
    )


def _warnings(recordings: Sequence[Recording]) -> list[str]:
    """What is to be known of the recordings, their steps and their gaps, each warning once."""
    said: dict[str, list[str]] = {}
    for recording in recordings:
        for warning in filter(None, (*recording.notes, recording.gaps.warning)):
            said.setdefault(warning, []).append(recording.name)
    return [f"{', '.join(dict.fromkeys(names))}: {warning}" for warning, names in said.items()]


def best_basis(runs: Sequence[Run]) -> Basis:
    """Untraced rates if every run has them with repeats or a spread, or by the user's word; else the recorded steps."""
    rates = [run.untraced for run in runs]
    if all(rate is not None and (rate.error is not None or rate.given) for rate in rates):
        return "untraced"
    return "traced" if any(r.traced for run in runs for r in run.recordings) else "light"


def _paired(base: Run, other: Run) -> bool:
    """Whether both are one recording of the same steps, of which the same are followed by another."""
    if not len(base.recordings) == len(other.recordings) == 1:
        return False
    mine, theirs = (run.steps[["period", "gap"]].notna() for run in (base, other))
    return mine.equals(theirs)


def _clusters(base: Run, other: Run) -> bool:
    return len(base.recordings) > 1 and len(other.recordings) > 1


def _speedup(base: Run, other: Run, basis: Basis, paired: bool) -> tuple[Interval, str, str, int | None]:
    """Speed-up, how its interval was made, of what units, and how many of them there are on the smaller side."""
    if basis == "untraced":
        return _untraced_speedup(base, other)
    if _clusters(base, other):
        rates = [np.log([r.tokens_per_s for r in run.recordings]) for run in (base, other)]
        return welch(*rates, of_medians=True).exp(), "Welch's t over the recordings", "recordings", min(map(len, rates))
    periods = [_columns(run, ["period"]) for run in (base, other)]
    if paired:
        draws = medians(np.log(_complete(base, other, "period")) @ np.array([[1.0], [-1.0]]))
        method = "block bootstrap over paired steps"
    else:
        draws = medians(periods[0], _BASE).log().minus(medians(periods[1], _OTHER).log())
        method = "block bootstrap over each run's steps"
    fewest = min(map(len, periods))
    method = method if fewest >= FEWEST else f"only {fewest} periods"
    return draws.intervals()[0].exp(), method, "steps", fewest


def _untraced_speedup(base: Run, other: Run) -> tuple[Interval, str, str, int | None]:
    mine, theirs = base.untraced, other.untraced
    if mine is None or theirs is None:
        raise UsageError("an untraced rate is not known of every run; give --untraced-tokens-per-s for each")
    if len(mine.repeats) > 1 and len(theirs.repeats) > 1:
        ratio = welch(np.log(mine.repeats), np.log(theirs.repeats), of_medians=True)
        return (
            ratio.exp(),
            "Welch's t over the untraced repeats",
            "repeats",
            min(len(mine.repeats), len(theirs.repeats)),
        )
    ratio = Interval(log(theirs.median / mine.median))
    if mine.error is None or theirs.error is None:
        return ratio.exp(), "one untraced rate each, without repeats", "repeats", None
    within = Interval(ratio.estimate, ratio.estimate, ratio.estimate).widened(hypot(mine.error, theirs.error))
    return within.exp(), "the spread of the untraced rates, as if of five repeats", "repeats", None


def _gap_difference(base: Run, other: Run, paired: bool) -> Interval:
    """Difference of the median gaps."""
    if _clusters(base, other):
        gaps = [np.array([r.gaps.gap_us["p50"] for r in run.recordings]) for run in (base, other)]
        return welch(*gaps, of_medians=True)
    if paired:
        both = medians(_complete(base, other, "gap"))
        draws = both.of(slice(1, 2)).minus(both.of(slice(0, 1)), paired=True)
    else:
        draws = medians(_columns(other, ["gap"]), _OTHER).minus(medians(_columns(base, ["gap"]), _BASE))
    return draws.intervals()[0].widened(_gap_error(base, other))


def _mean_differences(base: Run, other: Run, columns: list[str], paired: bool) -> list[Interval]:
    """Difference of the means of columns of `Recording.steps`."""
    if _clusters(base, other):
        mine, theirs = (np.array([r.steps[columns].mean() for r in run.recordings]) for run in (base, other))
        return [welch(a, b) for a, b in zip(mine.T, theirs.T, strict=True)]
    if paired:
        difference = (other.steps[columns] - base.steps[columns]).dropna()
        return means(difference.to_numpy(dtype=np.float64)).intervals()
    draws = means(_columns(other, columns), _OTHER).minus(means(_columns(base, columns), _BASE))
    return draws.intervals()


def _gap_error(base: Run, other: Run, cause: str = "gap") -> float:
    """What the untraced rates leave uncertain in a difference of gaps, µs, or of the part that a cause has in them."""
    parts = []
    for run in (base, other):
        mean = run.steps[["gap", cause]].mean().to_numpy()
        share = mean[-1] / mean[0] if mean[0] > 0 else 0.0
        parts.append(share * float(np.mean([r.gap_error for r in run.recordings])))
    return 0.0 if _clusters(base, other) else hypot(*parts)


def _complete(base: Run, other: Run, column: str) -> Floats:
    """(n, 2): a column of both runs in the steps that have it in both."""
    both = pd.concat([base.steps[column], other.steps[column]], axis=1).dropna()
    return both.to_numpy(dtype=np.float64)


def _columns(run: Run, columns: list[str]) -> Floats:
    return run.steps[columns].dropna().to_numpy(dtype=np.float64)


def _time_per_token(run: Run) -> float:
    return float(run.steps["period"].mean())


def _logarithm(ratio: Interval) -> Interval:
    low, high = (None if x is None else log(x) for x in (ratio.low, ratio.high))
    return Interval(log(ratio.estimate), low, high)


def _verdict(speedup: Interval) -> str:
    if speedup.low is None or speedup.high is None:
        return "no interval"
    return "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "no difference shown"
