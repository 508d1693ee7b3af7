"""Aligns the device's clock with the host's, from bounds of their difference that always hold.

The recorder's own brackets (`native/clock.c`) bound it from both sides, some microseconds apart, whatever the program
does. The program gives two more kinds: work never starts before its launch (a lower bound), and work that was waited
for has ended when the wait returns (an upper one). Those only narrow what the brackets leave open. Where there are no
brackets, they are all there is, and the stated error is half of their distance, however large: between two bounds no
value is likelier than another.

A bound also holds at other times, loosened by how far the clocks may have drifted apart in between. So at each time the
difference lies between the highest of the loosened lower bounds and the lowest of the upper ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.model.intervals import Floats, Ints
from tracer.recorders.light_ring import BRACKET

_WINDOW_NS: Final = 500_000_000  # of the program's bounds only the tightest in such a window is used
_PASSES: Final = 3
_WANDER: Final = 1e-5  # how fast the clocks may drift apart beside their mean drift, if only the program tells that
_STEADY: Final = 1e-6  # the same if brackets tell it, of which each would show more
_UNKNOWN: Final = 1e-4  # the same if nothing does: crystals are off by up to 50 ppm each
_MOST_DRIFT: Final = 1e-3  # believed: NTP slews a clock by at most 500 ppm
_FEWEST: Final = 8  # different times that tell the step of a clock
_COARSE_NS, _COARSEST_NS = 32, 2_048  # that of an H100; more than that of a V100
_READING_NS: Final = 100
"""The error of host times, which are interpolated between pairs of ticks and CLOCK_MONOTONIC."""


@dataclass(frozen=True)
class ClockBounds:
    """Bounds of host time - device time, ns, at device times."""

    at: Ints
    ns: Ints


@dataclass(frozen=True)
class Alignment:
    """The conversion of device times to host times.

    Attributes:
        at, ns: the difference of the clocks at some device times; interpolated linearly.
        error_ns: how far this can be wrong for any stamp: half the distance of the bounds, and what the clocks may
            drift between them. None without upper bounds.
        contradictions: the number of windows in which bounds contradict each other: stamps and launches do not match.
        brackets: the number of the recorder's own brackets.
    """

    at: Ints
    ns: Ints
    error_ns: int | None
    contradictions: int
    brackets: int = 0

    def to_host(self, device: Ints) -> Ints:
        """Convert device times to host times."""
        moved = np.interp(device - self.at[0], self.at - self.at[0], self.ns - self.ns[0])
        return np.asarray(device + self.ns[0] + np.rint(moved).astype(np.int64))


def align(lower: ClockBounds, upper: ClockBounds, brackets: NDArray[Any] | None = None) -> Alignment | None:
    """Estimate the alignment; None without any lower bound, as then no work has times.

    Args:
        lower, upper: the bounds from the program's launches and waits.
        brackets: the recorder's own (`light_ring.BRACKET`).
    """
    if not len(lower.at):
        return None
    origin, about = int(lower.at.min()), int(lower.ns[0])  # as floats, times since 1970 would be off by up to 128 ns
    lower, upper = (ClockBounds(bounds.at - origin, bounds.ns - about) for bounds in (lower, upper))
    first, last = (ClockBounds(bounds.at - origin, bounds.ns - about) for bounds in _own(brackets))
    own = first.at
    drift, wander = _own_drift(first, last) if len(own) > 1 else _drift(lower, upper, _WANDER)
    edges = np.array([0, int(lower.at.max())])
    if not len(upper.at) and not len(own):
        least = (lower.ns - drift * lower.at).max()
        return Alignment(origin + edges, about + np.rint(least + drift * edges).astype(np.int64), None, 0)
    tight = _tightest(lower, drift, -1), _tightest(upper, drift, 1)
    anchors = own if len(own) else _between(*(told for told, _ in tight))
    at = np.unique(np.concatenate([anchors, lower.at, upper.at]))
    least, most = (_loosened(at, own, side.ns - drift * own, wander, sign) for side, sign in ((first, 1), (last, -1)))
    wrong = np.zeros(len(at), bool)
    if len(own):
        tight, wrong = _allowed(at, least, most, tight)
    low = np.maximum(least, _loosened(at, *tight[0], wander, 1))
    high = np.minimum(most, _loosened(at, *tight[1], wander, -1))
    wrong |= low > high + _READING_NS
    row, is_work = np.searchsorted(at, anchors), np.isin(at, np.concatenate([lower.at, upper.at]))
    flat = np.interp(at, anchors, (low[row] + high[row]) / 2)
    doubt = np.maximum(np.abs(high - flat), np.abs(flat - low))[is_work].max()
    error = int(np.ceil(doubt)) + _READING_NS + _resolution(own, lower.at, upper.at)
    nodes = np.unique(np.concatenate([row, np.searchsorted(at, edges)]))
    ns = about + np.rint(flat + drift * at).astype(np.int64)
    return Alignment(origin + at[nodes], ns[nodes], error, int(wrong.sum()), len(own))


def _between(lower: Ints, upper: Ints) -> Ints:
    """A time for each window that has bounds of both kinds, in the middle between them, where drift loosens both alike.
    One for all without such a window."""
    windows = lower // _WINDOW_NS, upper // _WINDOW_NS
    _, one, other = np.intersect1d(windows[0], windows[1], assume_unique=True, return_indices=True)
    if not len(one):
        return np.array([(int(lower.mean()) + int(upper.mean())) // 2])
    return np.asarray(lower[one] + (upper[other] - lower[one]) // 2)


def _own(brackets: NDArray[Any] | None) -> tuple[ClockBounds, ClockBounds]:
    """The bounds that brackets give."""
    brackets = np.zeros(0, BRACKET) if brackets is None else brackets
    at = brackets["time"].astype(np.int64)
    return ClockBounds(at, brackets["before"] - at), ClockBounds(at, brackets["after"] - at)


def _resolution(*times: Ints) -> int:
    """The step of the device's clock, ns, to which its times are rounded down; a usual one if there are few."""
    steps = np.unique(np.diff(np.unique(np.concatenate(times))))
    return min(int(np.gcd.reduce(steps)), _COARSEST_NS) if len(steps) >= _FEWEST else _COARSE_NS


