"""The advice page: changes to a run by predicted gain, and where the host spends its time.

A new view is rendered immediately with the available results. While answers are missing the page polls, and it is
rendered again when more of them are available.
"""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.flame import flame_figure, flame_height, flame_text
from dashboard.pages import Page, named
from dashboard.pages.advice.tables import (
    ADDRESS,
    advice_table,
    eager_rows,
    host_rows,
    site_rows,
    waited_lines,
)
from dashboard.pages.parts import (
    HIDDEN,
    NO_RECORDINGS,
    SHOWN,
    asking,
    chart,
    choice,
    csv_file,
    number,
    poll,
    rate_field,
    section,
    table_height,
    table_of,
    with_values,
    words,
    wrapped,
)
from dashboard.pages.runs import keep_options, keep_run, lead
from dashboard.rates import NoRate, rate_of, text_of
from dashboard.reading.background import known
from dashboard.reading.predictions import Sites, advice_of, sites_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import View
from tracer.analysis.advice import Advised
from tracer.analysis.whatif.base import TRACED
from tracer.reporting.advice import cells, facts_of, notes_of, rest, unused_of

_NOTHING: Final = Sites(None, None, [])
_NO_SITES: Final = (
    "call sites are unknown, because the recording has no functions; record them with intertoken record --call-sites, "
    "nsys profile --cudabacktrace=all or torch.profiler's with_stack=True"
)
_WITHOUT_RATE: Final = (
    "No advice: without the engine's own rate predictions would include tracing overhead. Enter untraced steps/s above."
)
IDLE: list[dict[str, Any]] = [
    number("idle_us", "Idle, µs a step", ",.1f", 128, "While the host is in this function, callees excluded"),
    number("share", "Share", ".1%", 84, "Of the idle time"),
    number("calls_us", "In CUDA calls, µs", ",.1f", 136, "Part of the idle time spent inside CUDA calls"),
    words("site", "Function, or the innermost range", 600) | {"minWidth": 240, "flex": 4},
]

EAGER: list[dict[str, Any]] = [
    wrapped("kernel", "Kernel", 320, "Launched individually in steps that replay a CUDA graph")
    | {"minWidth": 240, "flex": 3, "valueFormatter": {"function": "params.data.short"}},
    wrapped("operator", "Operator", 240, "The innermost range around its launch") | {"minWidth": 136, "flex": 1},
    words("site", "Call site", 320, "The function that launches it")
    | {"minWidth": 220, "flex": 4, "valueFormatter": {"function": "siteCut(params.value)"}},
    words("where", "Where", 140),
    number("per_step", "A step", ",.2f", 84, "Mean launches per step"),
    number("hole_us", "Idle before, µs", ",.1f", 124, "While nothing runs on its device, per step, as recorded"),
    number("kernel_us", "Kernel, µs", ",.1f", 92, "Per step, as recorded"),
    number("gain", "In the graph", "+.1%", 104, "Predicted; no margin, as no such change was measured"),
    wrapped("why", "Why not predicted", 260) | {"minWidth": 200, "flex": 2},
]

HOST: list[dict[str, Any]] = [
    words("step", "Step", 110),
    number("self_us", "Self, µs", ",.1f", 96, "Callees excluded"),
    words("share", "Self, share", 150, "Of the step; of samples with the 95 % interval"),
    number("total_us", "Total, µs", ",.1f", 96, "Callees included"),
    words("function", "Function, range or CUDA call", 600) | {"minWidth": 240, "flex": 4},
]

CALLS: list[dict[str, Any]] = [
    words("what", "Call", 150),
    number("per_step", "A step", ",.2f", 84, "Mean calls per step"),
    number("us_per_step", "µs a step", ",.1f", 96, "Time inside the calls, as recorded"),
    words("site", "Call site", 440, "The innermost function of the program, or the innermost range")
    | {"minWidth": 220, "flex": 3},
    words("through", "Through", 320, "The innermost function that it calls") | {"minWidth": 140, "flex": 2},
    words("name", "Name", 220) | {"minWidth": 140, "flex": 1},
]  # fmt: skip


