"""Which event feeds what on the overview.

Two callbacks and one in the browser: whatever happens becomes a new view (`reduce`), the browser settles theme
and width (`screen`), and the view is drawn (`render`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.causes import causes_figure, causes_height, causes_of
from dashboard.figures.timeline import packed
from dashboard.pages.graph.view import GraphView
from dashboard.pages.overview.events import Event, after
from dashboard.pages.overview.table import columns, height, row
from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.text import plain
from dashboard.timeline.scene import picked, timeline_of, token_of
from dashboard.units import duration
from dashboard.view import View
from tracer.errors import FormatError

_BUTTONS = (
    *("token-back", "token-on", "show-gap", "show-token", "show-all"),
    *("zoom-in", "zoom-out", "pan-left", "pan-right", "theme"),
)
_HIDDEN, _SHOWN = {"display": "none"}, {"display": "block"}


def register(app: Dash, store: RunStore) -> None:
    """Attach the page's callbacks to an app that shows the runs of `store`."""
    _table(app, store)
    _reduce(app, store)
    _render(app, store)
    _pick(app, store)
    _in_browser(app, "screen", Output("screen", "data"), Input("view", "data"))
    _in_browser(app, "copyLink", Output("said", "children"), Input("copy-link", "n_clicks"))


def _in_browser(app: Any, function: str, output: Output, event: Input) -> None:
    app.clientside_callback(ClientsideFunction("intertoken", function), output, event, prevent_initial_call=True)


def _table(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("runs", "rowData"),
        Output("runs", "columnDefs"),
        Output("runs", "style"),
        Output("runs", "dashGridOptions"),
        Input("url", "pathname"),
        State("runs", "dashGridOptions"),
    )
    def load(_: str, options: dict[str, Any]) -> tuple[Any, ...]:
        rows = [row(run) for run in store.runs()]
        return rows, columns(rows), {"height": height(rows)}, {**options, "loading": False}


def _reduce(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("runs", "selectedRows"),
        Output("token", "value"),
        Output("token", "max"),
        Output("token-label", "children"),
        Output("align", "value"),
        Output("runs", "scrollTo"),
        Input("runs", "rowData"),
        Input("url", "search"),
        Input("runs", "selectedRows"),
        Input("token", "value"),
        Input("align", "value"),
        Input("timeline", "relayoutData"),
        *(Input(button, "n_clicks") for button in _BUTTONS),
        State("view", "data"),
        State("screen", "data"),
        prevent_initial_call=True,
    )
    def reduce(
        rows: list[dict[str, Any]] | None,
        search: str,
        selected: Any,
        token: int,
        align: str,
        relayout: Any,
        *rest: Any,
    ) -> tuple[Any, ...]:
        *_, before, screen = rest
        values = {"token": token, "align": align, "timeline": relayout}
        if rows is None:
            raise PreventUpdate
        triggered = {t["prop_id"].split(".")[0]: t["prop_id"] for t in ctx.triggered}
        source = next(iter(triggered), "")
        opens = before is None or source == "url" or triggered.get("runs") == "runs.rowData"
        if opens:
            view = _opened(View.parse(search), store)
        else:
            view = View.from_data(before)
            value = _keys(selected) if source == "runs" else values.get(source)
            shown = store.chosen(view.runs or ())
            view = after(view, Event(source, value), shown, (screen or {}).get("scheme", "light"))
        agreed = set(view.runs or ()) == set(_keys(selected))  # the grid reports in its own order
        if before is not None and view == View.from_data(before) and agreed:
            raise PreventUpdate
        runs = store.chosen(view.runs or ())
        most = max((len(run.tokens) for run in runs if run.tokens is not None), default=2) - 1
        link = view.query()
        return (
            view.data(),
            no_update if link == (search or "") else link,
            no_update if agreed else {"ids": list(view.runs or ())},
            token_of(runs, view),
            max(most, 1),
            f"of token {token_of(runs, view)} (0–{most})",
            view.align,
            {"rowId": view.runs[0], "rowPosition": "top"} if opens and view.runs else no_update,
        )


