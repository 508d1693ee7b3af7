"""A sequential test of the mean of few differences: intervals that hold however often one looks at them.

The unit is the difference of the logarithms of two rates that were measured one directly behind the other. Its
standard deviation is unknown and few units have to do, so the test is a t-test that may be looked at after each block:
the Gaussian mixture of scale-invariant likelihood ratios (Lai, "On confidence sequences", Annals of Statistics 4, 1976;
in the form of Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance", Sequential Analysis 44, 2025, theorem 4.1). With n units of the sum S and the sum of squares V,

    G = √(c² / (n + c²)) · (V / (V - S² / (n + c²)))^(n/2)

has the mean 1 for all n if the true mean is 0, so that it ever exceeds 1/α with a probability of at most α (Ville). The
interval at the level α holds all means that G, of the units minus that mean, has not excluded.

What a host does to its programs is neither normal nor independent of time: it drifts, and it is slow for a while. So
the order is drawn anew for each block of two rounds, and the second round has the reverse of the first (A B B A or
B A A B). Drift cancels within a block, and the sign of what is left is that of the drawn order, not that of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log, sqrt
from random import Random
from typing import Final

from tracer.analysis.interval import Interval

ERROR: Final = 0.05
"""The probability that an interval ever leaves out the true mean."""
PRIOR: Final = 0.1
"""c²: differences of about 1/c standard deviations are found with the fewest units, and those of none at all with no
fewer than `ROUNDS`."""
ROUNDS: Final = 2
"""Rounds of a block: the units are looked at when it is complete."""


def interval(units: Sequence[float], error: float = ERROR, *, rounding: float = 0.0) -> Interval:
    """The mean of the units with an interval that holds at all times; without bounds where it has none yet.

    Args:
        units: differences, in order.
        error: α.
        rounding: the standard deviation of a known error of each unit, such as that of figures that were printed with
            few digits, which may all be equal.
    """
    n = len(units)
    mean = sum(units) / n
    squares = max(sum((unit - mean) ** 2 for unit in units), (n - 1) * rounding**2)
    grown = (n + PRIOR) / PRIOR
    limit = exp((2 * log(1 / error) + log(grown)) / n)  # of V / (V - S² / (n + c²))
    if limit >= grown:
        return Interval(mean)
    half = sqrt(squares * (limit - 1) / (1 - limit / grown) / n)
    return Interval(mean, mean - half, mean + half)


def orders(names: Sequence[str], random: Random) -> Iterator[tuple[str, ...]]:
    """The order of each round: a drawn one, its reverse, another drawn one, and so on."""
    while True:
        drawn = tuple(random.sample(names, len(names)))
        yield drawn
        yield drawn[::-1]
