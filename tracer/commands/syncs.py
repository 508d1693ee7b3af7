"""Count the syncs, copies and launches of a step."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from tracer.command_options import Bounds, Save, emit, load, table_option, trace_options
from tracer.model.schema import MISSING
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
    "one row per wait of a step, first its syncs in order, then blocking copies and polling loops: what, position, "
    "name, stream, steps (number of steps with it), median_us, max_us, waiting_share (share of steps in which the "
    "device was still busy), queries, waits_for; if the run tells them order (needed or redundant), between (the two "
    "nearest accesses that it orders) and instead (what else orders them)"
)
@click.option(
    "--call-sites", "with_sites", is_flag=True,
    help="Also show where in the program each call is made: the Python function (torch.profiler's with_stack=True), "
    "else the enclosing range or operator.",
)  # fmt: skip
def syncs(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save, with_sites: bool) -> None:
    """Count the host synchronisations, copies and launches of a token, and show how far the host runs ahead.

    \b
    Examples:
      intertoken syncs llama1b-sccc-node.sqlite        class sccc, 14 syncs per token
      intertoken syncs vllm.json.gz --call-sites       which line of the engine makes each call
    """
    recording = load(path, within, bounds, python_functions=with_sites)
    if with_sites:
        recording.steps.of_one_engine()
    if recording.engines:
        save(joined_tables(recording, _inventory))
        emit(as_json, side_by_side(recording, _facts), partial(show_side_by_side, rows=_ROWS), notes_of(recording))
        return
    save(_inventory(recording))
    facts = _facts(recording)
    if with_sites:
        facts["call_sites"] = _sites(recording)
    emit(as_json, facts, partial(_show, unit=recording.steps.unit), recording.notes)


def _inventory(recording: Recording) -> pd.DataFrame:
    """A row per wait of a step; what they order only if the run tells."""
    table = recording.syncs.inventory().frame()
    return table if (table["order"] != "").any() else table.drop(columns=["order", "between", "instead"])


def _facts(recording: Recording) -> dict[str, Any]:
    summary = recording.figures("steps", "syncs")
    return {
        "schema": "intertoken.syncs/1",
        "class": summary.strategy,
        "share": summary.strategy_share,
        "signature": summary.signature,
        "signature_share": summary.signature_share,
        "steps": summary.steps,
        "syncs_per_token": summary.syncs_per_token,
        "copies_per_token": summary.copies_per_token,
        "launches_per_token": summary.launches_per_token,
        "blocking_copies_per_token": summary.blocking_copies_per_token,
        "polls_per_token": summary.polls_per_token,
        "fetch_lag": asdict(summary.fetch_lag) if summary.fetch_lag else None,
        "waits_elsewhere": asdict(summary.waits_elsewhere) if summary.waits_elsewhere else None,
        "token_source": summary.token_source,
        "inventory": json_rows(_inventory(recording)),
    }


def _sites(recording: Recording) -> list[dict[str, Any]]:
    """The calls of a step by call site; adds a note if call sites are unknown."""
    from tracer.analysis.call_sites import by_site, call_sites, without_site

    sync_report = recording.syncs
    table = by_site(sync_report.rows, call_sites(recording.trace, sync_report.rows), sync_report.steps)
    unknown = table.per_step[table.source == ""].sum() / table.per_step.sum()
    recording.notes.extend(without_site(float(unknown)))
    return json_rows(table.frame())


def _show(facts: dict[str, Any], unit: str) -> None:
    from tracer.model.calls import MEANING

    console = report.new_console()
    rows = {}
    if facts["class"]:
        followers = report.followers(facts["class"])
        rows["class"] = f"{facts['class']}  ({facts['share']:.0%} of the {followers} follow it)"
    rows[f"syncs per {unit}"] = number(facts["syncs_per_token"])
    for kind in ("blocking copies", "polls"):
        if count := facts[f"{kind.replace(' ', '_')}_per_token"]:
            rows[f"{kind} per {unit}"] = number(count)
    rows[f"copies per {unit}"] = number(facts["copies_per_token"])
    rows[f"launches per {unit}"] = number(facts["launches_per_token"])
    rows["the host fetches"] = _fetched(facts["fetch_lag"])
    if facts["waits_elsewhere"]:
        rows["the host waits"] = report.waits_elsewhere_words(facts["waits_elsewhere"])
    share = f"{facts['signature_share']:.0%} of {facts['steps']} steps, from {facts['token_source']}"
    console.print(report.grid(rows | {"signature": f"{facts['signature']}  ({share})"}))
    if facts["inventory"]:
        several = {"what": "wait"} if len({row["what"] for row in facts["inventory"]}) > 1 else {}
        in_some = any(row["steps"] < facts["steps"] for row in facts["inventory"])
        headings = several | {
            "position": "#", "name": "call", "stream": "stream",
            **({"steps": f"of {facts['steps']} steps"} if in_some else {}),
            "median_us": "median µs", "max_us": "max µs", "waiting_share": "waiting", "waits_for": "waits for",
            **({"order": "order"} if "order" in facts["inventory"][0] else {}),
        }  # fmt: skip
        waits = [
            row
            | {"waiting_share": None if row["waiting_share"] is None else f"{row['waiting_share']:.0%}"}
            | {"stream": None if row["stream"] == MISSING else row["stream"]}
            for row in facts["inventory"]
        ]
        console.print()
        console.print(report.table_of(waits, headings))
        if "order" in facts["inventory"][0]:
            console.print()
            told = [row for row in facts["inventory"] if row["order"]]
            orders = {f"{row['what']} {row['position']}": _ordered(row) for row in told}
            console.print(report.grid(orders))
    if facts.get("call_sites"):
        headings = {
            "what": "what", "site": "where", "through": "through", "per_step": "a step", "us_per_step": "µs a step",
        }  # fmt: skip
        console.print()
        console.print(report.table_of([row | {"site": row["site"] or "–"} for row in facts["call_sites"]], headings))
    letters = [f"{letter} {meaning}" for letter, meaning in MEANING.items() if letter in facts["signature"]]
    console.print(Text("  ".join(letters), "dim"))


_ROWS: Final[Rows] = {
    "class": lambda facts: facts["class"] and f"{facts['class']} ({facts['share']:.0%})",
    "syncs a step": lambda facts: number(facts["syncs_per_token"]),
    "blocking copies": lambda facts: facts["blocking_copies_per_token"] and number(facts["blocking_copies_per_token"]),
    "polls": lambda facts: facts["polls_per_token"] and number(facts["polls_per_token"]),
    "copies a step": lambda facts: number(facts["copies_per_token"]),
    "launches a step": lambda facts: number(facts["launches_per_token"]),
    "the host fetches": lambda facts: _fetched(facts["fetch_lag"]),
    "signature": lambda facts: f"{facts['signature']}  ({facts['signature_share']:.0%} of {facts['steps']} steps)",
}
"""What stands side by side of several engines."""


def _ordered(row: dict[str, Any]) -> str:
    """What a wait is for."""
    if not row["between"]:
        return "redundant: nothing behind it clashes with what it waits for"
    return f"{row['order']}: {row['between']}" + (f"; {row['instead']} orders them too" if row["instead"] else "")


def _fetched(lag: dict[str, Any] | None) -> str:
    """The step whose result the host reads."""
    if lag is None:
        return "unknown: the recording does not show which step's result"
    whose = {0.0: "the result of the step it launched last", 1.0: "the result of the previous step, one step ahead"}
    ahead = f"a result from {number(lag['median'])} steps earlier"
    return f"{whose.get(lag['median'], ahead)}  ({lag['share']:.0%} of {lag['fetches']} fetches)"
