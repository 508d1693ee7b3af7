"""The graph page: the model graph that ran, its streams and events, and the memory of each allocator.

As on the overview, each event creates a new view (`reduce`), which is rendered (`render`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final

import dash_cytoscape as cyto
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.graph import draw, memory_figure, memory_height, stylesheet
from dashboard.links import Linked
from dashboard.pages import Page, in_browser, link
from dashboard.pages.parts import HIDDEN, SHOWN, chart, done, named, section, stepper
from dashboard.pages.runs import keep_options
from dashboard.palette import stream_colours
from dashboard.rates import Rates
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import token_of
from dashboard.text import plain
from dashboard.units import duration, size
from dashboard.view import POSITION, TEXT, THEME_NAMES, WORD, Position, View, one_of, span, switched
from tracer.errors import FormatError
from tracer.model.graph_json import Memory, Node, RunGraph

ADDRESS: Final = "graph/"
_MOST_READERS = 12
_HINT = "Select a node in the graph or in the list above."
_NO_GRAPH = (
    "None of these runs has a model graph. Recordings made by intertoken run include it; for imported ones, see the "
    "kernels on the Runs page."
)
_MOST_KERNELS: Final = 150
"""Maximum number of kernels of a graph that is shown as one part."""
_CHUNK: Final = 40

_BUTTONS = ("part-back", "part-on", "theme")


@dataclass(frozen=True)
class GraphView(Linked):
    """The state of the page.

    Attributes:
        run: key of the run; None for the first that has a graph.
        node: name of the selected node.
        part: number of the part shown; None for the selected node's, or the first with branches.
        token: the token to which the timeline links; None for the most typical one.
        theme: one of `THEME_NAMES`.
        rates: rates given on other pages, kept for links to them.
    """

    run: Annotated[str | None, TEXT] = None
    node: Annotated[str | None, TEXT] = None
    part: Annotated[Position | None, POSITION] = None
    token: Annotated[Position | None, POSITION] = None
    theme: Annotated[str, one_of(THEME_NAMES), WORD] = "auto"
    rates: Rates = ()

    def link(self) -> str:
        """The page's address with this view, relative to the dashboard's."""
        return ADDRESS + self.query()


def after(view: GraphView, source: str, value: Any, part: int, scheme: str) -> GraphView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        part: number of the part shown now.
        scheme: "light" or "dark", the page's current theme.
    """
    match source, value:
        case "run", str(key) if key != view.run:
            return replace(view, run=key, part=None, token=None)
        case "node", str() | None if value != view.node:
            return replace(view, node=value, part=part if value is None else None)
        case "canvas", {"name": str(name)}:
            return replace(view, node=name, part=None)
        case "part-back" | "part-on", _:
            return replace(view, node=None, part=max(part + (1 if source == "part-on" else -1), 0))
        case "theme", _:
            return replace(view, theme=switched(view.theme, scheme))
    return view


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


def panel(run: Run, view: GraphView, index: int | None) -> list[Any]:
    """The panel's content for a node of the run's graph, or a hint if none is selected."""
    graph = run.graph
    if index is None:
        return [html.P(_HINT, className="hint"), html.Dl(_facts({**_of_graph(graph), **_plans(run)}))]
    node = graph.nodes[index]
    return [
        html.H3(plain(node.name, 80)),
        html.Dl(_facts({**_of_node(graph, node), **_order(graph, index, view), **_times(run, index)})),
        *_timeline(run, view, index),
    ]


def _facts(facts: dict[str, Any]) -> list[Any]:
    return [part for name, value in facts.items() for part in (html.Dt(name), html.Dd(value))]


def _of_graph(graph: RunGraph) -> dict[str, Any]:
    state = [leaf.nbytes for leaf in graph.leaves if leaf.kind == "state"]
    return {
        "kernels": f"{len(graph.launches)} of {len(graph.nodes)} nodes",
        "streams": str(graph.streams),
        "regions": f"{len(graph.regions)} with branches",
        "waits": f"{len(graph.waits)} between streams",
        "weights": f"{graph.weights}, {size(graph.weight_bytes)}",
        "state": f"{len(state)}, {size(sum(state))}",
        "inputs": ", ".join(plain(leaf.name, 30) for leaf in graph.leaves if leaf.kind == "input") or "none",
    }


def _plans(run: Run) -> dict[str, Any]:
    """The outcomes of CUDA graphs over all token steps, from run.json, for each split."""
    facts = (run.trace.metadata.get("run") or {}).get("plan") if run.trace else None
    splits = facts.get("graph_plans") if isinstance(facts, dict) else None
    if not isinstance(splits, list):
        return {}
    total: dict[str, int] = {}
    for split in splits:
        for name, count in split.items() if isinstance(split, dict) else ():
            if isinstance(count, int) and count:
                total[name] = total.get(name, 0) + count
    counts = ", ".join(f"{count:,} {plain(name, 20)}" for name, count in total.items()) or "none"
    return {"graphs": f"{counts}, of {len(splits)} splits" if len(splits) > 1 else counts}


