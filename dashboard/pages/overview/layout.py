"""The layout of the overview."""

from __future__ import annotations

from typing import Any

import dash_bootstrap_components as dbc
from dash import dcc, html

from dashboard.pages.frame import named
from dashboard.pages.overview import ahead, compare, downloads, ladder, rates, strip, tokens, tools
from dashboard.pages.overview.table import grid
from dashboard.pages.parts import poll
from dashboard.palette import COLOURS, HOLE_SWATCHES, NAMES
from dashboard.view import ALIGNMENTS
from tracer.analysis.holes import PLACES

LEGEND = ("kernel", "graph", "communication", "copy", "memset", "sync", "launch", "host", "api", "other", "nvtx", "gap")
MOVES = {
    "show-gap": ("Gap", "Zoom to the gap"),
    "show-token": ("Token", "Show one token"),
    "show-all": ("Whole run", "Show the whole recording"),
    "zoom-out": ("−", "Zoom out"),
    "zoom-in": ("+", "Zoom in"),
    "pan-left": ("←", "Pan left"),
    "pan-right": ("→", "Pan right"),
}
_BLANK = {
    "data": [],
    "layout": {
        "xaxis": {"visible": False}, "yaxis": {"visible": False},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    },
}  # fmt: skip
_GRAPH: Any = {"displayModeBar": False, "displaylogo": False, "doubleClick": False, "scrollZoom": False,
          "showTips": False}  # fmt: skip


def sections() -> list[Any]:
    """The page's elements."""
    stores = [*(dcc.Store(id=key) for key in ("listed", "arrived", "drawn")),
              poll("reading")]  # fmt: skip
    shown = [_runs(), compare.section(ladder.section()), _timeline(), *_made_of(), downloads.section()]
    return [*stores, *tools.stores(), *ahead.stores(), *shown]


def _runs() -> html.Section:
    return html.Section(
        [
            strip.strip(),
            html.Ul(id="uploads", className="uploads", **named("Uploads")),
            html.Div(
                [html.P("Select one to six.  ▲: from a traced pass, so inflated.", className="hint"),
                 grid()],
                id="runs-panel",
                hidden=True,
            ),
            *rates.below(),
        ],
        **named("Runs"),
    )  # fmt: skip


def _timeline() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Timeline"),
                    _token(),
                    tokens.choices(),
                    html.Div(
                        [
                            html.Button(text, id=key, className="button", title=hint, **named(hint))
                            for key, (text, hint) in MOVES.items()
                        ]
                        + tools.buttons(),
                        className="moves",
                        role="group",
                        **named("Range of the time axis"),
                    ),
                    *tools.above(),
                ],
                className="bar tools",
            ),
            tools.minimap(),
            tools.replies(),
            html.Div("Loading the recordings …", id="nothing", className="empty"),
            html.Div(
                _graph("timeline", 300),
                id="timeline-holder",
                role="img",
                **named("Timelines of the selected runs"),
            ),
            html.P("Wheel to zoom, shift-wheel or drag to pan, shift-drag to zoom to a range, "
                   "double-click a token to zoom to it. Rest on an event, or click it, for all that is known about it. "
                   "Dotted: the base's gap; hatched: the difference of a run's gap from it.",
                   className="hint foot"),
            *tools.below(),
            legend(),
        ],
        **named("Timeline"),
    )  # fmt: skip


def legend() -> html.Ul:
    """The legend of the timeline: colours, and the patterns of idle holes."""
    drawn = {NAMES[kind]: COLOURS[kind] for kind in LEGEND}
    drawn |= {f"idle {PLACES[place]}": swatch for place, swatch in HOLE_SWATCHES.items()}
    return html.Ul(
        [html.Li([html.Span(style={"background": fill}, className="swatch"), name]) for name, fill in drawn.items()],
        className="legend",
        **named("Colours"),
    )


def _token() -> html.Div:
    return html.Div(
        [
            html.Label(
                [
                    html.Span("Align at the ", className="spelled"),
                    dbc.Select(
                        id="align",
                        options=[{"value": key, "label": key} for key in ALIGNMENTS],
                        value="end",
                        class_name="field small",
                    ),
                ]
            ),
            html.Span("of token", id="token-label"),
            html.Button(
                "‹",
                id="token-back",
                className="button",
                title="Previous token",
                **named("Previous token"),
            ),
            html.Div(
                dcc.Slider(
                    id="token",
                    min=0,
                    max=1,
                    step=1,
                    value=0,
                    marks=None,
                    updatemode="mouseup",
                    included=False,
                ),
                className="slider",
            ),
            html.Button("›", id="token-on", className="button", title="Next token", **named("Next token")),
        ],
        className="token",
        role="group",
        **named("Token at which the runs are aligned"),
    )


def _made_of() -> list[html.Section]:
    return [_causes("idle", "the idle time of a step"), _causes("causes", "the gap")]


def _causes(key: str, of: str) -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2(f"Causes of {of}"),
                    html.P("Mean over all tokens of each run.", className="hint"),
                ],
                className="bar",
            ),
            html.Div(_graph(key, 80), id=f"{key}-holder", role="img", **named(f"Causes of {of}")),
        ],
        id=f"{key}-section",
        **named(f"Causes of {of}"),
    )


def _graph(key: str, height: int) -> dcc.Graph:
    return dcc.Graph(id=key, figure=_BLANK, config=_GRAPH, responsive=True, style={"height": f"{height}px"})
