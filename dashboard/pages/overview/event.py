"""An event in words: its exact times, related events, and its node of the graph; what can be done with it; and what is
behind it: its place in the program, its slack and, for a sync, its row on the syncs page and the predicted gain without
it.

All of it is shown by `details_of`, once: in a card where the pointer rests, asked for by `assets/card.js`, which keeps
the answers; and in the panel after a click, which shows the event of the view. While a part of it is being computed,
both ask again.

Slack and gain take seconds, so the page asks again until they are ready. For long recordings only the syncs page
computes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import in_browser, link, with_markup
from dashboard.pages.graph import GraphView
from dashboard.pages.overview.actions import marked
from dashboard.pages.parts import asking, inputs, named, outputs, poll
from dashboard.pages.runs import seen
from dashboard.pages.whatif import what_if_of
from dashboard.reading.answers import activities_of, calls_of, gain_without, site_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import anchor_of, found_in, part_of, token_of
from dashboard.text import brief_site, duration, plain
from dashboard.timeline.flows import EVENT, LAUNCH, WAIT, flows_of, launch_of, open_ranges, operator_in, own_ranges
from dashboard.timeline.layout import places_of
from dashboard.timeline.rows import Row, line_of_bar, lines_of
from dashboard.view import Spot, View
from tracer.analysis.path.graph import NEVER
from tracer.errors import FormatError, IntertokenError, printable
from tracer.model.calls import SYNC
from tracer.model.trace import Trace
from tracer.text import percent
from tracer.whatif.prediction import Prediction

_MOST: Final = 6
_WORDS: Final = {
    (LAUNCH, True): "launches", (LAUNCH, False): "launched by", (EVENT, True): "its event is before",
    (EVENT, False): "after the event of", (WAIT, True): "was waited for by", (WAIT, False): "waited for",
}  # fmt: skip
"""The label of a flow at the event at its start (True) or at its end. That an event is before something does not mean
that it was waited for: it may have been complete."""
_MOST_EVENTS: Final = 500_000  # in recordings whose paths are found within seconds
_WAITED: Final = "Computing the {} …"


def facts_of(view: View, runs: Sequence[Run], spot: Spot) -> list[Any]:
    """The facts about an event that are known at once; nothing if there is no such event."""
    run = found_in(runs, spot)
    if run is None:
        return []
    row, start, anchor = (
        run.rows[spot.row],
        int(run.rows[spot.row].start[spot.event]),
        anchor_of(run, view, token_of(runs, view)),
    )
    event = row.events.iloc[spot.event]
    ends = [] if spot.bar is None else [start + time for time in spot.bar]
    lines = lines_of(row, np.array([spot.event]), anchor, run.waits)[0]
    group, unit, _ = places_of(run.rows)[spot.row]
    place = plain(" · ".join(dict.fromkeys((group, unit))), 60)
    clock = f"Start on the recording's own clock: {start} ns"
    return [
        *([html.P(line_of_bar(row, *ends))] if ends else []),
        html.P([html.B(plain(str(event["full"]), 160)), f" · {place} · {plain(run.name, 80)}"]),
        *(html.P(line) for line in lines),
        html.P(html.Code(times_of(view, runs, spot), title=clock)),
        *_linked(run, spot),
        *_node(run, view, token_of(runs, view), event, row.role == "stream"),
    ]


def times_of(view: View, runs: Sequence[Run], spot: Spot) -> str:
    """The exact times of an event of one of these runs."""
    run = found_in(runs, spot)
    assert run is not None
    row, zero = run.rows[spot.row], anchor_of(run, view, token_of(runs, view))
    start, end = int(row.start[spot.event]), int(row.end[spot.event])
    return f"start {start - zero} ns, end {end - zero} ns after time 0, duration {end - start} ns"


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
    at_node = GraphView(run.key, tensor.name, token=token, theme=view.theme, rates=view.rates).link()
    words = f" {plain(tensor.op, 60)} · stream {event['stream']} · {duration(event['end'] - event['start'])} "
    return [
        html.P([html.B(plain(tensor.name, 80)), words, html.A("Show in graph", href=at_node, className="to-graph")])
    ]


def costs_of(store: RunStore, view: View, run: Run, spot: Spot) -> tuple[list[Any], bool]:
    """An event's call site, slack, row and gain in words, and whether results are pending."""
    if run.trace is None:
        return [], False
    row = run.rows[spot.row]
    site, awaits = _site(store, run, row, spot.event)
    made = [html.Li(line) for line in made_at(run.trace, row, spot.event)] + site
    costs, pending = _costs(store, view, run, row, spot.event) if run.syncs is not None else ([], False)
    return [*([html.Ul(made)] if made else []), *costs], awaits or pending


