"""The graph page: the model graph that ran, its streams and events, and the memory of each allocator.

Drawn is a part of the graph, as Cytoscape elements, one column per stream, time downwards; and the peak memory of its
allocators: their arenas, and the live bytes in them. A kernel is one row below all its predecessors: the kernels that
it reads from, the kernel before it on its stream, and the events that its stream waits for. So no two kernels of a
column share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Final

import dash_cytoscape as cyto
import plotly.graph_objects as go
from dash import Dash, Input, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import Page, in_browser, link
from dashboard.pages.parts import (
    HIDDEN,
    SHOWN,
    chart,
    choice,
    group,
    inputs,
    keep_view,
    named,
    outputs,
    section,
    stepper,
    visible,
)
from dashboard.pages.runs import keep_options
from dashboard.palette import COLOURS, FONT, THEMES, stream_colours
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import token_of
from dashboard.text import duration, markup, plain, size
from dashboard.view import POSITION, TEXT, THEME_NAMES, WORD, Linked, Position, Rates, View, one_of, span, switched
from tracer.errors import FormatError
from tracer.model.graph_json import Memory, Node, RunGraph

ADDRESS: Final = "graph/"
_MOST_READERS = 12
_HINT = "Select a node in the graph or in the list above."
_NO_GRAPH = (
    "None of these runs has a model graph. Recordings made by intertoken run include it; for imported ones, see the "
    "kernels on the Runs page."
)
_MOST_KERNELS: Final = 150  # at most so many kernels of a graph that is shown as one part
_CHUNK: Final = 40


@dataclass(frozen=True)
class GraphView(Linked):
    """The state of the page.

    Attributes:
        run: key of the run; None for the first that has a graph.
        part: number of the part shown; None for the selected node's, or the first with branches.
        token: the token to which the timeline links; None for the most typical one.
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


def after(store: RunStore, view: GraphView, source: str, value: Any, scheme: str) -> GraphView:
    """The view after an action of the reader: the component, its new value, and what the theme looks like."""
    match source, value:
        case "run", str(key) if key != view.run:
            return replace(view, run=key, part=None, token=None)
        case "node", None if view.node is not None:
            return replace(view, node=None, part=shown_part(find_run(store, view), view))
        case "node", str(name) if name != view.node:
            return replace(view, node=name, part=None)
        case "canvas", {"name": str(name)}:
            return replace(view, node=name, part=None)
        case "part-back" | "part-on", _:
            part = shown_part(find_run(store, view), view) + (1 if source == "part-on" else -1)
            return replace(view, node=None, part=max(part, 0))
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
    part = group("Part of the graph", *stepper("part", "part"), look="token moves", id="parts")
    return [
        dcc.Store(id="focus"),
        section(
            "Graph",
            [
                choice("run", "Run", clearable=False, width=340),
                choice("node", "Node", placeholder="Select a node", width=300),
                part,
            ],
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
        ),
        section(
            "Activation memory",
            [
                "Outer bar: the arena of each allocator for this plan. Inner bar: live bytes at the peak, which no "
                "placement can avoid. ▲: streams race for the same bytes."
            ],
            chart("memory", "Peak memory per allocator", 150),
            id="memory-section",
            **named("Memory per allocator"),
        ),
    ]


