"""How much is tried: what a working day needs, or everything (`make test-all`, INTERTOKEN_TEST_ALL=1).

`covering` chooses from a product of options so few rows that every two values of different options which occur
together in the product still meet: a fault that needs two values at once is found by them as by the whole product.
`each_value` chooses so few that every value is in one of them: for options of which each is met by code of its own.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import settings

EVERYTHING = os.environ.get("INTERTOKEN_TEST_ALL") == "1"

thorough = pytest.mark.thorough
"""Of a test, or of a row of one, that finds what others find too: only where everything is tried (`conftest.py`)."""

Row = tuple[Any, ...]


def pairs_of(row: Row) -> set[Hashable]:
    """The values of every two options of a row, each with the place of its option."""
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def covering_pairs(rows: Iterable[Row]) -> list[Row]:
    """Some of the rows, in their order, in which every pair of values is that is in any of them.

    No more rows than the largest two options ask for, or few more.
    """
    return _with_all(pairs_of, list(rows))


def covering_values(rows: Iterable[Row]) -> list[Row]:
    """Some of the rows, in their order, in which every value is that is in any of them."""
    return _with_all(lambda row: set(enumerate(row)), list(rows))


def _with_all(parts_of: Callable[[Row], set[Hashable]], rows: list[Row]) -> list[Row]:
    """Some of the rows that have the parts of all.

    The first row is always among them. Then each time the row is taken that has the most parts not yet covered, of
    several the one whose values are in the fewest rows so far.
    """
    bits: dict[Hashable, int] = {}  # a part's place in a number that stands for a set of parts
    parts = [sum(1 << bits.setdefault(part, len(bits)) for part in parts_of(row)) for row in rows]
    missing, used, chosen = (1 << len(bits)) - 1, Counter(), set()
    best = 0
    while missing:
        missing &= ~parts[best]
        used.update(enumerate(rows[best]))
        chosen.add(best)
        gains = [(row & missing).bit_count() for row in parts]
        most = max(gains)
        equal = [i for i, gain in enumerate(gains) if gain == most]
        best = min(equal, key=lambda i: sum(used[value] for value in enumerate(rows[i])))
    return [rows[i] for i in sorted(chosen)]


def covering(rows: Iterable[Row]) -> list[Row]:
    """The rows that are tried: covering pairs, or all of them."""
    return list(rows) if EVERYTHING else covering_pairs(rows)


def each_value(rows: Iterable[Row]) -> list[Row]:
    """The rows that are tried: each value once, or all of them."""
    return list(rows) if EVERYTHING else covering_values(rows)


def examples(count: int) -> settings:
    """A property's examples: so many where everything is tried, else a fifth of them; explicit ones always."""
    return settings(max_examples=count if EVERYTHING else max(count // 5, 4))


def of_every_kind(names: Iterable[str]) -> list[str]:
    """Some of the names, such as those of recordings, that hold every word which any of them holds; or all."""
    names = list(names)
    words = [set(re.split(r"[-/]", name)) for name in names]
    missing, chosen = set().union(*words), set()
    while missing and not EVERYTHING:
        best = max(range(len(names)), key=lambda i: len(words[i] & missing))
        missing -= words[best]
        chosen.add(best)
    return [names[i] for i in sorted(chosen)] if chosen else names