def made_at(trace: Trace, row: Row, event: int) -> list[str]:
    """NVTX ranges and operator of an event's call, or those around a range; only those that are recorded."""
    if row.role == "nvtx":
        start, end = int(row.start[event]), int(row.end[event])
        around = open_ranges(trace, row.process, row.thread, start)
        return _path(around[around["end"] > end])
    call = launch_of(trace, row, event)
    if call is None:
        return []
    ranges = open_ranges(trace, int(call["process"]), int(call["thread"]), int(call["start"]))
    operator = operator_in(ranges)
    return _path(ranges) + ([f"operator: {plain(operator, 120)}"] if operator else [])


def _path(ranges: pd.DataFrame) -> list[str]:
    path = own_ranges(ranges)
    return [f"NVTX: {plain(' › '.join(path), 300)}"] if path else []


def _site(store: RunStore, run: Run, row: Row, event: int) -> tuple[list[html.Li], bool]:
    """The call site of an event's call, and whether it is still being looked up."""
    call = None if run.trace is None else launch_of(run.trace, row, event)
    if run.trace is None or call is None:
        return [], False
    answer = site_of(store, run, run.trace["api"].loc[[call.name]])
    if not answer.done():
        return [], True
    if answer.exception() is not None or not answer.result()[0]:
        return [], False
    site, way = answer.result()
    said = [f"call site: {brief_site(site, 200)}", *([f"through {brief_site(way)}"] if way else [])]
    return [html.Li(", ".join(said), title=plain(site, 300))], False


def _costs(store: RunStore, view: View, run: Run, row: Row, event: int) -> tuple[list[Any], bool]:
    assert run.syncs is not None
    assert run.trace is not None
    if row.role == "stream":
        long = len(run.trace) > _MOST_EVENTS
        said_of, more = ("", False) if long else _slack(activities_of(store, run), _activity(row, event))
        return ([html.P(said_of)] if said_of else []), more
    calls = run.syncs.calls
    place = _place(calls, _call(row, event)) if row.role == "api" else None
    if place is None:
        return [], False
    of_run = View(runs=(run.key,), theme=view.theme, rates=run.rates).query()
    said: list[Any] = []
    sync = None
    if place["letter"] == SYNC:
        same = calls[(calls["step"] == place["step"]) & (calls["letter"] == SYNC)].sort_values("start", kind="stable")
        sync = int((same["start"] <= place["start"]).sum())
        said = [html.A(f"Row {sync} of the syncs", href=link("syncs/", "") + of_run, className="to-sync"), " · "]
        try_it = what_if_of(run, view.theme, "", without=(str(sync),))
        said += [html.A("Predict the run without it", href=try_it, className="to-what-if")]
    if len(run.trace) > _MOST_EVENTS:
        return ([html.P([*said, " (slack and gain)"])] if said else []), False
    slack, pending = _slack(calls_of(store, run), _call(row, event))
    gain, more = _gain(store, run, sync) if sync is not None else ("", False)
    parts = [part for part in (slack, gain) if part]
    return [html.P([*said, *([" · "] if said and parts else []), " · ".join(parts)])], pending or more


def _call(row: Row, event: int) -> dict[str, int]:
    return {"start": int(row.start[event]), "process": row.process, "thread": row.thread}


def _activity(row: Row, event: int) -> dict[str, int]:
    number = int(row.events["correlation"].iloc[event])
    of_row = {"process": row.process, "device": row.device, "stream": row.stream}
    return of_row | {"start": int(row.start[event]), "end": int(row.end[event]), "correlation": number}


def _place(table: pd.DataFrame, wanted: dict[str, int]) -> pd.Series | None:
    """The first row with these values."""
    mine = table[table["start"] == wanted["start"]]
    for column, value in wanted.items():
        mine = mine[mine[column] == value]
    return None if mine.empty else mine.iloc[0]


