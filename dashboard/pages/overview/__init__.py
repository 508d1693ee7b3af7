"""The overview: a table of runs, the timelines of the selected ones, and the causes of their gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import Page, named
from dashboard.pages.overview import (
    areas,
    bookmarks,
    callbacks,
    compare,
    details,
    downloads,
    ladder,
    minimap,
    strip,
    table,
    tools,
)
from dashboard.pages.parts import button, chart, poll, section
from dashboard.pages.timeline import legend, moves
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.timeline.align import token_at
from dashboard.view import ALIGNMENTS, View

_MEDIAN, _WORST = 50.0, 100.0
_BY_GAP: Final = {"token-median": ("Median", _MEDIAN), "token-worst": ("Worst", _WORST)}


def sections() -> list[Any]:
    """The page's elements."""
    stores = [*(dcc.Store(id=key) for key in ("listed", "followed", "arrived", "drawn", "wanted", "ahead")),
              poll("reading")]  # fmt: skip
    shown = [_runs(), compare.section(ladder.section()), _timeline(), *_made_of(), downloads.section()]
    return [*stores, *tools.stores(), *shown]


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
                    _by_gap(),
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
            button("token-back", "‹", "Previous token"),
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
            button("token-on", "›", "Next token"),
        ],
        className="token",
        role="group",
        **named("Token at which the runs are aligned"),
    )


def _by_gap() -> html.Details:
    """Buttons for characteristic tokens: the median, the worst, or any percentile of the base's gaps."""
    inside = html.Div(
        [
            *(html.Button(text, id=key, className="button", title=f"{text} token by the base's gap")
              for key, (text, _) in _BY_GAP.items()),
            html.Label(["percentile ", dcc.Input(id="percentile", type="number", min=0, max=100, step="any", value=90,
                                                 className="small")]),
            button("token-percentile", "Show", "Show the token at this percentile"),
        ],
        className="token",
        role="group",
        **named("Tokens by the base's gap"),
    )  # fmt: skip
    return html.Details([html.Summary("By gap", id="tokens-open", title="Tokens by the base's gap"), inside],
                        className="rows")  # fmt: skip


def _made_of() -> list[html.Section]:
    return [_causes("idle", "the idle time of a step"), _causes("causes", "the gap")]


def _causes(key: str, of: str) -> html.Section:
    hint = html.P("Mean over all tokens of each run.", className="hint")
    figure = chart(key, f"Causes of {of}", 80, doubleClick=False)
    return section(f"Causes of {of}", [hint], figure, id=f"{key}-section")


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the runs of `store`."""
    callbacks.register(app, store)
    for part in (strip, ladder, compare, table, tools, minimap, areas, bookmarks, details, downloads):
        part.register(app, store)
    _go_by_gap(app, store)


def _go_by_gap(app: Dash, store: RunStore) -> None:
    """Go to a characteristic token, by a link with its number, which the page follows."""

    @app.callback(
        Output("followed", "data", allow_duplicate=True),
        *(Input(key, "n_clicks") for key in (*_BY_GAP, "token-percentile")),
        Input("percentile", "n_submit"),
        State("percentile", "value"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def show(*values: Any) -> Any:
        percentile, data = values[-2:]
        if ctx.triggered_id in _BY_GAP:
            percentile = _BY_GAP[str(ctx.triggered_id)][1]
        if not isinstance(percentile, int | float):  # the field is empty or not a number from 0 to 100
            raise PreventUpdate
        view = View.from_data(data)
        turned = at_percentile(view, store.ready(view.runs or ()), percentile)
        return no_update if turned == view else turned.query()


def at_percentile(view: View, runs: Sequence[Run], percentile: float) -> View:
    """The view at the token at a percentile of the first run's gaps; unchanged if the run has no gaps."""
    tokens = runs[0].tokens if runs else None
    token = None if tokens is None else token_at(tokens, percentile)
    return view if token is None else replace(view, token=token)


PAGE = Page("", "Runs", "what happens between two tokens", sections, register, place=0)
