"""`intertoken record`: run a command and record what CUDA does in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from tracer.errors import RecordError, TraceError, UsageError
from tracer.foreground import how_it_ended, shell_code
from tracer.output import OR_FORCE, beside, clear_away
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.recorders.cupti_program import Told
    from tracer.trace import Trace

Traced = Literal["graph", "node"]
_Window = tuple[float, float | None]
LEVELS: Final = ("light", "graph", "node")
"""In the order in which several are recorded."""


def _levels(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Comma-separated levels, in the order of `LEVELS`."""
    names = {name.strip() for name in value.split(",")}
    if unknown := sorted(names - {*LEVELS}):
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(LEVELS)}")
    return tuple(level for level in LEVELS if level in names)


def _completed(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """What the last of the comma-separated levels can become."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{level}" for level in LEVELS if level.startswith(last) and level not in before.split(",")]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", "target", required=True, metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--passes", "levels", default="light", show_default=True, metavar="LEVEL,...", callback=_levels,
    shell_complete=_completed,
    help="How closely: light (no profiler: the true gap, idle time, syncs), graph (a profiler, one row per CUDA graph) "
    "or node (a profiler, every kernel). Of several, each runs COMMAND once.",
)  # fmt: skip
@click.option("--graph-trace", type=click.Choice(["node", "graph"]), help="The same as --passes of that name.")
@click.option(
    "--after", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Record from then on (light only)."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Record for so long (light only)."
)
@click.option("--force", is_flag=True, help="Replace TRACE, once the new recording is complete.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def record(
    ctx: click.Context, target: Path, levels: tuple[str, ...], graph_trace: Traced | None, after: float,
    seconds: float | None, force: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run COMMAND and record its CUDA activity into TRACE.

    A light recording is of any program and all its children, without a profiler: a library that is preloaded stamps
    their calls of the CUDA driver, and when each CUDA graph and each run of launches begins and ends on the device.
    Profilers show every kernel, but stretch what lies between: with --passes graph or node a Python program of this
    installation (`python SCRIPT`, `python -m MODULE`) is recorded in its process through CUPTI, its child processes are
    not; anything else is recorded through nsys. Of several passes TRACE is a directory: the light recording, whose rate
    corrects the others, and graph/ and node/ in it.

    \b
    The exit code is the command's, 128 + N if signal N ended it, and 2 if it could not be recorded.
    TRACE appears whole or not at all. Ctrl-C, SIGTERM and SIGHUP reach the command, and what was
    recorded until it ends is kept; under a profiler also when this process is killed (under nsys, which
    goes on then, it is lost). A Python program that is killed itself takes what CUPTI recorded with it.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 -- ./llama-bench -m model.gguf
      intertoken record -o run2 --passes light,graph,node -- ./llama-bench -m model.gguf
    """
    from tracer.formats import check_writable, write
    from tracer.run_parts import is_part_of_run

    if graph_trace and levels not in (("light",), (graph_trace,)):
        raise UsageError(f"--passes {','.join(levels)} and --graph-trace {graph_trace} contradict each other")
    chosen = (graph_trace,) if graph_trace else levels
    if (after or seconds is not None) and "light" not in chosen:
        raise UsageError(f"--after and --seconds are for a light recording, not for --passes {','.join(chosen)}")
    window = (after, seconds)
    if len(chosen) > 1:
        check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part_of_run)
        ctx.exit(shell_code(_several(command, chosen, target, force, window)))
    check_writable(target, replace=force, advice=OR_FORCE)
    if chosen == ("light",):
        ctx.exit(shell_code(_light(command, target, lambda trace: write(trace, target, replace=force), window)))
    ctx.exit(shell_code(_traced(command, chosen[0], target, force)))


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


def _several(command: Sequence[str], levels: Sequence[str], target: Path, force: bool, window: _Window) -> int:
    """Record the command once per level into a run directory, the light pass first.

    Returns:
        the exit code of the last run of the command, as `foreground.run` gives it.

    Raises:
        UsageError: no light pass, or the target is a file.
        TraceError: a pass could not be recorded; those before it are kept.
    """
    from tracer.formats import nsys_parquet, writer_of
    from tracer.output import appearing
    from tracer.run_passes import hand_on, run_of

    if levels[0] != "light":
        raise UsageError(f"--passes {','.join(levels)}: several are set beside the light one, which is not among them")
    if writer_of(target) is not nsys_parquet.write:
        raise UsageError(f"{target}: several passes are a directory, not a {target.suffix} file")

    def save(trace: Trace) -> None:
        trace.metadata["run"] = run_of(trace)
        with appearing(target, replace=force) as new:
            nsys_parquet.write(trace, new)

    code = _light(command, target, save, window)
    for level in levels[1:]:
        if code or not target.exists():
            click.echo(f"intertoken: the {level} pass is left out, since the run before it failed", err=True)
            break
        code = _traced(command, level, target / level, force=False)
        if (target / level).exists():
            hand_on(target, level)
    return code


def _traced(command: Sequence[str], level: str, target: Path, force: bool) -> int:
    """Record the command under a profiler: CUPTI in its process where that can be, else nsys.

    Returns, Raises:
        as `_light`.
    """
    program = python_program(command)
    reason = f"{command[0]} is no Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer.recorders import cupti_program

        told, code = cupti_program.record(program, level, target, replace=force)
        if not told.unavailable:
            _conclude(told, code, target)
            return code
        reason = told.unavailable
    return _through_nsys(command, level, target, force, reason)


def _light(command: Sequence[str], target: Path, save: Callable[[Trace], object], window: _Window) -> int:
    """Record the command without a profiler; `save` gets the recording.

    Returns:
        the exit code, as `foreground.run` gives it.

    Raises:
        RecordError: it cannot be started or recorded, or made no call that is recorded and ended well.
    """
    from tracer.recorders import light_program
    from tracer.recorders.light_window import Window

    try:
        told = light_program.record(command, Window(*window))
    except OSError as problem:
        raise RecordError(f"{command[0]} cannot be run: {problem.strerror or problem}") from problem
    if told.trace is None:
        if not told.code:
            raise RecordError(f"nothing was recorded: {told.why}")
        click.echo(
            f"intertoken: {target}: there is no recording: the program {how_it_ended(told.code)}; {told.why}", err=True
        )
        return told.code
    save(told.trace)
    if told.code < 0:
        click.echo(f"intertoken: the program {how_it_ended(told.code)}; what was recorded until then is kept", err=True)
    _tell(target, len(told.trace), told.trace.notes)
    return told.code


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


def _through_nsys(command: Sequence[str], graph_trace: str, target: Path, force: bool, reason: str) -> int:
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