def _slack(answer: Future[pd.DataFrame], wanted: dict[str, int]) -> tuple[str, bool]:
    """How much later a call or an activity could end, and whether that is still being computed."""
    if not answer.done():
        return _WAITED.format("slack"), True
    if (problem := answer.exception()) is not None:
        return _why(problem), False
    row = _place(answer.result(), wanted)
    if row is None:
        return "", False
    slack, on_path = int(row["slack_ns"]), int(row["on_path_ns"])
    later = "nothing waits for it" if slack >= NEVER // 2 else f"slack {duration(slack)}"
    return f"{later}, {duration(on_path)} of the critical path", False


def _gain(store: RunStore, run: Run, position: int) -> tuple[str, bool]:
    """The gain per token without the sync at this position of every step, and whether it is still being computed."""
    answer = gain_without(store, run, (position,))
    if not answer.done():
        return _WAITED.format("gain"), True
    if (problem := answer.exception()) is not None:
        return _why(problem), False
    prediction: Prediction = answer.result()
    if prediction.of_engine is None:
        return "the gain without it is unknown: enter the engine's own rate", False
    bounds = prediction.of_engine.bounds
    margin = f" [{percent(bounds[0] - 1, 2)}, {percent(bounds[1] - 1, 2)}]" if bounds else ""
    return f"without it {percent(prediction.of_engine.estimate - 1, 2)} tokens/s{margin}, predicted", False


def _why(problem: BaseException) -> str:
    return plain(printable(str(problem)), 300) if isinstance(problem, IntertokenError) else "cannot be computed"


@dataclass(frozen=True)
class Details:
    """An event in words.

    `facts` are known at once; `costs`, its place in the program, slack, row and gain, may be pending.
    """

    facts: list[Any]
    times: str
    costs: list[Any]
    pending: bool


def details_of(store: RunStore, view: View, spot: Spot | None) -> Details:
    """All that is known about an event of the view's runs."""
    runs = store.ready(view.runs or (), view.rates)
    run = found_in(runs, spot)
    if run is None or spot is None:
        return Details([], "", [], False)
    return Details(facts_of(view, runs, spot), times_of(view, runs, spot), *costs_of(store, view, run, spot))


def stores() -> list[Any]:
    """The mark under the pointer, and what is said about it."""
    return [dcc.Store(id="pointed"), dcc.Store(id="told")]


def below() -> list[Any]:
    """The panel of the chosen event; and the card, which says to the eye what the panel says to all."""
    hidden: dict[str, Any] = {"aria-hidden": "true"}
    return [
        html.Div(id="picked", role="status", className="picked"),
        poll("cost-poll"),
        html.Div(id="cost", role="status", className="picked"),
        html.Div(id="card", className="card picked", **hidden),
    ]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks of panel and card."""
    in_browser(app, "card", "told", Input("told", "data"))

    @app.callback(
        outputs("picked.children cost.children cost-poll.disabled"),
        inputs("chosen.data arrived.data cost-poll.n_intervals", states="view.data"),
        running=asking("cost-poll"),
    )
    def say(_: Any, __: Any, ___: Any, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view, again = View.from_data(data), ctx.triggered_id == "cost-poll"
        details = details_of(store, view, view.event)
        if details.pending and again:
            raise PreventUpdate
        said = no_update if again else details.facts and [*details.facts, acts(details.times)]
        return said, details.costs, not details.pending

    @app.callback(Output("told", "data"), inputs("pointed.data", states="view.data screen.data"))
    def tell(mark: dict[str, Any] | None, data: dict[str, Any] | None, screen: dict[str, Any] | None) -> dict[str, Any]:
        view, runs = seen(store, data)
        if mark is None or screen is None or mark.get("part") != part_of(runs, view, str(screen["scheme"])):
            raise PreventUpdate  # the view has moved on from the drawing that was pointed at
        details = details_of(store, view, marked(view, runs, mark))
        of: dict[str, Any] = {"data-of": mark.get("key")}
        return {
            "key": mark.get("key"),
            "said": with_markup(html.Div([*details.facts, *details.costs], **of)),
            "pending": details.pending,
        }
