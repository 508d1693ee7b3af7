"""Run a command and record its CUDA activity.

This is done with the preloaded library, directly or through CUPTI, or with nsys.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from tracer.errors import EmptyTraceError, RecordError, TraceError, UsageError
from tracer.files.output import OR_FORCE, clear_away, hidden_folder

if TYPE_CHECKING:
    from tracer.model.trace import Trace
    from tracer.record_python import CuptiOutcome
    from tracer.recorders.window import Window

Traced = Literal["graph", "node"]
LEVELS: Final = ("light", "graph", "node")
"""Recorded in this order if several are chosen."""


def _levels(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse comma-separated levels, in the order of `LEVELS`."""
    names = {name.strip() for name in value.split(",")}
    if unknown := sorted(names - {*LEVELS}):
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(LEVELS)}")
    return tuple(level for level in LEVELS if level in names)


def _completed(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The completions of the last of the comma-separated levels."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{level}" for level in LEVELS if level.startswith(last) and level not in before.split(",")]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", "target", required=True, metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--passes", "levels", default="light", show_default=True, metavar="LEVEL,...", callback=_levels,
    shell_complete=_completed,
    help="Level of detail: light (no profiler: the true gap, idle time, syncs), graph (CUPTI, one row per CUDA "
    "graph) or node (CUPTI, every kernel). Each level runs COMMAND once.",
)  # fmt: skip
@click.option("--graph-trace", type=click.Choice(["node", "graph"]), help="Same as --passes with that level.")
@click.option("--after", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Start recording then.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="How long to record.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Keep only the first N recorded steps.")
@click.option(
    "--profiler-window", is_flag=True,
    help="Record between the program's own calls of cudaProfilerStart and cudaProfilerStop.",
)  # fmt: skip
@click.option(
    "--call-sites", is_flag=True,
    help="Also record where in the program each CUDA call is made: the stack of each call, kept once. Adds some "
    "microseconds to every call. With graph or node: Python stacks of a Python program, without its children; "
    "otherwise nsys's backtraces.",
)  # fmt: skip
@click.option(
    "--recover", "left", metavar="FOLDER", type=click.Path(path_type=Path),
    help="Do not run a command: write TRACE from what a killed light recorder left in FOLDER.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace TRACE once the new recording is complete.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ...")
