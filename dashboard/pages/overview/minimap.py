"""The minimap above the timeline: the whole recordings, with the visible range."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.figures.minimap import Lane, minimap_height, minimap_plot
from dashboard.figures.payload import packed
from dashboard.pages import in_browser, named
from dashboard.reading.store import RunStore
from dashboard.scene import token_of, whole_of
from dashboard.view import View


def above() -> html.Div:
    """The minimap, and its frame around what the timeline shows."""
    graph = dcc.Graph(
        id="minimap", config={"displayModeBar": False, "showTips": False}, responsive=True, style={"height": "28px"}
    )
    return html.Div(
        [graph, html.Div(id="in-view"), dcc.Store(id="mapped")],
        id="minimap-holder", role="img", style={"display": "none"},
        **named("Minimap of the whole recordings, with the visible range"),
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that draw it, and that hear where it is pointed at."""
    in_browser(app, "minimap", "pointed", Input("minimap", "selectedData"), Input("minimap", "clickData"))

    @app.callback(
        Output("minimap", "figure"),
        Output("minimap", "style"),
        Output("minimap-holder", "style"),
        Output("mapped", "data"),
        Input("steady", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        State("mapped", "data"),
        prevent_initial_call=True,
    )
    def draw(screen: dict[str, Any] | None, _: Any, data: dict[str, Any], mapped: list[Any] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme = View.from_data(data), str(screen["scheme"])
        runs = store.ready(view.runs or (), view.rates)
        token = token_of(runs, view)
        draws = [theme, screen["width"], token, view.align, *(run.identity for run in runs)]
        if draws == mapped:
            raise PreventUpdate
        lanes = [
            Lane(run.name, run.busy, run.tokens.anchor(token, view.align), run.phases_beside)
            for run in runs
            if run.tokens and run.busy
        ]
        plot = packed(minimap_plot(lanes, whole_of(runs, view), theme, int(screen["width"])))
        shown = {"display": "block" if lanes else "none"}
        return plot, {"height": f"{minimap_height(len(lanes))}px"}, shown, draws
