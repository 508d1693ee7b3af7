"""How much faster a run is than a base, with the 95 % interval and what it is based on.

Rates count tokens if the number of tokens per step is known for both, else steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log

import numpy as np

from tracer.analysis.compare_side import Basis, Side
from tracer.analysis.estimates import FEWEST, Floats, medians, welch
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import Unit
from tracer.errors import UsageError

BASE, OTHER = 0, 1  # seeds, so that runs which are not paired are resampled independently


@dataclass(frozen=True)
class Speedup:
    """The rate of the other run divided by that of the base.

    Attributes:
        ratio: with its interval.
        rate: what the rate counts.
        method: how the interval was computed.
        unit: the resampled unit: "steps", "repeats" or "recordings".
        units: the number of units on the smaller side; None if that has no meaning.
    """

    ratio: Interval
    rate: Unit
    method: str
    unit: str
    units: int | None


def speedup_of(base: Side, other: Side, basis: Basis, paired: bool) -> Speedup:
    """The speed-up on that basis.

    Traced steps only bound the speed of untraced ones. The interval therefore covers every case between tracing that
    added nothing to one run and as much as it can to the other (`Recording.least_share`), and vice versa.

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
    return Speedup(ratio, found.rate, f"{found.method}, plus any tracing overhead", found.unit, None)


def clusters(base: Side, other: Side) -> bool:
    """Whether both sides have several recordings, so that variation between processes is included."""
    return len(base.recordings) > 1 and len(other.recordings) > 1


def complete(base: Side, other: Side, column: str) -> Floats:
    """(n, 2): a column of both runs, for the steps that have it in both."""
    both = np.stack([run.steps[column].to_numpy(dtype=np.float64) for run in (base, other)], axis=1)
    return np.asarray(both[~np.isnan(both).any(axis=1)])


def columns(run: Side, names: list[str]) -> Floats:
    """(n, m): columns of `Recording.steps`, for the steps that have all of them."""
    return run.steps[names].dropna().to_numpy(dtype=np.float64)


def _recorded(base: Side, other: Side, paired: bool) -> Speedup:
    gained = [run.tokens_per_step for run in (base, other)]
    rate: Unit = "steps/s" if None in gained else "tokens/s"
    base_gained, other_gained = (1.0 if one is None or rate == "steps/s" else one for one in gained)
    if clusters(base, other):
        rates = [np.log([r.steps_per_s for r in run.recordings]) for run in (base, other)]
        ratio = welch(rates[0] + log(base_gained), rates[1] + log(other_gained), of_medians=True).exp()
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
    return Speedup(draws.intervals()[0].exp().times(other_gained / base_gained), rate, method, "steps", fewest)


def _untraced(base: Side, other: Side) -> Speedup:
    base_rate, other_rate = base.untraced, other.untraced
    if base_rate is None or other_rate is None:
        raise UsageError("the untraced rate of at least one run is unknown; give --untraced-tokens-per-s for each")
    if len(base_rate.repeats) > 1 and len(other_rate.repeats) > 1:
        ratio = welch(np.log(base_rate.repeats), np.log(other_rate.repeats), of_medians=True)
        fewest = min(len(base_rate.repeats), len(other_rate.repeats))
        return Speedup(ratio.exp(), base_rate.unit, "Welch's t over the untraced repeats", "repeats", fewest)
    ratio = Interval(log(other_rate.median / base_rate.median))
    if base_rate.error is None or other_rate.error is None:
        return Speedup(ratio.exp(), base_rate.unit, "one untraced rate each, without repeats", "repeats", None)
    within = Interval(ratio.estimate, ratio.estimate, ratio.estimate).widened(hypot(base_rate.error, other_rate.error))
    return Speedup(
        within.exp(), base_rate.unit, "the spread of the untraced rates, as if of five repeats", "repeats", None
    )
