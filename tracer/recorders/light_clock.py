"""Aligns the device's clock with the host's from two constraints: work never starts before its launch, and work that
was waited for has ended when the wait returns.

Each stamped launch bounds the difference of the clocks from below, each wait for one from above. All values between the
bounds are equally likely, so the estimate is the midpoint and its error is half the distance. The clocks drift by some
parts per million, so bounds are taken per time window, after removing the drift of the whole recording.

Only windows in which a launch found the device idle and a wait returned with the end of the work have bounds that are
close to each other. Where the host never waits for long, launches find the device idle, and where the device is always
busy, waits are long, so in most other windows one of the bounds is close to the truth. The estimate keeps to the one
that leads as steadily as clocks drift from a window with close bounds to the next, or that such windows, or steadiness
alone, suggest; where that is a guess, the error says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.model.intervals import Bools, Floats, Ints

_WINDOW_NS: Final = 500_000_000
_FEWEST: Final = 4  # bounds of each kind in a window
_RARE_NS: Final = 2_000_000_000  # longer windows need only one of each
_TIGHT: Final = 0.1  # part of the windows, three at most, whose distances of the bounds tell how close they get
_CLOSEST: Final = 3
_LOOSE: Final = 2.0  # times that distance
_REACHED_NS: Final = 10_000
"""Half the distance of bounds that are both reached: from a launch to its start on an idle device, and from the end of
work to the return of a wait for it, take 16 to 22 µs together (vLLM 0.23 on four machines with an H100)."""
_FAR: Final = 10.0  # times that, if one of the bounds is not reached
_STEADIER: Final = 10.0  # times as much scatters what is not reached
_PASSES: Final = 16
_WANDER: Final = 1e-5  # how fast the clocks may drift apart beside their mean drift
_MOST_DRIFT: Final = 1e-3  # NTP slews a clock by at most 500 ppm


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
        error_ns: how far this can be wrong, in the worst window: half the distance of its bounds, less if windows with
            close bounds exclude one; the least distance of any window's if steadiness chose one of the bounds; and, in
            windows that are long because bounds are rare, what the clocks may drift meanwhile. None
            without upper bounds.
        contradictions: the number of windows whose bounds contradict each other: stamps and launches do not match.
    """

    at: Ints
    ns: Ints
    error_ns: int | None
    contradictions: int

    def to_host(self, device: Ints) -> Ints:
        """Convert device times to host times."""
        moved = np.interp(device - self.at[0], self.at - self.at[0], self.ns - self.ns[0])
        return np.asarray(device + self.ns[0] + np.rint(moved).astype(np.int64))


def align(lower: ClockBounds, upper: ClockBounds) -> Alignment | None:
    """Estimate the alignment; None without any lower bound."""
    if not len(lower.at):
        return None
    origin = int(lower.at.min())
    about = int(lower.ns[0])  # as a float, the time since 1970 would be off by up to 128 ns
    lower, upper = (ClockBounds(bounds.at, bounds.ns - about) for bounds in (lower, upper))
    drift, wander = _drift(lower, upper)
    if not len(upper.at):
        least = (lower.ns - drift * (lower.at - origin)).max()
        at = np.array([origin, int(lower.at.max())])
        return Alignment(at, about + np.rint(least + drift * (at - origin)).astype(np.int64), None, 0)
    edges = _windows(lower, upper, origin)
    at, low, high, tight = _bounded(lower, upper, edges, drift)
    if np.ptp(at[tight]) >= _WINDOW_NS:  # which tell the drift better than all bounds do
        slope = np.polyfit(at[tight] - origin, (low + high)[tight] / 2, 1)[0]
        drift, wander = float(np.clip(drift + slope, -_MOST_DRIFT, _MOST_DRIFT)), _WANDER
        at, low, high, tight = _bounded(lower, upper, edges, drift)
    wrong = low > high
    flat, errors = _beside(low, high) or _between(at, low, high, tight)
    flat = np.where(wrong, flat, np.clip(flat, low, high))
    errors = errors + wander * np.maximum(_lengths(lower, upper, edges) - _WINDOW_NS, 0)
    counts = ~wrong | (wander > _WANDER)  # bounds that contradict each other only by an unknown drift are not wrong
    error = max(int(np.ceil(errors[counts].max(initial=0))), _REACHED_NS)
    at, flat = np.concatenate((edges[:1], at, edges[-1:])), flat[np.r_[0, : len(flat), -1]]  # drift before and after
    return Alignment(at, about + np.rint(flat + drift * (at - origin)).astype(np.int64), error, int(wrong.sum()))


