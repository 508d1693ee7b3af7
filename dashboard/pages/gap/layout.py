"""Where things stand on the gap page."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_bootstrap_components as dbc
from dash import dcc, html

from dashboard.figures.causes import CAUSE_COLOURS
from dashboard.frame import named
from dashboard.pages.gap.view import SCALES
from dashboard.pages.parts import chart, choice, csv_file, links, number, section, table_of, words

LONGEST_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    links("show", "In the timeline", 120, "Shows the gap behind this token"),
    number("device", "GPU", "d", 70),
    number("gap", "Gap, µs", ",.1f", 100),
    number("times", "× median", ",.1f", 96, "Gap over the run's median gap"),
    words("cause", "Largest cause", 150),
    number("share", "Its share", ".0%", 90, "Share of the gap"),
    words("part", "Mostly", 250, "The largest part of that cause") | {"minWidth": 200, "flex": 2},
]

MADE_OF_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    words("cause", "Cause", 160),
    words("part", "Part of it", 280) | {"minWidth": 200, "flex": 2},
    number("mean", "Mean, µs", ",.2f", 100, "Parts add up to their cause, causes to the gap"),
    number("untraced", "Untraced, µs", ",.2f", 116, "Mean without tracing, by the untraced rate"),
    number("share", "Share", ".1%", 80, "Of the mean gap"),
    number("median", "Median, µs", ",.2f", 106, "Of all gaps; medians do not add up"),
    number("p90", "p90, µs", ",.2f", 90, "90th percentile over all gaps"),
]


def sections() -> list[Any]:
    """What stands on the page."""
    return [dcc.Store(id="destination"), _figures(), _idle(), _steps(), _distribution(), _longest(), _made_of()]


def _figures() -> html.Section:
    return section(
        "Gap between tokens",
        [choice("chosen", "Runs", multi=True, placeholder="Choose one to six runs"), _scale()],
        html.Div("Reading the recordings …", id="nothing", className="empty", role="status"),
        html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **named("Gaps in figures")),
        html.Div(id="warnings"),
    )


def _scale() -> html.Div:
    return html.Div(
        [
            html.Span("Axes reach to"),
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
        **named("How far the axes reach"),
    )


def _idle() -> html.Section:
    hint = "Where in its step each device idles, and for what: the gap is only what lies between steps. Means."
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
        [html.P("Each bar is the gap behind a token; many together where there are many (mean). ▲ is beyond the axis. "
                "A click shows the gap in the timeline.",
                className="hint")],
        _legend(),
        chart("steps", "Causes of the gap over the run"),
        key="steps-section",
    )  # fmt: skip


def _distribution() -> html.Section:
    return section("Distribution", [], chart("distribution", "Distribution of the gap"), key="distribution-section")


def _longest() -> html.Section:
    hint = html.P("The largest ones of each run; a link leads to the gap in the timeline.", className="hint")
    return section("Longest gaps", [hint], table_of("longest", LONGEST_COLUMNS), key="longest-section")


def _made_of() -> html.Section:
    return section(
        "What the gap is made of",
        [
            html.P("As recorded: a traced recording's figures are inflated.", className="hint"),
            html.Button("Download CSV", id="download", className="button"),
        ],
        _grid(),
        key="made-of-section",
    )


def _grid() -> dag.AgGrid:
    return table_of("made-of", MADE_OF_COLUMNS, csvExportParams=csv_file("intertoken-gap-causes.csv"))
