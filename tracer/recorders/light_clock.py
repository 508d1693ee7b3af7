"""The device's clock brought to the host's, from what must be so: nothing starts before it was launched, and what was
waited for has ended when the wait returns.

Each stamped launch bounds the difference of the clocks from below, each wait for one from above. What lies between the
bounds is as likely, so the middle is taken and half their distance is the error. The clocks drift against each other
by some parts per million, so the bounds are those of a window of time, along the drift of the whole recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_WINDOW_NS: Final = 500_000_000
_FEWEST: Final = 4  # bounds of each kind in a window
_LOOSE: Final = 2.0  # times the usual distance of the bounds
_MOST_DRIFT: Final = 1e-3  # NTP slews a clock by at most 500 ppm


@dataclass(frozen=True)
class Bounds:
    """Bounds of host time - device time, ns, at times of the device."""

    at: Ints
    ns: Ints


@dataclass(frozen=True)
class Alignment:
    """How device times become host times.

    Attributes:
        at, ns: difference of the clocks at some times of the device; straight between them.
        error_ns: half the distance of the bounds, the worst of the windows that are used; None without any from above.
        drift_ppm: of the device's clock against the host's.
        contradictions: bounds of a window that left no room, so that stamps and launches do not belong together.
    """

    at: Ints
    ns: Floats
    error_ns: int | None
    drift_ppm: float
    contradictions: int

    def to_host(self, device: Ints) -> Ints:
        """Device times as host times."""
        moved = np.interp(device.astype(np.float64) - float(self.at[0]), self.at - self.at[0], self.ns - self.ns[0])
        return np.asarray(device + np.int64(round(self.ns[0])) + np.rint(moved).astype(np.int64))


def align(lower: Bounds, upper: Bounds) -> Alignment | None:
    """Find it; None without any lower bound."""
    if not len(lower.at):
        return None
    origin = int(lower.at.min())
    drift = _drift(lower, upper)
    if not len(upper.at):
        at = np.array([origin])
        return Alignment(at, np.array([(lower.ns - drift * (lower.at - origin)).max()]), None, drift * 1e6, 0)
    edges = _windows(lower, upper, origin)
    low = _tightest(lower, edges, drift, np.maximum)
    high = _tightest(upper, edges, drift, np.minimum)
    middle = ((edges[:-1] + edges[1:]) // 2).astype(np.int64)
    wrong = low > high
    ns = (low + high) / 2 + drift * (middle - origin)
    apart = np.abs(high - low)
    kept = ~wrong if not wrong.all() else np.ones(len(ns), bool)
    kept &= apart <= _LOOSE * np.median(apart[kept])  # where little was waited for, the neighbours tell more
    error = int(np.ceil(apart[kept].max() / 2))
    return Alignment(middle[kept], ns[kept], error, drift * 1e6, int(wrong.sum()))


def _windows(lower: Bounds, upper: Bounds, origin: int) -> Ints:
    """Edges of windows that hold enough bounds of both kinds each."""
    times = [np.sort(bounds.at) for bounds in (lower, upper)]
    edges, last = [origin], max(int(at[-1]) for at in times) + 1
    windows = np.unique(np.concatenate(times) - origin) // _WINDOW_NS
    for edge in (origin + _WINDOW_NS * np.unique(windows[windows > 0])).tolist():
        before = [np.searchsorted(at, [edges[-1], edge]) for at in times]
        counts = [int(second - first) for first, second in before]
        left = [len(at) - int(second) for at, (_, second) in zip(times, before, strict=True)]
        if min(*counts, *left) >= _FEWEST:
            edges.append(edge)
    return np.array([*edges, last])


def _tightest(bounds: Bounds, edges: Ints, drift: float, pick: np.ufunc) -> Floats:
    """Of each window the tightest bound, without the drift."""
    flat = bounds.ns - drift * (bounds.at - edges[0])
    window = np.clip(np.searchsorted(edges, bounds.at, side="right") - 1, 0, len(edges) - 2)
    order = np.argsort(window, kind="stable")
    return np.asarray(pick.reduceat(flat[order], np.searchsorted(window[order], np.arange(len(edges) - 1))), np.float64)


def _drift(lower: Bounds, upper: Bounds) -> float:
    """Slope of the lower and upper envelopes together, from the tightest bounds of the first and the last quarter."""
    slopes = []
    for bounds, tightest in ((lower, np.max), (upper, np.min)):
        if len(bounds.at) < 2 * _FEWEST or np.ptp(bounds.at) < _WINDOW_NS:
            continue
        quarter = np.ptp(bounds.at) / 4
        first = bounds.at < bounds.at.min() + quarter
        last = bounds.at > bounds.at.max() - quarter
        rise = tightest(bounds.ns[last]) - tightest(bounds.ns[first])
        slopes.append(float(rise) / float(np.median(bounds.at[last]) - np.median(bounds.at[first])))
    return float(np.clip(np.mean(slopes), -_MOST_DRIFT, _MOST_DRIFT)) if slopes else 0.0
