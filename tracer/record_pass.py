"""Records one pass of a command with the preloaded library, directly or through CUPTI."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.errors import RecordError, TraceError
from tracer.foreground import how_it_ended
from tracer.output import clear_away, hidden_folder
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.recorders.cupti_program import Outcome
    from tracer.recorders.light_window import Window
    from tracer.trace import Trace


def python_program(command: Sequence[str]) -> tuple[str, ...] | None:
    """The Python program of a command: ("-m", module, ...) or (script, ...); None for anything else.

    A command of another interpreter, or with interpreter options other than -m, is not a Python program here.
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


def record(
    command: Sequence[str], level: str, target: Path, window: Window, save: Callable[[Trace], object], *,
    call_sites: bool = False,
) -> int:  # fmt: skip
    """Record one pass of the command; `save` writes the recording to the target.

    Args:
        command: program and arguments.
        level: "light", or "graph" or "node" to record through CUPTI.
        target: for messages.
        window: what of the run to record.
        save: writes the recording.
        call_sites: whether to keep the stack of each call; only a light pass can.

    Returns:
        the exit code, as returned by `foreground.run`.

    Raises:
        RecordError: the command cannot be started or recorded, or it succeeded and there was nothing to record.
        TraceError: the recording cannot be written; what was recorded is kept in the folder of the recorder.
    """
    from tracer.recorders import cupti_run, light_folder, light_program

    for left in light_folder.left_folders():
        click.echo(f"note: a killed recorder left a recording: {_advice(left)}", err=True)
    with light_folder.folder(large=level != "light") as rings:
        try:
            if level == "light":
                outcome = light_program.record(command, rings, window, call_sites=call_sites)
            else:
                outcome = cupti_run.record(command, level, rings, window)
            if outcome.trace is not None:
                save(outcome.trace)
        except BaseException:  # also Ctrl-C
            if light_folder.has_rings(rings):
                click.echo(f"intertoken: the recording is kept: {_advice(rings)}", err=True)
            raise
    if outcome.trace is None:
        if not outcome.code:
            raise RecordError(f"nothing was recorded: {outcome.why}")
        click.echo(
            f"intertoken: {target}: nothing was recorded: the program {how_it_ended(outcome.code)}; {outcome.why}",
            err=True,
        )
        return outcome.code
    if outcome.code < 0:
        click.echo(
            f"intertoken: the program {how_it_ended(outcome.code)}; everything recorded until then is kept", err=True
        )
    _print_summary(target, len(outcome.trace), outcome.trace.notes)
    return outcome.code


def _advice(rings: Path) -> str:
    return f"`intertoken record -o TRACE --recover {rings}`, or remove this folder"


def recover(left: Path, target: Path, force: bool) -> None:
    """Write the recording that a killed recorder left.

    Raises:
        RecordError: the folder holds no recording, or its recorder still runs.
    """
    from tracer.formats import write
    from tracer.recorders import cupti_run, light_folder, light_program

    if left.absolute() not in light_folder.left_folders():
        raise RecordError(f"{left}: not a folder left by a light recorder of this user")
    with light_folder.taken(left):
        through_cupti = cupti_run.is_folder_of_ours(left)
        trace = cupti_run.read_folder(left) if through_cupti else light_program.read_folder(left)
        if trace is None:
            raise RecordError(f"{left}: no process made a call that the recorder captures")
        write(trace, target, replace=force)
    _print_summary(target, len(trace), trace.notes)


def record_with_stacks(command: Sequence[str], level: str, target: Path, force: bool) -> int:
    """Record the graph or node pass of the command with the stack of each call: its Python stacks if it is a Python
    program of this installation, without its children; otherwise nsys's backtraces.

    Returns, Raises: see `record`.
    """
    program = python_program(command)
    reason = f"{command[0]} is not a Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer.recorders import cupti_program

        outcome, code = cupti_program.record(program, level, target, replace=force)
        if not outcome.unavailable:
            _print_outcome(outcome, code, target)
            return code
        reason = outcome.unavailable
    return _through_nsys(command, level, target, force, reason)


def _print_outcome(outcome: Outcome, code: int, target: Path) -> None:
    """Print the outcome of a recording.

    Raises:
        TraceError: the recording could not be started or written.
    """
    if outcome.failed:
        raise TraceError(outcome.failed)
    if outcome.events is None:
        clear_away(target)  # it may have been writing
        lost = "and the recording in its memory was lost"
        click.echo(f"intertoken: {target}: nothing was recorded: the program {how_it_ended(code)} {lost}", err=True)
        return
    if outcome.signal or code < 0:
        how = f"ended by {outcome.signal}" if outcome.signal else how_it_ended(code)
        click.echo(f"intertoken: the program {how}; everything recorded until then is kept", err=True)
    _print_summary(target, outcome.events, outcome.notes)


def _through_nsys(command: Sequence[str], graph_trace: str, target: Path, force: bool, reason: str) -> int:
    """Record the command with nsys, if installed.

    Returns:
        the exit code, as returned by `foreground.run`.

    Raises:
        RecordError: nsys is missing, or wrote no report.
    """
    from tracer.formats import write
    from tracer.recorders import nsys

    if not nsys.available():
        needed = "nsys, which records the call sites of other programs, is not on PATH (install Nsight Systems)"
        raise RecordError(f"{reason}; and {needed}")
    with hidden_folder(target) as folder:
        report = folder / nsys.REPORT
        code = nsys.run(command, graph_trace, report, call_sites=True)
        if not report.exists() and code >= 0:
            raise RecordError(f"nsys wrote no report (exit code {code})")
        if not report.exists():
            click.echo(f"intertoken: {target}: nothing was recorded: nsys {how_it_ended(code)}", err=True)
            return code
        trace = nsys.read_report(report)  # not whole: nsys reports contain the environment
        write(trace, target, replace=force)
    _print_summary(target, len(trace), trace.notes)
    return code


def _print_summary(target: Path, events: int, notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {spelled(note)}", err=True)
    click.echo(f"{target}: {events} events", err=True)
