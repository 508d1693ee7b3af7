"""The output of `gaps` and `streams` about ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tracer.reporting.console import table_of

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.tokens import Steps
    from tracer.model.trace import Trace


def rank_facts(trace: Trace, steps: Steps, gaps: pd.DataFrame | None = None) -> dict[str, Any]:
    """The JSON of `gaps` and `streams` about ranks, if there are several or any communication; adds to the notes."""
    from tracer.analysis.ranks import gaps_of, has_ranks, rank_report

    if not has_ranks(trace, steps):
        return {}
    report = rank_report(trace, steps)
    trace.notes += report.notes
    records = report.records(None if gaps is None else gaps_of(gaps, steps))
    each = [row["communication_us"] for row in records["ranks"] if row["collectives_us"]]
    return records | ({"communication_us": sum(each) / len(each)} if each else {})


def show_ranks(console: Console, facts: dict[str, Any]) -> None:
    """Print a row per rank, if there are several or one communicates."""
    ranks = facts.get("ranks", [])
    if not ranks:
        return
    headings = {
        "device": "device", "process": "process", "thread": "thread", "steps": "steps", "gap_p50_us": "gap p50",
        "compute_us": "computes", "communication_us": "communicates", "others_us": "others compute",
        "idle_us": "idle", "waiting_us": "waits in collectives",
    }  # fmt: skip
    shown = {key: word for key, word in headings.items() if any(row.get(key) is not None for row in ranks)}
    console.print(Text("\neach rank, µs a step:"))
    console.print(table_of([row | {key: str(row[key]) for key in ("process", "thread")} for row in ranks], shown))
