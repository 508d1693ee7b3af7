"""Estimates with their standard errors, and the 95 % interval of a difference: Student's t over few long units.

A unit is one untraced repeat, one recording or, where a run is one recording, one of `BATCHES` long batches of its
steps. Neighbouring steps are similar for as long as clocks, temperatures and hosts take to drift, which nothing in a
short recording tells; few units with the wide quantiles of few degrees of freedom allow for that (Schmeiser, "Batch
size effects in the analysis of simulation output", Operations Research 30, 1982). Errors that are known from elsewhere,
such as how much processes differ, are added as variances. Degrees of freedom are Welch and Satterthwaite's.

How often these intervals hold the truth: `benchmarks/compare_verdicts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, pi, sqrt
from typing import Any, Final

import numpy as np

from tracer.analysis.estimates import FEWEST, LEVEL, dependence
from tracer.analysis.interval import Interval
from tracer.model.intervals import Floats

POWER: Final = 0.80
"""The power: the probability that the sample size from `needed` shows an effect of the estimated size."""
MANY: Final = 20
"""Repeats or recordings: more are rarely worth the effort."""
BATCHES: Final = 3
NORMAL: Final = 1.959964
"""Half the 95 % interval of a normal value, in standard deviations."""
_NORMAL: Final = 1e9  # degrees of freedom: those of a normal value
_FEWEST_TIED: Final = 8  # with fewer repeats, chance alone looks like dependence


@dataclass(frozen=True, eq=False)
class Estimate:
    """m figures with their errors.

    Attributes:
        value: (m,) the figures.
        variance: (m,) of their errors; NaN if unknown.
        freedom: (m,) the degrees of freedom of the variances; infinite if they are known exactly.
    """

    value: Floats
    variance: Floats
    freedom: Floats

    @classmethod
    def of(cls, units: Floats, value: Floats | None = None, *, of_medians: bool = False) -> Estimate:
        """From (k, m) units in chronological order; the variance is unknown with fewer than two.

        Units of at least `_FEWEST_TIED` that resemble their neighbours, as repeats within one process do, count as the
        smaller number of independent ones that they are worth (`dependence`).

        Args:
            value: the figures, if they are not the means of the units.
            of_medians: the figures are the medians of the units. Their standard errors are √(π/2) times those of means,
                the ratio for many normal values; for few it is smaller.
        """
        k, m = units.shape
        if value is None:
            value = np.median(units, axis=0) if of_medians else units.mean(axis=0)
        if k < 2:
            return cls(value, np.full(m, np.nan), np.ones(m))
        wider = dependence(units, 1) ** 2 if k >= _FEWEST_TIED else np.ones(m)
        variance = units.var(axis=0, ddof=1) / k * wider * (pi / 2 if of_medians else 1)
        return cls(value, variance, np.maximum(k / wider - 1, 1.0))

    @classmethod
    def known(cls, value: float, half_width: float) -> Estimate:
        """One figure and half its 95 % interval, as if of a normal error."""
        return cls(np.array([value]), np.array([(half_width / NORMAL) ** 2]), np.array([inf]))

    def minus(self, other: Estimate) -> Estimate:
        """The difference from independent figures."""
        value, variance = self.value - other.value, self.variance + other.variance
        weight = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        freedom = np.divide(variance**2, weight, out=np.full(len(value), inf), where=weight > 0)
        return Estimate(value, variance, freedom)

    def beside(self, deviation: Floats | float) -> Estimate:
        """With another independent error of this standard deviation."""
        none = np.zeros(len(self.value))
        return self.minus(Estimate(none, none + np.asarray(deviation) ** 2, none + inf))

    def log(self) -> Estimate:
        """The logarithm of positive figures with small errors."""
        return replace(self, value=np.log(self.value), variance=self.variance / self.value**2)

    @property
    def half_width(self) -> Floats:
        """(m,) half the 95 % interval."""
        return np.asarray(_quantile(self.freedom) * np.sqrt(self.variance))

    def intervals(self) -> list[Interval]:
        """The figures with their 95 % intervals; none where the variance is unknown."""
        halves = self.half_width
        return [
            Interval(float(value)) if half != half else Interval(float(value), float(value - half), float(value + half))
            for value, half in zip(self.value, halves, strict=True)
        ]

    def p_values(self) -> Floats:
        """(m,) two-sided, for the hypothesis that a figure is 0; 1 where the variance is unknown."""
        from scipy.special import stdtr  # imported here because it takes as long as reading a small recording

        error = np.sqrt(self.variance)
        t = np.divide(np.abs(self.value), error, out=np.full(len(error), inf), where=error > 0)
        p = 2 * stdtr(np.minimum(self.freedom, _NORMAL), -t)
        return np.asarray(np.where((self.value == 0) | np.isnan(error), 1.0, p))


def batches(values: Floats, of: Any = np.mean) -> Floats:
    """(`BATCHES`, m): the mean, or another statistic, of each batch of (n, m) steps; (1, m) of fewer than `FEWEST`."""
    pieces = np.array_split(values, BATCHES) if len(values) >= FEWEST else [values]
    return np.stack([of(piece, axis=0) for piece in pieces])


def needed(units: int, error: float, effect: float) -> int | None:
    """The required sample size: how many units would show an effect of this size, if it is real, with 80 % power.

    The error shrinks with the square root of the number of units; by the normal approximation
    (z.975 + z.8) · error <= |effect|. None without an error or an effect (under 1e-6).

    Args:
        units: from which the effect was estimated.
        error: its standard error.
    """
    if error != error or abs(effect) < 1e-6:
        return None
    return max(units, ceil(units * (_powered() * error / effect) ** 2))


def showable(units: int, error: float, many: int = MANY) -> tuple[int, float] | None:
    """So many units, at least as many as were measured, and the smallest effect that they would show with 80 % power;
    None without an error."""
    count = max(units, many)
    return None if error != error else (count, _powered() * error * sqrt(units / count))


def _powered() -> float:
    from scipy.special import ndtri

    return NORMAL + float(ndtri(POWER))


def _quantile(freedom: Floats) -> Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.minimum(freedom, _NORMAL), 0.5 + LEVEL / 2))
