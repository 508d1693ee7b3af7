"""Find the commit that made a program slower."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--good", required=True, metavar="COMMIT", help="A commit that is fast.")
@click.option("--bad", default="HEAD", show_default=True, metavar="COMMIT", help="A descendant that is slower.")
@click.option(
    "--repository", default=".", show_default=True, metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path), help="A folder of the git repository.",
)  # fmt: skip
@click.option(
    "--most", type=click.IntRange(4, 10_000), metavar="N",
    help="Rounds before a commit is left undecided.  [default: 100]",
)  # fmt: skip
@click.option(
    "--rate", "expression", metavar="REGEX",
    help="Read the rate from what the program prints: the last match, number in parentheses, higher is better.  "
    "[default: as llama-bench, llama.cpp, vLLM's and SGLang's benchmarks print it]",
)  # fmt: skip
@click.option("--no-recorder", is_flag=True, help="Run without the light recorder: rates alone.")
@click.option(
    "-o", "--output", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Keep what builds and programs print, and the recordings.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- BUILD --- RUN")
def bisect(
    good: str, bad: str, repository: Path, most: int | None, expression: str | None, no_recorder: bool,
    folder: Path | None, as_json: bool, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Find the commit that made a program slower.

    BUILD runs once for each commit that is tried, then RUN in turns with that of the good end, until a sequential test
    has told the commit from the good end or from the bad end. A single command, without ---, builds and runs.

    \b
    Both run in work trees of their own, in the folder for temporary files (TMPDIR); your checkout is not touched.
    A commit whose BUILD or RUN fails (exit code 125, as for git bisect run, or any other) is skipped. History is
    followed along first parents, so that a merge counts as one commit.

    \b
    Examples:
      intertoken bisect --good b6500 --bad b6564 -- sh build.sh --- build/bin/llama-bench -m /models/m.gguf -p 0
      intertoken bisect --good v1.2 --rate 'speed: ([0-9.]+)' -- make -j8 --- ./decode
      intertoken bisect --good HEAD~20 -- sh -c 'make -s || exit 125; ./decode'
    """
    from tracer.errors import UsageError
    from tracer.experiments.bisect import MOST, Bisection, history
    from tracer.experiments.printed import form_of
    from tracer.experiments.programs import SEPARATOR, separated
    from tracer.files.output import empty_folder
    from tracer.reporting import bisect as report

    *build, command = separated(words)
    if len(build) > 1:
        raise UsageError(f"give one BUILD and one RUN: -- BUILD {SEPARATOR} RUN")
    form = None if expression is None else form_of(expression)
    commits = history(repository, good, bad)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="intertoken-bisect-")))
        kept = place / "kept" if folder is None else empty_folder(folder)
        bisection = Bisection(
            repository, commits, build[0] if build else (), command, kept.absolute(), place / "trees", form,
            not no_recorder, folder is not None, lambda line: click.echo(line, err=True),
        )  # fmt: skip
        bisection.run(most or MOST)
        facts = report.bisection_facts(bisection)
    click.echo(json.dumps(facts) if as_json else report.words(facts))
