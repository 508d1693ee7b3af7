"""Options, reading and output shared by the commands that read recordings.

Each command prints a table, or with --json one object whose `schema` key names its form; --table writes the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from tracer.analysis.bounds import RATES
from tracer.analysis.bounds import Bounds as Bounds
from tracer.engines.engine import PHASES
from tracer.errors import naming
from tracer.files.output import check_output, write_output
from tracer.notes import AT_ONCE, brief, by_weight, whole
from tracer.reporting import console as report
from tracer.text import without_formulas

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.recording import Recording
    from tracer.model.trace import Trace


Command = TypeVar("Command", bound=Callable[..., Any])

_VERBOSE: Final = "intertoken.verbose"
"""In the context of a command that was given -v."""


def parse_slice(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """Parse `A:B` as two ints, either of which may be omitted."""
    first, colon, last = (value or ":").partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        colon = ""
    if not colon:
        raise click.BadParameter(f"{value!r} is not A:B (such as 5:20, :10 or -8:)")
    return bounds


def trace_options(command: Command) -> Command:
    """Add TRACE, the options that select steps, and --json, which every analysis takes."""

    @click.argument("path", metavar="TRACE", type=click.Path(path_type=Path))
    @click.option("--range", "within", metavar="TEXT", help="Only inside NVTX ranges with this text (or regex).")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @verbose_option
    @step_options
    @wraps(command)
    def named(path: Path, **options: Any) -> None:
        with naming(path):  # every error that the recording causes
            command(path=path, **options)

    return cast(Command, named)


def step_options(command: Command) -> Command:
    """Add --steps, --phase, --pattern, --process, --thread and --device, which the command gets as `bounds`."""

    @click.option(
        "--pattern", metavar="REGEX",
        help="What starts a step: NVTX ranges whose text matches, else API calls or kernels whose name matches.",
    )  # fmt: skip
    @click.option(
        "--phase", type=click.Choice([*PHASES, "all"]), metavar="PHASE",
        help=f"Only steps of this phase: {', '.join(PHASES)} or all. [default: decode, or all if none decodes]",
    )  # fmt: skip
    @click.option("--steps", "part", callback=parse_slice, metavar="A:B", help="Only steps A to B-1.")
    @click.option("--process", metavar="PID|NAME", help="Only steps launched by this process.")
    @click.option("--thread", metavar="TID|NAME", help="Only steps launched by this thread.")
    @click.option("--device", type=int, metavar="N", help="Only steps that compute on this device, and only there.")
    @wraps(command)
    def bounded(
        part: tuple[int | None, int | None], phase: str | None, pattern: str | None, process: str | None,
        thread: str | None, device: int | None, **options: Any,
    ) -> None:  # fmt: skip
        command(bounds=Bounds(*part, phase, pattern, process, thread, device), **options)

    return cast(Command, bounded)


def no_nan(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Reject NaN, which `click.FloatRange` accepts."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number")
    return value


untraced_option = click.option(
    "--untraced-tokens-per-s", "--untraced-steps-per-s", "untraced_steps_per_s", type=click.FloatRange(*RATES),
    callback=no_nan, metavar="X",
    help="Steps per second of the engine's own benchmark, without a profiler: corrects idle time and gap. This equals "
    "the tokens/s of one sequence: divide the tokens/s of a batch by the batch size.",
)  # fmt: skip


def load(
    path: Path, within: str | None, bounds: Bounds, *rates: float | None, name: str | None = None,
    python_functions: bool = False,
) -> Recording:  # fmt: skip
    """Read a recording and choose its steps: inside the NVTX range `within`, in these bounds.

    `rates`: steps per second without a profiler, one per repeat, if the user gives them. `name`: in messages, instead
    of the file name. `python_functions`: keep Python functions that the format leaves out by default.
    """
    recording = recorded(path, within, bounds, *rates, name=name, python_functions=python_functions)
    recording.steps  # noqa: B018 - a recording without them is refused here
    return recording


def recorded(
    path: Path, within: str | None, bounds: Bounds, *rates: float | None, name: str | None = None,
    python_functions: bool = False,
) -> Recording:  # fmt: skip
    """The same for a recording that may have no steps."""
    from tracer.analysis.recording import Recording

    trace, given = read(path, python_functions=python_functions), tuple(rate for rate in rates if rate is not None)
    return Recording(trace, name or path.name, place=str(path), within=within, bounds=bounds, rates=given)


def read(path: Path, *, python_functions: bool = False) -> Trace:
    """Read the trace; see `load`."""
    from tracer import stored
    from tracer.stored import set_options

    set_options()
    with report.reading(path):
        return stored.read(path, python_functions=python_functions)


def _whole_notes(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_VERBOSE] = True


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_whole_notes, help="Show all notes, and all of each."
)
"""-v, on which `say` and `emit` print everything that the notes tell."""


def most_at_once() -> int | None:
    """The number of notes to show; None for all, on -v."""
    context = click.get_current_context(silent=True)
    return None if context is not None and _VERBOSE in context.meta else AT_ONCE


def in_words(notes: Iterable[str]) -> list[str]:
    """Notes as they are printed, each once: those first that change a figure; a sentence each, or with -v all of it."""
    told = whole if most_at_once() is None else lambda note: f"{brief(note)}."
    return list(dict.fromkeys(told(note) for note in by_weight(notes)))


def say(notes: Iterable[str], how: str = "-v") -> None:
    """Print the first notes on stderr, and how many more there are and `how` to see them; with -v all."""
    texts, most = in_words(notes), most_at_once()
    for text in texts[:most]:
        click.echo(f"note: {text}", err=True)
    if most is not None and (more := len(texts[most:])):
        click.echo(f"note: {more} more {'note' if more == 1 else 'notes'}: {how}", err=True)


def emit(as_json: bool, facts: dict[str, Any], show: Callable[[dict[str, Any]], None], notes: list[str]) -> None:
    """Print the facts as JSON, with the notes (doubts, partial results), or through `show`; then notes on stderr."""
    if as_json:
        told = {"notes": in_words(notes)} if notes else {}
        click.echo(json.dumps(facts | told).replace("\x7f", "\\u007f"))
    else:
        show(facts)
    say(notes)


Save = Callable[["pd.DataFrame"], None]
"""Saves the table of a command."""


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    with path.open("wb") as file:  # Arrow cannot open paths that are not UTF-8
        table.to_parquet(file, index=False)


_WRITERS: Final[dict[str, Callable[[pd.DataFrame, Path], None]]] = {
    ".csv": lambda table, path: without_formulas(table).to_csv(path, index=False),
    ".parquet": _write_parquet,
}


def table_option(holds: str) -> Callable[[Command], Command]:
    """Add --table and --force to a command, which gets `save` to call with its table; `holds` describes the table."""

    def decorate(command: Command) -> Command:
        @click.option("--table", metavar="FILE", type=click.Path(path_type=Path),
                      help=f"Also write a table (.csv or .parquet): {holds}.")  # fmt: skip
        @click.option("--force", is_flag=True, help="Replace the table's FILE.")
        @wraps(command)
        def saving(*args: Any, table: Path | None, force: bool, **options: Any) -> None:
            command(*args, save=saver(table, force), **options)

        return cast(Command, saving)

    return decorate


def saver(path: Path | None, replace: bool) -> Save:
    """A function that writes a table to the path, which is checked immediately; without a path it does nothing."""
    if path is None:
        return lambda table: None
    check_output(path, "a table", _WRITERS, replace=replace)
    write = _WRITERS[path.suffix.lower()]
    return lambda table: write_output(path, partial(write, table), replace=replace)
