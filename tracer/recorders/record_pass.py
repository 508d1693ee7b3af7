"""Records the passes of a command with the preloaded library, directly or through CUPTI."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer import formats
from tracer.errors import RecordError, TraceError, UsageError
from tracer.files.output import clear_away, hidden_folder
from tracer.formats import nsys_parquet, writer_of
from tracer.recorders.foreground import how_it_ended
from tracer.recorders.window import first_steps
from tracer.stored.run_directory import hand_on, is_part_of_run, run_of
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.model.trace import Trace
    from tracer.recorders.cupti_program import CuptiOutcome
    from tracer.recorders.window import Window


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
    from tracer.recorders import cupti_run, light_folder, light_program

    if left.absolute() not in light_folder.left_folders():
        raise RecordError(f"{left}: not a folder left by a light recorder of this user")
    with light_folder.taken(left):
        through_cupti = cupti_run.is_folder_of_ours(left)
        trace = cupti_run.read_folder(left) if through_cupti else light_program.read_folder(left)
        if trace is None:
            raise RecordError(f"{left}: no process made a call that the recorder captures")
        formats.write(trace, target, replace=force)
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


def _print_outcome(outcome: CuptiOutcome, code: int, target: Path) -> None:
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
    from tracer.formats import nsys_rep
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
        trace = nsys_rep.read(report)  # not whole: nsys reports contain the environment
        formats.write(trace, target, replace=force)
    _print_summary(target, len(trace), trace.notes)
    return code


def _print_summary(target: Path, events: int, notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {spelled(note)}", err=True)
    click.echo(f"{target}: {events} events", err=True)


@dataclass(frozen=True)
class Passes:
    """A command and how to record it.

    Attributes:
        command: program and arguments.
        target: of the recording, or of the run directory for several.
        window: the part of the run to record.
        steps: how many steps to keep; None for all.
        call_sites: whether to keep the stack of each call.
        force: whether to replace the target.
    """

    command: Sequence[str]
    target: Path
    window: Window
    steps: int | None
    call_sites: bool
    force: bool

    def record(self, level: str, target: Path, *, is_first_of_several: bool = False) -> int:
        """Record one pass; the first of several has its rate in run.json, to correct the others.

        Returns:
            the exit code, as returned by `foreground.run`.

        Raises:
            TraceError: the pass could not be recorded.
        """
        force = self.force and target == self.target
        if self.call_sites and level != "light":
            return record_with_stacks(self.command, level, target, force)

        def save(trace: Trace) -> None:
            trace = trace if self.steps is None else first_steps(trace, self.steps)
            if is_first_of_several:
                trace.metadata["run"] = run_of(trace)
            is_part = is_part_of_run if is_first_of_several else nsys_parquet.is_part
            formats.write(trace, target, replace=force, is_part=is_part)

        return record(self.command, level, target, self.window, save, call_sites=self.call_sites)

    def record_all(self, levels: Sequence[str]) -> int:
        """Record the command once per level into a run directory, the light pass first.

        Returns:
            the exit code of the last run of the command, as returned by `foreground.run`.

        Raises:
            UsageError: there is no light pass, or the target is a file.
            TraceError: a pass could not be recorded; earlier passes are kept.
        """
        if levels[0] != "light":
            chosen = ",".join(levels)
            raise UsageError(f"--passes {chosen}: several passes must include light, which corrects the others")
        if writer_of(self.target) is not nsys_parquet.write:
            raise UsageError(f"{self.target}: several passes need a directory, not a {self.target.suffix} file")
        code = self.record("light", self.target, is_first_of_several=True)
        for level in levels[1:]:
            if code or not self.target.exists():
                click.echo(f"intertoken: skipped the {level} pass because the previous run failed", err=True)
                break
            code = self.record(level, self.target / level)
            if (self.target / level).exists():
                hand_on(self.target, level)
        return code