def _of_node(graph: RunGraph, node: Node) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "op": plain(node.op, 80),
        "shape": f"{' × '.join(map(str, node.shape))} {plain(node.dtype, 20)}",
        "bytes": f"{node.nbytes:,}",
        "stream": _stream(graph, node.stream),
    }
    if node.region is not None:
        region = graph.regions[node.region]
        facts["region"] = (
            f"one of {region.branches} branches from {plain(graph.nodes[region.fork].name, 40)} "
            f"to {plain(graph.nodes[region.join].name, 40)}"
        )
        if region.level:
            facts["region"] += f", nested {region.level} deep"
    return facts


def _stream(graph: RunGraph, stream: int | None) -> Any:
    if stream is None:
        return "none: a view of memory, without a kernel"
    colour, _ = stream_colours(stream)
    return [
        html.Span(style={"background": colour}, className="swatch inline"),
        f" {plain(graph.stream_name(stream).removeprefix('stream '), 30)}",
    ]


def _order(graph: RunGraph, index: int, view: GraphView) -> dict[str, Any]:
    node = graph.nodes[index]
    reads: list[Any] = _links(graph, dict.fromkeys(node.src), view)
    reads += [html.Li(f"{graph.leaves[i].kind} {plain(graph.leaves[i].name, 60)}") for i in dict.fromkeys(node.leaves)]
    reads += [html.Li(f"weights, {size(node.weight_bytes)}")] if node.weight_bytes else []
    waits = [wait for wait in graph.waits if wait.target == index]
    awaited = [wait for wait in graph.waits if wait.source == index]
    readers = graph.readers[index]
    facts = {
        "reads": reads,
        "waits for": [
            _wait(
                graph,
                f"event {w.event} of {plain(graph.stream_name(w.source_stream), 30)}, after ",
                w.source,
                "the start",
                view,
            )
            for w in waits
        ],
        "is waited for by": [
            _wait(
                graph,
                f"{plain(graph.stream_name(w.target_stream), 30)} by event {w.event}, with ",
                w.target,
                "the end",
                view,
            )
            for w in awaited
        ],
        "read by": [
            *_links(graph, readers[:_MOST_READERS], view),
            *([html.Li(f"and {len(readers) - _MOST_READERS} more")] if len(readers) > _MOST_READERS else []),
        ],
    }
    return {name: html.Ul(items) for name, items in facts.items() if items}


def _links(graph: RunGraph, nodes: Iterable[int], view: GraphView) -> list[Any]:
    return [html.Li(_link(graph, i, view)) for i in nodes]


def _wait(graph: RunGraph, text: str, node: int | None, otherwise: str, view: GraphView) -> html.Li:
    return html.Li([text, otherwise if node is None else _link(graph, node, view)])


def _link(graph: RunGraph, node: int, view: GraphView) -> dcc.Link:
    name = graph.nodes[node].name
    return dcc.Link(plain(name, 60), href=replace(view, node=name, part=None).query())


def _times(run: Run, index: int) -> dict[str, Any]:
    if run.graph.nodes[index].stream is None:
        return {}
    if run.executions.problem:
        return {"kernel": run.executions.problem}
    durations = run.executions.durations
    if index not in durations.index:
        return {"kernel": "It was not executed in any recorded token step."}
    median, p90, count = (durations[name].loc[index] for name in ("median", "p90", "count"))
    note = " (traced: inflated)" if run.inflated else ""
    return {"kernel": f"median {duration(median)}, p90 {duration(p90)} over {count:.0f} executions{note}"}


def _timeline(run: Run, view: GraphView, index: int) -> list[Any]:
    link = timeline_link(run, view, index)
    return [] if link is None else [html.A("Show in timeline", id="to-timeline", href=link, className="button")]


def timeline_link(run: Run, view: GraphView, index: int) -> str | None:
    """The overview at the view's token, zoomed to the node's kernel; None if the recording lacks it."""
    if run.tokens is None:
        return None
    tokens, token = run.tokens, token_of([run], View(token=view.token))
    at = tokens.clamp(token)
    low = int(tokens.start[at])
    found = run.executions.within(index, low, max(int(tokens.end[at]), low + 1))
    if found is None:
        return None
    start, end = (time - tokens.anchor(token, "end") for time in found)
    margin = max(2 * (end - start), 2_000)
    shown = View(
        runs=(run.key,), token=token, range=span(start - margin, end + margin), theme=view.theme, rates=view.rates
    )
    return link("", ADDRESS) + shown.query()


PAGE = Page(ADDRESS, "Graph", "the graph of one token", sections, register, GraphView.from_data, place=5)
