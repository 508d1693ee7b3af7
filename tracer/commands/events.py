"""Show one table of a recording: kernels, memcpys, syncs, api, ..."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tracer.analysis.bounds import ALL_STEPS
from tracer.command_options import Bounds, Save, emit, table_option, trace_options
from tracer.errors import EmptyTraceError, UsageError
from tracer.model.schema import MISSING, TABLES
from tracer.reporting import console as report
from tracer.text import json_rows

if TYPE_CHECKING:
    import pandas as pd

    from tracer.model.trace import Trace


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
    from tracer.formats import read

    with report.reading(path):
        trace = read(path, whole=False)
    rows = _events_of(trace, table_name, within, bounds)
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
        facts["events"] = json_rows(rows)
    emit(as_json, facts, _show, trace.notes)


def _events_of(trace: Trace, name: str, within: str | None, bounds: Bounds) -> pd.DataFrame:
    """The rows of a table. If the table has times, its first column is `step`, MISSING outside of all steps.

    Raises:
        EmptyTraceError: steps were requested, and there are none.
        UsageError: steps were requested for a table without times.
    """
    import numpy as np

    from tracer.analysis.step_work import activity_steps
    from tracer.analysis.tokens import choose_steps

    table = trace[name]
    chosen = within is not None or bounds != ALL_STEPS
    if "start" not in table:
        if chosen:
            raise UsageError(
                f"{name} has no times, so --range, --steps and other choices of steps cannot select its rows"
            )
        return table
    try:
        steps = choose_steps(trace, within, bounds if chosen else Bounds(phase="all"))
    except EmptyTraceError:
        if chosen:
            raise
        return table.assign(step=np.int64(MISSING))[["step", *table]]
    if "thread" in table:
        at = steps.of(*(table[c].to_numpy() for c in ("start", "process", "thread")))
    else:
        at = activity_steps(trace, steps, cast("Any", trace.table(name)))
    numbers = np.append(steps.table["step"].to_numpy(), MISSING)  # position -1 is its last
    rows = table.assign(step=numbers[at])[["step", *table]]
    return rows[rows["step"] != MISSING].reset_index(drop=True) if chosen else rows


def _show(facts: dict[str, Any]) -> None:
    holds = report.styled(f"{facts['rows']:,} rows of {facts['table']}: {facts['holds']}")
    report.show(holds, report.grid(facts["columns"]))
