"""`intertoken record`: run a command and record what CUDA does in it."""

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
    ctx: click.Context, target: Path, levels: tuple[str, ...], graph_trace: Traced | None, after: float,
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
        raise UsageError(f"--passes {','.join(levels)} and --graph-trace {graph_trace} contradict each other")
    chosen = (graph_trace,) if graph_trace else levels
    in_part = bool(after) or seconds is not None
    if (in_part or steps is not None or profiler_window) and "light" not in chosen:
        raise UsageError(f"--after, --seconds, --steps and --profiler-window are not for --passes {','.join(chosen)}")
    if profiler_window and in_part:
        raise UsageError("--profiler-window is the program's own; --after and --seconds are another")
    if "light" not in chosen and not several:
        ctx.exit(shell_code(record_pass.record_traced(command, chosen[0], target, force)))
    write = partial(formats.write, path=target, replace=force, is_part=is_part)
    light = partial(_light, command, target, Window(after, seconds, profiler_window), steps, write)
    ctx.exit(shell_code(_several(command, chosen, target, light) if several else light(with_rate=False)))


def _light(
    command: Sequence[str], target: Path, window: Window, steps: int | None, write: Callable[[Trace], object], *,
    with_rate: bool,
) -> int:  # fmt: skip
    """The light pass; with its rate in run.json, if others are to be corrected by it. The command's exit code."""
    from tracer.recorders.light_cut import first_steps
    from tracer.run_passes import run_of

    def save(trace: Trace) -> None:
        trace = trace if steps is None else first_steps(trace, steps)
        if with_rate:
            trace.metadata["run"] = run_of(trace)
        write(trace)

    return record_pass.record_light(command, target, window, save)


def _several(command: Sequence[str], levels: Sequence[str], target: Path, light: Callable[..., int]) -> int:
    """Record the command once per level into a run directory, the light pass first.

    Returns:
        the exit code of the last run of the command, as `foreground.run` gives it.

    Raises:
        UsageError: no light pass, or the target is a file.
        TraceError: a pass could not be recorded; those before it are kept.
    """
    from tracer.formats import nsys_parquet, writer_of
    from tracer.run_passes import hand_on

    if levels[0] != "light":
        raise UsageError(f"--passes {','.join(levels)}: several are set beside the light one, which is not among them")
    if writer_of(target) is not nsys_parquet.write:
        raise UsageError(f"{target}: several passes are a directory, not a {target.suffix} file")
    code = light(with_rate=True)
    for level in levels[1:]:
        if code or not target.exists():
            click.echo(f"intertoken: the {level} pass is left out, since the run before it failed", err=True)
            break
        code = record_pass.record_traced(command, level, target / level, force=False)
        if (target / level).exists():
            hand_on(target, level)
    return code
