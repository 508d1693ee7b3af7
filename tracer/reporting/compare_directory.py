"""`intertoken compare DIR`: every report below a directory in one table, and its outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from tracer import progress
from tracer.batch import Overview, find_reports, overview
from tracer.command_options import Bounds, emit
from tracer.errors import UsageError, printable
from tracer.files.tables import Save
from tracer.reporting import console as report

_MOST_LINES = 20


def compare_reports(
    directory: Path, *, within: str | None, bounds: Bounds, scheduler: str | None, workers: int | None, as_json: bool,
    save: Save,
) -> None:  # fmt: skip
    """Analyse all reports below a directory on Dask, save their table, and print the overview.

    Raises:
        UsageError: there is no report, no Dask, or no scheduler.
    """
    from tracer.batch_dask import analyse, connected

    root = directory.resolve()
    paths = find_reports(root)
    if not paths:
        raise UsageError(f"{directory}: no reports in or below this directory")
    with report.working(f"reading {len(paths)} reports"), connected(scheduler, workers) as client:
        table = analyse(paths, root, client, tell=progress.tell, within=within, bounds=bounds)
    save(table)
    summary = overview(table)
    facts = {
        "schema": "intertoken.reports/1",
        "reports": len(paths),
        "rows": len(table),
        "runs": _records(summary.runs),
        "ranks": _records(summary.ranks),
        "outliers": _records(summary.outliers),
        "problems": _records(summary.problems),
    }
    emit(as_json, facts, lambda _: _show(summary, len(paths), table), [])


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    records = json.loads(frame.to_json(orient="records"))
    return [dict(record) for record in records]


def _show(summary: Overview, reports: int, table: pd.DataFrame) -> None:
    headings = {
        "run": "run", "reports": "reports", "ranks": "ranks", "recorded_steps_per_s": "steps/s recorded",
        "gap_p50_us": "gap p50 µs", "busy_us": "GPU busy µs", "syncs_per_token": "syncs",
        "slowest_rank": "slowest rank", "slowest_ratio": "its period ×", "waited_for_rank": "others wait for rank",
        "waited_for_share": "share of waiting", "outliers": "outliers", "unread": "unread",
    }  # fmt: skip
    report.show(report.table_of(_records(summary.runs), headings))
    if len(summary.ranks):
        headings = {
            "run": "run", "rank": "rank", "step_idle_us": "idle µs a step", "step_communication_us": "communicates µs",
            "waiting_us": "waits µs a collective", "caused_share": "share of waiting for it",
        }  # fmt: skip
        report.show(Text(), report.table_of(_records(summary.ranks.head(_MOST_LINES)), headings))
        report.show(Text("from the durations of collectives; clocks of different recordings are not compared", "dim"))
    if len(summary.outliers):
        headings = {
            "report": "outlier", "rank": "rank", "device": "device", "recorded_steps_per_s": "steps/s recorded",
            "of_run": "of its run", "z": "modified z",
        }  # fmt: skip
        report.show(Text(), report.table_of(_records(summary.outliers.head(_MOST_LINES)), headings))
    for problem in summary.problems.head(_MOST_LINES).to_dict("records"):
        unread = "unread: " if pd.isna(problem["steps"]) else ""
        words = f"{unread}{problem['report']}: {printable(str(problem['problem']), 200)}"
        report.show(report.styled(words, "yellow"))
    report.show(Text(f"{reports} reports, {len(table)} rows; medians over reports and devices", "dim"))
