"""The shading of a timeline where a device idles: gaps, and holes inside steps, with their labels; and how much shorter
or longer each gap in view is than the base's gap after the same token.

The base's gap is outlined from the start of the other one, and the range between their ends is hatched: shapes and a
signed label, so that it can be read without colours and in print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.figures.payload import Plot, hover, width_of_bars
from dashboard.palette import CLEAR, COLOURS, HOLES, Theme
from dashboard.timeline.layout import GAP_STRIP
from dashboard.units import difference, duration

LABELLED: Final = 34
"""Minimum width of a labelled gap or hole, px."""
DIFFERENCES: Final = ["x", "own", "base", "top", "bottom"]
"""The columns of the gaps that differ from the base's: x (s), own and base (ns), top bottom (px)."""
_MOST_DIFFERENCES: Final = 40  # of a run; with more in view none is wide enough to be read


def gap_bars(gaps: Sequence[pd.DataFrame], look: Theme) -> list[dict[str, Any]]:
    """The gaps of all runs (`Drawing.gaps`) as one Bar."""
    found = [each for each in gaps if len(each)]
    if not found:
        return []
    marker = {"color": COLOURS["gap"], "opacity": look.gap_opacity, "line": {"width": 0}}
    return [{**_bar("gap", pd.concat(found, ignore_index=True)), "marker": marker, "hoverinfo": "skip"}]


def hole_bars(holes: Sequence[pd.DataFrame], look: Theme) -> list[dict[str, Any]]:
    """The holes of all runs (`Drawing.holes`) as one Bar per place; gaps only with their hovers."""
    found = [each for each in holes if len(each)]
    if not found:
        return []
    return [
        {
            **_bar(f"idle {place}", rows),
            "marker": {**marker(str(place), look), "opacity": rows["share"].to_numpy(dtype="float32")},
            **hover(rows["text"].tolist(), "%{hovertext}<extra></extra>"),
            "hoverlabel": {"bordercolor": COLOURS["gap"]},
        }
        for place, rows in pd.concat(found, ignore_index=True).groupby("place", sort=True)
    ]


def marker(place: str, look: Theme) -> dict[str, Any]:
    """The shading of idle time at a place."""
    if place not in HOLES:
        return {"color": CLEAR, "line": {"width": 0}}  # the gap has a Bar of its own
    red, green, blue = (int(COLOURS["gap"][at : at + 2], 16) for at in (1, 3, 5))
    ground = f"rgba({red},{green},{blue},{look.gap_opacity})"
    pattern = {"shape": HOLES[place], "bgcolor": ground, "fgcolor": look.pattern, "size": 6, "solidity": 0.2}
    return {"color": ground, "line": {"width": 0}, "pattern": pattern}


def labels(
    gaps: pd.DataFrame, holes: pd.DataFrame, limits: tuple[int, int], look: Theme, width: int
) -> Iterator[dict[str, object]]:
    """ "gap 150 µs" or "idle 98 µs" below each gap or hole that is wide enough for it.

    Args:
        gaps, holes: as in `Drawing`.
        limits: what the time axis shows, ns from time 0.
        look: the theme.
        width: of the plot, px.
    """
    per_pixel = (limits[1] - limits[0]) / width
    inside = holes[(holes["share"] == 1) & holes["place"].isin(list(HOLES))] if len(holes) else holes
    for name, rows, length in (("gap", gaps, "gap"), ("idle", inside, "ns")):
        if not len(rows):
            continue
        for x, dx, ns, text, bottom in rows[["x", "dx", length, "text", "bottom"]].itertuples(index=False):
            low, high = max(x * 1e9, limits[0]), min((x + dx) * 1e9, limits[1])
            room = (high - low) / per_pixel
            if room >= LABELLED:
                yield {
                    "x": (low + high) / 2e9, "y": bottom - GAP_STRIP / 2, "yanchor": "middle",
                    "text": f"{name} {duration(ns)}" if room >= 2.2 * LABELLED else duration(ns), "showarrow": False,
                    "font": {"size": 11.5, "color": look.ink}, "hovertext": text, "name": name,
                    "bgcolor": f"{look.surface}B0" if name == "idle" else CLEAR, "borderpad": 0,
                }  # fmt: skip


def _bar(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "orientation": "h",
        "base": rows["x"].tolist(),
        "x": rows["dx"].to_numpy(dtype="float64"),
        "y": ((rows["top"] + rows["bottom"]) / 2).to_numpy(dtype="float32"),
        "width": width_of_bars((rows["bottom"] - rows["top"]).to_numpy()),
        "showlegend": False,
    }


def with_differences(
    plot: Plot, found: Sequence[pd.DataFrame], limits: tuple[int, int], width: int, look: Theme
) -> Plot:
    """The plot with the differences that are wide enough to be read.

    Args:
        plot: as returned by `figures.timeline.timeline_plot`.
        found: for each run its gaps with `DIFFERENCES`.
        limits: what the time axis shows, ns from time 0.
        width: of the plot, px.
        look: the theme.
    """
    readable = LABELLED * (limits[1] - limits[0]) / width
    wide = [rows[rows[["own", "base"]].max(axis=1) >= readable] for rows in found]
    few = [part for part in wide if 0 < len(part) <= _MOST_DIFFERENCES]
    if not few:
        return plot
    rows, layout = pd.concat(few), plot["layout"]
    marks = rows.to_dict("records")
    outlines = [
        {"type": "rect", "name": "base", "x0": m["x"], "x1": m["x"] + m["base"] / 1e9, "y0": m["top"],
         "y1": m["bottom"], "fillcolor": CLEAR, "line": {"color": look.ink, "width": 1.2, "dash": "dot"}}
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
            "color": CLEAR,
            "line": {"width": 0},
            "pattern": {"shape": np.where(shorter, "/", "\\").tolist(), "fgcolor": colour, "size": 7, "solidity": 0.25},
        },
        "hoverinfo": "skip",
        "showlegend": False,
    }
