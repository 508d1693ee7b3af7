"""The overview: a table of runs, the timelines of the selected ones, and the causes of their gaps."""

from __future__ import annotations

from typing import Any

import dash_bootstrap_components as dbc
from dash import dcc, html

from dashboard.pages.frame import Page, named
from dashboard.pages.overview import ahead, compare, downloads, ladder, minimap, strip, table, tokens, tools
from dashboard.pages.overview.callbacks import register
from dashboard.pages.parts import chart, poll
from dashboard.pages.timeline import legend, moves
from dashboard.view import ALIGNMENTS


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
                 table.grid()],
                id="runs-panel",
                hidden=True,
            ),
            *table.below(),
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
                    moves(*tools.buttons()),
                    *tools.above(),
                ],
                className="bar tools",
            ),
            minimap.above(),
            tools.replies(),
            html.Div("Loading the recordings …", id="nothing", className="empty"),
            chart("timeline", "Timelines of the selected runs", 300, doubleClick=False),
            html.P("Wheel to zoom, shift-wheel or drag to pan, shift-drag to zoom to a range, "
                   "double-click a token to zoom to it. Rest on an event, or click it, for all that is known about it. "
                   "Dotted: the base's gap; hatched: the difference of a run's gap from it.",
                   className="hint foot"),
            *tools.below(),
            legend(),
        ],
        **named("Timeline"),
    )  # fmt: skip


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
            chart(key, f"Causes of {of}", 80, doubleClick=False),
        ],
        id=f"{key}-section",
        **named(f"Causes of {of}"),
    )


PAGE = Page("", "Runs", "what happens between two tokens", sections, register, place=0)
