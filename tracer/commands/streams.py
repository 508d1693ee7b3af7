"""How busy each stream is, and how much streams overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from tracer.analysis.bounds import ALL_STEPS
from tracer.command_options import Bounds, Save, emit, recorded, table_option, trace_options
from tracer.errors import NoStepsError
from tracer.reporting import console as report
from tracer.reporting.console import number, rank_facts, show_ranks
from tracer.text import json_rows


@click.command()
@trace_options
@table_option(
    "one row per stream: device, process, stream, kernels, copies, bytes (copied), busy_us, compute_us, "
    "communication_us, busy_share"
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
        why = f"figures of the whole recording, none per step, because it has {problem}"
        steps, notes = None, [*recording.trace.notes, why]
    busy = stream_report(recording.trace, steps)
    save(table := busy.streams.frame())
    facts = {
        "schema": "intertoken.streams/1",
        "steps": None if steps is None else len(steps),
        "streams": json_rows(table),
        "devices": json_rows(busy.devices.frame()),
    }
    facts |= {} if steps is None else rank_facts(recording)
    emit(as_json, facts, _show, notes)


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
