"""Rank possible changes by predicted gain, with their conditions."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tracer.command_options import Bounds, emit, load, trace_options, untraced_option
from tracer.reporting import console as report
from tracer.reporting.advice import cells, details, eager_cells, facts_of, rest, unused_of
from tracer.text import spelled

_LONGEST = 60
_COLUMNS = {"edit": "what", "gain": "gain", "margin": "model margin", "steps": "steps/s"}
_EAGER_TITLE = (
    "eager launches outside the graph, by the idle time before them per step (gain inside the graph, without a margin)"
)
_EAGER = {
    "kernel": "kernel", "operator": "operator", "where": "where", "per_step": "a step", "hole": "idle µs",
    "gain": "gain", "site": "call site",
}  # fmt: skip


@click.command()
@trace_options
@untraced_option
@click.option("--markdown", is_flag=True, help="Print Markdown, as for a pull request.")
def advise(
    path: Path, within: str | None, bounds: Bounds, as_json: bool, untraced_steps_per_s: float | None, markdown: bool
) -> None:
    """What to change, by predicted gain, and what must be true for it to be safe.

    Every edit that data flow allows is predicted as `intertoken whatif` does: other strategies, the syncs together and
    one by one, kernels as one graph launch. Edits are listed whose gain exceeds the whole model margin, with the names
    that the engine has for them. A recording made under a profiler needs the engine's untraced rate.

    \b
    Examples:
      intertoken advise runs/tiny-sccc-sequential
      intertoken advise rep.sqlite --untraced-tokens-per-s 748.7
      intertoken advise rep.sqlite --untraced-tokens-per-s 748.7 --markdown
    """
    from tracer.analysis.path.paths import Causality
    from tracer.whatif.advice import advise as advised
    from tracer.whatif.base import Base

    recording = load(path, within, bounds, untraced_steps_per_s, python_functions=True)
    with report.working("trying edits"):
        result = advised(recording, Base.of(Causality.of(recording.trace), recording))
    options = ["--range", shlex.quote(within)] if within else []
    if untraced_steps_per_s is not None:
        options += ["--untraced-tokens-per-s", f"{untraced_steps_per_s:g}"]
    facts = {
        "schema": "intertoken.advise/1",
        "steps": len(recording.steps),
        **facts_of(result, shlex.quote(str(path)), options),
    }
    emit(as_json, facts, _show_markdown if markdown else _show, recording.notes)


def _show(facts: dict[str, Any]) -> None:
    if _withheld(facts, _show_eager):
        return
    if facts["advice"]:
        report.show_table([cells(one) for one in facts["advice"]], _COLUMNS)
        for line in details(facts):
            click.echo(f"  {spelled(line)}")
    for line in rest(facts):
        click.echo(f"  {spelled(line)}")
    _show_eager(facts)


def _show_eager(facts: dict[str, Any]) -> None:
    """The kernels launched outside a graph; the gain is a prediction without a margin."""
    if facts["eager_launches"]:
        click.echo(f"\n{_EAGER_TITLE}:")
        report.show_table(*_eager(facts))


def _eager(facts: dict[str, Any]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The rows and the columns of that table; call sites only if any is known."""
    from tracer.model.collectives import shown_name

    known = any(one["site"] for one in facts["eager_launches"])
    columns = {name: head for name, head in _EAGER.items() if known or name != "site"}
    rows = [eager_cells(one) | {"kernel": shown_name(one["kernel"])[:_LONGEST]} for one in facts["eager_launches"]]
    return rows, columns


def _show_markdown(facts: dict[str, Any]) -> None:
    if _withheld(facts, _show_markdown_eager):
        return
    if facts["advice"]:
        _show_markdown_table([cells(one) for one in facts["advice"]], _COLUMNS)
        click.echo()
    for line in [*details(facts), *rest(facts)]:
        click.echo(f"- {spelled(line)}")
    _show_markdown_eager(facts)


def _show_markdown_eager(facts: dict[str, Any]) -> None:
    if facts["eager_launches"]:
        click.echo(f"\n{_EAGER_TITLE.capitalize()}:\n")
        rows, columns = _eager(facts)
        coded = [row | {name: _code(row[name]) for name in ("kernel", "operator", "site")} for row in rows]
        _show_markdown_table(coded, columns)


def _code(name: str) -> str:
    """A name as a Markdown code span, delimited so that the name cannot end it."""
    return name if name == "–" else f"`{name.replace('`', chr(39))}`"


def _show_markdown_table(rows: list[dict[str, str]], columns: dict[str, str]) -> None:
    click.echo("| " + " | ".join(columns.values()) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        click.echo("| " + " | ".join(spelled(row[name]).replace("|", r"\|") for name in columns) + " |")


def _withheld(facts: dict[str, Any], show_eager: Callable[[dict[str, Any]], None]) -> bool:
    """If nothing was predicted, print the reason and the eager launches; return whether that is the case."""
    from tracer.whatif.base import TRACED
    from tracer.whatif.prediction import WITHOUT_RATE

    if facts["base"] == TRACED:
        click.echo(f"no advice: {WITHOUT_RATE}")
        for line in unused_of(facts):
            click.echo(spelled(line))
        show_eager(facts)
    return bool(facts["base"] == TRACED)