def _canvas() -> cyto.Cytoscape:
    still = dict.fromkeys(("userZoomingEnabled", "userPanningEnabled", "boxSelectionEnabled"), False)
    return cyto.Cytoscape(
        id="canvas", elements=[], layout={"name": "preset", "fit": False}, stylesheet=stylesheet("light", None),
        zoom=1, pan={"x": 0, "y": 0}, autoungrabify=True, autounselectify=True,
        style={"width": "300px", "height": "200px"}, **still,
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the graphs of the runs of `store`."""
    _keep(app, store)
    keep_options(app, store, "run", _runs)
    _render(app, store)
    in_browser(app, "intertoken", "focus", Input("focus", "data"))


def _keep(app: Dash, store: RunStore) -> None:
    def opened(view: GraphView) -> GraphView:
        run = find_run(store, view)
        return view if run is None else replace(view, run=run.key)

    keep_view(
        app, GraphView, "run.value node.value canvas.tapNodeData", ("part-back", "part-on", "theme"),
        "run.options run.value node.options node.value",
        opened=opened, after=partial(after, store), show=lambda view: _choices(store, view),
    )  # fmt: skip


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
        outputs(
            "canvas.elements canvas.style canvas.stylesheet canvas-holder.aria-label focus.data panel.children "
            "part-label.children parts.style streams.children memory.figure memory.style memory-holder.aria-label "
            "picture.style memory-section.style nothing.children nothing.style"
        ),
        inputs("screen.data", states="view.data"),
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
            visible(len(parts) > 1),
            _legend(graph),
            memory_figure(graph.memory, graph.allocator, theme),
            {"height": f"{max(len(graph.memory), 1) * _BAND + _BESIDE_BARS['t'] + _BESIDE_BARS['b']}px"},
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
    readers = graph.readers[index]
    facts = {
        "reads": reads,
        "waits for": [
            html.Li([f"event {w.event} of {plain(graph.stream_name(w.source_stream), 30)}, after ",
                     "the start" if w.source is None else _link(graph, w.source, view)])
            for w in graph.waits if w.target == index
        ],
        "is waited for by": [
            html.Li([f"{plain(graph.stream_name(w.target_stream), 30)} by event {w.event}, with ",
                     "the end" if w.target is None else _link(graph, w.target, view)])
            for w in graph.waits if w.source == index
        ],
        "read by": [
            *_links(graph, readers[:_MOST_READERS], view),
            *([html.Li(f"and {len(readers) - _MOST_READERS} more")] if len(readers) > _MOST_READERS else []),
        ],
    }  # fmt: skip
    return {name: html.Ul(items) for name, items in facts.items() if items}


def _links(graph: RunGraph, nodes: Iterable[int], view: GraphView) -> list[Any]:
    return [html.Li(_link(graph, i, view)) for i in nodes]


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
    times = run.executions.within(index, low, max(int(tokens.end[at]), low + 1))
    if times is None:
        return None
    start, end = (time - tokens.anchor(token, "end") for time in times)
    margin = max(2 * (end - start), 2_000)
    shown = View(
        runs=(run.key,), token=token, range=span(start - margin, end + margin), theme=view.theme, rates=view.rates
    )
    return link("", ADDRESS) + shown.query()


PAGE = Page(ADDRESS, "Graph", "the graph of one token", sections, register, GraphView.from_data, place=5)


Element = dict[str, Any]
Point = tuple[float, float]  # column and row, or px from the left and from the top

_COLUMN, _ROW, _MARGIN = 250, 72, 60  # px
_LEFT: Final = 150  # px from the edge to the middle of the first column
_WIDE, _HIGH, _SMALL = 176, 40, 13  # px of a node
_BELOW: Final = 0.42  # rows from a node to the views of its memory
_APART: Final = 30  # px that events leave and arrive beside what is read
_START, _END = -1, -2  # in the place of node indices
_BAND: Final = 34  # px per allocator
_BESIDE_BARS: Final = {"l": 150, "r": 300, "t": 4, "b": 4}


@dataclass(frozen=True)
class Drawing:
    """Elements, and the size they need in px; `places` are centres in px by node index."""

    elements: list[Element]
    width: int
    height: int
    places: Mapping[int, Point]


def draw(graph: RunGraph, part: range) -> Drawing:
    """The nodes of a part, the nodes outside it that they read, and the events that join its streams."""
    links = [(source, i, "") for i in part for source in dict.fromkeys(graph.nodes[i].src)]
    links += _waits(graph, part)
    places = _places(graph, part)
    views = {i for i in part if graph.nodes[i].stream is None}
    above = sorted({a for a, *_ in links} - places.keys())
    below = sorted({b for _, b, *_ in links} - places.keys())
    last = max(row for _, row in places.values())
    places |= {i: (float(column), -1.0) for column, i in enumerate(above)}
    places |= {i: (float(column), last + 1) for column, i in enumerate(below)}
    first = min(row for _, row in places.values())
    spots = {i: (_LEFT + _COLUMN * c, _MARGIN / 2 + 10 + _ROW * (row - first)) for i, (c, row) in places.items()}
    columns, rows = max(c for c, _ in places.values()), max(row for _, row in places.values()) - first
    return Drawing(
        [*(_node(graph, i, spot, i in part) for i, spot in spots.items()),
         *(_edge(spots, views, *link) for link in links)],
        round(_LEFT + _COLUMN * columns + _LEFT), round(_ROW * rows + _MARGIN + 20), spots,
    )  # fmt: skip


def _waits(graph: RunGraph, part: range) -> Iterator[tuple[int, int, str]]:
    for wait in graph.waits:
        source = _START if wait.source is None else wait.source
        target = _END if wait.target is None else wait.target
        if source in part or target in part:
            yield source, target, f"event {wait.event}"


def _places(graph: RunGraph, part: range) -> dict[int, Point]:
    waits: dict[int, list[int]] = {}
    for wait in graph.waits:
        if wait.source is not None and wait.target is not None:
            waits.setdefault(wait.target, []).append(wait.source)
    places: dict[int, Point] = {}
    last_row: dict[int, float] = {}
    used: set[Point] = set()
    for i in part:
        node = graph.nodes[i]
        before = [places[j] for j in (*node.src, *waits.get(i, ())) if j in places]
        if node.stream is None:
            column, row = before[0] if before else (0.0, -1.0)
            place = (int(column) + 0.5, int(row) + _BELOW)
            while place in used:
                place = (place[0] + 0.1, place[1])
        else:
            row = max([-1.0, last_row.get(node.stream, -1.0), *(float(int(row)) for _, row in before)]) + 1
            last_row[node.stream] = row
            place = (float(node.stream), row)
        places[i] = place
        used.add(place)
    return places


def _node(graph: RunGraph, i: int, spot: Point, inside: bool) -> Element:
    position = {"x": spot[0], "y": spot[1]}
    if i < 0:
        label = "start of the step" if i == _START else "end of the step"
        return {"data": {"id": f"n{i}", "label": label}, "position": position, "classes": "outside"}
    node = graph.nodes[i]
    data = {"id": f"n{i}", "name": node.name, "label": plain(node.name, 26)}
    if node.stream is None:
        return {"data": data, "position": position, "classes": "view" if inside else "outside"}
    colour, ink = stream_colours(node.stream)
    data |= {"colour": colour, "ink": ink}
    data["label"] += f"\n{plain(node.op, 16)} · {plain(graph.stream_name(node.stream), 20)}"
    return {"data": data, "position": position, "classes": "kernel" if inside else "kernel outside"}


def _edge(spots: Mapping[int, Point], views: set[int], a: int, b: int, event: str) -> Element:
    data: dict[str, Any] = {"id": f"{'e' if event else 'd'}{a}-{b}-{event}", "source": f"n{a}", "target": f"n{b}"}
    (x, high), (other, low) = spots[a], spots[b]
    ends = [f"{end}-view" for end, i in (("from", a), ("to", b)) if i in views]
    if event:
        return {"data": data | _lane(spots[a], spots[b], ends, 19), "classes": "lane event"}
    if abs(other - x) > _COLUMN / 2:
        return {"data": data | _lane(spots[a], spots[b], ends, 10), "classes": " ".join(["read", "lane", *ends])}
    if x == other and low - high > _ROW:  # past the nodes between
        bend = round(104 + min((low - high) / 18, 36))
        return {"data": data | {"bend": f"{bend} {bend}"}, "classes": "read past"}
    return {"data": data, "classes": "read"}


def _lane(source: Point, target: Point, ends: Sequence[str], away: int) -> dict[str, str]:
    """The corners of an edge that crosses columns between two rows, `away` px from the nearer one.

    A stream is idle before its fork and after its join, so the edge goes down where the stream on the right is idle.
    Cytoscape takes every corner as a share of the line between both ends and a distance to the right of it.
    """
    x, top = source[0], source[1] + (_SMALL if "from-view" in ends else _HIGH) / 2
    length_x, length_y = target[0] - x, target[1] - (_SMALL if "to-view" in ends else _HIGH) / 2 - top
    down = away if length_x > 0 else length_y - away - 2
    square = length_x**2 + length_y**2
    corners = ((0.0, down), (length_x, down))
    weights = ((dx * length_x + dy * length_y) / square for dx, dy in corners)
    distances = ((dy * length_x - dx * length_y) / square**0.5 for dx, dy in corners)
    return {
        "weights": " ".join(f"{weight:.4f}" for weight in weights),
        "distances": " ".join(f"{distance:.1f}" for distance in distances),
    }


def stylesheet(theme: str, selected: int | None) -> list[dict[str, Any]]:
    """The style of the elements in a theme, with one node and its edges highlighted."""
    look = THEMES[theme]
    event = COLOURS["sync"]

    def rule(selector: str, **style: Any) -> dict[str, Any]:
        return {"selector": selector, "style": {name.replace("_", "-"): value for name, value in style.items()}}

    return [
        rule("node", label="data(label)", font_family=FONT, font_size=11, color=look.ink, text_wrap="wrap",
             text_valign="center", text_halign="center", line_height=1.25, overlay_opacity=0),
        rule(".kernel", shape="round-rectangle", width=_WIDE, height=_HIGH, background_color="data(colour)",
             color="data(ink)"),
        rule(".view", shape="ellipse", width=_SMALL, height=_SMALL, background_color=look.muted, label=""),
        rule(".outside", shape="round-rectangle", width=_WIDE, height=_HIGH, background_opacity=0, border_width=1.5,
             border_style="dotted", border_color=look.muted, color=look.muted),
        rule("edge", width=1.5, curve_style="bezier", line_color=look.muted, target_arrow_shape="triangle",
             target_arrow_color=look.muted, arrow_scale=0.8, overlay_opacity=0),
        rule(".past", curve_style="unbundled-bezier", control_point_distances="data(bend)",
             control_point_weights="0.1 0.9"),
        rule(".lane", curve_style="segments", edge_distances="endpoints", segment_weights="data(weights)",
             segment_distances="data(distances)", source_endpoint=f"0px {_HIGH / 2}px",
             target_endpoint=f"0px -{_HIGH / 2}px"),
        rule(".from-view", source_endpoint=f"0px {_SMALL / 2}px"),
        rule(".to-view", target_endpoint=f"0px -{_SMALL / 2}px"),
        rule(".event", line_style="dashed", line_dash_pattern=[7, 4], width=2, line_color=event,
             target_arrow_color=event, source_endpoint=f"{_APART}px {_HIGH / 2}px",
             target_endpoint=f"{_APART}px -{_HIGH / 2}px"),
        *([] if selected is None else [
            rule(f"#n{selected}", border_width=4, border_style="solid", border_color=look.ink, border_opacity=1),
            rule(f"edge.read[source = 'n{selected}'], edge.read[target = 'n{selected}']", width=3,
                 line_color=look.ink, target_arrow_color=look.ink),
            rule(f"edge.event[source = 'n{selected}'], edge.event[target = 'n{selected}']", width=4),
        ]),
    ]  # fmt: skip


def memory_figure(memory: Sequence[Memory], used: str, theme: str) -> go.Figure:
    """For each allocator, a bar of its peak with the live bytes inside; the one in use is bold and filled."""
    look = THEMES[theme]
    longest = max((m.peak_bytes for m in memory), default=1) or 1
    y = [i * _BAND for i in range(len(memory))]
    outline, width = COLOURS["kernel"], [2.5 if m.allocator == used else 1.2 for m in memory]
    allocated = go.Bar(
        name="allocated", orientation="h", x=[m.peak_bytes for m in memory], y=y, width=22, hoverinfo="text",
        marker={"color": look.track, "line": {"color": outline, "width": width}},
        hovertext=[f"{markup(m.allocator, 40)}: {m.peak_bytes:,} bytes allocated" for m in memory],
    )  # fmt: skip
    live = go.Bar(
        name="live", orientation="h", x=[m.peak_live_bytes for m in memory], y=y, width=10, hoverinfo="text",
        marker={"color": outline, "opacity": [1.0 if m.allocator == used else 0.5 for m in memory]},
        hovertext=[f"{markup(m.allocator, 40)}: {m.peak_live_bytes:,} bytes live" for m in memory],
    )  # fmt: skip
    figure = go.Figure([allocated, live])
    figure.update_layout(
        barmode="overlay", margin=_BESIDE_BARS, showlegend=False, dragmode=False,
        **look.layout,
        xaxis={"range": [0, longest * 1.02], "visible": False, "fixedrange": True},
        yaxis={
            "range": [max(len(memory), 1) * _BAND - _BAND / 2, -_BAND / 2], "fixedrange": True, "showgrid": False,
            "zeroline": False, "tickvals": y, "ticktext": [_name(m, used) for m in memory], "ticklabelstandoff": 8,
        },
        annotations=[
            {"x": m.peak_bytes, "y": at, "text": _note(m), "xanchor": "left", "xshift": 8, "showarrow": False}
            for m, at in zip(memory, y, strict=True)
        ],
    )  # fmt: skip
    return figure


def _name(memory: Memory, used: str) -> str:
    name = markup(memory.allocator, 20)
    return f"<b>{name}, used</b>" if memory.allocator == used else name


def _note(memory: Memory) -> str:
    note = f"{size(memory.peak_bytes)}, {size(memory.peak_live_bytes)} live"
    if not memory.hazards:
        return note
    return f'{note}  <b style="color:{COLOURS["sync"]}">▲ {memory.hazards} hazard{"s" * (memory.hazards > 1)}</b>'
