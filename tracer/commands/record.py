"""Run a command and record its CUDA activity."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import click

from tracer.errors import UsageError
from tracer.files.output import OR_FORCE

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
    from tracer.analysis.fits import fits_of
    from tracer.formats import check_writable, nsys_parquet
    from tracer.recorders.foreground import shell_code
    from tracer.recorders.record_pass import Passes, recover
    from tracer.recorders.window import Window
    from tracer.stored.run_directory import is_part_of_run

    chosen = (graph_trace,) if graph_trace else levels
    is_part = is_part_of_run if len(levels) > 1 else nsys_parquet.is_part
    check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part)
    if (left is None) == (not command):
        raise UsageError("give a COMMAND to run, after --, or --recover FOLDER")
    fits_of("")  # a bad INTERTOKEN_FITS is refused before the command runs
    if left is not None:
        recover(left, target, force)
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
