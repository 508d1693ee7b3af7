"""The timeline figure: several runs, stacked, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures import overlay, shades
from dashboard.figures.payload import Plot, hover, width_of_bars
from dashboard.palette import COLOURS, DARK_TEXT_ON, FONT, KINDS, THEMES, Theme
from dashboard.text import fitting, markup, plain
from dashboard.timeline.layout import RULER, Panel
from dashboard.timeline.marks import SIZE_OF_TEXTS, joined
from dashboard.units import ticks
from tracer.model.schema import MISSING

MARGIN = {"r": 22, "t": 52, "b": 8}
BETWEEN = "  ·  "
"""Between the parts of a note."""
_NARROW, _PER_LETTER_OF_HEADING = 700, 7.4  # px
_BESIDE_NAMES = 10  # px on both sides of the names of rows
SIZE_OF_NAMES = 11
"""Of the letters of the names of rows, px."""
_NUMBER_PX = 30  # of a token in the ruler
_HOVER_EVENT = "<b>%{hovertext}</b><br>%{customdata[1]}<extra></extra>"
_HOVER_BIN = (
    "<b>%{{customdata[1]}} events</b> in {}, busy %{{customdata[2]}}%<br>"
    "longest: %{{customdata[3]}} %{{hovertext}}<extra></extra>"
)


@dataclass(frozen=True, eq=False)
class Drawing:
    """One run as the figure needs it.

    Attributes:
        title, note: its heading, and the note next to it; neither is escaped.
        panel: its position.
        marks: as returned by `timeline.marks.marks_of`.
        lines: as returned by `timeline.marks.connectors`.
        gaps: the gaps in view: x dx (s), gap (ns), text (a hover, escaped, where it has a label), top bottom (px).
        holes: what is shaded as idle, as returned by `timeline.holes.shades_of`.
        tokens: those that the ruler numbers: x (s), step; None for no ruler.
        chosen, arrows: of the chosen event, as returned by `scene.choice`; None if there is none.
    """

    title: str
    note: str
    panel: Panel
    marks: pd.DataFrame
    lines: pd.DataFrame
    gaps: pd.DataFrame
    holes: pd.DataFrame = field(default_factory=pd.DataFrame)
    tokens: pd.DataFrame | None = None
    chosen: pd.DataFrame | None = None
    arrows: pd.DataFrame | None = None


def left_of(width: int) -> int:
    """The margin for the names of the rows, px, in a plot of this width."""
    return 112 if width < _NARROW else 145


def room_of(width: int) -> int:
    """The room for a name in this margin, px."""
    return left_of(width) - _BESIDE_NAMES


def timeline_figure(plot: Plot) -> go.Figure:
    """A plot as a figure, validated by Plotly."""
    return go.Figure(plot, skip_invalid=False)


def timeline_plot(
    drawings: Sequence[Drawing], limits: tuple[int, int], origin: str, theme: str, width: int,
    finds: bool = False, ruler: tuple[int, int] | None = None,
) -> Plot:  # fmt: skip
    """Draw the runs.

    Args:
        drawings: the runs, top to bottom.
        limits: range of the time axis, ns from time 0.
        origin: description of time 0.
        theme: "light" or "dark".
        width: of the plot, px.
        finds: whether there is a search, so that marks without matches are dimmed.
        ruler: the measured range, ns from time 0.
    """
    look = THEMES[theme]
    height = max((d.panel.bottom for d in drawings), default=0)
    data: list[dict[str, Any]] = []
    if drawings:
        marks = joined([d.marks for d in drawings])
        data += shades.gap_bars([d.gaps for d in drawings], look)
        data += shades.hole_bars([d.holes for d in drawings], look)
        data += _bars(marks, look, finds)
        data += _connectors(pd.concat([d.lines for d in drawings], ignore_index=True))
        data += _texts(marks[marks["found"] > 0])
        data += _ruler(drawings, look, limits[1] / 1e9 - _NUMBER_PX / width * (limits[1] - limits[0]) / 1e9)
        data += overlay.match_markers(marks, look) if finds else []
    layout = _layout(drawings, limits, origin, look, height, width)
    overlay.add(layout, [(d.chosen, d.arrows) for d in drawings], ruler, look)
    return {"data": data, "layout": layout}


def height_of(drawings: Sequence[Drawing]) -> int:
    """Height of the figure, px."""
    return max((d.panel.bottom for d in drawings), default=0) + MARGIN["t"] + MARGIN["b"]


def _bars(marks: pd.DataFrame, look: Theme, finds: bool) -> list[dict[str, Any]]:
    """One Bar per kind and way of drawing: merged bins, narrow events, wide events on top."""
    way = np.where(marks["event"] == MISSING, 0, np.where(marks["wide"], 2, 1))
    bars = []
    for _, part in marks.groupby([way, "what"], sort=True):
        kind = KINDS[int(part["what"].iloc[0])]
        colour = COLOURS[kind]
        wide, merged = bool(part["wide"].iloc[0]), bool(part["event"].iloc[0] == MISSING)
        more = part["more"].tolist()
        more, template = _of_bins(more) if merged else (more, _HOVER_EVENT)
        bars.append(
            {
                "type": "bar",
                "name": kind,
                "orientation": "h",
                "base": part["x"].tolist(),  # plotly.js unpacks no arrays here
                "x": part["dx"].to_numpy(),
                "y": part["y"].to_numpy(dtype="float32"),
                "width": width_of_bars(part["height"].to_numpy()),
                "marker": {
                    "color": colour,
                    "opacity": _opacity(part, merged, finds),
                    "line": {"width": 0.8, "color": look.surface if wide else colour},
                },
                "customdata": [[event, *each] for event, each in zip(part["event"].tolist(), more, strict=True)],
                **hover(part["title"].tolist(), template),
                "hoverlabel": {"bordercolor": colour},
                "showlegend": False,
            }
        )
    return bars


def _of_bins(more: list[list[Any]]) -> tuple[list[list[Any]], str]:
    """The facts of merged marks, and the template of their hovers, which includes the bin width if all bins have the
    same."""
    widths = {each[-1] for each in more}
    if len(widths) > 1:
        return more, _HOVER_BIN.format("%{customdata[4]}")
    return [each[:-1] for each in more], _HOVER_BIN.format(*widths)


def _opacity(part: pd.DataFrame, merged: bool, finds: bool) -> Any:
    """Opacity by the busy share of a bin, lower for bins without matches."""
    if not merged and not finds:
        return 1
    opacity = 0.2 + 0.8 * part["share"].to_numpy() if merged else np.ones(len(part))
    return (opacity * np.where(part["found"] > 0, 1, overlay.DIMMED)).astype("float32")


def _connectors(lines: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines from the end of the work that a sync waited for to the return of the sync."""
    if not len(lines):
        return []
    gap = np.full(len(lines), np.nan)
    return [
        {
            "type": "scatter",
            "name": "waited for",
            "mode": "lines+markers",
            "x": np.column_stack([lines["x0"], lines["x0"], lines["x1"], gap]).ravel(),
            "y": np.column_stack([lines["y0"], lines["y1"] + 7, lines["y1"], gap]).ravel(),
            "line": {"color": COLOURS["sync"], "width": 1.2},
            "marker": {"size": np.tile([5, 0, 0, 0], len(lines)), "color": COLOURS["sync"], "line": {"width": 0}},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def _texts(marks: pd.DataFrame) -> list[dict[str, Any]]:
    labelled = marks[marks["text"] != ""]
    if not len(labelled):
        return []
    dark = labelled["what"].isin([KINDS.index(k) for k in DARK_TEXT_ON])
    return [
        {
            "type": "scatter",
            "name": "text",
            "mode": "text",
            "x": labelled["text_x"].to_numpy(),
            "y": labelled["y"].to_numpy(),
            "text": labelled["text"].tolist(),
            "textfont": {"size": SIZE_OF_TEXTS, "color": np.where(dark, "#1B2430", "#FFFFFF").tolist()},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def _ruler(drawings: Sequence[Drawing], look: Theme, edge: float) -> list[dict[str, Any]]:
    """The numbers of the tokens, at the starts of their compute; left of those after `edge`, where there is no room."""
    ruled = [(d.panel.top + RULER, d.tokens) for d in drawings if d.tokens is not None]
    if not sum(len(tokens) for _, tokens in ruled):
        return []
    x = np.concatenate([tokens["x"].to_numpy() for _, tokens in ruled])
    return [
        {
            "type": "scatter",
            "name": "token",
            "mode": "markers+text",
            "x": x,
            "y": np.concatenate([np.full(len(tokens), y, "float32") for y, tokens in ruled]),
            "text": [str(step) for _, tokens in ruled for step in tokens["step"].tolist()],
            "textposition": np.where(x > edge, "middle left", "middle right").tolist(),
            "textfont": {"size": 10, "color": look.muted},
            "marker": {"symbol": "line-ns", "size": 10, "line": {"width": 1.5, "color": look.muted}},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def _layout(
    drawings: Sequence[Drawing], limits: tuple[int, int], origin: str, look: Theme, height: int, width: int
) -> dict[str, object]:
    times, texts = ticks(*limits, most=max(width // 120, 4))
    placed = [p for d in drawings for p in d.panel.rows]
    return {
        "barmode": "overlay",
        "hovermode": "closest",
        "dragmode": "pan",
        "autosize": True,
        "margin": {"l": left_of(width), **MARGIN, "pad": 0},
        **look.layout,
        "hoverlabel": {
            "bgcolor": look.surface, "font": {"color": look.ink, "size": 12, "family": FONT}, "align": "left",
        },
        "xaxis": {
            "range": [limits[0] / 1e9, limits[1] / 1e9],
            "side": "top",
            "tickvals": [t / 1e9 for t in times],
            "ticktext": texts,
            "showgrid": True,
            "gridcolor": look.line,
            "gridwidth": 1,
            "zeroline": True,
            "zerolinecolor": look.muted,
            "zerolinewidth": 1.5,
            "ticks": "outside",
            "tickcolor": look.line,
            "tickfont": {"color": look.muted, "size": 11},
            "title": {"text": f"time from the {origin}", "standoff": 8, "font": {"color": look.muted, "size": 12}},
        },
        "yaxis": {
            "range": [height, 0],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "tickvals": [p.middle for p in placed if p.line.label],
            "ticktext": [markup(fitting(p.line.label, room_of(width), SIZE_OF_NAMES)) for p in placed if p.line.label],
            "tickfont": {"color": look.muted, "size": SIZE_OF_NAMES},
            "ticklabelstandoff": 8,
        },
        "shapes": [*_tracks(drawings, look)],
        "annotations": [
            a
            for d in drawings
            for a in (*_heading(d, look, width), *shades.labels(d.gaps, d.holes, limits, look, width))
        ],
    }  # fmt: skip


def _tracks(drawings: Sequence[Drawing], look: Theme) -> list[dict[str, object]]:
    """A faint track behind every row, and a line between runs."""
    across = {"xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    tracks: list[dict[str, object]] = [
        {**across, "type": "rect", "y0": p.top, "y1": p.bottom, "fillcolor": look.track, "line": {"width": 0}}
        for d in drawings
        for p in d.panel.rows
    ]
    return tracks + [
        {
            **across,
            "type": "line",
            "y0": d.panel.top,
            "y1": d.panel.top,
            "line": {"color": look.line, "width": 1},
        }
        for d in drawings[1:]
    ]


def _heading(drawing: Drawing, look: Theme, width: int) -> list[dict[str, object]]:
    """The run's name, and as much of the note as fits; on a narrow page both start above the names of the rows."""
    shift = left_of(width) if width < _NARROW else 0
    title = plain(drawing.title, min(60, int(width / _PER_LETTER_OF_HEADING)))
    room = (width - left_of(width) + shift) / _PER_LETTER_OF_HEADING - len(title)
    parts = [part for part in drawing.note.split(BETWEEN) if part]
    while parts and len(BETWEEN.join(parts)) > room:
        parts.pop()
    note = f'  <span style="color:{look.muted}">{markup(BETWEEN.join(parts))}</span>' if parts else ""
    return [
        {
            "xref": "paper", "x": 0, "y": drawing.panel.top + 18, "xanchor": "left", "yanchor": "middle",
            "xshift": -shift, "text": f"<b>{markup(title)}</b>{note}", "showarrow": False, "font": {"size": 13},
            "bgcolor": look.surface, "borderpad": 1, "name": "heading",
        }
    ]  # fmt: skip
