"""Parameters drawn at random: by hypothesis in a property, by a seed on the command line."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
MOST_SEEDS = 2**32 - 1


@dataclass
class Drawn:
    """Draws parameters and keeps them.

    Attributes:
        whole_number: of this name, from a lowest and a highest one, both included.
        parameters: name -> what was drawn.
    """

    whole_number: Callable[[str, int, int], int]
    parameters: dict[str, Any] = field(default_factory=dict)

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number, both ends included."""
        self.parameters[name] = value = self.whole_number(name, low, high)
        return value

    def ns(self, name: str, low: int, high: int) -> int:
        """A time in ns, as often between 1 and 10 µs as between 10 and 100."""
        self.parameters[name] = value = round(low * (high / low) ** (self.whole_number(name, 0, 100) / 100))
        return value

    def one_of(self, name: str, *options: T) -> T:
        """One of these."""
        self.parameters[name] = value = options[self.whole_number(name, 0, len(options) - 1)]
        return value

    def chance(self) -> random.Random:
        """The noise: too many numbers to draw each as a parameter."""
        return random.Random(self.whole("noise", 0, MOST_SEEDS))


def seeded(kind: str, seed: int) -> Drawn:
    """The same parameters for the same kind and seed, on every version of Python, whatever else is drawn."""

    def whole_number(name: str, low: int, high: int) -> int:
        return low + int(random.Random(f"{kind} {seed} {name}").random() * (high - low + 1))

    return Drawn(whole_number)


def by_hypothesis(draw: Callable[[Any], Any]) -> Drawn:
    """Parameters that hypothesis shrinks."""
    return Drawn(lambda _, low, high: draw(st.integers(low, high)))
