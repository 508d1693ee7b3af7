"""Buttons for characteristic tokens: the median, the worst, or any percentile of the base's gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages.frame import named
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.timeline.align import token_at
from dashboard.view import View

_MEDIAN, _WORST = 50.0, 100.0
_BUTTONS: Final = {"token-median": ("Median", _MEDIAN), "token-worst": ("Worst", _WORST)}


def choices() -> html.Details:
    """The buttons, and a field for the percentile."""
    inside = html.Div(
        [
            *(html.Button(text, id=key, className="button", title=f"{text} token by the base's gap")
              for key, (text, _) in _BUTTONS.items()),
            html.Label(["percentile ", dcc.Input(id="percentile", type="number", min=0, max=100, step="any", value=90,
                                                 className="small")]),
            html.Button("Show", id="token-percentile", className="button", title="Show the token at this percentile",
                        **named("Show the token at this percentile")),
        ],
        className="token",
        role="group",
        **named("Tokens by the base's gap"),
    )  # fmt: skip
    return html.Details([html.Summary("By gap", id="tokens-open", title="Tokens by the base's gap"), inside],
                        className="rows")  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that go to the token, by putting its number into the link that the page follows."""

    @app.callback(
        Output("url", "search", allow_duplicate=True),
        *(Input(key, "n_clicks") for key in (*_BUTTONS, "token-percentile")),
        Input("percentile", "n_submit"),
        State("percentile", "value"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def show(*values: Any) -> Any:
        percentile, data = values[-2:]
        if ctx.triggered_id in _BUTTONS:
            percentile = _BUTTONS[str(ctx.triggered_id)][1]
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
