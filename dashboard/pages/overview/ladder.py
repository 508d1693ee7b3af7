"""The ladder of strategies below the table of runs: comparable runs, their rates, and a click that shows one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.ladder import Ladder, ladder_figure, ladder_height, ladders_of, rung_text
from dashboard.pages.parts import HIDDEN, SHOWN, chart, choice
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import MOST_RUNS, View

_NONE: Final = (
    "No two runs differ only in their strategy. Record some to compare them: "
    "intertoken run --sync sccc,saaas,aaag -o runs"
)


def section() -> html.Details:
    """The ladder, folded; its summary gives the rates."""
    return html.Details(
        [
            html.Summary("Ladder of strategies", id="ladder-said"),
            dcc.Store(id="ladder-drawn"),
            html.Div(
                choice("ladder-group", "Runs with the same", clearable=False), id="ladder-choice", className="bar"
            ),
            html.Div(chart("ladder", "Tokens/s by strategy"), id="ladder-shown"),
            html.P("Lines: range of the repeats. Hollow: as traced. Click a point to show its run; from the "
                   "keyboard, use the table above.", id="ladder-hint", className="hint foot"),
        ],
        className="ladder",
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that draw the ladder and handle clicks."""
    _render(app, store)
    _choose(app)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("ladder", "figure"),
        Output("ladder", "style"),
        Output("ladder-holder", "aria-label"),
        Output("ladder-said", "children"),
        Output("ladder-group", "options"),
        Output("ladder-group", "value"),
        *(Output(key, "style") for key in ("ladder-choice", "ladder-shown", "ladder-hint")),
        Output("ladder-drawn", "data"),
        Input("steady", "data"),
        Input("revision", "data"),
        Input("ladder-group", "value"),
        State("view", "data"),
        State("ladder-drawn", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any] | None, revision: Any, asked: str | None, data: Any, before: Any) -> Any:
        if screen is None:
            raise PreventUpdate
        view, theme = View.from_data(data), str(screen["scheme"])
        chosen, rates = list(view.runs or ()), [list(rate) for rate in view.rates]
        shown = (before or {}).get("shown")
        if before == {"for": [theme, chosen, revision, rates], "shown": asked, "auto": (before or {}).get("auto")}:
            raise PreventUpdate
        ladders = ladders_of(store.so_far(view.rates))
        by_itself = asked is None or (asked == shown and (before or {}).get("auto", True))
        ladder = ladder_for(ladders, chosen, None if by_itself else asked)
        drawn = {"for": [theme, chosen, revision, rates], "shown": ladder and ladder.key, "auto": by_itself}
        style = HIDDEN if ladder is None else SHOWN
        return (
            no_update if ladder is None else ladder_figure(ladder, chosen, theme),
            no_update if ladder is None else {"height": f"{ladder_height(ladder)}px"},
            "" if ladder is None else f"Tokens/s by strategy. {'; '.join(map(rung_text, ladder.rungs))}",
            ladder_line(ladder, chosen),
            [{"value": one.key, "label": one.title} for one in ladders],
            ladder and ladder.key,
            style, style, style,
            drawn,
        )  # fmt: skip


def ladder_for(ladders: Sequence[Ladder], chosen: Sequence[str], asked: str | None) -> Ladder | None:
    """The requested ladder, else that of the first selected run, else the longest; None if there is none."""
    lead = chosen[0] if chosen else None
    wanted = [one for one in ladders if one.key == asked] if asked is not None else []
    wanted = wanted or [one for one in ladders if any(rung.key == lead for rung in one.rungs)]
    return next(iter(wanted), None) or max(ladders, key=lambda one: len(one.rungs), default=None)


def ladder_line(ladder: Ladder | None, chosen: Sequence[str]) -> str:
    """The ladder's summary; with what its runs are of if none of them is selected."""
    if ladder is None:
        return f"Ladder of strategies: {_NONE}"
    rates = [f"{rung.strategy} {rung.rate:,.0f}{' ▲' if rung.traced else ''}" for rung in ladder.rungs]
    of = "" if any(rung.key in chosen for rung in ladder.rungs) else f" of other runs ({ladder.title})"
    return f"Ladder of strategies{of}, tokens/s: {plain(' › '.join(rates), 160)}"


def _choose(app: Dash) -> None:
    @app.callback(
        Output("followed", "data", allow_duplicate=True),
        Input("ladder", "clickData"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def choose(click: dict[str, Any] | None, data: dict[str, Any] | None) -> Any:
        return with_clicked(View.from_data(data), click).query()


def with_clicked(view: View, click: dict[str, Any] | None) -> View:
    """The view with the clicked run, which replaces the last one if the view is full."""
    runs = view.runs or ()
    match click:
        case {"points": [{"customdata": str(key)}, *_]} if key not in runs:
            return replace(view, runs=(*runs[: MOST_RUNS - 1], key))
    return view
