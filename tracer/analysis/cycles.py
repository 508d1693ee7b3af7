"""The cycle of a string of symbols: which repeats most often while what lies between stays the same.

A cycle has a *marker*: an n-gram that occurs once in every turn. Passes:
1. number the n-grams for n = 1, 2, 4, ... by prefix doubling (Karp, Miller, Rosenberg 1972), as a suffix array does;
2. of the n-grams with equal counts take the one whose gaps vary least: a candidate;
3. compare the turns of each candidate: the cost is the share of symbols by which turns differ from the median turn;
4. choose the shortest turn of those that explain, within `TOLERANCE`, the most: the weight that a cycle reaches over
   times one minus its cost. The layers of a token make short turns too, but the token's own kernels (embedding, head)
   are a cost to them, and none to the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_TURNS: Final = 3
TOLERANCE: Final = 0.001
LIKE: Final = 0.25
"""A turn belongs to the cycle if it differs from the median turn by at most this share."""

_LONGEST = 64
_WINDOW = 1 << 17
_CANDIDATES = 12
_MANY = 8  # turns, of which one more or less says little
_DIVISIONS = 9


@dataclass(frozen=True)
class Cycle:
    """A marker's occurrences in a string.

    Attributes:
        marks: positions where the marker begins, ascending.
        cost: share 0..1 of the symbols between them that no turn explains.
    """

    marks: NDArray[np.int64]
    cost: float


def find_cycle(symbols: NDArray[np.int64], weights: NDArray[np.int64]) -> Cycle | None:
    """The cycle of a string, or None where nothing turns `MIN_TURNS` times. O(n log n), n at most 131,072.

    Of a longer string the middle decides; the marker is then looked up in the whole.

    Args:
        symbols: numbered from 0.
        weights: of each symbol, not negative; what the cycle is to reach over.
    """
    begin = max(0, (len(symbols) - _WINDOW) // 2)
    window = symbols[begin : begin + _WINDOW]
    weight = np.concatenate(([0], np.cumsum(weights[begin : begin + _WINDOW])))
    found: list[tuple[Cycle, float, int]] = []
    rank, n = np.unique(window, return_inverse=True)[1], 1
    while True:
        cycles = _candidates(rank, window, weight)
        found += [(cycle, _reach(cycle, window, weight) * (1 - cycle.cost), n) for cycle in cycles]
        perfect = any(explained >= weight[-1] * (1 - TOLERANCE) for _, explained, _ in found)
        if perfect or n == _LONGEST or len(rank) <= n + MIN_TURNS:
            break
        rank = np.unique(rank[:-n] * (int(rank.max()) + 1) + rank[n:], return_inverse=True)[1]
        n *= 2
    if not found:
        return None
    most = max(explained for _, explained, _ in found)
    good = [(cycle, n) for cycle, explained, n in found if explained >= most - TOLERANCE * weight[-1]]
    best, n = min(good, key=lambda item: (-len(item[0].marks), item[0].marks[0]))
    return Cycle(_occurrences(symbols, window[best.marks[0] : best.marks[0] + n]), best.cost)


def _reach(cycle: Cycle, symbols: NDArray[np.int64], weight: NDArray[np.int64]) -> float:
    """The weight of all turns, one more than the marks part; the marks may stand anywhere in them."""
    first, last, turns = int(cycle.marks[0]), int(cycle.marks[-1]), len(cycle.marks) - 1
    turn = (last - first) // turns
    between = int(weight[last] - weight[first])
    if turns < _MANY:
        return between + _one_more(cycle.marks, turn, symbols, weight)
    there = int(weight[min(last + turn, len(weight) - 1)] - weight[max(first - turn, 0)])
    return min(between * (turns + 1) / turns, there)


def _one_more(marks: NDArray[np.int64], turn: int, symbols: NDArray[np.int64], weight: NDArray[np.int64]) -> int:
    """The weight of the turn that stands before the first and behind the last of few marks; 0 if nothing is like one.

    It is divided among them where it is most like a turn.
    """
    first, last = int(marks[0]), int(marks[-1])
    found = []
    for before in np.linspace(0, turn, _DIVISIONS).astype(int).tolist():
        begin, end = max(first - before, 0), min(last + turn - before, len(symbols))
        ends = np.append(marks - first, end - begin)
        differences, usual = turn_differences(np.concatenate((symbols[first:end], symbols[begin:first])), ends)
        there = int(weight[first] - weight[begin] + weight[end] - weight[last])
        found.append((-int(differences[-1]), there, usual))
    difference, there, usual = max(found)
    return there if -difference <= LIKE * usual else 0


def _occurrences(symbols: NDArray[np.int64], gram: NDArray[np.int64]) -> NDArray[np.int64]:
    last = len(symbols) - len(gram) + 1
    same = np.ones(last, dtype=bool)
    for offset, symbol in enumerate(gram.tolist()):
        same &= symbols[offset : offset + last] == symbol
    return np.flatnonzero(same)


def _candidates(rank: NDArray[np.int64], symbols: NDArray[np.int64], weight: NDArray[np.int64]) -> list[Cycle]:
    """Passes 2 and 3 for the n-grams of one length; `weight` is summed up to each symbol."""
    order = np.argsort(rank, kind="stable")
    counts = np.bincount(rank)
    ends = np.cumsum(counts)
    gaps = np.diff(order)
    inner = np.ones(len(gaps), dtype=bool)
    inner[ends[:-1] - 1] = False
    of_gram = rank[order[1:]][inner]
    total = order[ends - 1] - order[ends - counts]
    mean = total / np.maximum(counts - 1, 1)
    spread = np.bincount(of_gram, np.abs(gaps[inner] - mean[of_gram]), minlength=len(counts))
    usable = np.flatnonzero(counts >= MIN_TURNS)
    usable = usable[np.lexsort((order[ends - counts][usable], spread[usable]))]
    _, first = np.unique(counts[usable], return_index=True)
    chosen = usable[np.sort(first)]
    reach = weight[order[ends - 1]] - weight[order[ends - counts]]
    worth = reach[chosen] * np.maximum(1 - spread[chosen] / total[chosen], 0)
    chosen = chosen[np.argsort(-worth, kind="stable")][:_CANDIDATES]
    marks = [order[ends[gram] - counts[gram] : ends[gram]] for gram in chosen]
    return [Cycle(m, turn_cost(symbols, m)) for m in marks]


def turn_cost(symbols: NDArray[np.int64], marks: NDArray[np.int64]) -> float:
    """Pass 3: of the symbols between the first and the last mark, the share that the median turn does not explain."""
    differences, usual = turn_differences(symbols, marks)
    sizes = np.diff(marks)
    lost = np.where(differences <= LIKE * usual, np.minimum(differences, sizes), sizes)
    return float(lost.sum() / sizes.sum())


def turn_differences(symbols: NDArray[np.int64], marks: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """By how many symbols each turn [marks[i], marks[i+1]) differs from the median turn; and the median turn's size.

    The median turn has of every symbol the median number. Symbols that occur too seldom to be in it count together.
    """
    inside = symbols[marks[0] : marks[-1]]
    uses = np.bincount(inside)
    often = uses >= (len(marks) - 1) / 2
    number = np.where(often, np.cumsum(often), 0)[inside]
    kinds = int(often.sum()) + 1
    turn = np.repeat(np.arange(len(marks) - 1), np.diff(marks))
    table = np.bincount(turn * kinds + number, minlength=(len(marks) - 1) * kinds).reshape(-1, kinds)
    usual = np.floor(np.median(table, axis=0)).astype(np.int64)
    return np.abs(table - usual).sum(axis=1), int(usual.sum())
