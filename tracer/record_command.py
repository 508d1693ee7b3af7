"""`intertoken record`: run a command and record its CUDA activity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from tracer import record_pass
from tracer.errors import UsageError
from tracer.foreground import shell_code
from tracer.output import OR_FORCE

if TYPE_CHECKING:
    from tracer.recorders.light_window import Window
    from tracer.trace import Trace

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
    help="Level of detail: light (no profiler: the true gap, idle time, syncs), graph (profiler, one row per CUDA "
    "graph) or node (profiler, every kernel). Each level runs COMMAND once.",
)  # fmt: skip
@click.option("--graph-trace", type=click.Choice(["node", "graph"]), help="Same as --passes with that level.")
@click.option(
    "--after", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Start recording then (light only)."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="How long to record (light only)."
)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Keep only the first N recorded steps (light only)."
)
@click.option(
    "--profiler-window", is_flag=True,
    help="Record between the program's own calls of cudaProfilerStart and cudaProfilerStop (light only).",
)  # fmt: skip
@click.option(
    "--call-sites", is_flag=True,
    help="Also record where in the program each CUDA call is made: the stack of each call, kept once. Adds some "
    "microseconds to every call.",
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

    A light recording covers any program and all its children without a profiler: a preloaded library timestamps
    their CUDA driver calls, and the start and end of each CUDA graph and each run of launches on the device.
    Profilers show every kernel but lengthen the time between kernels. With --passes graph or node, a Python program
    of this installation (`python SCRIPT`, `python -m MODULE`) is recorded in its process through CUPTI, without its
    child processes; any other program is recorded through nsys.

    \b
    The exit code is the command's, 128 + N if signal N ended it, and 2 if it could not be recorded.
    TRACE appears complete or not at all. Ctrl-C, SIGTERM and SIGHUP are passed to the command, and
    everything recorded until it ends is kept. If this process is killed, or TRACE cannot be written, a
    light recording stays in memory, and the next recording prints its location for --recover. With CUPTI
    the command then ends and its recording is kept; with nsys the command goes on and the recording is
    lost. If a Python program itself is killed, what CUPTI recorded of it is lost.

    \b
    Examples:
      intertoken record -o run1 -- python decode.py --tokens 64
      intertoken record -o run1 -- ./llama-bench -m model.gguf
      intertoken record -o run2 --passes light,graph,node -- ./llama-bench -m model.gguf
      intertoken record -o run3 --recover /dev/shm/intertoken-light-k3v9x2
    """
    from tracer import formats
    from tracer.recorders.light_window import Window
    from tracer.run_parts import is_part_of_run

    several = len(levels) > 1
    is_part = is_part_of_run if several else formats.nsys_parquet.is_part
    formats.check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part)
    if (left is None) == (not command):
        raise UsageError("give a COMMAND to run, after --, or --recover FOLDER")
    if left is not None:
        record_pass.recover(left, target, force)
        return
    if graph_trace and levels not in (("light",), (graph_trace,)):
        raise UsageError(f"--passes {','.join(levels)} contradicts --graph-trace {graph_trace}; give only one of them")
    chosen = (graph_trace,) if graph_trace else levels
    in_part = bool(after) or seconds is not None
    if (in_part or steps is not None or profiler_window) and "light" not in chosen:
        raise UsageError(f"--after, --seconds, --steps and --profiler-window need --passes light, not {chosen[0]}")
    if profiler_window and in_part:
        raise UsageError("--profiler-window cannot be combined with --after or --seconds")
    if "light" not in chosen and not several:
        ctx.exit(shell_code(record_pass.record_traced(command, chosen[0], target, force, call_sites=call_sites)))
    write = partial(formats.write, path=target, replace=force, is_part=is_part)
    window = Window(after, seconds, profiler_window)
    light = partial(_light, command, target, window, steps, write, call_sites=call_sites)
    code = _several(command, chosen, target, light, call_sites) if several else light(with_rate=False)
    ctx.exit(shell_code(code))


def _light(
    command: Sequence[str], target: Path, window: Window, steps: int | None, write: Callable[[Trace], object], *,
    with_rate: bool, call_sites: bool,
) -> int:  # fmt: skip
    """Record the light pass, with its rate in run.json if it is to correct others; return the command's exit code."""
    from tracer.recorders.light_cut import first_steps
    from tracer.run_passes import run_of

    def save(trace: Trace) -> None:
        trace = trace if steps is None else first_steps(trace, steps)
        if with_rate:
            trace.metadata["run"] = run_of(trace)
        write(trace)

    return record_pass.record_light(command, target, window, save, call_sites=call_sites)


def _several(
    command: Sequence[str], levels: Sequence[str], target: Path, light: Callable[..., int], call_sites: bool
) -> int:
    """Record the command once per level into a run directory, the light pass first.

    Returns:
        the exit code of the last run of the command, as `foreground.run` gives it.

    Raises:
        UsageError: there is no light pass, or the target is a file.
        TraceError: a pass could not be recorded; earlier passes are kept.
    """
    from tracer.formats import nsys_parquet, writer_of
    from tracer.run_passes import hand_on

    if levels[0] != "light":
        raise UsageError(f"--passes {','.join(levels)}: several passes must include light, which corrects the others")
    if writer_of(target) is not nsys_parquet.write:
        raise UsageError(f"{target}: several passes need a directory, not a {target.suffix} file")
    code = light(with_rate=True)
    for level in levels[1:]:
        if code or not target.exists():
            click.echo(f"intertoken: skipped the {level} pass because the run before it failed", err=True)
            break
        code = record_pass.record_traced(command, level, target / level, force=False, call_sites=call_sites)
        if (target / level).exists():
            hand_on(target, level)
    return code
