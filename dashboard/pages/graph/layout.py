"""Where things stand on the graph page."""

from __future__ import annotations

from typing import Any

import dash_cytoscape as cyto
from dash import dcc, html

from dashboard.figures.graph import stylesheet


def layout() -> html.Div:
    """The page."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="view"),
            dcc.Store(id="screen"),
            dcc.Store(id="focus"),
            html.Header(
                [
                    html.H1("intertoken"),
                    html.P("the graph of one token", className="motto"),
                    html.A("Timeline", id="timeline-link", href="/", className="button"),
                    html.Button("Copy link", id="copy-link", className="button", title="Copy a link to this view"),
                    html.Button("Dark", id="theme", className="button", title="Switch between light and dark"),
                ]
            ),
            html.Main([_graph(), _memory()]),
            html.P(id="said", role="status", className="unseen"),
        ],
        id="page",
    )


def _graph() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Graph"),
                    _choice("run", "Run", 340, clearable=False),
                    _choice("node", "Node", 300, placeholder="Select a node"),
                    _parts(),
                ],
                className="bar",
            ),
            html.Ul(id="streams", className="legend", **_named("Colours and lines")),
            html.Div(id="nothing", className="empty", role="status"),
            html.Div(
                [
                    html.Div(
                        _canvas(), id="canvas-holder", className="canvas", tabIndex=0, role="img", **_named("Graph")
                    ),
                    html.Aside(id="panel", className="panel", **{"aria-live": "polite", **_named("Selected node")}),
                ],
                id="picture",
                className="picture",
            ),
        ],
        **_named("Graph"),
    )


def _canvas() -> cyto.Cytoscape:
    return cyto.Cytoscape(
        id="canvas",
        elements=[],
        layout={"name": "preset", "fit": False},
        stylesheet=stylesheet("light", None),
        zoom=1,
        pan={"x": 0, "y": 0},
        userZoomingEnabled=False,
        userPanningEnabled=False,
        boxSelectionEnabled=False,
        autoungrabify=True,
        autounselectify=True,
        style={"width": "300px", "height": "200px"},
    )


def _choice(key: str, label: str, width: int, **options: Any) -> html.Label:
    return html.Label(
        [html.Span(label), html.Div(dcc.Dropdown(id=key, options=[], **options), style={"width": f"{width}px"})],
        className="token",
    )


def _parts() -> html.Div:
    return html.Div(
        [
            html.Button("‹", id="part-back", className="button", title="Part before", **_named("Part before")),
            html.Span(id="part-label"),
            html.Button("›", id="part-on", className="button", title="Next part", **_named("Next part")),
        ],
        id="parts",
        className="token moves",
        role="group",
        **_named("Which part of the graph is shown"),
    )


def _memory() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Memory for activations"),
                    html.P(
                        "Outer bar: the arena that each allocator takes for this plan. Inner bar: what is alive at "
                        "once, which no placement can do without. ▲: streams would race for bytes.",
                        className="hint",
                    ),
                ],
                className="bar",
            ),
            html.Div(
                dcc.Graph(id="memory", config={"displayModeBar": False}, responsive=True, style={"height": "150px"}),
                id="memory-holder",
                role="img",
                **_named("Peak memory per allocator"),
            ),
        ],
        id="memory-section",
        **_named("Memory per allocator"),
    )


def _named(label: str) -> dict[str, Any]:
    return {"aria-label": label}
