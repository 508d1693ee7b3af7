"""The layout of the what-if page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.pages.frame import named
from dashboard.pages.parts import chart, choice, poll, rate_field, section, text_field
from dashboard.pages.timeline import legend, moves
from dashboard.pages.whatif.view import GRAPHS, NUMBERS, STRATEGIES


def sections() -> list[Any]:
    """The page's elements."""
    return [
        poll("poll"),
        dcc.Store(id="progress"),
        section(
            "What if",
            [choice("run", "Run", clearable=False), html.Button("No changes", id="reset", className="button")],
            html.Div(
                [
                    _list("sync", "Strategy", [(name, name) for name in STRATEGIES], "as recorded"),
                    _list("without", "Without syncs", [], "with all", multi=True),
                    _list("graph", "Kernel launches", list(GRAPHS.items()), "as recorded"),
                    _list("kernels", "Kernels", [], "all kernels", multi=True),
                    _number("times", "Time of these kernels ×"),
                    _number("host", "Time of host code ×"),
                    _number("latency", "Extra time per sync, µs"),
                    _number("streams", "Maximum streams"),
                    rate_field(),
                ],
                className="fields",
                role="group",
                **named("Changes"),
            ),
            html.P(id="rate-refused", className="problem", role="alert"),
        ),
        section(
            "Predicted",
            [],
            html.P("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="problem", className="problem", role="alert"),
            html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **named("Predicted figures")),
            html.Ul(id="notes", className="notes"),
        ),
        section(
            "Timelines",
            [_token(), moves()],
            legend(),
            chart("timeline", "Timelines of the recorded and the predicted run"),
            key="timeline-section",
        ),
    ]


def _list(key: str, label: str, options: list[tuple[str, str]], none: str, multi: bool = False) -> html.Label:
    chosen = [{"value": value, "label": text} for value, text in options]
    return html.Label([html.Span(label), dcc.Dropdown(id=key, options=chosen, placeholder=none, multi=multi)])


def _number(key: str, label: str) -> html.Label:
    low, high = NUMBERS[key]
    field = text_field(key, True, type="text", placeholder="as recorded", maxlength=20)
    return html.Label([html.Span(label), field], id=f"{key}-field", title=f"{low:,g} to {high:,g}")


def _token() -> html.Div:
    return html.Div(
        [
            html.Button("‹", id="token-back", className="button", title="Previous token", **named("Previous token")),
            html.Span(id="token-label"),
            html.Button("›", id="token-on", className="button", title="Next token", **named("Next token")),
        ],
        className="token",
        role="group",
        **named("Token shown"),
    )
