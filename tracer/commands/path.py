"""What each step waited for: critical path and slack."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tracer.command_options import Bounds, Save, emit, load, table_option, trace_options
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.text import json_rows, plain

_SHOWN = 12  # rows of the path's composition
_LONGEST = 120  # characters of the name of a kernel there


@click.command()
@trace_options
@table_option(
    "one row per piece of a step's path: step, in ns start and end, kind (call, host, device, stream order, launch, "
    "return, event, host compute), name, bytes (read by products on the host)"
)
@click.option("--call-sites", "with_sites", is_flag=True, help="Also show where in the program each call is made.")
def path(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save, with_sites: bool) -> None:
    """Show what each token waited for: the critical path, and the slack of calls off it.

    The path runs back from the end of the last step's compute to that of the first, through kernels, copies, launches,
    syncs and host code, each of which started because its predecessor ended; a step has the part from the end of the
    previous step's last compute to the end of its own. Anything off the path has slack, and removing it gains nothing.

    \b
    Example:
      intertoken path sample_traces/llama1b-sccc-graph
    """
    from tracer.analysis.path.paths import path_report

    recording = load(path, within, bounds, python_functions=with_sites)
    steps = recording.steps.of_one_engine()
    with report.working("computing the critical path"):
        paths = path_report(recording.trace, steps, with_sites=with_sites)
    save(paths.table.frame())
    shares = paths.shares.frame().assign(us_per_step=paths.shares.ns_per_step / 1e3).drop(columns="ns_per_step")
    calls = paths.calls.frame()
    facts = {
        "schema": "intertoken.path/1",
        "steps": paths.steps,
        "path_us": paths.path_us,
        "path": json_rows(shares),
        "calls": json_rows(calls if with_sites else calls.drop(columns="site")),
        "warning": paths.warning,
    }
    emit(as_json, facts, partial(_show, unit=steps.unit), [*recording.notes, *paths.notes])


def _read(row: dict[str, Any]) -> str:
    """The bytes that products on the host read per token, and their rate."""
    nbytes = row["bytes_per_step"]
    return f"{number(nbytes / 1e6)} MB at {number(nbytes / row['us_per_step'] / 1e3)} GB/s" if nbytes else ""


def _show(facts: dict[str, Any], unit: str) -> None:
    click.echo(f"critical path of a {unit}: {number(facts['path_us'])} µs on average over {facts['steps']} steps")
    rows = [
        row | {"us": number(row["us_per_step"], 2), "name": plain(row["name"], _LONGEST), "read": _read(row)}
        for row in facts["path"][:_SHOWN]
    ]
    headings = {"us": f"µs per {unit}", "kind": "", "name": ""}
    report.show_table(rows, headings | ({"read": ""} if any(row["read"] for row in rows) else {}))
    if len(facts["path"]) > _SHOWN:
        click.echo(f"  and {len(facts['path']) - _SHOWN} more (--json)")
    click.echo("\nsyncs, copies and launches of a step:")
    rows = [
        row
        | {
            "position": str(row["position"]),
            "does": f"{row['letter']} {row['sync']}" if row["sync"] > 0 else row["letter"],
            "on_path": number(row["on_path_us"], 2),
            "slack": "nothing waits for it" if row["slack_us"] is None else number(row["slack_us"], 2),
            "site": row.get("site") or "–",
        }
        for row in facts["calls"]
    ]
    headings = {
        "position": "#", "name": "call", "does": "", "on_path": "on the path, µs", "slack": "slack, µs", "verdict": ""
    }  # fmt: skip
    if any("site" in row for row in facts["calls"]):
        headings["site"] = "where"
    report.show_table(rows, headings)
    report.warn(report.new_console(), facts["warning"])
