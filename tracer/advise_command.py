"""`intertoken advise`: what to change, by predicted gain."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracer import report
from tracer.commands import Bounds, emit, load, trace_options, untraced_option
from tracer.report import number
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.analysis.advice import Advice, Advised
    from tracer.analysis.whatif.edits import Edit
    from tracer.trace import Trace

_STREAMS = 4


@click.command()
@trace_options
@untraced_option
@click.option("--markdown", is_flag=True, help="Print Markdown, as for a pull request.")
def advise(
    path: Path, within: str | None, bounds: Bounds, as_json: bool, untraced_tokens_per_s: float | None, markdown: bool
) -> None:
    """What to change, by predicted gain, and what must be true for it to be safe.

    Every edit that data flow allows is predicted as `intertoken whatif` does: other strategies, the syncs together and
    one by one, kernels as one graph launch, independent kernels on streams (runs with graph.json). Edits are listed
    whose gain exceeds the whole model margin, with the names that the engine has for them. A recording made under a
    profiler needs the engine's untraced rate.

    \b
    Examples:
      intertoken advise runs/tiny-sccc-sequential
      intertoken advise rep.sqlite --untraced-tokens-per-s 748.7
      intertoken advise rep.sqlite --untraced-tokens-per-s 748.7 --markdown
    """
    from tracer.analysis.advice import advise as advised
    from tracer.analysis.causality.paths import Causality
    from tracer.analysis.whatif.base import Base

    trace, steps = load(path, within, bounds)
    with report.working("trying edits"):
        base = Base.of(Causality.of(trace), steps, untraced_tokens_per_s, within)
        found = advised(trace, steps, base, _on_streams(path, within, trace))
    options = ["--range", shlex.quote(within)] if within else []
    if untraced_tokens_per_s is not None:
        options += ["--untraced-tokens-per-s", f"{untraced_tokens_per_s:g}"]
    facts = {"schema": "intertoken.advise/1", "steps": len(steps), **facts_of(found, shlex.quote(str(path)), options)}
    emit(as_json, facts, _show_markdown if markdown else _show, trace.notes)


def _on_streams(path: Path, within: str | None, trace: Trace) -> list[tuple[Edit, str, tuple[str, ...]]]:
    from tracer.graph_json import GRAPH_FILE
    from tracer.whatif_command import concurrent_edit

    if not (path / GRAPH_FILE).is_file():
        return []
    conditions = ("buffers of independent kernels do not share memory while both may run",)
    return [(concurrent_edit(path, within, _STREAMS, (), trace), "--concurrent", conditions)]


def facts_of(found: Advised, path: str, options: list[str]) -> dict[str, Any]:
    """What `--json` prints of it; path and options are as they stand on a command line."""
    before = found.before
    return {
        "before": asdict(before),
        "base": found.state,
        "bound": found.bound,
        "advice": [_facts(advice, path, options) for advice in found.kept],
        "unsure": [
            {"edit": edit, "speedup": asdict(one.speedup), "assumptions": one.notes}
            for edit, one in found.unsure.items()
        ],
        "engine": found.engine.name if found.engine else None,
        "unused": [asdict(setting) for setting in found.unused],
        "refused": [{"edit": edit, "why": why} for edit, why in found.refused.items()],
    }


def _facts(advice: Advice, path: str, options: list[str]) -> dict[str, Any]:
    found = advice.prediction
    return {
        "edit": found.label,
        "speedup": asdict(found.speedup),
        "steps_per_s": found.predicted.steps_per_s,
        "tokens_per_s": found.predicted.tokens_per_s,
        "conditions": list(advice.conditions),
        "settings": [asdict(setting) for setting in advice.settings],
        "assumptions": found.notes,
        "shown_by": " ".join(["intertoken whatif", path, *options, advice.command]),
        "checked_by": f"intertoken compare {path} AFTER",
    }


def _show(facts: dict[str, Any]) -> None:
    if _withheld(facts):
        return
    columns = {"edit": "what", "gain": "gain", "margin": "model margin", "steps": "steps/s"}
    if facts["advice"]:
        report.show_table([_row(one) for one in facts["advice"]], columns)
        for line in _details(facts):
            click.echo(f"  {spelled(line)}")
    for line in _rest(facts):
        click.echo(f"  {spelled(line)}")


def _show_markdown(facts: dict[str, Any]) -> None:
    if _withheld(facts):
        return
    if facts["advice"]:
        click.echo("| what | gain | model margin | steps/s |\n| --- | --- | --- | --- |")
        for one in facts["advice"]:
            click.echo("| " + " | ".join(spelled(cell).replace("|", r"\|") for cell in _row(one).values()) + " |")
        click.echo()
    for line in [*_details(facts), *_rest(facts)]:
        click.echo(f"- {spelled(line)}")


def _withheld(facts: dict[str, Any]) -> bool:
    """Whether nothing was predicted; prints why."""
    from tracer.analysis.whatif.base import TRACED
    from tracer.analysis.whatif.prediction import WITHOUT_RATE

    if facts["base"] == TRACED:
        click.echo(f"no advice: {WITHOUT_RATE}")
    return bool(facts["base"] == TRACED)


def _row(one: dict[str, Any]) -> dict[str, str]:
    speedup = one["speedup"]
    low, high = (f"{(speedup[end] - 1) * 100:+.1f}" for end in ("low", "high"))
    return {
        "edit": one["edit"],
        "gain": f"{(speedup['estimate'] - 1) * 100:+.1f} %",
        "margin": f"{low} to {high} %",
        "steps": number(one["steps_per_s"]),
    }


def _details(facts: dict[str, Any]) -> list[str]:
    """What must be true for each edit to be safe, what its engine calls it, and how to check it."""
    advice = facts["advice"]
    lines = [f"{one['edit']}: safe if {'; and if '.join(one['conditions'])}" for one in advice]
    named = {(setting["name"], setting["seen"]): list[str]() for one in advice for setting in one["settings"]}
    for one in advice:
        for setting in one["settings"]:
            named[setting["name"], setting["seen"]].append(one["edit"])
    lines += [
        f"{', '.join(edits)}: in {facts['engine']} {name} (seen in {seen})" for (name, seen), edits in named.items()
    ]
    lines += dict.fromkeys(note for one in advice for note in one["assumptions"])
    return [*lines, *([f"after the change, record again and check: {advice[0]['checked_by']}"] if advice else [])]


def _rest(facts: dict[str, Any]) -> list[str]:
    """What shows no gain, what data flow forbids, what the engine offers unused, and the upper bound."""
    from tracer.analysis.whatif.prediction import NO_MARGIN

    lines = [f"{one['edit']}: forbidden, {one['why']}" for one in facts["refused"]]
    shown = [one["edit"] for one in facts["unsure"] if one["speedup"]["low"] is not None]
    without = [one for one in facts["unsure"] if one["speedup"]["low"] is None]
    if shown:
        lines.append(f"no gain shown, since the margin includes none: {', '.join(shown)}")
    reasons = dict.fromkeys(note for one in without for note in one["assumptions"] if note in NO_MARGIN)
    lines += [
        f"not predicted: {', '.join(one['edit'] for one in without if why in one['assumptions'])}; {why}"
        for why in reasons
    ]
    lines += [
        f"{facts['engine']} offers {setting['change']}, which this recording does not use: {setting['name']} (seen in "
        f"{setting['seen']}); its gain is not predicted"
        for setting in facts["unused"]
    ]
    before, bound = facts["before"], facts["bound"]
    if not facts["advice"]:
        lines.insert(0, "no edit is predicted to gain more than its margin")
    if bound is not None:
        lines.append(
            f"the device computes for {1 / bound:.0%} of a step of {number(before['period_us'])} µs: without any idle "
            f"time it would be about {(bound - 1) * 100:.1f} % faster"
        )
    return lines
