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
from dashboard.store import Progress, RunStore
from dashboard.text import plain
from dashboard.timeline.scene import picked, timeline_of, token_of
from dashboard.units import duration
from dashboard.view import View
from tracer.errors import FormatError

_BUTTONS = (
    *("token-back", "token-on", "show-gap", "show-token", "show-all"),
    *("zoom-in", "zoom-out", "pan-left", "pan-right", "theme"),
)
PATIENCE = 2.0
"""Seconds after which the page opens with the recordings that are read by then."""
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
        Output("reading", "disabled"),
        Output("reading-said", "children"),
        Output("arrived", "data"),
        Input("url", "pathname"),
        Input("reading", "n_intervals"),
        State("runs", "dashGridOptions"),
        State("arrived", "data"),
    )
    def load(_: str, __: int, options: dict[str, Any], before: int | None) -> tuple[Any, ...]:
        store.read_ahead()
        progress = store.progress()  # before the rows, so that the last call has them all
        rows = [row(run) for run in store.so_far()]
        return (
            rows,
            columns(rows),
            {"height": height(rows)},
            {**options, "loading": False} if options["loading"] else no_update,
            progress.done,
            "" if progress.done else f"{progress.read} of {progress.total} recordings read",
            no_update if before == progress.read else progress.read,
        )


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
        arrives = triggered.get("runs") == "runs.rowData"
        opens = before is None or source == "url" or View.from_data(before).runs is None
        if opens or arrives:
            view = _opened(View.parse(search) if opens else View.from_data(before), store)
        else:
            view = View.from_data(before)
            unread = store.awaited(view.runs or ())  # the table cannot select them yet
            value = [*_keys(selected), *unread] if source == "runs" else values.get(source)
            shown = store.ready(view.runs or ())
            view = after(view, Event(source, value), shown, (screen or {}).get("scheme", "light"))
        runs = store.ready(view.runs or ())
        agreed = {run.key for run in runs} == set(_keys(selected))  # the grid reports in its own order
        if before is not None and view == View.from_data(before) and agreed:
            raise PreventUpdate
        most = max((len(run.tokens) for run in runs if run.tokens is not None), default=2) - 1
        link = view.query()
        return (
            view.data(),
            no_update if link == (search or "") else link,
            no_update if agreed else {"ids": [run.key for run in runs]},
            token_of(runs, view),
            max(most, 1),
            f"of token {token_of(runs, view)} (0–{most})",
            view.align,
            {"rowId": view.runs[0], "rowPosition": "top"} if opens and view.runs else no_update,
        )


def _opened(view: View, store: RunStore) -> View:
    """A view as a link gives it; without one, the runs alike the first with the longest and the shortest gap.

    They are chosen when all are read, or among those that are after a moment; until then `runs` stays None.
    """
    if view.runs is None:
        chosen = extremes(store.so_far()) if store.progress().done or store.waited > PATIENCE else []
        return replace(view, runs=tuple(chosen)) if chosen or store.progress().done else view
    known = {run.key for run in store.ready(view.runs)} | set(store.awaited(view.runs))
    return replace(view, runs=tuple(key for key in view.runs if key in known))


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
        Output("causes-holder", "aria-label"),
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("drawn", "data"),
        Input("screen", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any] | None, _: int, data: dict[str, Any], drawn: list[str] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme = View.from_data(data), str(screen["scheme"])
        runs = store.ready(view.runs or ())
        draws = [theme, *(run.key for run in runs)]
        if ctx.triggered_id == "arrived" and draws == drawn and not store.progress().done:
            raise PreventUpdate
        plot, tall = timeline_of(runs, view, theme, int(screen["width"]))
        return (
            packed(plot),
            {"height": f"{tall}px"},
            _SHOWN if runs else _HIDDEN,
            *([no_update] * 4 if draws == drawn else _causes(runs, theme)),
            "" if runs else nothing_to_show(store.so_far(), store.progress()),
            _HIDDEN if runs else _SHOWN,
            draws,
        )


def _causes(runs: Sequence[Run], theme: str) -> list[Any]:
    """The figure of causes, its style, the section's style, and what a screen reader is told."""
    causes = causes_of(runs)
    said = "; ".join(f"{c.name}: {duration(c.total_us * 1e3)} ({c.note})" for c in causes)
    return [
        causes_figure(causes, theme),
        {"height": f"{causes_height(causes)}px"},
        _SHOWN if causes else _HIDDEN,
        f"Causes of the gap. {said}",
    ]


def _pick(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("picked", "children"),
        Input("timeline", "clickData"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def pick(click: dict[str, Any] | None, data: dict[str, Any]) -> list[Any]:
        view = View.from_data(data)
        return node_of_click(click, view, store.ready(view.runs or ()))


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


def nothing_to_show(runs: Sequence[Run], progress: Progress) -> str:
    """What to do when no timeline is shown."""
    if not progress.done:
        return f"Reading the recordings: {progress.read} of {progress.total} …"
    if not runs:
        return "No recordings yet. Start with: intertoken dashboard RUNS_DIR_OR_TRACE ..."
    if not any(run.steps is not None for run in runs):
        return "None of these recordings has token steps to show; the table says why."
    return "Select one to six runs in the table to see them on one time axis."
