"""An event in words: its exact times, related events, and its node of the graph; and what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from dash import dcc, html

from dashboard.pages.frame import named
from dashboard.pages.graph.view import GraphView
from dashboard.reading.run import Run
from dashboard.scene import token_of
from dashboard.scene.choice import found_in
from dashboard.text import plain
from dashboard.timeline.facts import line_of_bar, lines_of
from dashboard.timeline.flows import EVENT, LAUNCH, WAIT, flows_of
from dashboard.timeline.layout import places_of
from dashboard.units import duration
from dashboard.view import Spot, View
from tracer.errors import FormatError

_MOST: Final = 6
_WORDS: Final = {
    (LAUNCH, True): "launches", (LAUNCH, False): "launched by", (EVENT, True): "its event is before",
    (EVENT, False): "after the event of", (WAIT, True): "was waited for by", (WAIT, False): "waited for",
}  # fmt: skip
"""The label of a flow at the event at its start (True) or at its end. That an event is before something does not mean
that it was waited for: it may have been complete."""


def facts_of(view: View, runs: Sequence[Run], spot: Spot) -> list[Any]:
    """The facts about an event that are known at once; nothing if there is no such event."""
    run = found_in(runs, spot)
    if run is None:
        return []
    row, start, anchor = run.rows[spot.row], int(run.rows[spot.row].start[spot.event]), _zero(view, runs, run)
    event = row.events.iloc[spot.event]
    ends = [] if spot.bar is None else [start + time for time in spot.bar]
    lines = lines_of(row, np.array([spot.event]), anchor, run.waits)[0]
    clock = f"Start on the recording's own clock: {start} ns"
    return [
        *([html.P(line_of_bar(row, *ends))] if ends else []),
        html.P([html.B(plain(str(event["full"]), 160)), f" · {row_name(run, spot)} · {plain(run.name, 80)}"]),
        *(html.P(line) for line in lines),
        html.P(html.Code(times_of(view, runs, spot), title=clock)),
        *_linked(run, spot),
        *_node(run, view, token_of(runs, view), event, row.role == "stream"),
    ]


def times_of(view: View, runs: Sequence[Run], spot: Spot) -> str:
    """The exact times of an event of one of these runs."""
    run = found_in(runs, spot)
    assert run is not None
    row, zero = run.rows[spot.row], _zero(view, runs, run)
    start, end = int(row.start[spot.event]), int(row.end[spot.event])
    return f"start {start - zero} ns, end {end - zero} ns after time 0, duration {end - start} ns"


def _zero(view: View, runs: Sequence[Run], run: Run) -> int:
    return 0 if run.tokens is None else run.tokens.anchor(token_of(runs, view), view.align)


def acts(times: str) -> html.P:
    """What can be done with the chosen event, whose exact times are these."""
    copies: dict[str, Any] = {"data-copies": "picked cost"}
    return html.P(
        [
            dcc.Clipboard(content=times, title="Copy the times", className="inline copies"),
            ask("Measure from its start", {"what": "measure", "from": "start"}, "Then click another event", "link"),
            " ",
            ask("from its end", {"what": "measure", "from": "end"}, "Then click another event", "link"),
            " ",
            html.Button("Copy as text", id="copy-event", className="link", title="All details of the event", **copies),
            " ",
            ask("Deselect", {"what": "forget"}, "Deselect the event: Escape", "link", id="deselect"),
        ],
        className="acts",
    )


def row_name(run: Run, spot: Spot) -> str:
    """The name of an event's row, with its group."""
    group, unit, _ = places_of(run.rows)[spot.row]
    return plain(" · ".join(dict.fromkeys((group, unit))), 60)


def ask(text: str, wish: dict[str, Any], label: str, look: str = "button", **more: Any) -> html.Button:
    """A button that sends a request, see `actions.after_request`; `assets/timeline.js` passes it to the page."""
    data: dict[str, Any] = {"data-ask": json.dumps(wish)}
    return html.Button(text, className=look, title=label, **data, **named(label), **more)


def _linked(run: Run, spot: Spot) -> list[Any]:
    """Related events, each a button that selects it."""
    flows, more = flows_of(run.rows, spot.row, spot.event, run.waits, run.event_pairs)
    parts: list[Any] = []
    for flow in flows[:_MOST].to_dict("records"):
        is_first = (flow["row0"], flow["event0"]) == (spot.row, spot.event)
        row, event = (flow["row1"], flow["event1"]) if is_first else (flow["row0"], flow["event0"])
        name = plain(str(run.rows[row].events["name"].iloc[event]), 60)
        wish = {"what": "spot", "spot": [run.key, int(row), int(event)]}
        later = (flow["time1"] - flow["time0"]) * (1 if is_first else -1)
        apart = f", {duration(abs(later))} {'earlier' if later < 0 else 'later'}"
        parts.append(html.Li([f"{_WORDS[flow['kind'], is_first]} ", ask(name, wish, f"Go to {name}", "link"), apart]))
    beyond = len(flows) - len(parts) + more
    return [html.Ul([*parts, *([html.Li(f"and {beyond} more")] if beyond else [])])] if parts else []


def _node(run: Run, view: View, token: int, event: Any, on_device: bool) -> list[Any]:
    """The node of the graph that a kernel belongs to, with a link; nothing if unknown."""
    if not on_device or run.graph_file is None:
        return []
    try:
        node = run.executions.node_of(int(event["stream"]), int(event["start"]))
    except FormatError:
        return []
    if node is None:
        return []
    tensor = run.graph.nodes[node]
    link = GraphView(run.key, tensor.name, token=token, theme=view.theme, rates=view.rates).link()
    words = f" {plain(tensor.op, 60)} · stream {event['stream']} · {duration(event['end'] - event['start'])} "
    return [html.P([html.B(plain(tensor.name, 80)), words, html.A("Show in graph", href=link, className="to-graph")])]
