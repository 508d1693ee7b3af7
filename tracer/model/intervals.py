"""Interval arithmetic on arrays of [start, end) in ns: the only place that computes unions.

Sums of interval lengths are wrong where intervals overlap; every function here works on unions, in O(n log n) and
without a Python loop per event.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def _int64(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def union(starts: ArrayLike, ends: ArrayLike) -> tuple[Ints, Ints]:
    """Disjoint, sorted intervals that cover exactly what the given intervals cover.

    Touching intervals are merged; empty and reversed ones (end <= start) are dropped.

    Example:
        >>> union([0, 5, 20], [10, 12, 30])
        (array([ 0, 20]), array([12, 30]))
    """
    first, last = _int64(starts), _int64(ends)
    keep = last > first
    first, last = first[keep], last[keep]
    if len(first) == 0:
        return first, last
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    new = np.empty(len(first), dtype=bool)
    new[0] = True
    np.greater(first[1:], last[:-1], out=new[1:])
    return first[new], last[np.append(np.flatnonzero(new)[1:] - 1, len(last) - 1)]


def intersection(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Disjoint, sorted intervals that cover what both cover.

    Example:
        >>> intersection((np.array([0, 20]), np.array([10, 30])), (np.array([5]), np.array([25])))
        (array([ 5, 20]), array([10, 25]))
    """
    (first, last), (lower, upper) = union(*one), union(*other)
    if not len(first) or not len(lower):
        return first[:0], last[:0]
    edges = np.sort(np.concatenate((first, last, lower, upper)))  # equal edges make empty windows
    starts, ends = edges[:-1], edges[1:]
    both = [covered(*each, starts, ends) > 0 for each in ((first, last), (lower, upper))]
    return union(starts[both[0] & both[1]], ends[both[0] & both[1]])


def total(starts: ArrayLike, ends: ArrayLike) -> int:
    """Length of the union, ns."""
    first, last = union(starts, ends)
    return int((last - first).sum())


def covered(starts: ArrayLike, ends: ArrayLike, window_starts: ArrayLike, window_ends: ArrayLike) -> Ints:
    """How much of each window [window_start, window_end) the union covers, ns; 0 for a reversed window."""
    first, last = union(starts, ends)
    lower, upper = _int64(window_starts), _int64(window_ends)
    if len(first) == 0:
        return np.zeros(len(lower), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(last - first)))

    def cover_up_to(t: Ints) -> Any:
        index = np.searchsorted(first, t, side="right")  # intervals that start at or before t
        beyond = np.where(index > 0, np.maximum(last[index - 1] - t, 0), 0)
        return before[index] - beyond

    return np.asarray(cover_up_to(np.maximum(upper, lower)) - cover_up_to(lower), dtype=np.int64)


def uncovered(
    starts: ArrayLike, ends: ArrayLike, window_starts: ArrayLike, window_ends: ArrayLike
) -> tuple[Ints, Ints, Ints]:
    """The pieces of each window outside the union, window by window: starts, ends and the index of the window.

    Example:
        >>> uncovered([2, 8], [4, 12], [0, 10], [10, 20])
        (array([ 0,  4, 12]), array([ 2,  8, 20]), array([0, 0, 1]))
    """
    first, last = union(starts, ends)
    lower, upper = _int64(window_starts), _int64(window_ends)
    low = np.searchsorted(last, lower, side="right")
    cuts = np.maximum(np.searchsorted(first, upper, side="left") - low, 0)
    of = np.repeat(np.arange(len(lower)), cuts + 1)
    number = np.arange(len(of)) - np.repeat(np.cumsum(cuts + 1) - cuts - 1, cuts + 1)
    here = low[of] + number
    begin = np.where(number == 0, lower[of], np.append(0, last)[here])
    end = np.where(number == cuts[of], upper[of], np.append(first, 0)[here])
    kept = end > begin
    return begin[kept], end[kept], of[kept]


def touching(starts: ArrayLike, ends: ArrayLike, windows: tuple[Ints, Ints]) -> NDArray[np.bool_]:
    """Which intervals overlap any of the windows, which must be disjoint and sorted as returned by `union`."""
    first, last = windows
    if len(first) == 0:
        return np.zeros(len(_int64(starts)), dtype=bool)
    at = np.searchsorted(first, _int64(ends), side="left") - 1  # the last window that starts before the end
    return np.asarray((at >= 0) & (last[at] > _int64(starts)))


class Timed(Protocol):
    """Rows with a start and an end, ns."""

    @property
    def start(self) -> Any:
        """Of each, ns."""

    @property
    def end(self) -> Any:
        """Of each, ns."""


def within_any(rows: Timed, windows: Timed) -> Bools:
    """Which rows are entirely inside the union of the windows."""
    starts, ends = union(windows.start, windows.end)
    at = np.searchsorted(starts, rows.start, side="right") - 1
    return np.asarray((at >= 0) & (rows.end <= ends[at]))


def overlap(starts: ArrayLike, ends: ArrayLike) -> int:
    """Time during which two or more intervals are open, ns."""
    first, last = _int64(starts), _int64(ends)
    keep = last > first
    times, index = np.unique(np.concatenate((first[keep], last[keep])), return_inverse=True)
    opened, closed = (np.bincount(each, minlength=len(times)) for each in np.split(index, 2))
    return int(np.diff(times)[np.cumsum(opened - closed)[:-1] >= 2].sum())
