"""Differences: how much shorter or longer each gap in view is than the base's gap after the same token.

The base's gap is outlined from the start of the other one, and the range between their ends is hatched: shapes and a
signed label, so that it can be read without colours and in print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.figures.shades import LABELLED
from dashboard.figures.timeline import Drawing, Plot
from dashboard.palette import THEMES
from dashboard.reading.run import Run
from dashboard.timeline.layout import GAP_STRIP
from dashboard.units import difference

COLUMNS: Final = ["x", "own", "base", "top", "bottom"]
_MOST: Final = 40  # of a run; with more in view none is wide enough to be read
_CLEAR: Final = "rgba(0,0,0,0)"


def differences(base: Run, other: Run, drawing: Drawing, anchor: int) -> pd.DataFrame:
    """The visible gaps of `other` with the base's gaps after the same tokens: x (s), own and base (ns), top bottom
    (px).

    Empty if a profiler inflates one of them, because their difference would include its overhead.

    Args:
        base: the run compared with.
        other: the run drawn.
        drawing: its drawing.
        anchor: its time 0, ns on its clock.
    """
    if base.tokens is None or other.tokens is None or base.inflated or other.inflated:
        return pd.DataFrame(columns=COLUMNS)
    gaps, mine, theirs = drawing.gaps, other.tokens, base.tokens
    starts = np.rint(gaps["x"].to_numpy() * 1e9).astype(np.int64) + anchor
    token = np.minimum(np.searchsorted(mine.end, starts), len(mine) - 1)
    known = (mine.end[token] == starts) & (mine.gap[token] == gaps["gap"]) & (token < len(theirs))
    gap = theirs.gap[np.minimum(token, len(theirs) - 1)]
    differ = np.asarray(known & (gap >= 0) & (gap != gaps["gap"]), dtype=bool)
    return gaps.assign(own=gaps["gap"], base=gap).loc[differ, COLUMNS]


def with_differences(
    plot: Plot, found: Sequence[pd.DataFrame], limits: tuple[int, int], width: int, theme: str
) -> Plot:
    """The plot with the differences that are wide enough to be read.

    Args:
        plot: as returned by `figures.timeline.timeline_plot`.
        found: as returned by `differences`.
        limits: what the time axis shows, ns from time 0.
        width: of the plot, px.
        theme: "light" or "dark".
    """
    readable = LABELLED * (limits[1] - limits[0]) / width
    wide = [rows[rows[["own", "base"]].max(axis=1) >= readable] for rows in found]
    rows = pd.concat([part for part in wide if 0 < len(part) <= _MOST] or [pd.DataFrame(columns=COLUMNS)])
    if not len(rows):
        return plot
    look, layout = THEMES[theme], plot["layout"]
    marks = rows.to_dict("records")
    outlines = [
        {"type": "rect", "name": "base", "x0": m["x"], "x1": m["x"] + m["base"] / 1e9, "y0": m["top"],
         "y1": m["bottom"], "fillcolor": _CLEAR, "line": {"color": look.ink, "width": 1.2, "dash": "dot"}}
        for m in marks
    ]  # fmt: skip
    labels = [
        {"name": "difference", "x": m["x"] + max(m["own"], m["base"]) / 1e9, "y": m["bottom"] - GAP_STRIP / 2,
         "text": f"<b>{difference(m['own'] - m['base'])}</b>", "xanchor": "left", "yanchor": "middle", "xshift": 3,
         "showarrow": False, "font": {"size": 11.5, "color": look.ink}}
        for m in marks
    ]  # fmt: skip
    return {
        "data": [*plot["data"], _hatching(rows, look.muted)],
        "layout": {
            **layout, "shapes": [*layout["shapes"], *outlines], "annotations": [*layout["annotations"], *labels]
        },
    }  # fmt: skip


def _hatching(rows: pd.DataFrame, colour: str) -> dict[str, Any]:
    low, high = rows[["own", "base"]].min(axis=1), rows[["own", "base"]].max(axis=1)
    shorter = rows["own"] < rows["base"]
    return {
        "type": "bar",
        "name": "difference",
        "orientation": "h",
        "base": (rows["x"] + low / 1e9).tolist(),
        "x": ((high - low) / 1e9).to_numpy(dtype="float64"),
        "y": ((rows["top"] + rows["bottom"]) / 2).to_numpy(dtype="float64"),
        "width": (rows["bottom"] - rows["top"]).to_numpy(dtype="float64"),
        "marker": {
            "color": _CLEAR,
            "line": {"width": 0},
            "pattern": {"shape": np.where(shorter, "/", "\\").tolist(), "fgcolor": colour, "size": 7, "solidity": 0.25},
        },
        "hoverinfo": "skip",
        "showlegend": False,
    }
