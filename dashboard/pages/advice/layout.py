"""The layout of the advice page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.pages.frame import named
from dashboard.pages.parts import chart, choice, csv_file, number, poll, rate_field, section, table_of, words, wrapped

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
