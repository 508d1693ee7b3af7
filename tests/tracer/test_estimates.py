"""Intervals hold the truth about as often as they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tracer.analysis.estimates import Draws, block_length, dependence, means, medians, welch
from tracer.analysis.interval import Interval

TRIALS = 200


def autoregressive(random: np.random.Generator, n: int, rho: float, trials: int = 1) -> NDArray[np.float64]:
    """(n, trials) of mean 0."""
    noise = random.normal(size=(n, trials))
    series = np.zeros((n, trials))
    series[0] = noise[0] / np.sqrt(1 - rho**2)
    for step in range(1, n):
        series[step] = rho * series[step - 1] + noise[step]
    return series


def share_held(found: list[Interval], truth: float) -> float:
    return float(np.mean([e.low is not None and e.high is not None and e.low <= truth <= e.high for e in found]))


@pytest.mark.parametrize(("n", "rho"), [(4, 0.0), (12, 0.0), (60, 0.0), (150, 0.4), (30, 0.8), (64, 0.9)])
@pytest.mark.parametrize("statistic", [means, medians])
def test_the_interval_over_steps_holds_a_known_effect(
    statistic: Callable[[NDArray[np.float64]], Draws], n: int, rho: float
) -> None:
    random = np.random.default_rng(n)
    found = [statistic(0.02 + 0.05 * autoregressive(random, n, rho)).intervals()[0] for _ in range(TRIALS)]
    assert (0.9 if rho < 0.8 else 0.87) <= share_held(found, 0.02) <= 0.99


def test_intervals_of_runs_and_of_few_repeats_hold_a_known_difference() -> None:
    random = np.random.default_rng(3)

    def ratio() -> Interval:
        base, other = (period * np.exp(0.04 * random.normal(size=(n, 1))) for period, n in ((1.4, 40), (1.0, 25)))
        return medians(base, 0).log().minus(medians(other, 1).log()).intervals()[0].exp()

    assert 0.9 <= share_held([ratio() for _ in range(TRIALS)], 1.4) <= 0.99
    for n in (2, 3, 5):
        sides = [(random.normal(0, 2, n), random.normal(1, 2, n)) for _ in range(TRIALS)]
        assert 0.9 <= share_held([welch(*side) for side in sides], 1.0) <= 0.99


def test_what_both_of_paired_steps_share_ties_none_of_them() -> None:
    random = np.random.default_rng(9)
    growth, noise = np.linspace(0, 1, 60)[:, None], 0.01 * random.normal(size=(60, 2))
    both = means(growth + noise)
    difference = both.of(slice(1, 2)).minus(both.of(slice(0, 1)), paired=True)
    assert dependence(both.series, both.block).min() > 1.5
    paired, apart = (each.intervals()[0] for each in (difference, means(growth).minus(means(growth, 1))))
    assert -0.02 < paired.low < 0 < paired.high < 0.02
    assert apart.high > 0.2


def test_blocks_are_long_where_neighbours_are_alike() -> None:
    random = np.random.default_rng(1)
    apart, alike = autoregressive(random, 2000, 0.0)[:, 0], autoregressive(random, 2000, 0.9)[:, 0]
    assert block_length(apart) <= 4
    # of an AR(1) Σ|k|R(k) / ΣR(k) is 2ρ/(1-ρ²), so that b = (2 · 3/4 · (2ρ/(1-ρ²))² n)^(1/3)
    expected = (1.5 * (2 * 0.9 / (1 - 0.81)) ** 2 * 2000) ** (1 / 3)
    assert block_length(alike) == pytest.approx(expected, rel=0.35)
    assert block_length(np.full(50, 3.0)) == 1
