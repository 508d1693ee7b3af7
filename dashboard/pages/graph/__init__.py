"""The graph page: the model graph that ran, its streams and events, and the memory of each allocator.

As on the overview, each event creates a new view (`reduce`), which is rendered (`render`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dash_cytoscape as cyto
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.graph import draw, memory_figure, memory_height, stylesheet
from dashboard.pages import Page, in_browser, named
from dashboard.pages.graph.panel import panel
from dashboard.pages.graph.view import ADDRESS, GraphView, after, find_run, parts_of, problem_of, shown_part
from dashboard.pages.parts import HIDDEN, SHOWN, chart, section, stepper
from dashboard.pages.presses import done
from dashboard.pages.runs import keep_options
from dashboard.palette import stream_colours
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.units import size
from tracer.model.graph_json import Memory, RunGraph

_BUTTONS = ("part-back", "part-on", "theme")


def sections() -> list[Any]:
    """The page's elements."""
    return [dcc.Store(id="focus"), _graph(), _memory()]


def _graph() -> html.Section:
    return section(
        "Graph",
        [
            _choice("run", "Run", 340, clearable=False),
            _choice("node", "Node", 300, placeholder="Select a node"),
            html.Div(
                stepper("part", "part"), id="parts", className="token moves", role="group",
                **named("Part of the graph"),
            ),
        ],
        html.Ul(id="streams", className="legend", **named("Legend")),
        html.Div(id="nothing", className="empty", role="status"),
        html.Div(
            [
                html.Div(_canvas(), id="canvas-holder", className="canvas", tabIndex=0, role="img", **named("Graph")),
                html.Aside(id="panel", className="panel", **{"aria-live": "polite", **named("Selected node")}),
            ],
            id="picture",
            className="picture",
        ),
    )  # fmt: skip


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


def _memory() -> html.Section:
    hint = html.P(
        "Outer bar: the arena of each allocator for this plan. Inner bar: live bytes at the peak, which no placement "
        "can avoid. ▲: streams race for the same bytes.",
        className="hint",
    )
    figure = chart("memory", "Peak memory per allocator", 150)
    return section("Activation memory", [hint], figure, id="memory-section", **named("Memory per allocator"))


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the graphs of the runs of `store`."""
    _reduce(app, store)
    keep_options(app, store, "run", _runs)
    _render(app, store)
    in_browser(app, "intertoken", "focus", Input("focus", "data"))


def _reduce(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("pressed", "data"),
        Output("run", "options"),
        Output("run", "value"),
        Output("node", "options"),
        Output("node", "value"),
        Input("url", "search"),
        Input("run", "value"),
        Input("node", "value"),
        Input("canvas", "tapNodeData"),
        *(Input(button, "n_clicks") for button in _BUTTONS),
        State("pressed", "data"),
        State("view", "data"),
        State("screen", "data"),
    )
    def reduce(search: str, run: str, node: str, tapped: Any, *rest: Any) -> tuple[Any, ...]:
        *times, pressed, before, screen = rest
        clicks, values = dict(zip(_BUTTONS, times, strict=True)), {"run": run, "node": node, "canvas": tapped}
        sources = done([one["prop_id"] for one in ctx.triggered], clicks, pressed)
        if before is None or "url" in sources:
            view = GraphView.parse(search)
            shown = find_run(store, view)
            view = replace(view, run=shown.key) if shown is not None else view
        else:
            view = GraphView.from_data(before)
            for source in sources:
                part = shown_part(find_run(store, view), view)
                view = after(view, source, values.get(source), part, (screen or {}).get("scheme", ""))
        if before is not None and view == GraphView.from_data(before) and clicks == pressed:
            raise PreventUpdate
        link = no_update if view.query() == (search or "") else view.query()
        return view.data(), link, clicks, *_choices(store, view)


def _choices(store: RunStore, view: GraphView) -> tuple[Any, ...]:
    """The runs and nodes to choose from, and the selected ones."""
    run = find_run(store, view)
    nodes = [] if run is None or problem_of(run, view) else [node.name for node in run.graph.nodes]
    return (
        _runs(store),
        run.key if run else None,
        [{"value": name, "label": plain(name, 90)} for name in nodes],
        view.node if view.node in nodes else None,
    )


def _runs(store: RunStore) -> list[dict[str, str]]:
    return [{"value": r.key, "label": plain(r.name, 90)} for r in store.so_far() if r.graph_file is not None]


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("canvas", "elements"),
        Output("canvas", "style"),
        Output("canvas", "stylesheet"),
        Output("canvas-holder", "aria-label"),
        Output("focus", "data"),
        Output("panel", "children"),
        Output("part-label", "children"),
        Output("parts", "style"),
        Output("streams", "children"),
        Output("memory", "figure"),
        Output("memory", "style"),
        Output("memory-holder", "aria-label"),
        Output("picture", "style"),
        Output("memory-section", "style"),
        Output("nothing", "children"),
        Output("nothing", "style"),
        Input("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme = GraphView.from_data(data), str(screen["scheme"])
        run = find_run(store, view)
        problem = problem_of(run, view)
        if problem or run is None:
            return (
                *([], HIDDEN, no_update, no_update, no_update, [], "", HIDDEN, [], no_update, no_update, no_update),
                *(HIDDEN, HIDDEN, problem, SHOWN),
            )
        graph, parts, number = run.graph, parts_of(run.graph), shown_part(run, view)
        selected = graph.index.get(view.node) if view.node else None
        picture = draw(graph, parts[number])
        place = picture.places.get(selected) if selected is not None else None
        return (
            picture.elements,
            {"width": f"{picture.width}px", "height": f"{picture.height}px"},
            stylesheet(theme, selected),
            _words(graph, parts[number]),
            place and {"x": place[0], "y": place[1]},
            panel(run, view, selected),
            f"part {number + 1} of {len(parts)}",
            HIDDEN if len(parts) == 1 else SHOWN,
            _legend(graph),
            memory_figure(graph.memory, graph.allocator, theme),
            {"height": f"{memory_height(graph.memory)}px"},
            "Peak memory. " + "; ".join(_memory_text(memory, graph.allocator) for memory in graph.memory),
            SHOWN,
            SHOWN,
            "",
            HIDDEN,
        )


def _words(graph: RunGraph, part: range) -> str:
    """A description of the picture."""
    nodes = [graph.nodes[i] for i in part]
    streams = {node.stream for node in nodes if node.stream is not None}
    names = f"{plain(nodes[0].name, 60)} to {plain(nodes[-1].name, 60)}"
    return f"Graph from {names}: {len(nodes)} nodes on {len(streams)} streams. Select a node in the list."


def _legend(graph: RunGraph) -> list[html.Li]:
    streams = [
        html.Li(
            [html.Span(style={"background": stream_colours(s)[0]}, className="swatch"), plain(graph.stream_name(s), 30)]
        )
        for s in range(min(graph.streams, 8))
    ]
    lines = (("line reads", "reads"), ("line event", "event: record → wait (fork, join)"), ("dot", "no kernel"))
    return [*streams, *(html.Li([html.Span(className=name), text]) for name, text in lines)]


def _memory_text(memory: Memory, used: str) -> str:
    hazards = f", {memory.hazards} hazards" if memory.hazards else ""
    return f"{memory.allocator}{' (used)' if memory.allocator == used else ''}: {size(memory.peak_bytes)}{hazards}"


PAGE = Page(ADDRESS, "Graph", "the graph of one token", sections, register, GraphView.from_data, place=5)
