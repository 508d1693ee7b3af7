"""The callbacks of the graph page; as on the overview, each event creates a new view, which is rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.graph import draw, memory_figure, memory_height, stylesheet
from dashboard.pages.graph.panel import panel
from dashboard.pages.graph.view import GraphView, after
from dashboard.pages.presses import done
from dashboard.pages.runs import keep_options
from dashboard.palette import stream_colours
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.units import size
from tracer.errors import FormatError
from tracer.model.graph_json import Memory, RunGraph

_NO_GRAPH = (
    "None of these runs has a model graph. Recordings made by intertoken run include it; for imported ones, see the "
    "kernels on the Runs page."
)
_BUTTONS = ("part-back", "part-on", "theme")
_HIDDEN: dict[str, str] = {"display": "none"}
_SHOWN: dict[str, str] = {}
_MOST_KERNELS: Final = 150
"""Maximum number of kernels of a graph that is shown as one part."""
_CHUNK: Final = 40


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the graphs of the runs of `store`."""
    _reduce(app, store)
    keep_options(app, store, "run", _runs)
    _render(app, store)
    _focus(app)


def _focus(app: Any) -> None:
    app.clientside_callback(
        ClientsideFunction("intertoken", "focus"), Input("focus", "data"), prevent_initial_call=True
    )


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
                *([], _HIDDEN, no_update, no_update, no_update, [], "", _HIDDEN, [], no_update, no_update, no_update),
                *(_HIDDEN, _HIDDEN, problem, _SHOWN),
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
            _HIDDEN if len(parts) == 1 else _SHOWN,
            _legend(graph),
            memory_figure(graph.memory, graph.allocator, theme),
            {"height": f"{memory_height(graph.memory)}px"},
            "Peak memory. " + "; ".join(_memory_text(memory, graph.allocator) for memory in graph.memory),
            _SHOWN,
            _SHOWN,
            "",
            _HIDDEN,
        )


def find_run(store: RunStore, view: GraphView) -> Run | None:
    """The run of the view; by default the first with a graph."""
    if view.run:
        return store.named(store.key_of(view.run))
    return next((run for run in store.each() if run.graph_file is not None), None)


def problem_of(run: Run | None, view: GraphView) -> str:
    """The reason why there is no graph to show; empty if there is one."""
    if run is None:
        return f"There is no run {plain(view.run, 90)!r}." if view.run else _NO_GRAPH
    try:
        run.executions  # noqa: B018  # what cannot be read says so here
    except FormatError as problem:
        return plain(str(problem))
    return ""


def shown_part(run: Run | None, view: GraphView) -> int:
    """The number of the part to show."""
    if run is None or problem_of(run, view):
        return 0
    parts = parts_of(run.graph)
    if view.part is not None:
        return min(view.part, len(parts) - 1)
    if view.node is not None and view.node in run.graph.index:
        return part_of(parts, run.graph.index[view.node])
    return first_part(run.graph, parts)


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


def parts_of(graph: RunGraph) -> list[range]:
    """Ranges of node indices: all of a small graph, else one part per outermost region, cut at the forks.

    Nodes before the second region belong to the first. A part without regions is cut into chunks of kernels.
    """
    total = len(graph.nodes)
    if len(graph.launches) < _MOST_KERNELS:
        return [range(total)]
    forks = sorted({region.fork for region in graph.regions if region.level == 0})
    return [
        part for low, high in pairwise([0, *forks[1:], total]) if low < high for part in _chunks(graph, low, high)
    ]  # fmt: skip


def _chunks(graph: RunGraph, low: int, high: int) -> list[range]:
    kernels = [i for i in range(low, high) if graph.nodes[i].stream is not None]
    if len(kernels) < _MOST_KERNELS:
        return [range(low, high)]
    return [range(first, last) for first, last in pairwise([low, *kernels[_CHUNK::_CHUNK], high])]


def part_of(parts: Sequence[range], node: int) -> int:
    """The number of the part that contains a node."""
    return next(number for number, part in enumerate(parts) if node in part)


def first_part(graph: RunGraph, parts: Sequence[range]) -> int:
    """The first part with branches, or else the first one."""
    return part_of(parts, min(region.fork for region in graph.regions)) if graph.regions else 0
