"""How busy each stream is, and how much streams overlap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from tracer.analysis.bounds import ALL_STEPS
from tracer.command_options import Bounds, Save, emit, recorded, table_option, trace_options
from tracer.errors import NoStepsError
from tracer.notes import by_weight, fitting
from tracer.reporting import console as report
from tracer.reporting.console import number, rank_facts, show_ranks
from tracer.reporting.engines import Rows, joined_tables, notes_of, show_side_by_side, side_by_side
from tracer.text import counted, json_rows

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.recording import Recording
    from tracer.analysis.steps import Steps
    from tracer.analysis.streams import StreamReport
    from tracer.model.trace import Trace

_MOST_STREAMS: Final = 8
_NO_STEPS: Final = "figures are of the whole recording, as no steps are found; --pattern tells what begins one"


@click.command()
@trace_options
@table_option(
    "one row per stream: device, process (and thread of several engines), stream, kernels, copies, bytes (copied), "
    "busy_us, compute_us, communication_us, busy_share"
)
def streams(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """Show how busy each stream is, and how much streams overlap.

    Without steps, it shows the whole recording, and nothing about ranks.
    """
    from tracer.analysis.streams import stream_report

    recording = recorded(path, within, bounds)
    try:
        steps, notes = recording.steps, recording.notes
    except NoStepsError as problem:
        if within is not None or bounds != ALL_STEPS:
            raise
        why = fitting(f"figures are of the whole recording: {problem}", _NO_STEPS)
        steps, notes = None, [*recording.trace.notes, why]
    if steps is not None and recording.engines:
        save(joined_tables(recording, _table))
        facts = side_by_side(recording, lambda one: _facts(one.trace, one.steps))
        facts |= rank_facts(recording)
        emit(as_json, facts, _show_engines, by_weight([*notes_of(recording), *recording.notes]))
        return
    busy = stream_report(recording.trace, steps)
    save(busy.streams.frame())
    facts = _facts(recording.trace, steps, busy)
    facts |= {} if steps is None else rank_facts(recording)
    emit(as_json, facts, _show, notes)


def _table(recording: Recording) -> pd.DataFrame:
    """The streams of an engine, with its thread."""
    from tracer.analysis.streams import stream_report

    table, thread = stream_report(recording.trace, recording.steps).streams.frame(), recording.steps.rows.thread[0]
    table.insert(2, "thread", thread)
    return table


def _facts(trace: Trace, steps: Steps | None, busy: StreamReport | None = None) -> dict[str, Any]:
    from tracer.analysis.streams import stream_report

    busy = stream_report(trace, steps) if busy is None else busy
    return {
        "schema": "intertoken.streams/1",
        "steps": None if steps is None else len(steps),
        "streams": json_rows(busy.streams.frame()),
        "devices": json_rows(busy.devices.frame()),
    }


def _of_devices(say: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """A cell with what is said of each device."""
    return lambda facts: "; ".join(
        (f"device {row['device']} " if len(facts["devices"]) > 1 else "") + say(row) for row in facts["devices"]
    )


_ROWS: Final[Rows] = {
    "busy": _of_devices(lambda row: f"{row['busy_share']:.1%} of {number(row['window_us'])} µs"),
    "streams": lambda facts: "; ".join(
        f"{row['stream']} {row['busy_share']:.1%} "
        f"({counted(row['kernels'], 'kernel')}, {counted(row['copies'], 'copy')})"
        for row in sorted(facts["streams"], key=lambda row: -row["busy_us"])[:_MOST_STREAMS]
    ),
    "streams overlap": _of_devices(lambda row: f"{number(row['overlap_us'])} µs"),
    "compute at once": _of_devices(lambda row: f"{row['concurrency']:.2f} streams"),
    "over": lambda facts: counted(facts["steps"], "step"),
}
"""What stands side by side of several engines."""


def _show_engines(facts: dict[str, Any]) -> None:
    show_side_by_side(facts, _ROWS)
    show_ranks(report.new_console(), facts)


def _show(facts: dict[str, Any]) -> None:
    console = report.new_console()
    headings = {
        "device": "device", "stream": "stream", "kernels": "kernels", "copies": "copies", "bytes": "bytes copied",
        "busy_us": "busy µs", "compute_us": "compute µs", "communication_us": "communication µs", "share": "busy",
    }  # fmt: skip
    if not any(row["communication_us"] for row in facts["streams"]):
        del headings["communication_us"]
    if len({row["process"] for row in facts["streams"]}) > 1:
        headings = {"process": "process"} | headings
    rows = [
        row
        | {"process": str(row["process"]), "share": f"{row['busy_share']:>4.0%} " + "█" * round(row["busy_share"] * 20)}
        for row in facts["streams"]
    ]
    console.print(report.table_of(rows, headings))
    for row in facts["devices"]:
        console.print(
            Text(
                f"device {row['device']}: busy {row['busy_share']:.1%} of {number(row['window_us'])} µs; "
                + (f"communicates for {number(row['communication_us'])} µs; " if row["communication_us"] else "")
                + f"streams overlap for {number(row['overlap_us'])} µs; "
                f"{row['concurrency']:.2f} streams compute concurrently"
            )
        )
    show_ranks(console, facts)
