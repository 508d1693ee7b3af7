"""The panel of the selected node: its properties, its dependencies, its duration, and a link to the timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dash import dcc, html

from dashboard.pages import link
from dashboard.pages.graph.view import ADDRESS, GraphView
from dashboard.palette import stream_colours
from dashboard.reading.run import Run
from dashboard.scene import token_of
from dashboard.text import plain
from dashboard.units import duration, size
from dashboard.view import View, span
from tracer.model.graph_json import Node, RunGraph

_MOST_READERS = 12
_HINT = "Select a node in the graph or in the list above."


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