def _opened(view: View, store: RunStore) -> View:
    """A view as a link gives it; without one, the runs alike the first with the longest and the shortest gap."""
    if view.runs is None:
        view = replace(view, runs=tuple(extremes(store.runs())))
    return replace(view, runs=tuple(run.key for run in store.chosen(view.runs or ())))


def extremes(runs: Sequence[Run]) -> list[str]:
    """Keys of the run with the longest and the one with the shortest median gap, among those alike the first one."""
    shown = [run for run in runs if run.summary.gap_p50_us is not None]
    alike = [run for run in shown if _kind(run) == _kind(shown[0])]
    alike.sort(key=lambda run: run.summary.gap_p50_us or 0.0, reverse=True)
    chosen = alike[:1] + alike[-1:] if len(alike) > 1 else shown[:2]
    return [run.key for run in chosen]


def _kind(run: Run) -> tuple[str, str, str | None, bool]:
    summary = run.summary
    return summary.model, summary.concurrency, summary.graph_trace, summary.warning is None


def _keys(selected: Any) -> list[str]:
    if isinstance(selected, dict):
        return list(selected.get("ids", []))
    return [r["key"] for r in selected or []]


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("timeline", "figure"),
        Output("timeline", "style"),
        Output("timeline-holder", "style"),
        Output("causes", "figure"),
        Output("causes", "style"),
        Output("causes-section", "style"),
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("causes-holder", "aria-label"),
        Input("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any], data: dict[str, Any]) -> tuple[Any, ...]:
        view, theme = View.from_data(data), str(screen["scheme"])
        runs = store.chosen(view.runs or ())
        plot, tall = timeline_of(runs, view, theme, int(screen["width"]))
        causes = causes_of(runs)
        said = "; ".join(f"{c.name}: {duration(c.total_us * 1e3)} ({c.note})" for c in causes)
        return (
            packed(plot),
            {"height": f"{tall}px"},
            _SHOWN if runs else _HIDDEN,
            causes_figure(causes, theme),
            {"height": f"{causes_height(causes)}px"},
            _SHOWN if causes else _HIDDEN,
            nothing_to_show(store.runs()),
            _HIDDEN if runs else _SHOWN,
            f"Causes of the gap. {said}",
        )


def _pick(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("picked", "children"),
        Input("timeline", "clickData"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def pick(click: dict[str, Any] | None, data: dict[str, Any]) -> list[Any]:
        view = View.from_data(data)
        return node_of_click(click, view, store.chosen(view.runs or ()))


def node_of_click(click: dict[str, Any] | None, view: View, runs: Sequence[Run]) -> list[Any]:
    """Which node of the graph the clicked kernel is, with a link to it; nothing where that is not known."""
    match click:
        case {"points": [{"y": int() | float() as y, "customdata": [int(event), *_]}, *_]}:
            found = picked(runs, y, event)
        case _:
            return []
    if found is None:
        return []
    run, kernel = found
    try:
        node = run.executions.node_of(int(kernel["stream"]), int(kernel["start"]))
    except FormatError:
        return []
    if node is None:
        return []
    tensor = run.graph.nodes[node]
    link = GraphView(run.key, tensor.name, token=token_of(runs, view), theme=view.theme).link()
    words = f" {plain(tensor.op, 60)} · stream {kernel['stream']} · {duration(kernel['end'] - kernel['start'])} "
    return [html.B(plain(tensor.name, 80)), words, html.A("Show in graph", href=link, id="to-graph")]


def nothing_to_show(runs: Sequence[Run]) -> str:
    """What to do when no timeline is shown."""
    if not runs:
        return "No recordings yet. Start with: intertoken dashboard RUNS_DIR_OR_TRACE ..."
    if not any(run.steps is not None for run in runs):
        return "None of these recordings has token steps to show; the table says why."
    return "Select one to six runs in the table to see them on one time axis."
