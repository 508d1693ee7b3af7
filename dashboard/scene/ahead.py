"""Prefetching: the rows around a view, coarser with distance, for the browser to draw while the reader pans or zooms.

There are rings of decreasing detail, each a few times as wide as the previous one; the outermost is as wide as the
recording. The marks of a ring begin where the previous ring ends; those of the first one are everywhere. Times are
16-bit fractions of their ring, below a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dashboard.palette import COLOURS, KINDS, THEMES
from dashboard.timeline import holes
from dashboard.timeline.layout import Panel
from dashboard.timeline.pyramid import Detail, Pyramid
from tracer.model.intervals import Ints

RINGS: Final = ((3, 600), (16, 400), (128, 400))
"""Width of a ring relative to the view, and its maximum number of bins."""
_WHOLE: Final = 512  # bins of a recording that is wider than the widest ring
_FINEST: Final = (1 << 16) - 1
_GAP: Final = KINDS.index("gap")
_SHADES: Final = 4  # of a bin, by how busy it is

Marks = NDArray[np.uint16]
"""A mark per row: from and to in units of its ring, and its lane."""
Bundles = dict[tuple[int, int, int], list[Marks]]
"""By ring, kind and shade."""


def rings_of(limits: tuple[int, int], whole: tuple[int, int]) -> list[tuple[int, int, int]]:
    """The rings around a range: from, to (ns from time 0), and maximum number of bins.

    Args:
        limits: what the time axis shows, ns from time 0.
        whole: the range of the recordings, ns from time 0; no ring extends beyond it.
    """
    middle, width = (limits[0] + limits[1]) // 2, limits[1] - limits[0]
    rings = []
    for times, bins in (*RINGS, (0, _WHOLE)):
        wide = (middle - times * width // 2, middle + times * width // 2) if times else whole
        low, high = max(wide[0], whole[0]), min(wide[1], whole[1])
        if low < high:
            rings.append((low, high, bins))
        if (low, high) == whole:
            break
    return rings


def around(
    runs: Sequence[tuple[Sequence[holes.HoleRow], Panel, int]], limits: tuple[int, int], whole: tuple[int, int],
    theme: str,
) -> dict[str, Any]:  # fmt: skip
    """What the browser draws around a view.

    Args:
        runs: for each run its holes, the positions of its rows, and time 0, ns of its clock.
        limits, whole: as for `rings_of`.
        theme: "light" or "dark".

    Returns:
        rings (from and to, s), lanes (top and bottom, px) and bundles (ring, colour, opacity, and base64 of `Marks`).
    """
    rings = rings_of(limits, whole)
    lanes: list[tuple[int, int]] = []
    found: Bundles = {}
    for shades, panel, anchor in runs:
        bands = {band.device: (band.top, band.bottom) for band in panel.bands}
        for shade in shades:
            if shade.device in bands:
                lanes.append(bands[shade.device])
                _add(found, shade.pyramid, np.full(len(shade.start), _GAP, np.int8), anchor, rings, lanes)
        for placed in panel.rows:
            lanes.append((placed.top, placed.bottom))
            row = placed.row
            _add(found, row.pyramid, row.events["what"].to_numpy(), anchor, rings, lanes)
    return {
        "rings": [[low / 1e9, high / 1e9] for low, high, _ in rings],
        "lanes": lanes,
        "bundles": [
            {"ring": ring, "colour": COLOURS[KINDS[kind]], "opacity": _opacity(KINDS[kind], shade, theme),
             "marks": np.concatenate(marks).ravel()}
            for (ring, kind, shade), marks in sorted(found.items(), key=lambda each: each[0][1] != _GAP)  # beneath
        ],
    }  # fmt: skip


def _opacity(kind: str, shade: int, theme: str) -> float:
    share = shade / (_SHADES - 1)
    return round(THEMES[theme].gap_opacity * share if kind == "gap" else 0.2 + 0.8 * share, 3)


def _add(
    found: Bundles, pyramid: Pyramid, kinds: NDArray[np.int8], anchor: int, rings: Sequence[tuple[int, int, int]],
    lanes: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    inner: tuple[int, int] | None = None
    for number, (low, high, bins) in enumerate(rings):
        for start, end in _outside(low, high, inner):
            share = max(bins * (end - start) // (high - low), 1)
            detail = pyramid.detail(start + anchor, end + anchor, share)
            clip = (start + anchor, end + anchor)
            for kind, shade, times in _marks(pyramid, kinds, detail, clip):
                units = np.rint((times - (low + anchor)) * (_FINEST / (high - low)))
                units[:, 1] = np.maximum(units[:, 1], np.minimum(units[:, 0] + 1, _FINEST))
                lane = np.full(len(units), len(lanes) - 1)
                found.setdefault((number, kind, shade), []).append(np.column_stack((units, lane)).astype(np.uint16))
        inner = (low, high)


def _outside(low: int, high: int, inner: tuple[int, int] | None) -> list[tuple[int, int]]:
    parts = [(low, high)] if inner is None else [(low, inner[0]), (inner[1], high)]
    return [(start, end) for start, end in parts if start < end]


def _marks(
    pyramid: Pyramid, kinds: NDArray[np.int8], detail: Detail, clip: tuple[int, int]
) -> Iterator[tuple[int, int, Ints]]:
    """Start and end of the marks, ns, by kind and shade."""
    exact = np.column_stack((pyramid.start[detail.exact], pyramid.end[detail.exact]))
    merged = np.column_stack((detail.start, detail.end))
    share = detail.busy / np.maximum(detail.end - detail.start, 1)
    times = np.clip(np.concatenate((exact, merged)), *clip)
    kind = kinds[np.concatenate((detail.exact, detail.longest))]
    shades = np.rint(share * (_SHADES - 1)).astype(np.int64)
    shade = np.concatenate((np.full(len(exact), _SHADES - 1), shades))
    for key in np.unique(kind * _SHADES + shade).tolist():
        yield key // _SHADES, key % _SHADES, times[(kind * _SHADES + shade) == key]
