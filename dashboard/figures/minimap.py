"""The minimap: the whole of each run above its timeline, and the range in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dashboard.figures.timeline import MARGIN, Plot
from dashboard.palette import COLOURS, FONT, THEMES
from dashboard.text import markup
from dashboard.timeline.minimap import Busy

_LANE: Final = 20  # px
_LEAST: Final = 0.004  # of the whole: a narrower range would not be seen


def minimap_height(runs: int) -> int:
    """How tall it is, px."""
    return _LANE * runs + 8


def minimap_plot(
    lanes: Sequence[tuple[str, Busy, int]], whole: tuple[int, int], limits: tuple[int, int], theme: str
) -> Plot:
    """A lane per run.

    Args:
        lanes: the runs' names (not escaped), how busy they are, and time 0, ns of their clocks.
        whole: the range of all, ns from time 0.
        limits: what is in view, likewise.
        theme: "light" or "dark".
    """
    look = THEMES[theme]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": markup(name, 40),
            "x": (busy.middles - anchor) / 1e9,
            "y": (0.85 * busy.share).astype("float32"),
            "base": len(lanes) - 1 - lane,
            "width": busy.width / 1e9,
            "marker": {"color": COLOURS["kernel"], "line": {"width": 0}},
            "customdata": np.floor(busy.share * 100 + 0.5).astype(np.int64).tolist(),
            "hovertemplate": "%{customdata} % busy",
            "unselected": {"marker": {"opacity": 1}},
            "showlegend": False,
        }
        for lane, (name, busy, anchor) in enumerate(lanes)
    ]
    axis = {"fixedrange": True, "showgrid": False, "zeroline": False}
    layout = {
        "barmode": "overlay",
        "hovermode": "x",
        "dragmode": "select",
        "selectdirection": "h",
        "margin": {"l": MARGIN["l"], "r": MARGIN["r"], "t": 4, "b": 4, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": look.track,
        "font": {"family": FONT, "size": 11, "color": look.muted},
        "hoverlabel": {"bgcolor": look.surface, "font": {"color": look.ink, "size": 11, "family": FONT}},
        "xaxis": {**axis, "range": [whole[0] / 1e9, whole[1] / 1e9], "showticklabels": False},
        "yaxis": {
            **axis,
            "range": [0, max(len(lanes), 1)],
            "tickvals": [len(lanes) - 0.5 - lane for lane in range(len(lanes))],
            "ticktext": [markup(name, 16) for name, _, _ in lanes],
            "ticklabelstandoff": 8,
        },
        "shapes": range_shapes(whole, limits, theme),
        "selections": [],
    }
    return {"data": data, "layout": layout}


def range_shapes(whole: tuple[int, int], limits: tuple[int, int], theme: str) -> list[dict[str, Any]]:
    """The frame around what is in view, never so narrow that it cannot be seen."""
    more = max((whole[1] - whole[0]) * _LEAST - (limits[1] - limits[0]), 0) / 2
    ink = THEMES[theme].ink
    return [
        {
            "type": "rect", "name": "in view", "x0": (limits[0] - more) / 1e9, "x1": (limits[1] + more) / 1e9,
            "yref": "paper", "y0": 0, "y1": 1, "line": {"color": ink, "width": 1.5}, "fillcolor": f"{ink}2E",
        }
    ]  # fmt: skip
