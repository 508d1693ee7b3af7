"""Level of detail: which events of a row are drawn individually, and which are merged into bins.

Nothing in view is lost: each event is either drawn individually or counted in every bin that it touches, and a
bin's busy time is the union of the events it merges.

The pyramid of a row gives the result of `detail` for a view, at any scale in a few milliseconds. Its bins are powers of
two wide and begin at multiples of their width. A level holds the bins of one width over the whole row, so that a view
of many events reads only the bins it shows; a view of few is made from the events themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.compiled import compiled
from tracer.model.intervals import Ints, covered

FEW: Final = 1 << 15  # number of events that are merged about as fast as a level is read
_SPARING: Final = 16  # least events per bin of the narrowest level: narrower bins would outweigh them
_AT_ONCE: Final = 2  # levels that are made at the same time
_BEYOND: Final = 3  # levels wider than the whole row, for zooming out

_NO_ROWS: Final = np.zeros(0, np.int64)

Positions = NDArray[np.int32]


@dataclass(frozen=True)
class Detail:
    """The items to draw for a row; times are ns, `exact` and `longest` are positions in the row's events.

    Attributes:
        exact: the events to draw individually, by start.
        start, end: the bins that merge the others, disjoint and by start; each touches at least one event.
        busy: how much of each bin its events cover.
        count: how many events touch each bin.
        longest: the longest event of each bin, the first of several.
    """

    exact: Ints
    start: Ints
    end: Ints
    busy: Ints
    count: Ints
    longest: Ints


def in_view(start: Ints, reach: Ints, end: Ints, low: int, high: int) -> Ints:
    """Positions of the events that meet [low, high).

    `reach` is the running maximum of their ends.
    """
    first, last = np.searchsorted(reach, low, side="left"), np.searchsorted(start, high, side="left")
    chosen = np.arange(first, last, dtype=np.int64)
    return chosen[(end[first:last] > low) | (start[first:last] >= low)]


def detail(start: Ints, end: Ints, chosen: Ints, low: int, high: int, bins: int) -> Detail:
    """Decide how to draw the events `chosen` in the view [low, high).

    Up to `bins` events are all drawn exactly; if there are more, those at least as long as a bin are drawn exactly and
    the others merged. Bin edges are multiples of the bin width, so that they stay put while the view moves.
    """
    width = max(-(-(high - low) // bins), 1)
    first, last = start[chosen], end[chosen]
    merged = np.zeros(len(chosen), dtype=bool) if len(chosen) <= bins else (last - first) < width
    exact = chosen[~merged]
    if not merged.any():
        none = np.zeros(0, dtype=np.int64)
        return Detail(exact, none, none, none, none, none)
    return _bins(exact, chosen[merged], first[merged], last[merged], low, high, width)


def _bins(exact: Ints, chosen: Ints, first: Ints, last: Ints, low: int, high: int, width: int) -> Detail:
    origin = low // width * width
    edges = np.arange(origin, high + width, width, dtype=np.int64)
    head = (np.clip(first, low, high - 1) - origin) // width
    tail = np.maximum((np.clip(last, low + 1, high) - 1 - origin) // width, head)  # an event touches two bins at most
    both = tail != head
    touches = np.concatenate((head, tail[both]))
    event = np.concatenate((chosen, chosen[both]))
    length = np.concatenate((last - first, (last - first)[both]))
    count = np.bincount(touches, minlength=len(edges) - 1)
    longest = np.zeros(len(count), dtype=np.int64)
    order = np.lexsort((-event, length))
    longest[touches[order]] = event[order]  # of several the last one stays
    bin_start, bin_end = np.maximum(edges[:-1], low), np.minimum(edges[1:], high)
    busy = covered(first, last, bin_start, bin_end)
    used: NDArray[np.int64] = np.flatnonzero(count)
    return Detail(exact, bin_start[used], bin_end[used], busy[used], count[used], longest[used])


@dataclass(frozen=True, eq=False)
class Level:
    """The bins of 2^shift ns over a row, and the events that are too long for them.

    Attributes:
        shift: log2 of the width, ns.
        number: the bins touched by events shorter than a bin, in order; bin n begins at n·2^shift ns.
        busy: how much of each bin those events cover, ns.
        count: how many of them touch it.
        longest: position of the longest of them, the first of several.
        long: positions of the events at least as long as a bin, by start.
    """

    shift: int
    number: Ints
    busy: Ints
    count: Positions
    longest: Positions
    long: Positions


@dataclass(frozen=True, eq=False)
class Pyramid:
    """Events by start (ns), and their levels from the widest bins to the narrowest, each half as wide as the last."""

    start: Ints
    end: Ints
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, start: Ints, end: Ints) -> Pyramid:
        """The pyramid of events by start."""
        return cls(start, end, tuple(_levels(start, end)) if len(start) > FEW else ())

    def detail(self, low: int, high: int, bins: int) -> Detail:
        """The result of `detail` for [low, high) widened to whole bins of 2^n ns, at most `bins` + 1 of them."""
        shift, low, high = grid(low, high, bins)
        first, last = np.searchsorted(self.start, (low, high)).tolist()
        bins = (high - low) >> shift
        if last - first <= max(FEW, bins):
            return detail(self.start, self.end, self.in_view(low, high), low, high, bins)
        at = self.levels[0].shift - shift if self.levels else -1
        if 0 <= at < len(self.levels):
            level = self.levels[at]
            return _cut(level, level.long[in_view(*self._long[at], low, high)], low, high)
        before = int(np.searchsorted(self.start, low - (1 << shift)))
        level = _level(self.start, self.end, before, last, shift, 2 * (last - before))
        chosen = self.in_view(low, high)
        return _cut(level, chosen[self.end[chosen] - self.start[chosen] >= 1 << shift], low, high)

    def in_view(self, low: int, high: int) -> Ints:
        """Positions of the events that meet [low, high), found without examining all events that start before it."""
        if not self.levels:
            return in_view(self.start, np.maximum.accumulate(self.end), self.end, low, high)
        narrowest = self.levels[-1]
        first, last = np.searchsorted(self.start, (low - (1 << narrowest.shift), high))
        near = np.arange(first, last)
        near = near[(self.end[first:last] > low) | (self.start[first:last] >= low)]
        long = narrowest.long[in_view(*self._long[-1], low, high)]
        return np.concatenate((long[long < first].astype(np.int64), near))

    def merged(self, low: int, high: int) -> Ints:
        """Positions of the events that the bin [low, high) of a `Detail` stands for: those shorter than it."""
        met = self.in_view(low, high)
        return met[self.end[met] - self.start[met] < high - low]

    @cached_property
    def _long(self) -> list[tuple[Ints, Ints, Ints]]:
        """Per level the start, reach and end of its long events."""
        spans = []
        for level in self.levels:
            end = self.end[level.long]
            spans.append((self.start[level.long], np.maximum.accumulate(end), end))
        return spans


class AtAnyScale:
    """A row that can be drawn at any scale: its events by start, with start and end in ns."""

    events: pd.DataFrame

    @cached_property
    def start(self) -> Ints:
        """Starts, in order."""
        return self.events["start"].to_numpy()

    @cached_property
    def end(self) -> Ints:
        """Ends."""
        return self.events["end"].to_numpy()

    @cached_property
    def pyramid(self) -> Pyramid:
        """The level of detail of the events."""
        return Pyramid.of(self.start, self.end)


def grid(low: int, high: int, bins: int) -> tuple[int, int, int]:
    """log2 of the width of at most `bins` + 1 bins over [low, high), ns, and the range widened to whole bins."""
    shift = max(-(-(high - low) // bins) - 1, 0).bit_length()
    return shift, low >> shift << shift, -(-high >> shift) << shift


def _cut(level: Level, exact: Ints | Positions, low: int, high: int) -> Detail:
    shift = level.shift
    seen = slice(*np.searchsorted(level.number, (low >> shift, high >> shift)))
    left = level.number[seen] << shift
    busy, count, longest = (column[seen].astype(np.int64) for column in (level.busy, level.count, level.longest))
    return Detail(exact.astype(np.int64), left, left + (1 << shift), busy, count, longest)


def _levels(start: Ints, end: Ints) -> Iterator[Level]:
    most, longest = len(start) // _SPARING, int((end - start).max())
    shifts = range(int(end.max() - start[0]).bit_length() + _BEYOND, -1, -1)
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # compiled loops run outside of the interpreter's lock
        for first in range(0, len(shifts), _AT_ONCE):
            made = [(start, end, 0, len(start), shift, most, longest) for shift in shifts[first : first + _AT_ONCE]]
            for level in pool.map(lambda arguments: _level(*arguments), made):
                if len(level.number) > most or len(level.long) > most:
                    return
                yield level


def _level(
    start: Ints, end: Ints, first: int, last: int, shift: int, most: int, longest_ns: int | None = None
) -> Level:
    """The bins of 2^shift ns of the events `first` to `last`, none longer than `longest_ns`; of more than `most`, only
    the first ones."""
    number, busy = np.empty(most + 2, np.int64), np.zeros(most + 2, np.int64)
    count, longest = np.zeros(most + 2, np.int32), np.empty(most + 2, np.int32)
    used = _merge(start, end, first, last, shift, number, busy, count, longest)
    has_long = longest_ns is None or longest_ns >= 1 << shift
    long = first + np.flatnonzero(end[first:last] - start[first:last] >= 1 << shift) if has_long else _NO_ROWS
    kept = slice(used)
    return Level(
        shift, number[kept].copy(), busy[kept].copy(), count[kept].copy(), longest[kept].copy(), long.astype(np.int32)
    )


@compiled
def _merge(
    start: Ints, end: Ints, first: int, last: int, shift: int,
    number: Ints, busy: Ints, count: Positions, longest: Positions,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Fill in the bins of the events shorter than 2^shift; returns their number, and stops if two more may not fit."""
    used, reach = 0, start[first] if first < last else 0
    for i in range(first, last):
        a, b = start[i], end[i]
        if b - a >= 1 << shift:
            continue
        head = a >> shift
        tail = max((b - 1) >> shift, head)
        for n in range(head, tail + 1):
            at = used - 1
            if at > 0 and number[at - 1] == n:
                at -= 1
            elif at < 0 or number[at] != n:
                if used == len(number):
                    return used
                at = used
                number[at], longest[at] = n, i
                used += 1
            count[at] += 1
            if b - a > end[longest[at]] - start[longest[at]]:
                longest[at] = i
            covered = min(b, (n + 1) << shift) - max(a, reach, n << shift)
            if covered > 0:
                busy[at] += covered
        reach = max(reach, b)
    return used
