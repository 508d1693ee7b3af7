"""The graph page: the model graph that ran, its streams and events, and the memory of each allocator."""

from __future__ import annotations

from typing import Any

import dash_cytoscape as cyto
from dash import dcc, html

from dashboard.figures.graph import stylesheet
from dashboard.pages.frame import Page, named
from dashboard.pages.graph.callbacks import register
from dashboard.pages.graph.view import ADDRESS, GraphView
from dashboard.pages.parts import stepper


def sections() -> list[Any]:
    """The page's elements."""
    return [dcc.Store(id="focus"), _graph(), _memory()]


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
            html.Ul(id="streams", className="legend", **named("Legend")),
            html.Div(id="nothing", className="empty", role="status"),
            html.Div(
                [
                    html.Div(
                        _canvas(), id="canvas-holder", className="canvas", tabIndex=0, role="img", **named("Graph")
                    ),
                    html.Aside(id="panel", className="panel", **{"aria-live": "polite", **named("Selected node")}),
                ],
                id="picture",
                className="picture",
            ),
        ],
        **named("Graph"),
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
        stepper("part", "part"),
        id="parts",
        className="token moves",
        role="group",
        **named("Part of the graph"),
    )


def _memory() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Activation memory"),
                    html.P(
                        "Outer bar: the arena of each allocator for this plan. Inner bar: live bytes at the peak, "
                        "which no placement can avoid. ▲: streams race for the same bytes.",
                        className="hint",
                    ),
                ],
                className="bar",
            ),
            html.Div(
                dcc.Graph(id="memory", config={"displayModeBar": False}, responsive=True, style={"height": "150px"}),
                id="memory-holder",
                role="img",
                **named("Peak memory per allocator"),
            ),
        ],
        id="memory-section",
        **named("Memory per allocator"),
    )


PAGE = Page(ADDRESS, "Graph", "the graph of one token", sections, register, GraphView.from_data, place=5)