def _bounded(lower: ClockBounds, upper: ClockBounds, edges: Ints, drift: float) -> tuple[Ints, Floats, Floats, Bools]:
    """When the bounds of each window are tightest, these bounds without the drift, and whether they are close to each
    other."""
    low, since = _tightest(lower, edges, drift, np.maximum)
    high, until = _tightest(upper, edges, drift, np.minimum)
    apart = np.abs(high - low)
    right = low <= high if (low <= high).any() else np.ones(len(low), bool)
    closest = np.sort(apart[right])[min(_CLOSEST - 1, int(_TIGHT * right.sum()))]
    return since + (until - since) // 2, low, high, right & (apart <= _LOOSE * closest)


def _beside(low: Floats, high: Floats) -> tuple[Floats, Floats] | None:
    """The difference of the clocks in each window from one of the bounds, and its error, if the other is far from the
    truth in all of them: what is reached in every window is steady, what depends on the program often scatters. None if
    both may be close, or neither is much steadier."""
    if len(low) <= _FEWEST or (high - low).min() < _FAR * _REACHED_NS:
        return None
    scatter = [float(np.median(np.abs(np.diff(bound)))) for bound in (low, high)]
    if min(scatter) > min(_REACHED_NS, max(scatter) / _STEADIER):
        return None
    error = np.full(len(low), (high - low).min())  # no two windows differ by more than drift
    return (low + _REACHED_NS if scatter[0] <= scatter[1] else high - _REACHED_NS), error


def _between(at: Ints, low: Floats, high: Floats, close: Bools) -> tuple[Floats, Floats]:
    """The difference of the clocks in each window, without the drift, and its error: the midpoint of tight bounds;
    between these the bound that is steady there. Elsewhere as far from one bound as in tight windows, if the clocks can
    have moved to it since the closest known window and not to the other; if to both, the midpoint; if to neither,
    interpolated. They can also have stayed: the error contains how far they would have moved."""
    half, middle = np.abs(high - low) / 2, (low + high) / 2
    both = close & (half <= _LOOSE * _REACHED_NS)  # no bound is wrong: these windows have reached both, if any has
    tight = both if both.any() else close
    slack, doubt = float(np.median(half[tight])), float(np.median(half[close]))
    one, other = low + slack, high - slack
    is_one, is_other = _steady(at, one, other, tight)
    sure = known = tight | is_one | is_other
    flat = np.where(is_one, one, np.where(is_other, other, middle))
    straight = np.interp(at - at[0], at[sure] - at[0], flat[sure])
    for _ in range(_PASSES):  # windows that follow a bound are known to those behind them
        flat = np.interp(at - at[0], at[known] - at[0], flat[known])
        times, behind = at[known], np.searchsorted(at[known], at)
        apart = np.minimum(*(np.abs(at - times[each.clip(0, len(times) - 1)]) for each in (behind - 1, behind)))
        may_be = np.array([np.abs(each - flat) <= _WANDER * apart for each in (one, other)])
        follows = ~known & (may_be.sum(axis=0) == 1)
        if not follows.any():
            break
        flat = np.where(follows, np.where(may_be[0], one, other), flat)
        known = known | follows
    either = tight | ~known & may_be.all(axis=0)
    moved = np.where(known, np.abs(flat - straight), np.minimum(_WANDER * apart, half))
    return np.where(either, middle, flat), np.where(either, half, doubt + moved)


