"""All that is known about an event, once: in a card where the pointer rests, and in the panel after a click.

A card is asked for by `assets/card.js`, which keeps the answers; the panel shows the event of the view. Both show
`details_of`, and while a part of it is being computed, both ask again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.markup import with_markup
from dashboard.pages import in_browser
from dashboard.pages.overview.actions import marked
from dashboard.pages.overview.event import acts, costs_of, facts_of, times_of
from dashboard.pages.parts import asking, poll
from dashboard.reading.store import RunStore
from dashboard.scene import part_of
from dashboard.scene.choice import found_in
from dashboard.view import Spot, View


@dataclass(frozen=True)
class Details:
    """An event in words.

    Attributes:
        facts: known at once; none if there is no such event.
        times: its exact times, in words.
        costs: its place in the program, its slack, row and gain.
        pending: whether some of the costs are still being computed.
    """

    facts: list[Any]
    times: str
    costs: list[Any]
    pending: bool


def details_of(store: RunStore, view: View, spot: Spot | None) -> Details:
    """All that is known about an event of the view's runs."""
    runs = store.ready(view.runs or (), view.rates)
    run = found_in(runs, spot)
    if run is None or spot is None:
        return Details([], "", [], False)
    return Details(facts_of(view, runs, spot), times_of(view, runs, spot), *costs_of(store, view, run, spot))


def stores() -> list[Any]:
    """The mark under the pointer, and what is said about it."""
    return [dcc.Store(id="pointed"), dcc.Store(id="told")]


def below() -> list[Any]:
    """The panel of the chosen event; and the card, which says to the eye what the panel says to all."""
    hidden: dict[str, Any] = {"aria-hidden": "true"}
    return [
        html.Div(id="picked", role="status", className="picked"),
        poll("cost-poll"),
        html.Div(id="cost", role="status", className="picked"),
        html.Div(id="card", className="card picked", **hidden),
    ]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks of panel and card."""
    in_browser(app, "card", "told", Input("told", "data"))

    @app.callback(
        Output("picked", "children"),
        Output("cost", "children"),
        Output("cost-poll", "disabled"),
        Input("chosen", "data"),
        Input("arrived", "data"),
        Input("cost-poll", "n_intervals"),
        State("view", "data"),
        prevent_initial_call=True,
        running=asking("cost-poll"),
    )
    def say(_: Any, __: Any, ___: Any, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view, again = View.from_data(data), ctx.triggered_id == "cost-poll"
        found = details_of(store, view, view.event)
        if found.pending and again:
            raise PreventUpdate
        said = no_update if again else found.facts and [*found.facts, acts(found.times)]
        return said, found.costs, not found.pending

    @app.callback(
        Output("told", "data"),
        Input("pointed", "data"),
        State("view", "data"),
        State("screen", "data"),
        prevent_initial_call=True,
    )
    def tell(mark: dict[str, Any] | None, data: dict[str, Any] | None, screen: dict[str, Any] | None) -> dict[str, Any]:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
        if mark is None or screen is None or mark.get("part") != part_of(runs, view, str(screen["scheme"])):
            raise PreventUpdate  # the view has moved on from the drawing that was pointed at
        found = details_of(store, view, marked(view, runs, mark))
        of: dict[str, Any] = {"data-of": mark.get("key")}
        return {
            "key": mark.get("key"),
            "said": with_markup(html.Div([*found.facts, *found.costs], **of)),
            "pending": found.pending,
        }
