"""List the steps, how they were found, and with what confidence."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracer.command_options import Bounds, Save, emit, load, table_option, trace_options
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.reporting.engines import Rows, joined_tables, notes_of, show_side_by_side, side_by_side
from tracer.text import json_rows

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.recording import Recording


@click.command()
@trace_options
@table_option(
    "one row per step and device that computes for it: step, process, thread, group, phase, device, and in ns "
    "start and end on the host, start_compute and end_compute on the device"
)
def tokens(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """List the token steps, how they were found, and with what confidence.

    \b
    Examples:
      intertoken tokens rep.sqlite --phase all           prefill steps as well
      intertoken tokens rep.sqlite --pattern embedding   a step starts at each launch of such a kernel
    """
    recording = load(path, within, bounds)
    if recording.engines:
        save(joined_tables(recording, _table))
        emit(as_json, side_by_side(recording, _facts), partial(show_side_by_side, rows=_ROWS), notes_of(recording))
        return
    save(_table(recording))
    emit(as_json, _facts(recording), _show, recording.notes)


def _table(recording: Recording) -> pd.DataFrame:
    """A row per step and device."""
    spans = recording.spans.frame()[["step", "device", "start", "end"]]
    return (
        recording.steps.table.drop(columns="closes")
        .merge(spans, on="step", how="left", suffixes=("", "_compute"))
        .astype({"device": "Int64", "start_compute": "Int64", "end_compute": "Int64"})
    )


def _facts(recording: Recording) -> dict[str, Any]:
    steps, summary = recording.steps, recording.figures("steps")
    return {
        "schema": "intertoken.tokens/1",
        "steps": summary.steps,
        "token_source": summary.token_source,
        "detail": steps.detail,
        "confidence": summary.confidence,
        "prefill_steps": summary.prefill_steps,
        "what": summary.what,
        "phases": steps.phases,
        "regimes": [asdict(regime) for regime in steps.regimes],
        "regime": asdict(steps.regime) if steps.regime else None,
        "steps_per_s": summary.steps_per_s,
        "table": json_rows(_table(recording)),
    }


_ROWS: Final[Rows] = {
    "contains": lambda facts: f"{facts['what']}, from {facts['detail']} (confidence {facts['confidence']:.2f})",
    "steps/s": lambda facts: number(facts["steps_per_s"]),
    "first start µs": lambda facts: number(facts["table"][0]["start"] / 1e3),
}
"""What stands side by side of several engines."""


def _show(facts: dict[str, Any]) -> None:
    heading = report.styled(f"{facts['what']}, from {facts['detail']} (confidence {facts['confidence']:.2f})")
    rows = [
        {name: row[name] for name in ("step", "group", "phase")}
        | {"start µs": row["start"] / 1e3, "host µs": (row["end"] - row["start"]) / 1e3, "compute µs": _compute_us(row)}
        for row in facts["table"]
    ]
    names = ("step", "group", "phase", "start µs", "host µs", "compute µs")
    report.show(heading, report.table_of(rows, dict(zip(names, names, strict=True))))


def _compute_us(row: dict[str, Any]) -> float | None:
    return None if row["end_compute"] is None else (row["end_compute"] - row["start_compute"]) / 1e3
