"""Prefetching around the view: the browser asks for it when the timeline is at rest."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc
from dash.exceptions import PreventUpdate

from dashboard.figures.payload import packed
from dashboard.reading.store import RunStore
from dashboard.scene import around_of
from dashboard.view import View


def stores() -> list[Any]:
    """The request, and what was fetched."""
    return [dcc.Store(id="wanted"), dcc.Store(id="ahead")]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that fetch it and have the browser draw it."""
    browser: Any = app
    browser.clientside_callback(ClientsideFunction("ahead", "show"), Input("ahead", "data"), prevent_initial_call=True)

    @app.callback(
        Output("ahead", "data"),
        Input("wanted", "data"),
        State("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def fetch(_: Any, screen: dict[str, Any] | None, data: dict[str, Any] | None) -> dict[str, Any]:
        if screen is None:
            raise PreventUpdate
        view = View.from_data(data)
        found = packed(around_of(store.ready(view.runs or (), view.rates), view, str(screen["scheme"])))
        return dict(found)
