"""The view of a page for one run: the run, from the link or the list, and the theme."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages.opening import opened_at_once, shown
from dashboard.pages.parts import run_options
from dashboard.pages.presses import done
from dashboard.reading.store import RunStore
from dashboard.view import View, switched


def keep_run(app: Dash, store: RunStore) -> None:
    """Update the page's view from its link, the selected run and the theme."""

    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("run", "options"),
        Output("run", "value"),
        Output("pressed", "data"),
        Input("url", "search"),
        Input("run", "value"),
        Input("theme", "n_clicks"),
        State("pressed", "data"),
        State("view", "data"),
        State("screen", "data"),
    )
    def reduce(search: str, run: str | None, theme: Any, pressed: Any, before: Any, screen: Any) -> tuple[Any, ...]:
        clicks = {"theme": theme}
        sources = done([one["prop_id"] for one in ctx.triggered], clicks, pressed)
        if before is None or "url" in sources:
            view = replace(opened_at_once(View.parse(search), store), range=None, align="end")
        else:
            view = View.from_data(before)
            for source in sources:
                view = after(view, source, run, (screen or {}).get("scheme", ""))
        lead = next(iter(shown(view, store)), None)
        if before is not None and view == View.from_data(before) and lead == run and clicks == pressed:
            raise PreventUpdate
        query = view.query()
        return view.data(), no_update if query == (search or "") else query, run_options(store), lead, clicks


def after(view: View, source: str, run: str | None, scheme: str) -> View:
    """The view after another run was selected, or after the theme was switched from `scheme`."""
    match source, run:
        case "run", str(key):
            return view.led_by(key)
        case "theme", _:
            return replace(view, theme=switched(view.theme, scheme))
    return view
