"""Level of detail: decides which events of a row are drawn individually and which are merged into bins.

Nothing in view is lost: each event is either drawn individually or counted in every bin that it touches, and a
bin's busy time is the union of the events it merges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.model.intervals import Ints, covered


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

    Args:
        start: the events' starts, in order.
        reach: running maximum of their ends.
        end: their ends.
        low: first ns of the view.
        high: end of the view.
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
