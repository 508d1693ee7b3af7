"""Overlays of a timeline: matches of a search, the chosen event and its arrows, the ruler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.palette import CLEAR, COLOURS, Theme

DIMMED: Final = 0.22
"""Opacity of events that do not match a search."""
_ARROWS: Final = {"launch": COLOURS["launch"], "wait": COLOURS["sync"], "event": COLOURS["copy"]}
_HOVER: Final = "%{customdata:,} begin here<extra></extra>"


def match_markers(marks: pd.DataFrame, look: Theme) -> list[dict[str, Any]]:
    """A marker under every bin with matches, with their number in its hover."""
    some = marks[(marks["event"] < 0) & (marks["found"] > 0)]
    if not len(some):
        return []
    return [
        {
            "type": "scatter",
            "name": "match",
            "mode": "markers",
            "x": (some["x"] + some["dx"] / 2).to_numpy(dtype="float64"),
            "y": (some["y"] + some["height"] / 2).to_numpy(dtype="float32"),
            "marker": {"symbol": "triangle-up", "size": 6, "color": look.ink, "line": {"width": 0}},
            "customdata": some["found"].tolist(),
            "hovertemplate": _HOVER,
            "showlegend": False,
        }
    ]


def add(
    layout: dict[str, Any],
    chosen: Iterable[tuple[pd.DataFrame | None, pd.DataFrame | None]],
    ends: tuple[int, int] | None,
    look: Theme,
) -> None:
    """Add the chosen events' frames and arrows, and a ruler, to a timeline's layout."""
    for frame, lines in chosen:
        layout["shapes"] += [] if frame is None else _frames(frame, look)
        layout["annotations"] += [] if lines is None else _arrows(lines)
    shapes, annotations = _ruler(ends, look)
    layout["shapes"] += shapes
    layout["annotations"] += annotations


def area(ends: tuple[int, int] | None, places: Iterable[tuple[int, int]], look: Theme) -> list[dict[str, Any]]:
    """The summed area, between two times (ns from time 0), over these rows from top to bottom (px)."""
    if ends is None:
        return []
    at = {
        "x0": ends[0] / 1e9,
        "x1": ends[1] / 1e9,
        "type": "rect",
        "name": "area",
        "fillcolor": look.ink,
        "opacity": 0.12,
    }
    return [{**at, "y0": top, "y1": bottom, "line": {"width": 0}} for top, bottom in places]


def _frames(chosen: pd.DataFrame, look: Theme) -> list[dict[str, Any]]:
    """A frame around the chosen event; `chosen` has x0 x1 (s), top bottom (px)."""
    return [
        {
            "type": "rect", "name": "chosen", "x0": x0, "x1": x1, "y0": top - 1.5, "y1": bottom + 1.5,
            "line": {"color": look.ink, "width": 2}, "fillcolor": CLEAR,
        }
        for x0, x1, top, bottom in chosen[["x0", "x1", "top", "bottom"]].itertuples(index=False)
    ]  # fmt: skip


def _arrows(lines: pd.DataFrame) -> list[dict[str, Any]]:
    """An arrow per flow; `lines` has kind, x0 x1 (s), y0 y1 (px)."""
    return [
        {
            "name": "arrow", "x": x1, "y": y1, "ax": x0, "ay": y0, "xref": "x", "yref": "y", "axref": "x", "ayref": "y",
            "text": "", "showarrow": True, "arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 1.6,
            "arrowcolor": _ARROWS[kind], "standoff": 1,
        }
        for kind, x0, y0, x1, y1 in lines[["kind", "x0", "y0", "x1", "y1"]].itertuples(index=False)
    ]  # fmt: skip


def _ruler(ends: tuple[int, int] | None, look: Theme) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The shapes and the annotations of a ruler between two times, ns from time 0; a single line if they are equal."""
    if ends is None:
        return [], []
    low, high = sorted(ends)
    line = {"color": look.ink, "width": 1.2, "dash": "dot"}
    shapes: list[dict[str, Any]] = [
        {"type": "line", "name": "ruler", "x0": x / 1e9, "x1": x / 1e9, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for x in np.unique((low, high)).tolist()
    ]
    if low == high:
        return shapes, []
    shapes.append(
        {
            "type": "rect", "name": "ruler", "x0": low / 1e9, "x1": high / 1e9, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"width": 0}, "fillcolor": look.ink, "opacity": 0.06, "layer": "below",
        }
    )  # fmt: skip
    words = {
        "name": "ruler", "x": (low + high) / 2e9, "yref": "paper", "y": 1, "yanchor": "top", "showarrow": False,
        "text": f"<b>{high - low:,} ns</b>", "bgcolor": look.surface, "bordercolor": look.ink, "borderpad": 2,
        "font": {"size": 11.5, "color": look.ink},
    }  # fmt: skip
    return shapes, [words]
