"""The public API: `tracer.analyse` and `tracer.compare`, which return what the commands print.

`tracer.read`, `tracer.record` and `tracer.annotate` complete it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from tracer import stored
from tracer.analysis.compare import Comparison, Side
from tracer.analysis.compare import compare as compare_runs
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Bounds
from tracer.errors import UsageError, printable
from tracer.model.trace import Trace

Source: TypeAlias = str | Path | Trace | Recording
"""A recording: its path, its trace, or as `analyse` returns it."""


def analyse(
    source: str | Path | Trace, *, name: str | None = None, within: str | None = None, steps: slice | None = None,
    phase: str | None = None, pattern: str | None = None, process: int | str | None = None,
    thread: int | str | None = None, device: int | None = None, untraced_steps_per_s: float | Sequence[float] = (),
) -> Recording:  # fmt: skip
    """Analyse a recording: its steps, syncs, idle time, gaps and critical path.

    Args:
        source: a trace, or the path of a recording, whose parsed form is cached as for the commands.
        name: its name in messages, instead of the file name.
        within: only inside NVTX ranges with this text (or regular expression).
        steps: only these steps, such as `slice(5, 20)`.
        phase: only steps of this phase, or "all"; None for decode, or all if there are no decode steps.
        pattern: regular expression that matches the start of a step, instead of the engine's marks.
        process, thread: only steps launched by these; the number, or the name or a part of it.
        device: only steps that compute on it, and their work there. `Recording.engines` are the engines, if a recording
            holds several.
        untraced_steps_per_s: the engine's own rate without a profiler, or one rate per repeat; corrects idle time and
            gap.

    Raises:
        FormatError: the path does not exist, is not a trace, or is a damaged one.
        UsageError: a slice with a step, or a rate that is not a positive number.
    """
    part = steps or slice(None)
    if part.step not in (None, 1):
        raise UsageError(f"steps={part}: steps must be consecutive")
    given = untraced_steps_per_s if isinstance(untraced_steps_per_s, Sequence) else [untraced_steps_per_s]
    rates = tuple(map(float, given))
    if not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"untraced_steps_per_s={untraced_steps_per_s}: a rate must be a positive number")
    launched_by = [None if one is None else str(one) for one in (process, thread)]
    bounds = Bounds(part.start, part.stop, phase, pattern, launched_by[0], launched_by[1], device)
    trace, path = (source, None) if isinstance(source, Trace) else (stored.read(Path(source)), Path(source))
    called = name or (printable(path.name) if path else trace.name) or "the trace"
    return Recording(trace, called, place=str(path or ""), within=within, bounds=bounds, rates=rates)


def compare(base: Source | Sequence[Source], other: Source | Sequence[Source], *, force: bool = False) -> Comparison:
    """Compare a run with a base, with 95 % intervals, or say why there is no verdict.

    Args:
        base: the run that speed-ups and differences refer to: a recording, or several of the same configuration.
        other: the run to compare with it. An analysed recording keeps the options given to `analyse`.
        force: compare runs that are not comparable too, without a verdict.

    Raises:
        IncomparableError: the runs differ in GPU, model or batch, or have no kernel in common.
        EmptyTraceError: a recording has no two consecutive steps.

    Example:
        >>> comparison = compare("base.sqlite", ["new-1.sqlite", "new-2.sqlite"])  # doctest: +SKIP
        >>> comparison.verdict, comparison.speedup
    """
    return compare_runs(_run(base, "the base"), _run(other, "the other"), force=force)


def _run(source: Source | Sequence[Source], unnamed: str) -> Side:
    several = [source] if isinstance(source, (str, Path, Trace, Recording)) else list(source)
    if not several:
        raise UsageError("no recording given: a run to compare needs at least one")
    recordings = []
    for one in several:  # traces that were not read from a file get names, so that the two runs differ
        name = unnamed if isinstance(one, Trace) and not one.name else None
        recordings.append(one if isinstance(one, Recording) else analyse(one, name=name))
    return Side.of(*(one.measured for one in recordings), place=",".join(one.place for one in recordings))