def sections() -> list[Any]:
    """The sections of the page."""
    return [
        poll("poll"),
        dcc.Store(id="progress"),
        section(
            "What to change",
            [choice("run", "Run", clearable=False)],
            html.Div([rate_field()], className="fields", role="group", **named("The engine's own rate")),
            html.P(id="rate-refused", className="problem", role="alert"),
            html.Div("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="said-of-advice", className="answer", role="status"),
            html.P(id="warning", className="hint warns"),
            html.Div(id="advice"),
            html.Ul(id="advice-notes", className="notes", **named("Notes on the advice")),
        ),
        section(
            "Eager launches outside the graph",
            [html.P("Kernels launched individually by steps that replay a CUDA graph.", className="hint")],
            table_of("eager-launches", EAGER, csvExportParams=csv_file("intertoken-eager-launches.csv")),
            key="eager-section",
        ),
        section(
            "Where the host is while the device idles",
            [html.P("Self time of functions, or of ranges if the recording has no functions.", className="hint")],
            html.Ul(id="waited-for", className="notes", **named("Threads that the host waits for")),
            table_of("idle-sites", IDLE, csvExportParams=csv_file("intertoken-idle-sites.csv")),
            key="idle-section",
        ),
        section(
            "The host in a step",
            [html.P("The median step and a slow one, as recorded. Click a frame to zoom in.", className="hint")],
            chart("flame", "Flame graph of the host in the median step and a slow one"),
            html.P(id="sampled-note", className="hint"),
            table_of("host-functions", HOST, csvExportParams=csv_file("intertoken-host-functions.csv")),
            key="host-section",
        ),
        section(
            "Call sites",
            [html.P("Syncs, copies and launches of a step by call site.", className="hint")],
            table_of("call-sites", CALLS, csvExportParams=csv_file("intertoken-call-sites.csv")),
            html.Ul(id="site-notes", className="notes", **named("Notes on the call sites")),
            key="calls-section",
        ),
    ]  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the advice for a run of `store`."""
    keep_run(app, store)
    keep_options(app, store, "run")
    _give_rate(app, store)
    _render(app, store)


def _give_rate(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("url", "search", allow_duplicate=True),
        Output("rate-refused", "children"),
        Input("rate", "value"),
        State("run", "value"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def give(given: Any, key: str | None, data: dict[str, Any] | None) -> tuple[Any, str]:
        view = View.from_data(data)
        if key is None:
            raise PreventUpdate
        try:
            rated = view.rated(key, rate_of(given))
        except NoRate as problem:
            return no_update, str(problem)
        return no_update if rated == view else rated.query(), ""

    @app.callback(
        Output("rate-field", "style"),
        Output("rate", "value"),
        Input("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def show(_: Any, data: dict[str, Any] | None) -> tuple[Any, str]:
        view = View.from_data(data)
        run = lead(view, store)
        if run is None or not run.inflated:
            return HIDDEN, ""
        return SHOWN, text_of(view.rate_of(run.key))


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("advice", "children"),
        Output("said-of-advice", "children"),
        Output("warning", "children"),
        Output("advice-notes", "children"),
        Output("eager-launches", "columnDefs"),
        Output("eager-launches", "rowData"),
        Output("eager-launches", "style"),
        Output("eager-section", "style"),
        Output("waited-for", "children"),
        Output("idle-sites", "rowData"),
        Output("idle-sites", "style"),
        Output("idle-section", "style"),
        Output("flame", "figure"),
        Output("flame", "style"),
        Output("flame-holder", "aria-label"),
        Output("sampled-note", "children"),
        Output("host-functions", "rowData"),
        Output("host-functions", "style"),
        Output("host-section", "style"),
        Output("call-sites", "columnDefs"),
        Output("call-sites", "rowData"),
        Output("call-sites", "style"),
        Output("calls-section", "style"),
        Output("site-notes", "children"),
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("poll", "disabled"),
        Output("progress", "data"),
        Input("screen", "data"),
        Input("poll", "n_intervals"),
        State("view", "data"),
        State("progress", "data"),
        prevent_initial_call=True,
        running=asking("poll"),
    )
    def render(screen: dict[str, Any] | None, _: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        run = lead(view, store)
        nothing = nothing_to_show(store, run)
        advised: Advised | str | None = None
        sites: Sites | str | None = None
        if run is not None and not nothing:
            advised = known(advice_of(store, run))
            sites = known(sites_of(store, run))
        missing = 0 if nothing else (advised is None) + (sites is None)
        progress = [view.query(), missing]
        if ctx.triggered_id == "poll" and progress == before:
            raise PreventUpdate
        table, summary, notes = (None, "", []) if run is None or nothing else in_words(run, advised, view.theme)
        eager = eager_rows(advised.eager) if isinstance(advised, Advised) else []
        idle, calls, of_sites = tables_of(sites)
        return (
            table,
            summary,
            run.rate_note if run is not None else "",
            [html.Li(plain(note, 400)) for note in notes],
            with_values(EAGER, eager, "operator", "site", "gain", "why"),
            eager,
            table_height(eager),
            SHOWN if eager else HIDDEN,
            [html.Li(line) for line in waited_lines(sites.threads if isinstance(sites, Sites) else [])],
            idle,
            table_height(idle),
            SHOWN if idle else HIDDEN,
            *host_of(sites if isinstance(sites, Sites) else _NOTHING, str((screen or {}).get("scheme", "light"))),
            with_values(CALLS, calls, "through", "name"),
            calls,
            table_height(calls) if calls else HIDDEN,
            SHOWN if calls or of_sites else HIDDEN,
            [html.Li(plain(note, 400)) for note in of_sites],
            nothing,
            SHOWN if nothing else HIDDEN,
            missing == 0,
            progress,
        )


def nothing_to_show(store: RunStore, run: Run | None) -> str:
    """Instructions if there is no advice; empty if there is some."""
    if not store.so_far():
        return NO_RECORDINGS
    if run is None:
        return "Select a run above."
    if run.syncs is None:
        return f"{plain(run.name, 90)} has no CUDA calls inside token steps, so no change can be predicted."
    return ""


def in_words(run: Run, advised: Advised | str | None, theme: str) -> tuple[html.Table | None, str, list[str]]:
    """The table of edits, the summary and the notes."""
    if advised is None:
        return None, "Predicting every change that the data flow allows …", []
    if isinstance(advised, str):
        return None, plain(advised, 300), []
    facts = facts_of(advised, run.key, [])
    if advised.state == TRACED:
        return None, _WITHOUT_RATE, unused_of(facts)
    left = rest(facts)
    if not advised.kept:
        return None, f"{left[0].capitalize()}.", left[1:]
    best = cells(facts["advice"][0])
    summary = f"Largest predicted gain: {best['edit']}, {best['gain']} tokens/s [model margin {best['margin']}]."
    where = [] if any(one["sites"] for one in facts["advice"]) else [_NO_SITES]
    return advice_table(run, advised.kept, facts, theme), summary, [*where, *notes_of(facts), *left]


def host_of(sites: Sites, theme: str) -> tuple[Any, ...]:
    """The flame graph of steps, its height and description, the note on samples, and the table of functions."""
    hosts, rows = sites.hosts, host_rows(sites)
    size = {"height": f"{flame_height(hosts)}px"}
    shown = SHOWN if rows else HIDDEN
    note = f"{sites.sampled.note}." if sites.sampled else ""
    return flame_figure(hosts, theme), size, flame_text(hosts), note, rows, table_height(rows), shown


def tables_of(sites: Sites | str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The rows of both tables of call sites, and a note on calls without a site."""
    if sites is None:
        return [], [], []
    if isinstance(sites, str):
        return [], [], [sites]
    return site_rows(sites.idle), site_rows(sites.calls), sites.notes


PAGE = Page(ADDRESS, "Advice", "changes by predicted gain, with their call sites", sections, register, place=3)
