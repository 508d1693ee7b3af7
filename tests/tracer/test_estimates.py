"""Intervals hold the truth about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.compare_verdicts import SCENARIOS, compared, shares
from tracer.analysis.difference import Estimate, batches, needed, showable
from tracer.analysis.estimates import block_length, dependence, medians
from tracer.analysis.interval import Interval

TRIALS = 200
Floats = NDArray[np.float64]


def autoregressive(random: np.random.Generator, n: int, rho: float, trials: int = 1) -> Floats:
    """(n, trials) of mean 0."""
    noise = random.normal(size=(n, trials))
    series = np.zeros((n, trials))
    series[0] = noise[0] / np.sqrt(1 - rho**2)
    for step in range(1, n):
        series[step] = rho * series[step - 1] + noise[step]
    return series


def share_held(found: list[Interval], truth: float) -> float:
    return float(np.mean([e.holds(truth) for e in found]))


@pytest.mark.parametrize(("n", "rho"), [(4, 0.0), (12, 0.0), (60, 0.0), (150, 0.4), (30, 0.8), (64, 0.9)])
def test_the_interval_over_steps_holds_a_known_effect(n: int, rho: float) -> None:
    random = np.random.default_rng(n)
    series = [0.02 + 0.05 * autoregressive(random, n, rho) for _ in range(TRIALS)]
    resampled = [medians(each).intervals()[0] for each in series]
    assert (0.9 if rho < 0.8 else 0.87) <= share_held(resampled, 0.02) <= 0.99
    of_batches = [Estimate.of(batches(each), each.mean(axis=0)).intervals()[0] for each in series]
    assert (0.89 if rho < 0.8 else 0.8) <= share_held(of_batches, 0.02) <= 0.99


def test_intervals_of_few_repeats_hold_a_known_difference() -> None:
    random = np.random.default_rng(3)
    for n in (2, 3, 5):
        sides = [(random.normal(0, 2, (n, 1)), random.normal(1, 2, (n, 1))) for _ in range(TRIALS)]
        found = [Estimate.of(other).minus(Estimate.of(base)).intervals()[0] for base, other in sides]
        assert 0.9 <= share_held(found, 1.0) <= 0.99


def test_a_known_error_adds_to_that_of_the_units() -> None:
    """As if of a normal error, with the degrees of freedom of both together."""
    few = Estimate.of(np.array([[1.0], [1.0], [1.0]]))
    assert few.beside(0.01).half_width == pytest.approx(0.0196, rel=1e-3)
    assert Estimate.known(1.0, 0.005).half_width == pytest.approx(0.005)
    varied = Estimate.of(np.array([[1.0], [1.01], [0.99]]))
    assert 0.0196 < varied.beside(0.01).half_width < 0.0196 + varied.half_width
    assert (varied.beside(0.01).p_values() < varied.p_values()).all()
    none = Estimate.of(np.ones((1, 2)))
    assert (none.intervals(), none.p_values().tolist()) == ([Interval(1.0), Interval(1.0)], [1.0, 1.0])


def test_as_many_units_as_are_needed_would_show_the_effect() -> None:
    assert (needed(1, 0.02, 0.01), needed(4, 0.01, 0.1)) == (32, 4)
    assert (needed(1, 0.02, 0.0), needed(1, float("nan"), 0.1)) == (None, None)
    many, smallest = showable(1, 0.02) or (0, 0.0)
    assert (many, smallest) == (20, pytest.approx(0.0125, rel=1e-2))
    assert needed(1, 0.02, 1.001 * smallest) == many
    assert (showable(30, 0.01) or (0,))[0] == 30


@pytest.mark.parametrize("name", ["drift of 150 ms, 200 steps", "processes differ"])
def test_one_program_is_rarely_called_faster_or_slower_than_itself(name: str) -> None:
    """From the steps alone it was in 32 and 20 of 60 pairs."""
    same = shares(compared(SCENARIOS[name], range(40)), 1.0)
    assert same["faster"] + same["slower"] <= 4
    assert same["holds_truth"] >= 37


def test_what_is_really_faster_is_called_so() -> None:
    for name, effect in (("processes differ", 0.1), ("five rates a side", 0.02), ("kernels grow by 3 %", 0.1)):
        found = shares(compared(SCENARIOS[name], range(4), effect), 1 + effect)
        assert (found["faster"], found["slower"]) == (4, 0)


def test_what_both_of_paired_steps_share_does_not_widen_the_interval() -> None:
    """Kernels that take 3 % longer at the end, in one process."""
    told = SCENARIOS["kernels grow by 3 %"]
    (found,) = compared(told, [1])
    assert found.paired
    within = np.log([found.speedup.low, found.speedup.high])  # type: ignore[union-attr]
    (steady,) = compared(SCENARIOS["independent steps"], [1])
    assert np.ptp(within) < 1.05 * np.ptp(np.log([steady.speedup.low, steady.speedup.high]))  # type: ignore[union-attr]


def test_blocks_are_long_where_neighbours_are_alike() -> None:
    random = np.random.default_rng(1)
    apart, alike = autoregressive(random, 2000, 0.0)[:, 0], autoregressive(random, 2000, 0.9)[:, 0]
    assert block_length(apart) <= 4
    # of an AR(1) Σ|k|R(k) / ΣR(k) is 2ρ/(1-ρ²), so that b = (2 · 3/4 · (2ρ/(1-ρ²))² n)^(1/3)
    expected = (1.5 * (2 * 0.9 / (1 - 0.81)) ** 2 * 2000) ** (1 / 3)
    assert block_length(alike) == pytest.approx(expected, rel=0.35)
    assert block_length(np.full(50, 3.0)) == 1
    assert dependence(alike[:, None], 1)[0] > 2
