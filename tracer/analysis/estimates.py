"""The interval of a what-if over the steps of one recording: a block bootstrap of medians.

Consecutive steps are similar (the cache grows, clocks and hosts drift), so resampling them individually would give
intervals that are too narrow. Instead whole blocks are resampled, circularly so that every step has equal weight
(Politis and Romano, "A circular block-resampling procedure for stationary data", 1992). The block length is estimated
from the series itself (Politis and White, "Automatic block-length selection for the dependent bootstrap", Econometric
Reviews 23, 2004, with the correction of Patton, Politis and White, 28, 2009). Percentile intervals from few blocks are
too narrow; they are widened by Hesterberg's factor ("What teachers should know about the bootstrap", The American
Statistician 69, 2015, section 4.1: √((k+1)/k) · t / z with k degrees of freedom, applied here to the distance of the
percentiles from the estimate, since few values do not show the far tails). Blocks also cut the dependence between
neighbours: if a first-order autoregression finds more of it than the blocks preserve, the draws are stretched
(`dependence`).

It serves where both series are of the same steps, as before and after a change that was replayed. Two runs drift apart
more slowly than any block of theirs lasts: `tracer.analysis.difference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.interval import Interval
from tracer.model.intervals import Floats, Ints

LEVEL: Final = 0.95
FEWEST: Final = 4
"""Minimum number of steps for an interval: resampling a single value always gives that value."""

RESAMPLES: Final = 2000
_MOST_TIED: Final = 0.97  # correlation of neighbours; a trend comes close to 1
_CHUNK: Final = 2_000_000  # resampled values at a time, to bound memory
_SEED: Final = 20211


@dataclass(frozen=True, eq=False)
class Draws:
    """A statistic of m series and its bootstrap distribution.

    Attributes:
        estimates: (m,) from the data.
        draws: (RESAMPLES, m) from the resampled data.
        freedom: (m,) degrees of freedom, from the number of blocks; NaN with too few steps for an interval.
        series: (n, m) the values behind the statistic, to estimate their dependence.
        block: the number of steps that were resampled together.
    """

    estimates: Floats
    draws: Floats
    freedom: Floats
    series: Floats
    block: int

    def of(self, columns: slice | NDArray[np.bool_]) -> Draws:
        """A subset of the series."""
        estimates, draws, freedom = self.estimates[columns], self.draws[:, columns], self.freedom[columns]
        return Draws(estimates, draws, freedom, self.series[:, columns], self.block)

    def minus(self, other: Draws) -> Draws:
        """The difference of two statistics that were resampled together."""
        freedom = np.minimum(self.freedom, other.freedom)
        series = self.series - other.series
        return Draws(self.estimates - other.estimates, self.draws - other.draws, freedom, series, self.block)

    def log(self) -> Draws:
        """The logarithm of a positive statistic."""
        series = self.series / self.estimates
        return Draws(np.log(self.estimates), np.log(self.draws), self.freedom, series, self.block)

    def intervals(self) -> list[Interval]:
        """An estimate per series with its expanded percentile interval (see the module); none with too few steps."""
        from scipy.special import ndtri  # imported here because it takes as long as reading a small recording

        draws = self.estimates + (self.draws - self.estimates) * dependence(self.series, self.block)
        bounds = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
        wider = np.sqrt((self.freedom + 1) / self.freedom) * _quantile(self.freedom) / ndtri((1 + LEVEL) / 2)
        low = self.estimates + np.minimum(bounds[0] - self.estimates, 0) * wider
        high = self.estimates + np.maximum(bounds[1] - self.estimates, 0) * wider
        return [
            Interval(*map(float, each)) if each[1] == each[1] else Interval(float(each[0]))
            for each in zip(self.estimates, low, high, strict=True)
        ]


def medians(values: Floats) -> Draws:
    """Draws of the medians of the columns of (n steps, m) values."""
    block = max(block_length(column) for column in values.T)
    parts = [np.median(values[rows], axis=1) for rows in _blocks(len(values), block, np.random.default_rng(_SEED))]
    freedom = max(len(values) / block - 1, 1.0) if len(values) >= FEWEST else np.nan
    return Draws(np.median(values, axis=0), np.concatenate(parts), np.full(values.shape[1], freedom), values, block)


def block_length(series: Floats) -> int:
    """The optimal length of blocks for the circular bootstrap of a series' mean (Politis and White 2004).

    With ρ(k) negligible for K = max(5, √log10 n) lags beyond m, and λ the flat-top window over M = 2m lags:
    G = Σ λ(k/M) |k| R(k), D = 4/3 (Σ λ(k/M) R(k))², b = (2 G² n / D)^(1/3), at most min(3√n, n/3).
    """
    n = len(series)
    centred = series - series.mean()
    most = ceil(min(3 * sqrt(n), n / 3))
    if n < 8 or not centred.any():
        return 1
    quiet = max(5, ceil(sqrt(log(n, 10))))
    lags = min(ceil(sqrt(n)) + quiet, n - 1)
    covariance = np.array([centred[: n - k] @ centred[k:] / n for k in range(lags + 1)])
    significant = np.abs(covariance[1:] / covariance[0]) > 2 * sqrt(log(n, 10) / n)
    last = next((m for m in range(lags) if not significant[m : m + quiet].any()), lags)
    window = min(2 * max(last, 1), lags)
    k = np.arange(-window, window + 1)
    weights = np.clip(2 * (1 - np.abs(k) / window), 0, 1) * covariance[np.abs(k)]
    g, spectral = float(weights @ np.abs(k)), float(weights.sum())
    if spectral <= 0:
        return 1
    return int(np.clip(ceil((2 * g**2 * n / (4 / 3 * spectral**2)) ** (1 / 3)), 1, most))


def dependence(series: Floats, block: int) -> Floats:
    """By how much the error of each column's mean exceeds what resampling in circular blocks shows; at least 1.

    With circular autocovariances R(k), blocks of b steps show the long-run variance Σ (1 - |k|/b) R(k), |k| < b. That
    is too small if the dependence reaches farther or there are few steps; a first-order autoregression has
    R(0) (1 + ρ) / (1 - ρ). Its ρ is corrected for its bias in short series by (1 + 3ρ) / n (Kendall, Biometrika 41,
    1954).

    Args:
        series: (n, m) values; with fewer than `FEWEST` rows the result is 1.
    """
    n, m = series.shape
    centred = series - series.mean(axis=0) if n else series
    square = (centred**2).sum(axis=0)
    known = square > 0
    if n < FEWEST or not known.any():
        return np.ones(m)
    correlation = np.divide((centred[1:] * centred[:-1]).sum(axis=0), square, out=np.zeros(m), where=known)
    rho = np.clip(correlation + (1 + 3 * correlation) / n, 0, _MOST_TIED)
    in_blocks = square + 2 * sum(
        (1 - lag / block) * (centred * np.roll(centred, lag, axis=0)).sum(axis=0) for lag in range(1, block)
    )
    ratio = np.divide(square * (1 + rho) / (1 - rho), in_blocks, out=np.ones(m), where=in_blocks > 0)
    return np.asarray(np.sqrt(np.maximum(ratio, 1)))


def _blocks(n: int, block: int, random: np.random.Generator) -> Iterator[Ints]:
    """Rows of n indices each, RESAMPLES in all: blocks of neighbours in a circular series, the last one truncated."""
    pieces = ceil(n / block)
    at_once = max(1, _CHUNK // n)
    for first in range(0, RESAMPLES, at_once):
        count = min(at_once, RESAMPLES - first)
        starts = random.integers(0, n, (count, pieces))
        rows = (starts[:, :, None] + np.arange(block)) % n
        yield rows.reshape(count, pieces * block)[:, :n]


def _quantile(freedom: Floats | float) -> Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 0.5 + LEVEL / 2))
