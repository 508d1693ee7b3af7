"""A figure with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Final

SHOWN: Final = 5e-4
"""For a ratio: a bound closer to 1 would print as ±0.0 % and shows no direction."""

WIDE: Final = 0.15
"""Of a figure: where its interval reaches farther to either side, and farther than `EXACT_US`, only the interval is
said."""
EXACT_US: Final = 1.0


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; low and high are None if its error is unknown."""

    estimate: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return words(self.figure, self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Low and high, if they are known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def is_wide(self) -> bool:
        """Whether it reaches farther to either side than `WIDE` of the figure, in µs."""
        if self.bounds is None:
            return False
        low, high = self.bounds
        return max(self.estimate - low, high - self.estimate) > max(WIDE * abs(self.estimate), EXACT_US)

    @property
    def figure(self) -> float | None:
        """The figure; None if its interval is wide."""
        return None if self.is_wide else self.estimate

    @property
    def facts(self) -> dict[str, float | None]:
        """In JSON: estimate, null if the interval is wide, low and high."""
        return {"estimate": self.figure, "low": self.low, "high": self.high}

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


def words(estimate: float | None, low: float | None, high: float | None) -> str:
    """A time with its interval, or the interval alone.

    Example:
        >>> words(57.0, 52.0, 61.5), words(None, 31.0, 82.0)
        ('about 57.0 µs, 95 % interval 52.0 to 61.5 µs', '31.0 to 82.0 µs, 95 % interval')
    """
    between = "" if low is None or high is None else f"{low:.1f} to {high:.1f} µs"
    if estimate is None:
        return f"{between}, 95 % interval"
    return f"about {estimate:.1f} µs" + (f", 95 % interval {between}" if between else "")
