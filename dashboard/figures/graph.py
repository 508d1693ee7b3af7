"""A part of a run's graph as Cytoscape elements, one column per stream, time downwards; and the peak memory of its
allocators: their arenas, and the live bytes in them.

A kernel is one row below all its predecessors: the kernels that it reads from, the kernel before it on its stream, and
the events that its stream waits for. So no two kernels of a column share a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from dashboard.palette import COLOURS, FONT, THEMES, stream_colours
from dashboard.text import markup, plain
from dashboard.units import size
from tracer.model.graph_json import Memory, Node, RunGraph

Element = dict[str, Any]
Point = tuple[float, float]
"""Column and row, or px from the left and from the top."""

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
    links = [*_reads(graph, part), *_waits(graph, part)]
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


def _reads(graph: RunGraph, part: range) -> Iterator[tuple[int, int, str]]:
    for i in part:
        for source in dict.fromkeys(graph.nodes[i].src):
            yield source, i, ""


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
    data = {"id": f"n{i}", "name": node.name, "label": _label(graph, node)}
    if node.stream is None:
        return {"data": data, "position": position, "classes": "view" if inside else "outside"}
    colour, ink = stream_colours(node.stream)
    data |= {"colour": colour, "ink": ink}
    return {"data": data, "position": position, "classes": "kernel" if inside else "kernel outside"}


def _label(graph: RunGraph, node: Node) -> str:
    if node.stream is None:
        return plain(node.name, 26)
    return f"{plain(node.name, 26)}\n{plain(node.op, 16)} · {plain(graph.stream_name(node.stream), 20)}"


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


def memory_height(memory: Sequence[Memory]) -> int:
    """Height of the figure, px."""
    return max(len(memory), 1) * _BAND + _BESIDE_BARS["t"] + _BESIDE_BARS["b"]


def _name(memory: Memory, used: str) -> str:
    name = markup(memory.allocator, 20)
    return f"<b>{name}, used</b>" if memory.allocator == used else name


def _note(memory: Memory) -> str:
    note = f"{size(memory.peak_bytes)}, {size(memory.peak_live_bytes)} live"
    if not memory.hazards:
        return note
    return f'{note}  <b style="color:{COLOURS["sync"]}">▲ {memory.hazards} hazard{"s" * (memory.hazards > 1)}</b>'
