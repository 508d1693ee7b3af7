"""The gaps of runs: their causes, step by step, and their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.figures.causes import CAUSE_COLOURS
from dashboard.palette import COLOURS, THEMES
from dashboard.text import markup
from dashboard.units import duration
from tracer.analysis.causes import CAUSES

_PANEL = 150  # px
_FOOT = 46
_MOST_BARS = 1200  # of all panels; keeps a figure under 300 KB
_BINS = 60
_WIDE, _CHARACTER = 1360, 7.6  # px
_BEYOND = 1.5  # times the 90th percentile: the end of an axis of typical gaps


@dataclass(frozen=True)
class GapPanel:
    """A run's gaps on one device: name, note, rows of `GapReport.table`, and the run's key."""

    name: str
    note: str
    table: pd.DataFrame
    run: str = ""


def height_of(panels: Sequence[GapPanel]) -> int:
    """Height of either figure, px."""
    return max(len(panels), 1) * _PANEL + _FOOT


def limit_of(panels: Sequence[GapPanel], scale: str) -> float:
    """The end of the gap axis, µs: the longest gap ("all"), or slightly more than the 90th percentile."""
    gaps = [panel.table["gap"].to_numpy() / 1e3 for panel in panels if len(panel.table)]
    most = max((float(us.max()) for us in gaps), default=0.0)
    typical = max((float(np.percentile(us, 90)) for us in gaps), default=0.0) * _BEYOND
    return (1.05 * most if scale == "all" or typical <= 0 else min(1.05 * most, typical)) or 1.0


def binned(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """Individual gaps, or means of consecutive ones so that there are `most` rows.

    Returns:
        Columns first, last (step), longest (gap, µs), longest_step, and the mean of each cause, µs, by its column in
        `CAUSES`.
    """
    rows = min(len(table), most)
    groups = table.groupby(np.arange(len(table)) * rows // max(len(table), 1))
    found = groups[list(CAUSES)].mean() / 1e3
    found["first"], found["last"] = groups["step"].min(), groups["step"].max()
    found["longest"] = groups["gap"].max() / 1e3
    found["longest_step"] = table.loc[groups["gap"].idxmax(), "step"].to_numpy()
    return found


def steps_figure(panels: Sequence[GapPanel], scale: str, theme: str, width: int = _WIDE) -> go.Figure:
    """Stacked bars over the steps, one panel below the other, on the same axes; ▲ for gaps beyond them.

    A bar's `customdata` is the number of its panel and the step of its longest gap.
    """
    limit = limit_of(panels, scale)
    figure = _stacked(panels, theme, width)
    for number, panel in enumerate(panels, 1):
        bars = binned(panel.table, max(_MOST_BARS // len(panels), 1))
        at = ((bars["first"] + bars["last"]) / 2).tolist()
        wide = (bars["last"] - bars["first"] + 1).tolist()
        shows = [[number - 1, step] for step in bars["longest_step"].tolist()]
        for column, cause in CAUSES.items():
            if bars[column].any():
                figure.add_trace(
                    go.Bar(name=cause, x=at, y=bars[column].round(3).tolist(), width=wide, showlegend=False,
                           marker={"color": CAUSE_COLOURS[cause], "line": {"width": 0}},
                           customdata=shows, hovertemplate="%{y:.2f} µs"),
                    row=number, col=1,
                )  # fmt: skip
        beyond = bars[bars["longest"] > limit]
        figure.add_trace(
            go.Scatter(name="longest", mode="markers", showlegend=False, hoverinfo="text",
                       x=((beyond["first"] + beyond["last"]) / 2).tolist(), y=[limit * 0.96] * len(beyond),
                       hovertext=[f"longest {duration(us * 1e3)}" for us in beyond["longest"]],
                       marker={"symbol": "triangle-up", "size": 9, "color": THEMES[theme].ink}),
            row=number, col=1,
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0, hovermode="x unified")
    figure.update_yaxes(range=[0, limit], ticksuffix=" µs")
    figure.update_xaxes(title_text="token step", row=max(len(panels), 1))
    return figure


def distribution_figure(panels: Sequence[GapPanel], scale: str, theme: str, width: int = _WIDE) -> go.Figure:
    """A histogram per panel, all on the same axis, with median and 90th percentile."""
    limit, look = limit_of(panels, scale), THEMES[theme]
    figure = _stacked(panels, theme, width)
    for number, panel in enumerate(panels, 1):
        gaps = panel.table["gap"].to_numpy() / 1e3
        counts, edges = np.histogram(gaps, _BINS, (0, limit))
        share = counts / max(len(gaps), 1)
        text = [f"{n:,} of {len(gaps):,} gaps: {duration(low * 1e3)} to {duration(high * 1e3)}"
                for n, low, high in zip(counts, edges, edges[1:], strict=False)]  # fmt: skip
        figure.add_trace(
            go.Bar(x=((edges[:-1] + edges[1:]) / 2).round(4).tolist(), y=share.round(5).tolist(), showlegend=False,
                   marker={"color": COLOURS["gap"], "line": {"width": 0.6, "color": look.muted}},
                   hovertext=text, hoverinfo="text"),
            row=number, col=1,
        )  # fmt: skip
        top = float(share.max()) * 1.5 or 1.0
        for name, percentile, high in (("p50", 50, 0.93), ("p90", 90, 0.78)):
            us = float(np.percentile(gaps, percentile))
            line = {"color": look.ink, "width": 1.4, "dash": "solid" if name == "p50" else "dot"}
            figure.add_shape(type="line", x0=us, x1=us, y0=0, y1=top, line=line, row=number, col=1)
            if us <= limit:
                left = us > 0.8 * limit
                figure.add_annotation(x=us, y=top * high, text=f"{name} {duration(us * 1e3)}", showarrow=False,
                                      name=name, xanchor="right" if left else "left", xshift=-4 if left else 4,
                                      font={"size": 11, "color": look.ink}, row=number, col=1)  # fmt: skip
        beyond = int((gaps > limit).sum())
        if beyond:
            figure.add_annotation(x=limit, y=top / 2, text=f"{beyond:,} longer ▸", showarrow=False, xanchor="right",
                                  name="beyond", font={"size": 11, "color": look.muted}, row=number, col=1)  # fmt: skip
        figure.update_yaxes(range=[0, top], row=number)
    figure.update_layout(bargap=0)
    figure.update_yaxes(tickformat=".0%")
    figure.update_xaxes(range=[0, limit], ticksuffix=" µs")
    return figure


def _stacked(panels: Sequence[GapPanel], theme: str, width: int) -> go.Figure:
    """Empty panels below each other, each with its name above, and as much of its note as fits."""
    look, rows = THEMES[theme], max(len(panels), 1)
    spacing = 36 / (rows * _PANEL) if rows > 1 else 0
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=spacing)
    axis: dict[str, Any] = {"gridcolor": look.line, "zeroline": False, "fixedrange": True,
                            "tickfont": {"color": look.muted, "size": 11}}  # fmt: skip
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, nticks=5)
    for number, panel in enumerate(panels, 1):
        room = max(int(width / _CHARACTER) - len(panel.name), 0)
        note = f'  <span style="color:{look.muted}">{markup(panel.note, room)}</span>' if panel.note and room else ""
        suffix = str(number) if number > 1 else ""
        figure.add_annotation(text=f"<b>{markup(panel.name)}</b>{note}", name="panel", showarrow=False, align="left",
                              xref="paper", x=0, xanchor="left", xshift=-54, yshift=2,
                              yref=f"y{suffix} domain", y=1, yanchor="bottom", font={"size": 12.5})  # fmt: skip
    figure.update_layout(
        margin={"l": 62, "r": 12, "t": 24, "b": 40}, **look.layout, dragmode=False,
    )  # fmt: skip
    return figure
