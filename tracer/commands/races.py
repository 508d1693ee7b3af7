"""Find the copies of a program that race with its host."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from tracer.errors import TraceError, UsageError
from tracer.files.output import OR_FORCE, check_output, check_place, write_output
from tracer.text import spelled

_MOST_US: Final = 1_000_000
_MOST_DELAYS: Final = 8


def _delays(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse comma-separated delays in µs."""
    try:
        delays = sorted({int(word) for word in value.split(",")})
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole µs, such as 50,200,500") from None
    if not 0 < delays[0] <= delays[-1] <= _MOST_US or len(delays) > _MOST_DELAYS:
        raise click.BadParameter(f"at most {_MOST_DELAYS} delays from 1 to {_MOST_US} µs")
    return tuple(delays)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--delays", default="50,200,500", show_default=True, metavar="US,...", callback=_delays,
    help="How late copies are made, µs: one pass each.",
)  # fmt: skip
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N",
    help="Passes for each delay; all but the first delay only 30 % of the copies, chosen by their number.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="The most that all passes may take; those that do not fit are left out, except for two plain ones.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path), help="Also write Markdown (.md).")
@click.option(
    "--sarif", metavar="FILE", type=click.Path(path_type=Path), help="Also write SARIF 2.1.0 (.sarif, .json)."
)
@click.option(
    "--keep", metavar="FOLDER", type=click.Path(path_type=Path),
    help="Keep what each pass saw, and what the program printed, in a new folder.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the files of --markdown and --sarif.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...", required=True)
@click.pass_context
def races(
    ctx: click.Context, delays: tuple[int, ...], seeds: int, seconds: float | None, as_json: bool,
    markdown: Path | None, sarif: Path | None, keep: Path | None, force: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run COMMAND several times and say which of its asynchronous copies race. Exit code 1 if a race is proven.

    A copy races if its source is overwritten before the device has read it, or its result is read before it has
    come. A preloaded library compares the bytes of each copy at the call with those that arrive, in the program
    and all its children. It makes copies late, so that a race shows that is otherwise won by luck. And it drains
    streams, so that what is ordered by the device is told from a race. COMMAND must do the same in each run. What
    it prints goes to a file (--keep); it has nothing to read.

    \b
    Verdicts of a call site:
      race                shown by bytes that arrived otherwise, or by other results
      candidate           bytes arrived otherwise, and it is open why
      ordered by design   the source is filled in stream order, after the call
      clean under N copies × D µs
      not seen            nothing could be compared

    \b
    Examples:
      intertoken races -- ./llama-cli -m model.gguf -n 64 --temp 0
      intertoken races --delays 100,1000 --sarif races.sarif -- python generate.py
    """
    from tracer.races import passes, report, verdicts

    for target, what, suffixes in ((markdown, "Markdown", (".md",)), (sarif, "a SARIF file", (".sarif", ".json"))):
        if target is not None:
            check_output(target, what, suffixes, replace=force)
    with _folder(keep) as folder:
        runs = passes.Runs(command, folder, passes.Plan(delays, seeds, seconds=seconds), _tell)
        passes.run_all(runs)
        judged = verdicts.judge(runs)
        facts = report.facts_of(judged, runs)
    if markdown is not None:
        _write(markdown, report.markdown(facts), force)
    if sarif is not None:
        _write(sarif, report.sarif(facts, version("intertoken")), force)
    for note in judged.notes:
        click.echo(f"note: {spelled(note)}", err=True)
    if as_json:
        click.echo(json.dumps(facts | ({"notes": list(judged.notes)} if judged.notes else {})))
    else:
        for line in report.lines(facts):
            click.echo(spelled(line))
    ctx.exit(1 if judged.races else 0)


def _write(target: Path, text: str, force: bool) -> None:
    write_output(target, lambda partial: partial.write_text(text, encoding="utf-8"), replace=force)


def _tell(what: str) -> None:
    click.echo(f"intertoken: {spelled(what)}", err=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder for the passes, which only this user can read: that which is kept, or a temporary one."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="intertoken-races-") as made:
            yield Path(made)
        return
    try:
        check_place(keep, replace=False, a_directory=True, advice=OR_FORCE.partition(" or ")[0])
        keep.mkdir(mode=0o700, parents=True)
    except TraceError as problem:
        raise UsageError(str(problem)) from None
    yield keep.absolute()
