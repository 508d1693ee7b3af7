"""The section of running processes: live figures, and a button that saves a part as a recording."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

from dash import Dash, Input, Output, State, html
from dash.exceptions import PreventUpdate

from dashboard.pages import named
from dashboard.pages.parts import asking, choice, digest, section, table_of_lines, text_field
from dashboard.recording.running import Running
from dashboard.text import plain
from dashboard.units import microseconds
from tracer.errors import UsageError
from tracer.recorders.live import Live

_MOST_SECONDS: Final = 86_400.0
_DELAY: Final = 400  # ms after the last key
_LOOKING: Final = "Looking for processes …"
_NOTHING: Final = "No process runs under the light recorder. Start one: intertoken record -o TRACE -- COMMAND"


def running_section(running: Running) -> html.Section:
    """The figures, and the controls that save a recording."""
    last = text_field("running-seconds", _DELAY, type="text", inputmode="decimal", maxlength=12, placeholder="all")
    return section(
        "Running now",
        [html.P("Processes under intertoken record, by their last calls; adds no overhead.", className="hint")],
        html.Div(
            id="running", className="scrolls", role="group", tabIndex=0, **named("Processes under the light recorder")
        ),
        html.Div(
            [
                choice("running-process", "Process", placeholder="Process", searchable=False),
                html.Label([html.Span("Last seconds"), last], className="token"),
                html.Button("Save as a recording", id="keep", className="button"),
            ],
            className="bar",
        ),
        html.P(id="keep-refused", className="problem", role="alert"),
        html.P(id="said-of-keep", className="answer", role="status"),
        html.P(f"Saved to {plain(str(running.shown), 200)}.", className="hint foot"),
    )


def register_running(app: Dash, running: Running) -> None:
    """Register the section's callbacks."""

    @app.callback(
        Output("running", "children"),
        Output("running-process", "options"),
        Output("said-of-keep", "children"),
        Output("running-shown", "data"),
        Input("running-poll", "n_intervals"),
        State("running-shown", "data"),
        running=asking("running-poll"),
    )
    def show(_: Any, before: Any) -> tuple[Any, ...]:
        rows, status = running.rows(), running.said()
        lines = figures_of(rows or [])
        now = digest((rows is None, lines, status))
        if now == before:
            raise PreventUpdate
        shown = (
            table_of_lines(lines) if lines else html.P(_NOTHING if rows is not None else _LOOKING, className="empty")
        )
        return shown, processes_of(rows or []), plain(status, 600), now

    @app.callback(
        Output("keep-refused", "children"),
        Input("keep", "n_clicks"),
        State("running-process", "value"),
        State("running-seconds", "value"),
        prevent_initial_call=True,
    )
    def keep(clicks: int | None, process: Any, seconds: Any) -> str:
        if not clicks:
            raise PreventUpdate
        try:
            running.keep(process_of(process), seconds_of(seconds))
        except UsageError as problem:
            return plain(str(problem), 300)
        return ""


def figures_of(rows: Sequence[Live]) -> list[dict[str, str]]:
    """The rows of the table: heading -> text."""
    return [
        {
            "process": str(row.process),
            "program": plain(row.program, 60),
            "device": "–" if row.device is None else str(row.device),
            "steps/s": _number(row.steps_per_s),
            "idle p50": microseconds(row.idle_us and row.idle_us[0]),
            "idle p95": microseconds(row.idle_us and row.idle_us[1]),
            "gap p50": microseconds(row.gap_us and row.gap_us[0]),
            "gap p95": microseconds(row.gap_us and row.gap_us[1]),
            "syncs": _number(row.syncs),
            "launches": _number(row.launches),
            "calls": f"{row.calls:,}",
            "": plain(row.why, 160),
        }
        for row in rows
    ]


def processes_of(rows: Sequence[Live]) -> list[dict[str, str]]:
    """Each process once, as options of a dropdown."""
    names = {str(row.process): f"{plain(row.program, 60)} ({row.process})" for row in rows}
    return [{"value": process, "label": name} for process, name in names.items()]


def process_of(value: Any) -> int:
    """The selected process.

    Raises:
        UsageError: none is selected.
    """
    if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 10:
        raise UsageError("Select a running process.")
    return int(value)


def seconds_of(value: Any) -> float | None:
    """The seconds typed; None for all.

    Raises:
        UsageError: not a number of seconds.
    """
    if value is None or value == "":
        return None
    try:
        seconds = float(value) if isinstance(value, str) else 0.0
    except ValueError:
        seconds = 0.0
    if not isfinite(seconds) or not 0 < seconds <= _MOST_SECONDS:
        raise UsageError(f"Enter seconds above 0 and up to {_MOST_SECONDS:,.0f}, not {str(value)[:20]!r}.")
    return seconds


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}".removesuffix(".0")
