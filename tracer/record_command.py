"""`intertoken record`: run a command and record what CUDA does in it."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracer.errors import RecordError
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.recorders.cupti import CuptiRecorder
    from tracer.trace import Trace

Level = Literal["node", "graph"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", "target", required=True, metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--graph-trace", type=click.Choice(["node", "graph"]), default="node", show_default=True,
    help="CUDA graphs: every kernel, or one row per launch (disturbs less).",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def record(ctx: click.Context, target: Path, graph_trace: Level, command: tuple[str, ...]) -> None:
    """Run COMMAND and record its CUDA activity and NVTX ranges into TRACE.

    A Python program of this installation (`python SCRIPT`, `python -m MODULE`) is recorded in process through CUPTI,
    its child processes are not; anything else is recorded through nsys. The exit code is the command's.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 --graph-trace graph -- ./llama-bench -m model.gguf
    """
    from tracer.formats import check_writable
    from tracer.recorders import nsys

    check_writable(target)
    program = python_program(command)
    reason = f"{command[0]} is no Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer.recorders.cupti import CuptiRecorder

        try:
            recorder = CuptiRecorder(graph_trace)
        except RecordError as problem:
            reason = str(problem)
        else:
            run_recorded(program, recorder, target)
            return
    if not nsys.available():
        raise RecordError(f"{reason}; and nsys, which can record any command, is not on PATH (install Nsight Systems)")
    trace, code = nsys.profile(command, graph_trace)
    _save(trace, target)
    ctx.exit(code)


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


def run_recorded(program: Sequence[str], recorder: CuptiRecorder, target: Path) -> None:
    """Run a Python program in this process as `python` would; the trace is written however it ends."""

    recorder.start()
    try:
        run_python(program)
    finally:
        recorder.stop()
        _save(recorder.trace, target)


def run_python(program: Sequence[str]) -> None:
    """Run ("-m", module, ...) or (script, ...) as the main program."""
    if program[0] == "-m":
        sys.argv = list(program[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def _save(trace: Trace, target: Path) -> None:
    from tracer.formats import write

    write(trace, target)
    for note in trace.notes:
        click.echo(f"note: {spelled(note)}", err=True)
    click.echo(f"{target}: {len(trace)} events", err=True)
