"""`intertoken record`: run a command and record what CUDA does in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracer.errors import RecordError, TraceError, UsageError
from tracer.foreground import how_it_ended, shell_code
from tracer.output import OR_FORCE, beside, clear_away
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.recorders.cupti_program import Told
    from tracer.recorders.light_window import Window

Traced = Literal["node", "graph"]
Level = Literal["light", "node", "graph"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", "target", required=True, metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--passes",
    "level",
    type=click.Choice(["light", "graph", "node"]),
    help="How closely: light (no profiler: the true gap, idle time, syncs; the default), or a profiler with one row "
    "per CUDA graph, or with every kernel.",
)
@click.option("--graph-trace", type=click.Choice(["node", "graph"]), help="The same as --passes of that name.")
@click.option(
    "--after", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Record from then on (light only)."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Record for so long (light only)."
)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Keep the first N steps of what is recorded (light only)."
)
@click.option(
    "--profiler-window", is_flag=True,
    help="Record what lies between the program's own calls of cudaProfilerStart and cudaProfilerStop (light only).",
)  # fmt: skip
@click.option(
    "--recover", "left", metavar="FOLDER", type=click.Path(path_type=Path),
    help="Run nothing: make TRACE of what a light recorder that was killed left in FOLDER.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace TRACE, once the new recording is complete.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def record(
    ctx: click.Context, target: Path, level: Level | None, graph_trace: Traced | None, after: float,
    seconds: float | None, steps: int | None, profiler_window: bool, left: Path | None, force: bool,
    command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run COMMAND and record its CUDA activity into TRACE.

    A light recording is of any program and all its children, without a profiler: a library that is preloaded stamps
    their calls of the CUDA driver, and when each CUDA graph and each run of launches begins and ends on the device.
    Profilers show every kernel, but stretch what lies between: with --passes graph or node a Python program of this
    installation (`python SCRIPT`, `python -m MODULE`) is recorded in its process through CUPTI, its child processes are
    not; anything else is recorded through nsys.

    \b
    The exit code is the command's, 128 + N if signal N ended it, and 2 if it could not be recorded.
    TRACE appears whole or not at all. Ctrl-C, SIGTERM and SIGHUP reach the command, and what was
    recorded until it ends is kept. When this process is killed, or TRACE cannot be written, a light
    recording stays in memory, and the next one says where: --recover. Under a profiler the command ends,
    and what was recorded is kept, too (under nsys, which goes on then, it is lost). A Python program that
    is killed itself takes what CUPTI recorded with it.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 -- ./llama-bench -m model.gguf
      intertoken record -o run2 --passes graph -- ./llama-bench -m model.gguf
      intertoken record -o run3 --recover /dev/shm/intertoken-light-k3v9x2
    """
    from tracer.formats import check_writable
    from tracer.recorders.light_window import Window

    check_writable(target, replace=force, advice=OR_FORCE)
    if (left is None) == (not command):
        raise UsageError("give a COMMAND to run, after --, or --recover FOLDER")
    if left is not None:
        _recover(left, target, force)
        return
    if level and graph_trace and level != graph_trace:
        raise UsageError(f"--passes {level} and --graph-trace {graph_trace} contradict each other")
    traced = graph_trace or level
    if traced is None or traced == "light":
        if profiler_window and (after or seconds is not None):
            raise UsageError("--profiler-window is the program's own; --after and --seconds are another")
        ctx.exit(shell_code(_light(command, target, force, Window(after, seconds, profiler_window), steps)))
    if after or seconds is not None or steps is not None or profiler_window:
        raise UsageError(f"--after, --seconds, --steps and --profiler-window are not for --passes {traced}")
    program = python_program(command)
    reason = f"{command[0]} is no Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer.recorders import cupti_program

        told, code = cupti_program.record(program, traced, target, replace=force)
        if not told.unavailable:
            _conclude(told, code, target)
            ctx.exit(shell_code(code))
        reason = told.unavailable
    ctx.exit(shell_code(_through_nsys(command, traced, target, force, reason)))


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


def _light(command: Sequence[str], target: Path, force: bool, window: Window, steps: int | None) -> int:
    """Record the command without a profiler.

    Returns:
        the exit code, as `foreground.run` gives it.

    Raises:
        RecordError: it cannot be started or recorded, or made no call that is recorded and ended well.
        TraceError: it cannot be written; what was recorded stays in memory.
    """
    from tracer.formats import write
    from tracer.recorders import light_folder, light_program
    from tracer.recorders.light_cut import first_steps

    for left in light_folder.left_folders():
        click.echo(f"note: a recorder that was killed left a recording: {_advice(left)}", err=True)
    with light_folder.folder() as rings:
        try:
            told = light_program.record(command, rings, window)
            if told.trace is not None:
                write(told.trace if steps is None else first_steps(told.trace, steps), target, replace=force)
        except BaseException:  # also Ctrl-C
            if light_folder.has_rings(rings):
                click.echo(f"intertoken: what was recorded is kept in memory: {_advice(rings)}", err=True)
            raise
    if told.trace is None:
        if not told.code:
            raise RecordError(f"nothing was recorded: {told.why}")
        click.echo(
            f"intertoken: {target}: there is no recording: the program {how_it_ended(told.code)}; {told.why}", err=True
        )
        return told.code
    if told.code < 0:
        click.echo(f"intertoken: the program {how_it_ended(told.code)}; what was recorded until then is kept", err=True)
    _tell(target, len(told.trace), told.trace.notes)
    return told.code


def _advice(rings: Path) -> str:
    return f"`intertoken record -o TRACE --recover {rings}`, or remove that folder"


def _recover(left: Path, target: Path, force: bool) -> None:
    """Write what a recorder left, as far as its programs came.

    Raises:
        RecordError: there is nothing, or its recorder lives.
    """
    from tracer.formats import write
    from tracer.recorders import light_folder, light_program

    if left.absolute() not in light_folder.left_folders():
        raise RecordError(f"{left}: no folder that a recorder of yours left, or it goes on recording")
    with light_folder.taken(left):
        trace = light_program.read_folder(left)
        if trace is None:
            raise RecordError(f"{left}: no process made a call that is recorded")
        write(trace, target, replace=force)
    _tell(target, len(trace), trace.notes)


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


def _through_nsys(command: Sequence[str], graph_trace: Traced, target: Path, force: bool, reason: str) -> int:
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
