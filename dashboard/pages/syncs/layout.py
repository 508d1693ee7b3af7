"""The layout of the syncs page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboard.pages.parts import (
    choice,
    csv_file,
    links,
    number,
    poll,
    section,
    table_of,
    with_several,
    with_values,
    words,
    wrapped,
)

_GAIN = {"function": "params.data.gain == null ? (params.data.pending ? '…' : '–') : params.data.gain_text"}
_GAP = {"function": "params.data.gap_us == null ? '–' : params.data.gap_text"}
_SHORT_NAME = {"valueFormatter": {"function": "middleCut(params.value, 28)"}}

COLUMNS: list[dict[str, Any]] = [
    number("position", "#", "d", 56, "Position among the waits of its kind in a step") | {"filter": False},
    words("what", "Wait", 116, "A sync, a blocking copy, or a polling loop"),
    number("gain", "Tokens/s without it", "", 172, "Predicted; the most expensive sync is first")
    | {"valueFormatter": _GAIN, "initialSort": "desc"},
    words("margin", "Model margin", 148, "Of the prediction") | {"type": "rightAligned", "sortable": False},
    number("gap_us", "Gap, µs", "", 84, "Predicted change of the median gap") | {"valueFormatter": _GAP},
    wrapped("verdict", "Verdict", 280, "From the data flow and the critical path") | {"minWidth": 280, "flex": 3},
    words("name", "Call", 226) | {"minWidth": 226, "flex": 2, **_SHORT_NAME},
    words("site", "Call site", 228, "The function of the program that calls it")
    | {"minWidth": 228, "flex": 2, "valueFormatter": {"function": "middleCut(params.value, 40)"}},
    links("try", "Try", 84, "Predict the run without it"),
    links("show", "Timeline", 92, "Show it in one token"),
    words("waits_for", "Waited for", 120, "The activity it usually waited for; empty if the stream was idle")
    | {"minWidth": 120, "flex": 1, **_SHORT_NAME},
    number("waiting_share", "Waited", ".0%", 80, "Share of the steps in which the device was still busy"),
    number("median_us", "Median, µs", ",.2f", 110, "Time inside the call, as recorded"),
    number("max_us", "Longest, µs", ",.1f", 114, "As recorded"),
    number("on_path_us", "On the path, µs", ",.2f", 144, "Part of a step's critical path inside this call (median)"),
    number("slack_us", "Slack, µs", ",.2f", 92, "How much later it could return without delaying a step (median)"),
    words("path", "NVTX ranges", 200, "Around the call in that token") | {"minWidth": 140, "flex": 1},
    words("thread", "Thread", 120),
    number("stream", "Stream", "d", 84),
    number("steps", "Steps", "d", 76, "Steps that have it"),
]  # fmt: skip


def columns_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns; NVTX ranges and call sites only if there are any, kinds only if there are several."""
    return with_values(with_several(COLUMNS, rows, "what"), rows, "path", "site")


def sections() -> list[Any]:
    """The page's elements."""
    return [
        poll("poll"),
        dcc.Store(id="progress"),
        section(
            "Syncs of a token",
            [choice("run", "Run", clearable=False)],
            html.Div("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="said-of-all", className="answer", role="status"),
            html.P(id="warning", className="hint warns"),
        ),
        section(
            "Inventory",
            [
                html.P("One row per sync, blocking copy and polling loop of a step, most expensive first. Gains are "
                       "predicted by replaying the run without the sync.",
                       className="hint"),
                html.Button("Download CSV", id="download", className="button"),
            ],
            table_of("syncs", COLUMNS, getRowId="params.data.key",
                     csvExportParams=csv_file("intertoken-syncs.csv")),
            key="inventory-section",
        ),
    ]  # fmt: skip