def _own_drift(lower: ClockBounds, upper: ClockBounds) -> tuple[float, float]:
    """`_drift` according to brackets; more than they agree on, if they do not agree on so little."""
    drift, wander = _drift(lower, upper, _STEADY)
    low, high = (bounds.ns - drift * bounds.at for bounds in (lower, upper))
    moved = np.maximum(low[1:] - high[:-1], low[:-1] - high[1:]) / np.maximum(np.diff(lower.at), 1)
    return drift, max(wander, 2 * float(moved.max(initial=0)))


def _drift(lower: ClockBounds, upper: ClockBounds, beside: float) -> tuple[float, float]:
    """The mean drift, in the middle between the least and the greatest that the tightest bounds of the first and the
    last quarter of the time allow; and how fast the clocks may drift apart from it, of which `beside` is for drift that
    changes."""
    kinds = [bounds for bounds in (lower, upper) if len(bounds.at)]
    if not kinds or max(int(bounds.at.max()) for bounds in kinds) == min(int(bounds.at.min()) for bounds in kinds):
        return 0.0, _UNKNOWN
    low, high = kinds[0], kinds[-1]
    begin, end = min(int(low.at.min()), int(high.at.min())), max(int(low.at.max()), int(high.at.max()))
    drift, unsure = 0.0, 0.0
    for _ in range(_PASSES):  # which bounds are tightest depends on the drift
        ends = []
        for bounds, pick in ((low, np.argmax), (high, np.argmin if len(kinds) > 1 else np.argmax)):
            flat = bounds.ns - drift * bounds.at
            parts = (bounds.at <= begin + (end - begin) // 4), (bounds.at >= end - (end - begin) // 4)
            if not all(part.any() for part in parts):
                return 0.0, _UNKNOWN
            ends.append([np.flatnonzero(part)[pick(flat[part])] for part in parts])
        (low_one, low_two), (high_one, high_two) = ends
        least = float(low.ns[low_two] - high.ns[high_one]) / float(low.at[low_two] - high.at[high_one])
        most = float(high.ns[high_two] - low.ns[low_one]) / float(high.at[high_two] - low.at[low_one])
        drift, unsure = float(np.clip((least + most) / 2, -_MOST_DRIFT, _MOST_DRIFT)), abs(most - least) / 2
    return (drift, beside + unsure) if beside + unsure < _UNKNOWN else (0.0, _UNKNOWN)


def _tightest(bounds: ClockBounds, drift: float, sign: int) -> tuple[Ints, Floats]:
    """The tightest bound of each window (lower ones have sign -1): its time, and itself without the drift."""
    flat = np.asarray(bounds.ns - drift * bounds.at, np.float64)
    window = bounds.at // _WINDOW_NS
    order = np.lexsort((sign * flat, window))
    rows = order[np.flatnonzero(np.diff(window[order], prepend=-1))]
    return bounds.at[rows], flat[rows]


def _loosened(at: Ints, told: Ints, flat: Floats, wander: float, sign: int) -> Floats:
    """What bounds at the times `told`, which are among the sorted `at`, say of all these times: of lower ones (sign 1)
    the highest, of upper ones (-1) the lowest; infinite without any."""
    known = np.full(len(at), -np.inf)
    np.maximum.at(known, np.searchsorted(at, told), sign * flat)
    slack = wander * (at - at[0])
    before = np.maximum.accumulate(known + slack) - slack
    after = np.maximum.accumulate((known - slack)[::-1])[::-1] + slack
    return sign * np.maximum(before, after)


def _allowed(
    at: Ints, least: Floats, most: Floats, tight: tuple[tuple[Ints, Floats], tuple[Ints, Floats]]
) -> tuple[tuple[tuple[Ints, Floats], tuple[Ints, Floats]], NDArray[np.bool_]]:
    """The program's bounds that the brackets allow, and at which times others were."""
    wrong = np.zeros(len(at), bool)
    kept = []
    for (told, flat), limit, sign in zip(tight, (most, least), (1, -1), strict=True):
        row = np.searchsorted(at, told)
        is_right = sign * (flat - limit[row]) <= _READING_NS
        wrong[row[~is_right]] = True
        kept.append((told[is_right], flat[is_right]))
    return (kept[0], kept[1]), wrong
