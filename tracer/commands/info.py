"""Summarise a recording: source, devices, steps, idle time, gap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from tracer.analysis.interval import words
from tracer.command_options import Bounds, emit, recorded, trace_options
from tracer.errors import printable
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.reporting.engines import Rows, in_us, notes_of, show_side_by_side, side_by_side

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording

_MOST_KERNELS: Final = 5


@click.command()
@trace_options
def info(path: Path, within: str | None, bounds: Bounds, as_json: bool) -> None:
    """Summarise a recording: source, devices, events, token steps, and the main figures.

    Works also for recordings without kernels or token steps, which the other commands refuse.
    """
    from tracer.stored import node_kernels

    recording = recorded(path, within, bounds)
    steps = recording.steps if recording.summary.steps is not None else None
    if steps is not None and steps.owners:
        facts = side_by_side(recording, _facts) | {"problem": recording.summary.problem}
        emit(as_json, facts, _show_engines, notes_of(recording))
        return
    facts = _facts(recording)
    notes = [*(steps.notes if steps else []), *recording.trace.notes]
    if placed := node_kernels(path, recording.trace, steps):
        longest = placed.kernels()[:_MOST_KERNELS]  # at the times of the light pass, per step
        columns = (longest.name.tolist(), longest.calls.tolist(), longest.us.tolist())
        facts["kernels"] = [{"name": n, "calls": calls, "us": us} for n, calls, us in zip(*columns, strict=True)]
        notes.append(placed.note)
    emit(as_json, facts, show_info, notes)


def _facts(recording: Recording) -> dict[str, Any]:
    start, end = recording.trace.span
    return {
        "schema": "intertoken.info/1",
        "duration_ms": (end - start) / 1e6,
        "events": {name: len(frame) for name, frame in recording.trace.tables.items() if "start" in frame},
        **recording.summary.facts,
    }


_ROWS: Final[Rows] = {
    "contains": lambda facts: f"{facts['what']} (from {facts['token_source']}, confidence {facts['confidence']:.2f})",
    "idle p50 a step": lambda facts: f"{in_us(facts['idle_us']['p50'])}, {facts['idle_share']:.0%} of the time",
    "mostly": lambda facts: facts["idle_where"],
    "class": lambda facts: facts["strategy"],
    "signature": lambda facts: facts["signature"],
    "syncs a step": lambda facts: number(facts["syncs_per_token"]),
    "copies a step": lambda facts: number(facts["copies_per_token"]),
    "launches a step": lambda facts: number(facts["launches_per_token"]),
    "steps/s": lambda facts: number(facts["steps_per_s"]),
    "median step": lambda facts: in_us(facts["period_us"]),
    "gap p50": lambda facts: in_us(facts["gap_p50_us"]),
    "gap p90": lambda facts: in_us(facts["gap_p90_us"]),
    "run-ahead p50": lambda facts: in_us(facts["run_ahead"] and facts["run_ahead"]["time_us"]["p50"]),
}
"""What stands side by side of several engines."""


def _show_engines(facts: dict[str, Any]) -> None:
    report.show(report.grid(_head(facts)), Text())
    show_side_by_side(facts, _ROWS)


def _head(facts: dict[str, Any]) -> dict[str, str]:
    events = ", ".join(f"{count:,} {name}" for name, count in facts["events"].items() if count)
    recording = f"{facts['name']}  ({facts['source'] or 'no source'}, {facts['duration_ms']:,.1f} ms)"
    return {"recording": recording, "device": facts["gpu"] or "–", "events": events or "none"}


def show_info(facts: dict[str, Any]) -> None:
    """Print `intertoken info`."""
    console = report.new_console()
    console.print(report.grid(_head(facts)))
    if facts["steps"] is None:
        console.print(report.styled(f"no figures: {facts['problem']}"))
        return
    of = report.followers(facts["strategy"]).removeprefix("input ")
    share = f" ({facts['strategy_share']:.0%} of {of})" if facts["strategy"] else ""
    gap = f"p50 {number(facts['gap_p50_us'])} µs, p90 {number(facts['gap_p90_us'])} µs"
    usual = f" (the median step takes {number(facts['period_us'])} µs)" if facts["period_us"] else ""
    rates = f"{number(facts['steps_per_s'])} as recorded, wall-clock{usual}"
    if facts["rate_doubt"]:
        rates += f"; doubted: {facts['rate_doubt']}"
    if facts["steps_per_s"] is None:
        rates = "–" + (" (one step has no rate)" if facts["steps"] == 1 else usual)
    untraced, traced = number(facts["tokens_per_s"]), number(facts["traced_tokens_per_s"])
    per_step = ", ".join(f"{number(facts[f'{kind}_per_token'])} {kind}" for kind in ("syncs", "copies", "launches"))
    more = {"blocking copies": facts["blocking_copies_per_token"], "polls": facts["polls_per_token"]}
    per_step += "".join(f", {number(count)} {what}" for what, count in more.items() if count)
    kernels = (f"{printable(k['name'])} {number(k['us'])} µs ({k['calls']:g})" for k in facts.get("kernels", ()))
    rows = {
        "contains": f"{facts['what']} (from {facts['token_source']}, confidence {facts['confidence']:.2f})",
        "idle": _idle(facts),
        **({report.where_label(facts): facts["idle_where"]} if facts["idle_where"] else {}),
        **({"class": f"{facts['strategy']}{share}"} if facts["strategy"] else {}),
        "signature": facts["signature"],
        "per step": per_step,
        **({"the host waits": report.waits_elsewhere_words(waits)} if (waits := facts["waits_elsewhere"]) else {}),
        "steps/s": rates,
        **({"tokens/s": f"{untraced} untraced, {traced} as recorded"} if facts["strategy"] else {}),
        "gap": gap + report.distortion_words(facts["distortion"]),
        **report.estimated_row(facts["estimated_untraced_gap_us"]),
        "run-ahead": report.run_ahead_words(facts["run_ahead"], facts["run_ahead_unknown"]),
        **({"kernels": ", ".join(kernels)} if "kernels" in facts else {}),
    }
    console.print(report.grid(rows))
    report.warn(console, facts["warning"] or facts["problem"])
    report.warn(console, facts["left_out"])


def _idle(facts: dict[str, Any]) -> str:
    """The idle time of a step, and its places."""
    from tracer.analysis.idle import PLACES

    idle = facts["idle_us"]
    if not idle:
        return "–"
    untraced = f"; {number(facts['untraced_idle_us'])} µs untraced" if facts["untraced_idle_us"] is not None else ""
    if wide := facts.get("estimated_untraced_idle_us"):
        untraced = f"; untraced {words(**wide)}"
    places = ", ".join(f"{name} {number(idle[place])}" for place, name in PLACES.items() if idle[place] >= 0.05)
    return f"p50 {number(idle['p50'])} µs a step, {facts['idle_share']:.0%} of the time{untraced} (mean µs: {places})"
