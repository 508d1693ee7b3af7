"""The units in which two runs are compared, their differences, and how much faster one is.

With several recordings on both sides each recording is a unit, so that what differs between processes is in the
interval. A run of one recording is divided into batches of its steps (`difference.batches`); how much processes differ
is then added from what was measured of others (`processes`), unless both runs were recorded in one process.

Recordings whose steps have equal numbers are compared at these: both then read a cache of the same length, whose growth
cancels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, hypot, sqrt
from typing import Any, Final

import numpy as np

from tracer.analysis.difference import BATCHES, Estimate, batches
from tracer.analysis.estimates import FEWEST
from tracer.analysis.interval import Interval
from tracer.analysis.processes import deviation, deviation_of_rate
from tracer.analysis.recorded import Measured, MeasuredSteps, Unit
from tracer.analysis.sides import Basis, Side
from tracer.errors import UsageError
from tracer.model.intervals import Floats

_EQUAL: Final = 0.5  # of the shorter run's steps: fewer steps with equal numbers are no reason to leave out the others
_WITHIN: Final = 0.5  # of the error between processes: a recording that is longer gains little
_LONGEST_S: Final = 60.0
PROCESSES: Final = ", and how much processes of one program differ"


@dataclass(frozen=True, eq=False)
class Units:
    """Two runs, divided into units.

    Attributes:
        base, other: the runs.
    """

    base: Side
    other: Side

    @cached_property
    def of_recordings(self) -> bool:
        """Whether each recording is a unit."""
        return len(self.base.recordings) > 1 and len(self.other.recordings) > 1

    @cached_property
    def of_one_process(self) -> bool:
        """Whether all were recorded in one process."""
        recordings = (*self.base.recordings, *self.other.recordings)
        processes = {recording.process or id(recording) for recording in recordings}
        return len(processes) == 1

    @cached_property
    def paired(self) -> bool:
        """Whether the batches are of steps with equal numbers."""
        return self._equal is not None

    def steps(self, *names: str) -> tuple[Floats, Floats]:
        """(n, m) each: these columns of `Measured.steps`, for the compared steps that have all of them."""
        if self._equal is None:
            return columns(self.base.steps, names), columns(self.other.steps, names)
        base, other = (run.values(*names) for run in self._equal)
        known = ~(np.isnan(base) | np.isnan(other)).any(axis=1)
        return base[known], other[known]

    def change(self, *names: str, of: Any = np.mean) -> Estimate:
        """The differences of the means of these columns (or of another statistic), without those between processes."""
        if self.of_recordings:
            base, other = (
                np.stack([of(columns(r.steps, names), axis=0) for r in run.recordings])
                for run in (self.base, self.other)
            )
            return Estimate.of(other).minus(Estimate.of(base))
        return self.of_steps(*self.steps(*names), of)

    def of_steps(self, base: Floats, other: Floats, of: Any = np.mean) -> Estimate:
        """The differences of a statistic of (n, m) values of the steps, in order."""
        values = [of(each, axis=0) for each in (base, other)]
        parts = [batches(each, of) for each in (base, other)]
        if self.paired:
            return Estimate.of(parts[1] - parts[0], values[1] - values[0])
        return Estimate.of(parts[1], values[1]).minus(Estimate.of(parts[0], values[0]))

    @property
    def need_processes(self) -> bool:
        """Whether the units are of one process each, so that how much processes differ has to be added."""
        return not (self.of_recordings or self.of_one_process)

    def of_processes(self, column: str) -> float:
        """The standard deviation that processes add to the difference of the means of a column, µs."""
        return _together([[deviation(r, column) for r in run.recordings] for run in (self.base, self.other)])

    def rates_of_processes(self, basis: Basis) -> float:
        """The same of the logarithms of the rates on that basis."""
        return _together(
            [deviation_of_rate(r, r.period_by_rate_us if basis == "untraced" else None) for r in run.recordings]
            for run in (self.base, self.other)
        )

    @cached_property
    def _equal(self) -> tuple[MeasuredSteps, MeasuredSteps] | None:
        """The steps with equal numbers, if each run is one recording and most steps of the shorter one have them."""
        if len(self.base.recordings) > 1 or len(self.other.recordings) > 1:
            return None
        both = self.base.steps, self.other.steps
        _, *at = np.intersect1d(both[0].step, both[1].step, return_indices=True)
        base, other = (steps[rows] for steps, rows in zip(both, at, strict=True))
        known = ~np.isnan(base.period + other.period + base.gap + other.gap)
        shorter = min(int((~np.isnan(steps.period)).sum()) for steps in both)
        return (base, other) if known.sum() >= max(_EQUAL * shorter, FEWEST) else None


def _together(deviations: Iterable[Sequence[float]]) -> float:
    """Of the difference of two means of some recordings each."""
    return hypot(*(hypot(*each) / len(each) for each in deviations))


def columns(steps: MeasuredSteps, names: Sequence[str]) -> Floats:
    """(n, m): these columns, for the steps that have all of them."""
    values = steps.values(*names)
    return values[~np.isnan(values).any(axis=1)]


@dataclass(frozen=True)
class Speedup:
    """The rate of the other run divided by that of the base.

    Attributes:
        ratio: with its interval.
        rate: what the rate counts.
        method: how the interval was computed.
        unit: what would have to be measured more often: "steps", "repeats" or "recordings".
        units: the number of units on the smaller side; None if that has no meaning.
        error: standard error of the logarithm of the ratio for these units, if recordings last for `seconds`.
        seconds: how long each recording should be, if the units are recordings.
    """

    ratio: Interval
    rate: Unit
    method: str
    unit: str
    units: int | None
    error: float = 0.0
    seconds: float | None = None


def speedup_of(units: Units, basis: Basis) -> Speedup:
    """The speed-up on that basis.

    Traced steps only bound the speed of untraced ones. The interval therefore covers every case between tracing that
    added nothing to one run and as much as it can to the other (`Recording.least_share`), and vice versa.

    Raises:
        UsageError: the basis is "untraced" and a rate is unknown.
    """
    if basis == "untraced":
        return _untraced(units)
    recorded = _recorded(units)
    if basis == "light":
        return recorded
    least, most = units.base.least_share, units.other.least_share
    bounds = recorded.ratio.bounds
    ratio = Interval(recorded.ratio.estimate)
    if bounds is not None and least > 0 and most > 0:
        ratio = Interval(recorded.ratio.estimate, bounds[0] * least, bounds[1] / most)
    return Speedup(ratio, recorded.rate, f"{recorded.method}, plus any tracing overhead", recorded.unit, None)


def _recorded(units: Units) -> Speedup:
    gained = [run.tokens_per_step for run in (units.base, units.other)]
    rate: Unit = "steps/s" if None in gained else "tokens/s"
    if units.of_recordings:
        base, other = (
            Estimate.of(np.log([[_rate(r, rate)] for r in run.recordings]), of_medians=True)
            for run in (units.base, units.other)
        )
        found, fewest = other.minus(base), min(len(run.recordings) for run in (units.base, units.other))
        return Speedup(
            found.intervals()[0].exp(), rate, "Welch's t over the recordings", "recordings", fewest, _error(found),
            _rounded_up(min(map(_seconds, (units.base, units.other)))),
        )  # fmt: skip
    periods = units.steps("period")
    within = units.of_steps(np.log(periods[1]), np.log(periods[0]), np.median)  # a rate is the inverse of a period
    if rate == "tokens/s":
        within = within.minus(_gained(units.base)).minus(_gained(units.other)) if _is_varied(units) else within
    fewest = min(map(len, periods))
    between = units.rates_of_processes("light") if units.need_processes else 0.0
    found = within.beside(between)
    method = f"only {fewest} periods"
    if fewest >= FEWEST:
        of_steps = "steps at equal positions" if units.paired else "each run's steps"
        method = f"Student's t over {BATCHES} batches of {of_steps}{PROCESSES if between else ''}"
    base_gained, other_gained = (1.0 if one is None or rate == "steps/s" else one for one in gained)
    ratio = found.intervals()[0].exp().times(other_gained / base_gained)
    if not between:
        return Speedup(ratio, rate, method, "steps", fewest, _error(found))
    seconds = min(map(_seconds, (units.base, units.other)))
    longer = max(float(within.variance[0]) / (_WITHIN * between) ** 2, 1.0) if fewest >= FEWEST else 1.0
    needed_s = _rounded_up(min(seconds * longer, max(_LONGEST_S, seconds)))
    error = sqrt(between**2 + within.variance[0] * seconds / needed_s)
    return Speedup(ratio, rate, method, "recordings", 1, error, needed_s)


def _untraced(units: Units) -> Speedup:
    rates = units.base.untraced, units.other.untraced
    if rates[0] is None or rates[1] is None:
        raise UsageError("the untraced rate of at least one run is unknown; give --untraced-tokens-per-s for each")
    found = rates[1].log.minus(rates[0].log)
    if (rates[0].given or rates[1].given) and _is_varied(units):  # of steps, times the tokens of the recorded ones
        found = found.beside(np.sqrt(_gained(units.base).variance + _gained(units.other).variance))
    fewest = min(len(rate.repeats) for rate in rates if rate)
    method, repeated = "Welch's t over the untraced repeats", fewest > 1
    if not repeated:
        repeated = rates[0].is_repeated and rates[1].is_repeated
        method = "the spread of the untraced rates, as if of five repeats" if repeated else "the precision of one rate"
    of_one = [rate.process for rate in rates if rate]
    if (not repeated or any(of_one)) and (of_one[0] != of_one[1] or not of_one[0]):
        found, method = found.beside(units.rates_of_processes("untraced")), f"{method}{PROCESSES}"
    known = fewest if fewest > 1 else None if repeated else 1
    return Speedup(found.intervals()[0].exp(), rates[0].unit, method, "repeats", known, _error(found))


def _error(found: Estimate) -> float:
    return float(np.sqrt(found.variance[0]))


def _rate(recording: Measured, unit: Unit) -> float:
    gained = recording.tokens_per_step if unit == "tokens/s" else None
    return recording.steps_per_s * (1.0 if gained is None else gained)


def _seconds(run: Side) -> float:
    """How long its shortest recording is, as far as its steps are compared."""
    return min(float(np.nansum(r.steps.period)) for r in run.recordings) / 1e6


def _is_varied(units: Units) -> bool:
    """Whether the tokens per step of the two are known and not the same, step by step, as in a server whose requests
    come and go."""
    series = [np.concatenate([r.gained for r in run.recordings]) for run in (units.base, units.other)]
    return not np.array_equal(series[0], series[1])


def _gained(run: Side) -> Estimate:
    """The error of the logarithm of the tokens per step."""
    series = np.concatenate([r.gained for r in run.recordings])[:, None]
    none = np.zeros(1)
    if len(series) < FEWEST:
        return Estimate(none, none, none + np.inf)
    found = Estimate.of(batches(series)).log()
    return Estimate(none, found.variance, found.freedom)


def _rounded_up(seconds: float) -> float:
    """A time with one digit that is not shorter."""
    unit = 10 ** np.floor(np.log10(seconds))
    return float(ceil(round(seconds / unit, 6)) * unit)
