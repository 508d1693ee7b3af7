"""Check a recording against a budget. Exit code 1 if broken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracer.command_options import Bounds, emit, load, trace_options, untraced_option
from tracer.errors import FormatError, TraceError, UsageError, printable
from tracer.files.output import check_output, write_output
from tracer.notes import brief
from tracer.reporting import console as report

if TYPE_CHECKING:
    from tracer.analysis.budget import BaseLimits, Budget
    from tracer.analysis.budget_check import Finding
    from tracer.model.trace import Trace


@click.command()
@trace_options
@untraced_option
@click.option("--budget", "budget_path", metavar="FILE", type=click.Path(path_type=Path), help="The budget (TOML).")
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Also write JUnit XML (.xml).")
@click.option("--github", is_flag=True, help="Also print GitHub Actions annotations.")
@click.option(
    "--write-budget", "target", metavar="FILE", type=click.Path(path_type=Path),
    help="Write a budget that the recording meets (.toml), instead of checking one.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Let --write-budget replace FILE.")
@click.pass_context
def check(
    ctx: click.Context, path: Path, within: str | None, bounds: Bounds, as_json: bool,
    untraced_steps_per_s: float | None, budget_path: Path | None, junit: Path | None, github: bool,
    target: Path | None, force: bool,
) -> None:  # fmt: skip
    """Check a recording against a budget. Exit code 1 if a line is broken.

    \b
    A budget (counts are medians over the steps; a number is exact):
      syncs = 14
      copies.max = 7
      launches = 1
      class = "sccc"
      signature = "(sc)×6 g a s×2"
      tokens_per_s.untraced.min = 740
      gap_us.untraced.p50.max = 80
      causes_us.traced.sync.max = 50
      [device.1]                          # gap and causes of one device
      gap_us.traced.p90.max = 600
      [range."run saaas concurrent"]      # any of the lines above, inside NVTX ranges
      syncs = 3
      [site."runner.py fetch"]            # calls whose call site contains these words; the largest count of a step
      syncs = 0
      [base]                              # broken only if the whole 95 % interval is beyond the limit
      recording = "main.sqlite"
      max_slowdown = 0.02
      max_extra_gap_us = 5
    \b
    Examples:
      intertoken check rep.sqlite --write-budget budget.toml
      intertoken check rep.sqlite --budget budget.toml
      intertoken check rep.sqlite --budget budget.toml --github --junit budget.xml

    --range applies to lines that name no range; --steps selects the steps of each range.
    """
    if (budget_path is None) == (target is None):
        raise UsageError("give either --budget FILE or --write-budget FILE")
    if as_json and github:
        raise UsageError("--json and --github would both write to stdout; choose one (--junit goes with either)")
    if target is not None:
        _write_budget(path, target, within, bounds, untraced_steps_per_s, force)
        return
    assert budget_path is not None
    from tracer.reporting import verdicts

    if junit is not None:
        check_output(junit, "a JUnit XML file", (".xml",), replace=True)
    findings, notes = _findings(budget_path, path, within, bounds, untraced_steps_per_s)
    if junit is not None:
        xml = verdicts.junit(findings, path, budget_path)
        write_output(junit, lambda partial: partial.write_bytes(xml), replace=True)
    kept = all(finding.verdict != "broken" for finding in findings)
    facts = {
        "schema": "intertoken.check/1",
        "budget": str(budget_path),
        "kept": kept,
        "lines": [verdicts.facts_of(finding) for finding in findings],
    }
    emit(as_json, facts, lambda _: _show(*verdicts.rows(findings)), notes)
    if github:
        for annotation in filter(None, (verdicts.github(finding, budget_path) for finding in findings)):
            click.echo(annotation)
    ctx.exit(0 if kept else 1)


def _findings(
    budget_path: Path, path: Path, within: str | None, bounds: Bounds, rate: float | None
) -> tuple[list[Finding], list[str]]:  # fmt: skip
    """The findings for each line of a budget, and the notes."""
    from tracer.analysis.budget_check import check_lines
    from tracer.formats import format_of, read
    from tracer.stored import set_options

    set_options()
    budget = read_budget(budget_path)
    with report.reading(path):
        of_sites = any(line.scope.site is not None for line in budget.lines)
        with_functions = of_sites and "python_functions" in format_of(path).options
        trace = read(path, whole=False, python_functions=with_functions)
    findings, notes = check_lines(trace, budget, within, bounds, rate), list(trace.notes)
    if budget.base is not None:
        against, cautions = _compared(budget.base, budget_path, path, trace, within, bounds, rate)
        findings += against
        notes += [text for text in cautions if text not in {f"{path}: {brief(note)}" for note in notes}]
    return findings, notes


def read_budget(path: Path) -> Budget:
    """Read a budget. Raises UsageError if the file is not TOML, or not a valid budget."""
    from tracer.analysis.budget import parse
    from tracer.files.bounded import toml_of

    try:
        table = toml_of(path)
    except FormatError as problem:
        raise UsageError(f"{path}: {problem}") from None
    return parse(table, str(path))


def _compared(
    base: BaseLimits, budget: Path, path: Path, trace: Trace, within: str | None, bounds: Bounds, rate: float | None
) -> tuple[list[Finding], list[str]]:  # fmt: skip
    """The findings for the lines of a budget's base, and the cautions of the comparison. Raises UsageError if the base
    cannot be read or measured, or is not comparable."""
    from tracer.analysis.budget_check import check_base
    from tracer.analysis.compare import Side, compare
    from tracer.analysis.recording import Recording
    from tracer.analysis.sides import obstacles

    recording = budget.parent / base.recording
    rates = () if rate is None else (rate,)
    current = Recording(trace, str(path), within=within, bounds=bounds, rates=rates).measured
    try:
        other = load(recording, within, bounds, name=str(recording)).measured
    except TraceError as problem:
        raise UsageError(printable(f"{budget}: base: {problem}")) from None
    if against := obstacles(other, current):
        raise UsageError(printable(f"{budget}: base: {recording} is not comparable with {path}: {'; '.join(against)}"))
    comparison = compare(Side.of(other), Side.of(current))
    return list(check_base(base, comparison)), comparison.cautions


def _write_budget(
    path: Path, target: Path, within: str | None, bounds: Bounds, untraced_steps_per_s: float | None, force: bool
) -> None:  # fmt: skip
    from tracer.analysis.budget import Scope
    from tracer.analysis.budget_check import ScopeFigures, fulfilled_budget

    check_output(target, "a budget", (".toml",), replace=force)
    recording = load(path, within, bounds, untraced_steps_per_s)
    text = fulfilled_budget(ScopeFigures(recording, Scope(within)))
    write_output(target, lambda partial: partial.write_text(text, encoding="utf-8"), replace=force)
    click.echo(f"{target}: {len(read_budget(target).lines)} lines")


def _show(rows: list[dict[str, Any]], remarks: list[str]) -> None:
    headings = {
        "mark": "", "scope": "where", "name": "budget", "found": "found", "allowed": "allowed", "by": "broken by",
    }  # fmt: skip
    shown = {key: word for key, word in headings.items() if key == "mark" or any(row[key] for row in rows)}
    report.show(report.table_of(rows, shown), *map(report.styled, remarks))
