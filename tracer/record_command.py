"""`intertoken record`: run a command and record what CUDA does in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracer.errors import RecordError, TraceError
from tracer.foreground import how_it_ended, shell_code
from tracer.output import OR_FORCE, beside, clear_away
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.recorders.cupti_program import Told

Level = Literal["node", "graph"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", "target", required=True, metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--graph-trace", type=click.Choice(["node", "graph"]), default="node", show_default=True,
    help="CUDA graphs: every kernel, or one row per launch (disturbs less).",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace TRACE, once the new recording is complete.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def record(ctx: click.Context, target: Path, graph_trace: Level, force: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND and record its CUDA activity and NVTX ranges into TRACE.

    A Python program of this installation (`python SCRIPT`, `python -m MODULE`) is recorded in its process through
    CUPTI, its child processes are not; anything else is recorded through nsys.

    \b
    The exit code is the command's, 128 + N if signal N ended it, and 2 if it could not be recorded.
    TRACE appears whole or not at all. Ctrl-C, SIGTERM and SIGHUP reach the command, and what was
    recorded until it ends is kept, also when this process is killed (under nsys, which goes on then,
    it is lost). A Python program that is killed itself takes its records with it.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 --graph-trace graph -- ./llama-bench -m model.gguf
    """
    from tracer.formats import check_writable

    check_writable(target, replace=force, advice=OR_FORCE)
    program = python_program(command)
    reason = f"{command[0]} is no Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer.recorders import cupti_program

        told, code = cupti_program.record(program, graph_trace, target, replace=force)
        if not told.unavailable:
            _conclude(told, code, target)
            ctx.exit(shell_code(code))
        reason = told.unavailable
    ctx.exit(shell_code(_through_nsys(command, graph_trace, target, force, reason)))


def python_program(command: Sequence[str]) -> tuple[str, ...] | None:
    """What this interpreter would run: ("-m", module, ...) or (script, ...); None if the command is another program.

    Interpreter options other than -m make it another program, too.
    """
    found = shutil.which(command[0])
    if (
        found is None
        or not os.path.samefile(found, sys.executable)
        or Path(found).parent != Path(sys.executable).parent
    ):
        return None
    arguments = tuple(command[1:])
    if arguments[:1] == ("-m",):
        return arguments if len(arguments) > 1 else None
    return arguments if arguments and not arguments[0].startswith("-") else None


def _conclude(told: Told, code: int, target: Path) -> None:
    """Say what became of the recording.

    Raises:
        TraceError: it could not be written, or not begin.
    """
    if told.failed:
        raise TraceError(told.failed)
    if told.events is None:
        clear_away(target)  # what it may have been writing
        lost = "and took with it what was recorded in its memory"
        click.echo(f"intertoken: {target}: there is no recording: the program {how_it_ended(code)} {lost}", err=True)
        return
    if told.signal or code < 0:
        how = f"ended by {told.signal}" if told.signal else how_it_ended(code)
        click.echo(f"intertoken: the program {how}; what was recorded until then is kept", err=True)
    _tell(target, told.events, told.notes)


def _through_nsys(command: Sequence[str], graph_trace: Level, target: Path, force: bool, reason: str) -> int:
    """Record the command with nsys, if it is here.

    Returns:
        the exit code, as `foreground.run` gives it.

    Raises:
        RecordError: nsys is missing, or made no report.
    """
    from tracer.formats import write
    from tracer.recorders import nsys

    if not nsys.available():
        raise RecordError(f"{reason}; and nsys, which can record any command, is not on PATH (install Nsight Systems)")
    with beside(target) as folder:
        report = folder / nsys.REPORT
        code = nsys.run(command, graph_trace, report)
        if not report.exists() and code >= 0:
            raise RecordError(f"nsys made no report (exit code {code})")
        if not report.exists():
            click.echo(f"intertoken: {target}: there is no recording: nsys {how_it_ended(code)}", err=True)
            return code
        trace = nsys.read_report(report)  # not whole: nsys keeps the environment
        write(trace, target, replace=force)
    _tell(target, len(trace), trace.notes)
    return code


def _tell(target: Path, events: int, notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {spelled(note)}", err=True)
    click.echo(f"{target}: {events} events", err=True)
