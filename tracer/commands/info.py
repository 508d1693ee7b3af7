"""Summarise a recording: source, devices, steps, idle time, gap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from tracer.analysis.bounds import ALL_STEPS
from tracer.analysis.interval import words
from tracer.command_options import Bounds, emit, recorded, trace_options
from tracer.errors import NoStepsError, TraceError, printable
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.reporting.engines import Rows, in_us, notes_of, show_side_by_side, side_by_side
from tracer.text import counted, json_rows

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording
    from tracer.model.trace import Trace

_MOST_KERNELS: Final = 5
_MOST_STREAMS: Final = 8


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
    if steps is not None and steps.of_each and facts["gap_p50_us"] is not None:
        facts |= {"of_each": steps.of_each} | report.rank_facts(recording, recording.gaps_at_rate.gaps)
        notes += [note for note in recording.notes if note not in notes]
    if steps is None and within is None and bounds == ALL_STEPS and _has_no_steps(recording):
        facts |= _whole(recording.trace)
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


def _has_no_steps(recording: Recording) -> bool:
    """Whether work ran on a device, but no steps are found in it."""
    try:
        return not len(recording.steps)
    except NoStepsError:
        return True
    except TraceError:
        return False


def _whole(trace: Trace) -> dict[str, Any]:
    """What is known of a recording without steps: how busy its devices and streams are, and its largest kernels and
    graphs, over all of it."""
    import numpy as np  # imported here because `--help` needs no arrays

    from tracer.analysis.streams import stream_report

    busy, work = stream_report(trace), trace.activities()
    work = work[work.computes | work.collective]
    names = work.name.in_order
    us, calls = np.bincount(names.codes, work.end - work.start) / 1e3, np.bincount(names.codes)
    largest = [at for at in np.argsort(-us, kind="stable") if calls[at]][:_MOST_KERNELS]
    kernels = [{"name": str(names.words[at]), "calls": int(calls[at]), "us": float(us[at])} for at in largest]
    return {
        "kernels": kernels, "streams": json_rows(busy.streams.frame()), "devices": json_rows(busy.devices.frame()),
    }  # fmt: skip


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
        _show_whole(console, facts)
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
    of_kinds = {"sync": "syncs_per_token", "copy": "copies_per_token", "launch": "launches_per_token"}
    more = {"blocking copy": "blocking_copies_per_token", "poll": "polls_per_token"}
    of_kinds |= {what: name for what, name in more.items() if facts[name]}
    per_step = ", ".join(counted(facts[name], what, number(facts[name])) for what, name in of_kinds.items())
    kernels = (f"{printable(k['name'])} {number(k['us'])} µs ({k['calls']:g})" for k in facts.get("kernels", ()))
    rows = {
        "contains": f"{facts.get('of_each') or facts['what']} (from {facts['token_source']}, confidence "
        f"{facts['confidence']:.2f})",
        "idle": _idle(facts),
        **({report.where_label(facts): facts["idle_where"]} if facts["idle_where"] else {}),
        **({"class": f"{facts['strategy']}{share}"} if facts["strategy"] else {}),
        "signature": facts["signature"],
        "per step": per_step,
        **({"the host waits": report.waits_elsewhere_words(waits)} if (waits := facts["waits_elsewhere"]) else {}),
        "steps/s": rates,
        **({"tokens/s": f"{untraced} untraced, {traced} as recorded"} if facts["strategy"] else {}),
        "gap": gap + report.distortion_words(facts["distortion"]),
        **report.estimated_row(facts["estimated_untraced_gap_us"], facts.get("untraced_gap_mean_us")),
        "run-ahead": report.run_ahead_words(facts["run_ahead"], facts["run_ahead_unknown"]),
        **({"kernels": ", ".join(kernels)} if "kernels" in facts else {}),
    }
    console.print(report.grid(rows))
    report.warn(console, facts["warning"] or facts["problem"])
    report.warn(console, facts["left_out"])
    report.show_ranks(console, facts)


def _show_whole(console: Console, facts: dict[str, Any]) -> None:
    """Print what is known of a recording without steps."""
    if "devices" not in facts:
        return
    single, busiest = len(facts["devices"]) == 1, sorted(facts["streams"], key=lambda row: -row["busy_us"])
    busy = [f"device {of['device']} {of['busy_share']:.1%} of {number(of['window_us'])} µs" for of in facts["devices"]]
    streams = [
        f"{of['stream'] if single else '{device}:{stream}'.format_map(of)} {of['busy_share']:.1%} "
        f"({counted(of['kernels'], 'kernel')}, {counted(of['copies'], 'copy')})"
        for of in busiest
    ]
    more = f" and {len(streams) - _MOST_STREAMS} more" if len(streams) > _MOST_STREAMS else ""
    kernels = [f"{printable(k['name'])} {number(k['us'])} µs ({k['calls']:,})" for k in facts["kernels"]]
    rows = {
        "busy": "; ".join(busy),
        "streams": "; ".join(streams[:_MOST_STREAMS]) + more,
        "kernels": ", ".join(kernels),
    }
    console.print(report.grid(rows))


def _idle(facts: dict[str, Any]) -> str:
    """The idle time of a step, and its places."""
    from tracer.analysis.idle import PLACES

    idle = facts["idle_us"]
    if not idle:
        return "–"
    untraced = f"; {number(facts['untraced_idle_us'])} µs untraced" if facts["untraced_idle_us"] is not None else ""
    if wide := facts.get("estimated_untraced_idle_us"):
        mean = facts.get("untraced_idle_mean_us")
        untraced = f"; untraced {words(**wide)}{f'; its mean {number(mean)} µs' if mean is not None else ''}"
    places = ", ".join(f"{name} {number(idle[place])}" for place, name in PLACES.items() if idle[place] >= 0.05)
    return f"p50 {number(idle['p50'])} µs a step, {facts['idle_share']:.0%} of the time{untraced} (mean µs: {places})"