def _steady(at: Ints, one: Floats, other: Floats, tight: Bools) -> tuple[Bools, Bools]:
    """The windows between tight ones in which one of the two leads from the one to the other as steadily as clocks
    drift, while the other scatters as what depends on the program does: those of the first, and those of the second. A
    bound that is reached at both ends of a stretch and not inside would have moved there."""
    stretch, last = np.cumsum(tight), int(tight.sum()) + 1
    moves = [np.abs(np.diff(each)) for each in (one, other)]
    drifts = np.minimum(_WANDER * np.diff(at), _REACHED_NS)
    far, jumps = (
        np.array([np.bincount(stretch[:-1], each, last) for each in rows]) for rows in (moves, moves > drifts)
    )
    steady = (jumps == 0) & (_STEADIER * far < far[::-1])
    return ~tight & steady[0][stretch], ~tight & steady[1][stretch]


def _windows(lower: ClockBounds, upper: ClockBounds, origin: int) -> Ints:
    """Edges of windows that each contain enough bounds of both kinds: several, or where bounds are rare, one."""
    times = [np.sort(bounds.at) for bounds in (lower, upper)]
    edges, last = [origin], max(int(at[-1]) for at in times) + 1
    windows = np.unique(np.concatenate(times) - origin) // _WINDOW_NS
    for edge in (origin + _WINDOW_NS * np.unique(windows[windows > 0])).tolist():
        before = [np.searchsorted(at, [edges[-1], edge]) for at in times]
        counts = [int(second - first) for first, second in before]
        left = [len(at) - int(second) for at, (_, second) in zip(times, before, strict=True)]
        if min(*counts, *left) >= (_FEWEST if edge - edges[-1] < _RARE_NS else 1):
            edges.append(edge)
    return np.array([*edges, last])


def _lengths(lower: ClockBounds, upper: ClockBounds, edges: Ints) -> Ints:
    """The time from the first to the last bound of each window."""
    times = np.sort(np.concatenate([lower.at, upper.at]))
    return np.asarray(times[np.searchsorted(times, edges[1:]) - 1] - times[np.searchsorted(times, edges[:-1])])


def _tightest(bounds: ClockBounds, edges: Ints, drift: float, pick: np.ufunc) -> tuple[Floats, Ints]:
    """The tightest bound of each window, without the drift, and its time."""
    flat = np.asarray(bounds.ns - drift * (bounds.at - edges[0]), np.float64)
    window = np.clip(np.searchsorted(edges, bounds.at, side="right") - 1, 0, len(edges) - 2)
    order = np.lexsort((flat if pick is np.minimum else -flat, window))
    first = order[np.searchsorted(window[order], np.arange(len(edges) - 1))]
    return flat[first], bounds.at[first]


def _drift(lower: ClockBounds, upper: ClockBounds) -> tuple[float, float]:
    """The mean slope of the lower and upper envelopes, from the tightest bounds of the first and the last quarter, and
    how fast the clocks may drift apart beside it."""
    slopes = []
    for bounds, tightest in ((lower, np.max), (upper, np.min)):
        if len(bounds.at) < 2 * _FEWEST or np.ptp(bounds.at) < _WINDOW_NS:
            continue
        quarter = np.ptp(bounds.at) / 4
        first = bounds.at < bounds.at.min() + quarter
        last = bounds.at > bounds.at.max() - quarter
        rise = tightest(bounds.ns[last]) - tightest(bounds.ns[first])
        slopes.append(float(rise) / float(np.median(bounds.at[last]) - np.median(bounds.at[first])))
    if not slopes:
        return 0.0, _MOST_DRIFT
    return float(np.clip(np.mean(slopes), -_MOST_DRIFT, _MOST_DRIFT)), _WANDER
