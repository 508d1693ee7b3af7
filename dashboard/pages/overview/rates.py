"""Untraced rates in the table of runs: an entered rate becomes part of the link, which the page follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages.frame import named
from dashboard.pages.overview.table import columns
from dashboard.pages.overview.table import rows as rows_of
from dashboard.rates import NoRate, rate_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import View

_LONGEST = 90


def below() -> list[Any]:
    """The place below the table: why a rate was rejected, and the effect of the given ones."""
    return [
        dcc.Store(id="rated"),
        html.P(id="rate-refused", className="problem", role="alert"),
        html.Ul(id="rates-said", className="notes", **named("Given rates")),
    ]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that take a rate from the table, and that show the view's rates there."""
    _give(app, store)
    _show(app, store)


def _give(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("url", "search", allow_duplicate=True),
        Output("runs", "rowTransaction", allow_duplicate=True),
        Output("rate-refused", "children"),
        Input("runs", "cellValueChanged"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def give(changes: list[dict[str, Any]] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        given, problem = with_given(view, changes or [])
        shown = {change["rowId"] for change in changes or []}
        again = [one for one in rows_of(store.so_far(given.rates)) if one["key"] in shown]
        if not again:
            raise PreventUpdate
        return no_update if given == view else given.query(), _update(again), problem


def with_given(view: View, changes: Sequence[dict[str, Any]]) -> tuple[View, str]:
    """The view with the rates entered in the table; or the old view and why one of them is invalid."""
    given = view
    try:
        for change in changes:
            given = given.rated(change["rowId"], rate_of(change["value"]))
    except NoRate as problem:
        return view, str(problem)
    return given, ""


def _show(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("runs", "rowTransaction"),
        Output("runs", "columnDefs", allow_duplicate=True),
        Output("rates-said", "children"),
        Output("rated", "data"),
        Input("steady", "data"),
        Input("revision", "data"),
        State("view", "data"),
        State("rated", "data"),
        prevent_initial_call=True,
    )
    def show(_: Any, revision: int | None, data: dict[str, Any] | None, before: list[str] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        rated = [str(revision), *(text for _, text in View(rates=view.rates).pairs())]
        if rated == before:
            raise PreventUpdate
        runs = store.so_far(view.rates)
        rows = rows_of(runs)
        others = {text.partition(":")[2] for text in (*rated, *(before or ()))}
        changed = [one for one in rows if one["key"] in others]
        return _update(changed) if changed else no_update, columns(rows), rate_notes(runs), rated


def rate_notes(runs: Sequence[Run]) -> list[html.Li]:
    """A line for each run with a given rate."""
    return [html.Li([html.B(plain(run.name, _LONGEST)), f": {run.rate_note}."]) for run in runs if run.rate_note]


def _update(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"update": list(rows), "async": False}
