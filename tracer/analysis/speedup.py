"""By how much a run is faster than a base, with its 95 % interval and what that is made from.

Rates are of tokens where it is known of both how many a step gains, else of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log

import numpy as np

from tracer.analysis.compare_run import Basis, Run
from tracer.analysis.estimates import FEWEST, Floats, medians, welch
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import Unit
from tracer.errors import UsageError

BASE, OTHER = 0, 1  # seeds, so that runs which are not paired are resampled independently


@dataclass(frozen=True)
class Speedup:
    """The rate of the other run over the base's.

    Attributes:
        ratio: with its interval.
        rate: of what it is.
        method: how the interval was made.
        unit: "steps", "repeats" or "recordings", what it is made from.
        units: how many of these the smaller side has, None where that says nothing.
    """

    ratio: Interval
    rate: Unit
    method: str
    unit: str
    units: int | None


def speedup_of(base: Run, other: Run, basis: Basis, paired: bool) -> Speedup:
    """The speed-up on that basis.

    Traced steps tell only how fast the untraced ones can be at most; so the interval is of all that is left when
    tracing added nothing to one of the runs and to the other as much as it can (`Recording.least_share`).

    Raises:
        UsageError: the basis is "untraced" and a rate is unknown.
    """
    if basis == "untraced":
        return _untraced(base, other)
    found = _recorded(base, other, paired)
    if basis == "light":
        return found
    least, most = base.least_share, other.least_share
    bounds = found.ratio.bounds
    ratio = Interval(found.ratio.estimate)
    if bounds is not None and least > 0 and most > 0:
        ratio = Interval(found.ratio.estimate, bounds[0] * least, bounds[1] / most)
    return Speedup(ratio, found.rate, f"{found.method}, and whatever tracing added", found.unit, None)


def clusters(base: Run, other: Run) -> bool:
    """Whether both sides are several recordings, so that what differs between processes counts."""
    return len(base.recordings) > 1 and len(other.recordings) > 1


def complete(base: Run, other: Run, column: str) -> Floats:
    """(n, 2): a column of both runs in the steps that have it in both."""
    both = np.stack([run.steps[column].to_numpy(dtype=np.float64) for run in (base, other)], axis=1)
    return np.asarray(both[~np.isnan(both).any(axis=1)])


def columns(run: Run, names: list[str]) -> Floats:
    """(n, m): columns of `Recording.steps`, of the steps that have all of them."""
    return run.steps[names].dropna().to_numpy(dtype=np.float64)


def _recorded(base: Run, other: Run, paired: bool) -> Speedup:
    gained = [run.tokens_per_step for run in (base, other)]
    rate: Unit = "steps/s" if None in gained else "tokens/s"
    mine, theirs = (1.0 if one is None or rate == "steps/s" else one for one in gained)
    if clusters(base, other):
        rates = [np.log([r.steps_per_s for r in run.recordings]) for run in (base, other)]
        ratio = welch(rates[0] + log(mine), rates[1] + log(theirs), of_medians=True).exp()
        return Speedup(ratio, rate, "Welch's t over the recordings", "recordings", min(map(len, rates)))
    periods = [columns(run, ["period"]) for run in (base, other)]
    if paired:
        draws = medians(np.log(complete(base, other, "period")) @ np.array([[1.0], [-1.0]]))
        method = "block bootstrap over paired steps"
    else:
        draws = medians(periods[0], BASE).log().minus(medians(periods[1], OTHER).log())
        method = "block bootstrap over each run's steps"
    fewest = min(map(len, periods))
    method = method if fewest >= FEWEST else f"only {fewest} periods"
    return Speedup(draws.intervals()[0].exp().times(theirs / mine), rate, method, "steps", fewest)


def _untraced(base: Run, other: Run) -> Speedup:
    mine, theirs = base.untraced, other.untraced
    if mine is None or theirs is None:
        raise UsageError("an untraced rate is not known of every run; give --untraced-tokens-per-s for each")
    if len(mine.repeats) > 1 and len(theirs.repeats) > 1:
        ratio = welch(np.log(mine.repeats), np.log(theirs.repeats), of_medians=True)
        fewest = min(len(mine.repeats), len(theirs.repeats))
        return Speedup(ratio.exp(), mine.unit, "Welch's t over the untraced repeats", "repeats", fewest)
    ratio = Interval(log(theirs.median / mine.median))
    if mine.error is None or theirs.error is None:
        return Speedup(ratio.exp(), mine.unit, "one untraced rate each, without repeats", "repeats", None)
    within = Interval(ratio.estimate, ratio.estimate, ratio.estimate).widened(hypot(mine.error, theirs.error))
    return Speedup(within.exp(), mine.unit, "the spread of the untraced rates, as if of five repeats", "repeats", None)
