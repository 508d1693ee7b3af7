"""The layout of the gap page."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_bootstrap_components as dbc
from dash import dcc, html

from dashboard.figures.causes import CAUSE_COLOURS
from dashboard.pages.frame import named
from dashboard.pages.gap.view import SCALES
from dashboard.pages.parts import chart, choice, csv_file, links, number, section, table_of, words

LONGEST_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    number("gap", "Gap, µs", ",.1f", 100),
    links("show", "In the timeline", 120, "Show the gap after this token"),
    number("device", "GPU", "d", 70),
    number("times", "× median", ",.1f", 96, "Gap divided by the run's median gap"),
    words("cause", "Largest cause", 150),
    number("share", "Its share", ".0%", 90, "Share of the gap"),
    words("part", "Mostly", 250, "The largest component of that cause") | {"minWidth": 200, "flex": 2},
]

MADE_OF_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    words("cause", "Cause", 160),
    words("part", "Part of it", 280) | {"minWidth": 200, "flex": 2},
    number("mean", "Mean, µs", ",.2f", 100, "Components add up to their cause, causes to the gap"),
    number("untraced", "Untraced, µs", ",.2f", 116, "Mean without tracing, from the untraced rate"),
    number("share", "Share", ".1%", 80, "Of the mean gap"),
    number("median", "Median, µs", ",.2f", 106, "Median over all gaps; medians do not add up"),
    number("p90", "p90, µs", ",.2f", 90, "90th percentile over all gaps"),
]


def sections() -> list[Any]:
    """The page's elements."""
    return [dcc.Store(id="destination"), _figures(), _idle(), _steps(), _distribution(), _longest(), _made_of()]


def _figures() -> html.Section:
    return section(
        "Gap between tokens",
        [choice("chosen", "Runs", multi=True, placeholder="Select one to six runs"), _scale()],
        html.Div("Loading the recordings …", id="nothing", className="empty", role="status"),
        html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **named("Gaps in figures")),
        html.Div(id="warnings"),
    )


def _scale() -> html.Div:
    return html.Div(
        [
            html.Span("Axes up to"),
            dbc.RadioItems(
                id="scale",
                options=[{"value": key, "label": label} for key, label in SCALES.items()],
                value="typical",
                inline=True,
                className="choice",
            ),
        ],
        className="token",
        role="group",
        **named("Range of the axes"),
    )


def _idle() -> html.Section:
    hint = "Mean idle time per step by place and cause. The gap is the part between steps."
    figure = chart("idle", "Causes of the idle time, by place")
    return section("Idle time of a step", [html.P(hint, className="hint")], _legend(), figure, key="idle-section")


def _legend() -> html.Ul:
    return html.Ul(
        [
            html.Li([html.Span(style={"background": colour}, className="swatch"), cause])
            for cause, colour in CAUSE_COLOURS.items()
        ],
        className="legend",
        **named("Colours"),
    )


def _steps() -> html.Section:
    return section(
        "Causes, token by token",
        [html.P("Each bar is the gap after a token, or the mean of several. ▲: beyond the axis. "
                "Click one to show it in the timeline.",
                className="hint")],
        _legend(),
        chart("steps", "Causes of the gap over the run"),
        key="steps-section",
    )  # fmt: skip


def _distribution() -> html.Section:
    return section("Distribution", [], chart("distribution", "Distribution of the gap"), key="distribution-section")


def _longest() -> html.Section:
    hint = html.P("The longest gaps of each run, with links to the timeline.", className="hint")
    return section("Longest gaps", [hint], table_of("longest", LONGEST_COLUMNS), key="longest-section")


def _made_of() -> html.Section:
    return section(
        "Causes of the gap",
        [
            html.P("As recorded: a traced recording's figures are inflated.", className="hint"),
            html.Button("Download CSV", id="download", className="button"),
        ],
        _grid(),
        key="made-of-section",
    )


def _grid() -> dag.AgGrid:
    return table_of("made-of", MADE_OF_COLUMNS, csvExportParams=csv_file("intertoken-gap-causes.csv"))
