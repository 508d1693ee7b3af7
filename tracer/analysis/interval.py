"""A figure with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Final

SHOWN: Final = 5e-4
"""For a ratio: a bound closer to 1 would print as ±0.0 % and shows no direction."""


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; low and high are None if its error is unknown."""

    estimate: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.bounds is None:
            return f"about {self.estimate:.1f} µs"
        return f"about {self.estimate:.1f} µs, 95 % interval {self.low:.1f} to {self.high:.1f} µs"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Low and high, if they are known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def holds(self, value: float) -> bool:
        """Whether it contains a value."""
        return self.bounds is not None and self.bounds[0] <= value <= self.bounds[1]

    def exp(self) -> Interval:
        """The interval of the exponential."""
        return Interval(exp(self.estimate), *(None if x is None else exp(x) for x in (self.low, self.high)))

    def log(self) -> Interval:
        """The interval of the logarithm, for positive figures."""
        return Interval(log(self.estimate), *(None if x is None else log(x) for x in (self.low, self.high)))

    def times(self, factor: float) -> Interval:
        """The interval of the product with a known factor."""
        return Interval(self.estimate * factor, *(None if x is None else x * factor for x in (self.low, self.high)))

    def widened(self, half_width: float) -> Interval:
        """Add the half width of an independent error in quadrature (Zou and Donner, "Construction of confidence
        limits about effect measures", Statistics in Medicine 27, 2008)."""
        if self.low is None or self.high is None:
            return self
        below, above = self.estimate - self.low, self.high - self.estimate
        return Interval(
            self.estimate,
            self.estimate - sqrt(below**2 + half_width**2),
            self.estimate + sqrt(above**2 + half_width**2),
        )
