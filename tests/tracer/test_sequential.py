"""The sequential test: what its intervals are, how often they are wrong, and when turns end."""

from itertools import islice
from math import exp, log, sqrt
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.interval import Interval
from tracer.experiments.sequential import ERROR, PRIOR, interval, orders
from tracer.experiments.turns import UNDECIDED, Rate, Turns, Until, direction, told_within

UNITS = st.lists(st.floats(-1, 1).map(lambda x: round(x, 6)), min_size=4, max_size=40).filter(
    lambda units: np.std(units) > 1e-3
)


def mixture(units, mean):
    """G of the docstring, of the units minus a mean."""
    units = np.array(units) - mean
    n, v, s = len(units), float((units**2).sum()), float(units.sum())
    return sqrt(PRIOR / (n + PRIOR)) * (v / (v - s**2 / (n + PRIOR))) ** (n / 2)


@given(UNITS)
def test_bounds_are_where_the_mixture_reaches_its_limit(units):
    found = interval(units)
    assert found.low < found.estimate < found.high
    assert [mixture(units, bound) for bound in found.bounds] == pytest.approx([1 / ERROR] * 2)
    assert mixture(units, found.estimate) < 1 / ERROR


@given(UNITS, st.floats(0.01, 100), st.floats(-10, 10))
def test_bounds_move_and_grow_with_the_units(units, size, shift):
    found, moved = interval(units), interval([size * unit + shift for unit in units])
    wanted = [size * bound + shift for bound in (found.estimate, *found.bounds)]
    assert [moved.estimate, *moved.bounds] == pytest.approx(wanted, abs=1e-6 * size + 1e-9)


def test_few_units_tell_nothing_and_equal_ones_only_what_was_not_rounded_away():
    assert interval([0.1, 0.1]).bounds is None
    assert interval([0.1] * 4).bounds == (0.1, 0.1)
    low, high = interval([0.1] * 4, rounding=0.01).bounds
    assert 0.05 < low < 0.1 < high < 0.15
    assert interval([0.1] * 4, 1e-6).bounds is None


def test_looking_at_any_time_is_rarely_wrong():
    """2,000 sequences without a difference, each looked at 29 times."""
    random = np.random.default_rng(1)
    wrong = 0
    for units in random.normal(size=(2000, 60)):
        found = [interval(units[:n]) for n in range(4, 61, 2)]
        wrong += any(not one.holds(0.0) for one in found if one.bounds)
    assert 0 < wrong < 0.05 * 2000


@given(st.integers(2, 5), st.integers(0, 1000))
def test_every_second_round_is_the_reverse_of_the_one_before(count, seed):
    names = "abcde"[:count]
    rounds = list(islice(orders(names, Random(seed)), 8))
    assert all(sorted(one) == list(names) for one in rounds)
    assert all(one == other[::-1] for one, other in zip(rounds[::2], rounds[1::2], strict=True))


def programs(rates, noise=0.003, slower=0.0, seed=0):
    """`measure` of programs with these rates, on a host that becomes slower with each run."""
    random, runs = np.random.default_rng(seed), []

    def measure(name, number):
        runs.append((number, name))
        return Rate(rates[name] * exp(-slower * len(runs) + noise * random.normal()))

    return measure, runs


def test_turns_end_when_each_variant_is_told_from_the_base():
    measure, runs = programs({"A": 100, "B": 110, "C": 100.2, "D": 99})
    turns = Turns("ABCD", Until(told_within(0.01)))
    turns.take(measure)
    assert turns.verdicts == {"B": "faster", "C": "same", "D": "slower"}
    assert turns.ratio("B").holds(log(1.1))
    often = {name: sum(one == name for _, one in runs) for name in "ABCD"}
    assert often["B"] == 4 < often["A"] == max(often["C"], often["D"])
    assert [number for number, _ in runs] == sorted(number for number, _ in runs)


def test_turns_end_undecided_after_the_most_rounds():
    measure, runs = programs({"A": 100, "B": 100}, noise=0.1)
    turns = Turns("AB", Until(told_within(0.001), most=7))
    turns.take(measure)
    assert (turns.verdicts, len(runs)) == ({"B": UNDECIDED}, 14)


def test_exact_rounds_have_students_interval():
    measure, runs = programs({"A": 100, "B": 103})
    turns = Turns("AB", Until(direction, 5, exactly=True))
    turns.take(measure)
    assert (len(runs), turns.verdicts) == (10, {"B": "faster"})
    units = [b.log - a.log for a, b in zip(turns.rates["A"], turns.rates["B"], strict=True)]
    half = 2.776445 * np.std(units, ddof=1) / sqrt(5)
    assert turns.ratio("B").bounds == pytest.approx((np.mean(units) - half, np.mean(units) + half))


@given(st.floats(0, 0.05), st.integers(0, 100))
def test_steady_drift_cancels(slower, seed):
    measure, _ = programs({"A": 100, "B": 102}, noise=0, slower=slower)
    turns = Turns("AB", Until(direction, 6, exactly=True), seed)
    turns.take(measure)
    assert turns.ratio("B").estimate == pytest.approx(log(1.02))


@pytest.mark.parametrize("verdict", ["faster", "slower", "same", ""])
def test_verdicts_of_intervals(verdict):
    bounds = {"faster": (0.001, 0.05), "slower": (-0.05, -0.001), "same": (-0.009, 0.009), "": (-0.02, 0.02)}[verdict]
    assert told_within(0.01)(Interval(sum(bounds) / 2, *bounds)) == verdict
    assert told_within(0.01)(Interval(0.1)) == ""