@click.pass_context
def record(
    ctx: click.Context, target: Path, levels: tuple[str, ...], graph_trace: Traced | None, after: float,
    seconds: float | None, steps: int | None, profiler_window: bool, call_sites: bool, left: Path | None,
    force: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run COMMAND and record its CUDA activity into TRACE.

    This works for any program and all its children, without nsys. A light recording uses no profiler: a preloaded
    library timestamps the CUDA driver calls, and the start and end of each CUDA graph and each run of launches on the
    device. With --passes graph or node the same library has CUPTI record inside each process, which shows every
    kernel but lengthens the time between kernels.

    \b
    The exit code is the command's, 128 + N if signal N ended it, and 2 if it could not be recorded.
    TRACE appears complete or not at all. Ctrl-C, SIGTERM and SIGHUP are passed to the command, and
    everything recorded until it ends is kept. If this process is killed, or TRACE cannot be written, what
    was recorded stays in a folder, and the next recording prints its location for --recover.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 -- ./llama-bench -m model.gguf
      intertoken record -o run2 --passes light,graph,node -- ./llama-bench -m model.gguf
      intertoken record -o run3 --recover /dev/shm/intertoken-light-k3v9x2
    """
    from tracer.formats import check_writable, nsys_parquet
    from tracer.model.fits import fits_of
    from tracer.recorders.foreground import shell_code
    from tracer.recorders.window import Window
    from tracer.stored import is_part_of_run

    chosen = (graph_trace,) if graph_trace else levels
    is_part = is_part_of_run if len(levels) > 1 else nsys_parquet.is_part
    check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part)
    if (left is None) == (not command):
        raise UsageError("give a COMMAND to run, after --, or --recover FOLDER")
    fits_of("")  # a bad INTERTOKEN_FITS is refused before the command runs
    if left is not None:
        _recover(left, target, force)
        return
    if graph_trace and levels not in (("light",), (graph_trace,)):
        raise UsageError(f"--passes {','.join(levels)} contradicts --graph-trace {graph_trace}; give only one of them")
    if profiler_window and (after or seconds is not None):
        raise UsageError("--profiler-window cannot be combined with --after or --seconds")
    window = Window(after, seconds, profiler_window)
    if call_sites and chosen != ("light",) and (steps is not None or not window.is_all):
        raise UsageError("--call-sites with --passes graph or node records the whole run, without a window or --steps")
    passes = Passes(command, target, window, steps, call_sites, force)
    ctx.exit(shell_code(passes.record_all(chosen) if len(chosen) > 1 else passes.record(chosen[0], target)))


def python_program(command: Sequence[str]) -> tuple[str, ...] | None:
    """The Python program of a command: ("-m", module, ...) or (script, ...); None for anything else.

    A command of another interpreter, or with interpreter options other than -m, is not a Python program here.
    """
    program = shutil.which(command[0])
    here = Path(sys.executable)
    if program is None or not os.path.samefile(program, here) or Path(program).parent != here.parent:
        return None
    arguments = tuple(command[1:])
    if arguments[:1] == ("-m",):
        return arguments if len(arguments) > 1 else None
    return arguments if arguments and not arguments[0].startswith("-") else None


def _record_pass(
    command: Sequence[str], level: str, target: Path, window: Window, save: Callable[[Trace], object], *,
    call_sites: bool = False,
) -> int:  # fmt: skip
    """Record one pass of the command, directly ("light") or through CUPTI; `save` writes the recording to the target.
    Only a light pass can keep the stack of each call.

    Returns:
        the exit code, as returned by `foreground.run`.

    Raises:
        RecordError: the command cannot be started or recorded, or it succeeded and there was nothing to record.
        TraceError: the recording cannot be written; what was recorded is kept in the folder of the recorder.
    """
    from tracer.recorders import cupti_run, light, light_ring
    from tracer.recorders.foreground import how_it_ended

    for left in light_ring.left_folders():
        click.echo(f"note: a killed recorder left a recording: {_advice(left)}", err=True)
    with light_ring.folder(large=level != "light") as rings:
        try:
            if level == "light":
                outcome = light.record(command, rings, window, call_sites=call_sites)
            else:
                outcome = cupti_run.record(command, level, rings, window)
            if outcome.trace is not None:
                save(outcome.trace)
        except BaseException:  # also Ctrl-C
            if light_ring.has_rings(rings):
                click.echo(f"intertoken: the recording is kept: {_advice(rings)}", err=True)
            raise
    ended = f"the program {how_it_ended(outcome.code)}"
    if level == "node" and outcome.code == -signal.SIGSEGV:
        ended += " (CUPTI at node level may cause this where graphs have conditional nodes: --passes light counts them)"
    if outcome.trace is None:
        if not outcome.code:
            raise RecordError(f"nothing was recorded: {outcome.why}")
        click.echo(f"intertoken: {target}: nothing was recorded: {ended}; {outcome.why}", err=True)
        return outcome.code
    if outcome.code < 0:
        click.echo(f"intertoken: {ended}; everything recorded until then is kept", err=True)
    _print_summary(target, len(outcome.trace), outcome.trace.notes)
    return outcome.code


def _advice(rings: Path) -> str:
    return f"`intertoken record -o TRACE --recover {rings}`, or remove this folder"


def _recover(left: Path, target: Path, force: bool) -> None:
    """Write the recording that a killed recorder left. Raises RecordError if the folder holds none, or its recorder
    still runs."""
    from tracer.recorders import cupti_run, light, light_ring
    from tracer.reporting.exports import write

    if left.absolute() not in light_ring.left_folders():
        raise RecordError(f"{left}: not a folder left by a light recorder of this user")
    with light_ring.taken(left):
        through_cupti = cupti_run.is_folder_of_ours(left)
        trace = cupti_run.read_folder(left) if through_cupti else light.read_folder(left)
        if trace is None:
            raise RecordError(f"{left}: no process made a call that the recorder captures")
        write(trace, target, replace=force)
    _print_summary(target, len(trace), trace.notes)


def _record_with_stacks(command: Sequence[str], level: str, target: Path, force: bool) -> int:
    """Record the graph or node pass of the command with the stack of each call: its Python stacks if it is a Python
    program of this installation, without its children; otherwise nsys's backtraces. Returns and raises as
    `_record_pass`."""
    program = python_program(command)
    reason = f"{command[0]} is not a Python program of this installation ({sys.executable})"
    if program is not None:
        from tracer import record_python

        outcome, code = record_python.record(program, level, target, replace=force)
        if not outcome.unavailable:
            _print_outcome(outcome, code, target)
            return code
        reason = outcome.unavailable
    return _through_nsys(command, level, target, force, reason)


def _print_outcome(outcome: CuptiOutcome, code: int, target: Path) -> None:
    """Print the outcome of a recording. Raises TraceError if it could not be started or written."""
    from tracer.recorders.foreground import how_it_ended

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
    """Record the command with nsys; returns as `foreground.run`. Raises RecordError if nsys is missing, or wrote no
    report."""
    from tracer.formats import nsys_sqlite
    from tracer.recorders.foreground import NSYS_REPORT, has_nsys, how_it_ended, run_under_nsys
    from tracer.reporting.exports import write

    if not has_nsys():
        needed = "nsys, which records the call sites of other programs, is not on PATH (install Nsight Systems)"
        raise RecordError(f"{reason}; and {needed}")
    with hidden_folder(target) as folder:
        report = folder / NSYS_REPORT
        code = run_under_nsys(command, graph_trace, report, call_sites=True)
        if not report.exists() and code >= 0:
            raise RecordError(f"nsys wrote no report (exit code {code})")
        if not report.exists():
            click.echo(f"intertoken: {target}: nothing was recorded: nsys {how_it_ended(code)}", err=True)
            return code
        trace = nsys_sqlite.read_report(report)  # not whole: nsys reports contain the environment
        write(trace, target, replace=force)
    _print_summary(target, len(trace), trace.notes)
    return code


def _print_summary(target: Path, events: int, notes: Sequence[str]) -> None:
    from tracer.command_options import say

    say(notes, f"intertoken info {target} -v")
    click.echo(f"{target}: {events} events", err=True)


@dataclass(frozen=True)
class Passes:
    """A command and how to record it: to which target (a run directory for several passes), which window of the run,
    how many steps (None for all), whether with the stack of each call, and whether the target is replaced."""

    command: Sequence[str]
    target: Path
    window: Window
    steps: int | None
    call_sites: bool
    force: bool

    def record(self, level: str, target: Path, *, is_first_of_several: bool = False) -> int:
        """Record one pass; the first of several has its rate in run.json, to correct the others. Returns as
        `foreground.run`. Raises TraceError if the pass could not be recorded."""
        from tracer.formats import nsys_parquet
        from tracer.reporting.exports import write
        from tracer.stored import is_part_of_run, run_of

        force = self.force and target == self.target
        if self.call_sites and level != "light":
            return _record_with_stacks(self.command, level, target, force)

        def save(trace: Trace) -> None:
            trace = trace if self.steps is None else _first_steps(trace, self.steps)
            if is_first_of_several:
                trace.metadata["run"] = run_of(trace)
            is_part = is_part_of_run if is_first_of_several else nsys_parquet.is_part
            write(trace, target, replace=force, is_part=is_part)

        return _record_pass(self.command, level, target, self.window, save, call_sites=self.call_sites)

    def record_all(self, levels: Sequence[str]) -> int:
        """Record the command once per level into a run directory, the light pass first; returns as `foreground.run` for
        the last run of the command.

        Raises:
            UsageError: there is no light pass, or the target is a file.
            RecordError: the node pass was refused, see `_refused`; the others are recorded.
            TraceError: a pass could not be recorded; earlier passes are kept.
        """
        from tracer.formats import nsys_parquet, writer_of
        from tracer.stored import hand_on

        if levels[0] != "light":
            chosen = ",".join(levels)
            raise UsageError(f"--passes {chosen}: several passes must include light, which corrects the others")
        if writer_of(self.target) is not nsys_parquet.write:
            raise UsageError(f"{self.target}: several passes need a directory, not a {self.target.suffix} file")
        code = self.record("light", self.target, is_first_of_several=True)
        refused = ""
        for level in levels[1:]:
            if code or not self.target.exists():
                click.echo(f"intertoken: skipped the {level} pass because the previous run failed", err=True)
                break
            if level == "node" and (refused := _refused(self.target)):
                break
            code = self.record(level, self.target / level)
            if (self.target / level).exists():
                hand_on(self.target, level)
        if refused:
            raise RecordError(refused)
        return code


def _refused(light: Path) -> str:
    """Why the program of a light recording gets no node pass; empty if it does."""
    from tracer.formats import read
    from tracer.model.trace import CONDITIONAL

    if not (count := read(light, whole=False).metadata.get(CONDITIONAL)):
        return ""
    return (
        f"{light}: no node pass: CUDA graphs of the program have conditional nodes ({count} instantiated in the light "
        "pass), and CUPTI at node level may crash it; --passes light,graph leaves it out, --passes node alone tries it"
    )


def _first_steps(trace: Trace, count: int) -> Trace:
    """The first steps. If no or fewer steps are found, the notes say so; without steps the whole recording is
    returned."""
    from tracer.analysis.tokens import find_steps
    from tracer.recorders.window import TimeRange, within

    try:
        steps = find_steps(trace).table
    except EmptyTraceError as problem:
        trace.notes.append(f"--steps has no effect: {problem}")
        return trace
    if len(steps) < count:
        trace.notes.insert(0, f"the recording has only {len(steps)} of the {count} requested steps")
    since, until = int(steps["start"].min()), int(steps["end"].sort_values().iloc[:count].iloc[-1])
    return within(trace, [TimeRange(since, until)])
