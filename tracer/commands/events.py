"""Show one table of a recording: kernels, memcpys, syncs, api, ..."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tracer.command_options import Bounds, emit, trace_options
from tracer.files.tables import Save, table_option
from tracer.model.schema import TABLES
from tracer.reporting import console as report


@click.command()
@trace_options
@click.argument("table_name", metavar="TABLE", type=click.Choice(list(TABLES)))
@table_option("the columns that the command prints without this option")
def events(path: Path, table_name: str, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """Show one table of a recording: kernels, memcpys, memsets, api, syncs, nvtx, ...

    Describes the table; --table writes its rows, --json prints them. Every event has the token step that it belongs to
    (for a kernel, the step that launched it), or -1; --range and --steps keep only the events of their steps.

    \b
    Example:
      intertoken events rep.sqlite kernels --table kernels.csv
    """
    from tracer.analysis.events import events_of
    from tracer.formats import read

    with report.reading(path):
        trace = read(path, whole=False)
    rows = events_of(trace, table_name, within, bounds)
    save(rows)
    documented = {column.name: column.doc for column in TABLES[table_name].columns}
    facts = {
        "schema": "intertoken.events/1",
        "table": table_name,
        "holds": TABLES[table_name].doc,
        "rows": len(rows),
        "columns": {name: documented.get(name, "token step, or -1") for name in map(str, rows)},
    }
    if as_json:
        facts["events"] = json.loads(rows.to_json(orient="records"))
    emit(as_json, facts, _show, trace.notes)


def _show(facts: dict[str, Any]) -> None:
    """Print `intertoken events`."""
    console = report.new_console()
    console.print(report.styled(f"{facts['rows']:,} rows of {facts['table']}: {facts['holds']}"))
    console.print(report.grid(facts["columns"]))
