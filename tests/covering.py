"""So few rows of a product of options that a fault in any value, or in any two values together, is still met."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import Any

Row = tuple[Any, ...]


def covering(rows: Iterable[Row], together: int = 2) -> list[Row]:
    """Some of the rows, in their order, in which so many values of different options meet as meet in any of them.

    Each time the row is taken that has the most of what is missing, of several the one whose values are the rarest.
    """
    rows, bits = list(rows), {}  # a part's place in a number that stands for a set of parts
    parts = [sum(1 << bits.setdefault(part, len(bits)) for part in combinations(enumerate(row), together))
             for row in rows]  # fmt: skip
    missing, used, chosen = (1 << len(bits)) - 1, Counter(), set()
    while missing:
        gains = [(part & missing).bit_count() for part in parts]
        most = max(gains)
        best = min((i for i, gain in enumerate(gains) if gain == most),
                   key=lambda i: sum(used[value] for value in enumerate(rows[i])))  # fmt: skip
        missing &= ~parts[best]
        used.update(enumerate(rows[best]))
        chosen.add(best)
    return [rows[i] for i in sorted(chosen)]


def each_value(rows: Iterable[Row]) -> list[Row]:
    """Rows in which each value is once: for options of which each is met by code of its own."""
    return covering(rows, together=1)
