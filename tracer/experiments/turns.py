"""Variants of a program in turns, round by round, until each is told from the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from random import Random
from typing import Final, NamedTuple

import numpy as np

from tracer.analysis.difference import Estimate
from tracer.analysis.interval import SHOWN, Interval
from tracer.experiments.sequential import ERROR, ROUNDS, interval, orders

MOST: Final = 30
"""Rounds, unless the user gives another number."""

UNDECIDED: Final = "undecided"
_ROUNDED: Final = sqrt(12)  # standard deviations of a uniform error in its width


class Rate(NamedTuple):
    """Units of work per second; `digit` is the worth of its last digit, 0 where it was not printed."""

    per_s: float
    digit: float = 0.0

    @property
    def log(self) -> float:
        """Its logarithm."""
        return log(self.per_s)

    @property
    def rounding(self) -> float:
        """The standard deviation of the logarithm from its being rounded."""
        return self.digit / self.per_s / _ROUNDED


Decide = Callable[[Interval], str]
"""The verdict of an interval of the logarithm of the ratio; "" where it needs more rounds."""


@dataclass(frozen=True)
class Until:
    """When to stop.

    Attributes:
        decide: see `Decide`.
        most: after so many rounds in any case.
        exactly: after `most` rounds, not before; the intervals are then Student's, which hold once.
        error: the probability of a wrong interval, over all variants.
    """

    decide: Decide
    most: int = MOST
    exactly: bool = False
    error: float = ERROR


def direction(ratio: Interval) -> str:
    """ "faster" or "slower"; "" where the interval of the logarithm holds 0 or has no bounds."""
    if ratio.bounds is None:
        return ""
    return "faster" if ratio.bounds[0] >= SHOWN else "slower" if ratio.bounds[1] <= -SHOWN else ""


def told_within(share: float) -> Decide:
    """A direction, or "same" where the interval lies within this share to either side."""

    def decide(ratio: Interval) -> str:
        is_same = ratio.bounds is not None and log(1 - share) <= ratio.bounds[0] and ratio.bounds[1] <= log(1 + share)
        return direction(ratio) or ("same" if is_same else "")

    return decide


@dataclass
class Turns:
    """The rates of variants, of which the first is the base.

    A variant that is decided is not run again; the base runs in every round.

    Attributes:
        names: of the variants.
        until: when to stop.
        seed: of the order.
        rates: variant -> its rates by round.
        verdicts: variant other than the base -> its verdict, once it is decided.
    """

    names: Sequence[str]
    until: Until
    seed: int = 0
    rates: dict[str, list[Rate]] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The variant that the others are compared with."""
        return self.names[0]

    @property
    def others(self) -> Sequence[str]:
        """The other variants."""
        return self.names[1:]

    def take(self, measure: Callable[[str, int], Rate], ended: Callable[[int], None] = lambda _: None) -> None:
        """Run them: `measure` gets the name of a variant and the number of the round, from 1; `ended` the number of
        each round that is complete."""
        self.rates = {name: [] for name in self.names}
        random, count = Random(self.seed), 0
        while open_ := [name for name in self.others if name not in self.verdicts]:
            rounds = min(ROUNDS, self.until.most - count)
            for _, order in zip(range(rounds), orders([self.base, *open_], random), strict=False):
                count += 1
                for name in order:
                    self.rates[name].append(measure(name, count))
                ended(count)
            is_last = count >= self.until.most
            if self.until.exactly and not is_last:
                continue
            for name in open_:
                if verdict := self.until.decide(self.ratio(name)) or (UNDECIDED if is_last else ""):
                    self.verdicts[name] = verdict

    def ratio(self, name: str) -> Interval:
        """The logarithm of the rate of a variant over that of the base, with its interval."""
        own, base = self.rates[name], self.rates[self.base]
        pairs = [(one.log - other.log, one, other) for one, other in zip(own, base, strict=False)]
        rounding = max((one.rounding**2 + other.rounding**2) ** 0.5 for _, one, other in pairs)
        return self.of_units([unit for unit, *_ in pairs], rounding)

    def of_units(self, units: Sequence[float], rounding: float = 0.0) -> Interval:
        """The mean of differences of any figure, round by round, with its interval."""
        if self.until.exactly:
            return Estimate.of(np.array(units)[:, None]).intervals()[0]
        return interval(units, self.until.error / len(self.others), rounding=rounding)
