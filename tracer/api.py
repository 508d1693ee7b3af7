"""The public API: `tracer.analyse` and `tracer.compare`, which return what the commands print.

`tracer.read`, `tracer.record` and `tracer.annotate` complete it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from tracer.analysis.causality.report import PathReport, path_report
from tracer.analysis.compare import Comparison, Side
from tracer.analysis.compare import compare as compare_runs
from tracer.analysis.gaps import GapReport, gap_report, measured_rate
from tracer.analysis.idle import IdleReport
from tracer.analysis.recorded import Measured, measure
from tracer.analysis.summary import Summary, figures
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import ALL_STEPS, Bounds, Steps, choose_steps
from tracer.errors import TraceError, UsageError, printable
from tracer.extensions import ANALYSES, extensions
from tracer.model.trace import Trace
from tracer.stored import cache


@dataclass(frozen=True, eq=False)
class Analysis:
    """The analyses of one recording, each computed on first access and then cached.

    A part for which the recording lacks the data raises `EmptyTraceError` on access; the other parts still work.
    `analysis[name]` returns the result of an analysis of another distribution (entry points `intertoken.analyses`).

    Attributes:
        trace: the recording.
        name: its name in messages.
        place: its path, "" if it was not read from a file.
        within: the NVTX range that the steps are from, None for all.
        bounds: the selected steps.
        rates: steps per second without a profiler, one per repeat; empty if not given.

    Example:
        >>> from tracer import Trace, analyse
        >>> analyse(Trace.from_columns()).steps
        Traceback (most recent call last):
        tracer.errors.EmptyTraceError: the trace has no kernels and no graph launches; ...
    """

    trace: Trace
    name: str
    _: KW_ONLY
    place: str = ""
    within: str | None = None
    bounds: Bounds = ALL_STEPS
    rates: tuple[float, ...] = ()
    _added: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def steps(self) -> Steps:
        """The steps, how they were found, and with what confidence."""
        return choose_steps(self.trace, self.within, self.bounds)

    @cached_property
    def syncs(self) -> SyncReport:
        """The syncs, copies and launches of a step."""
        return sync_report(self.trace, self.steps)

    @cached_property
    def gaps(self) -> GapReport:
        """How long the device idles between two steps, and why.

        Raises:
            TraceError: the given rate belongs to another run.
        """
        report = gap_report(self.trace, self.steps, self.untraced_steps_per_s)
        if report.refused is not None and self.rates:
            raise TraceError(f"{self.name}: {report.refused}")
        return report

    @property
    def idle(self) -> IdleReport:
        """How long the device idles in a step: between steps (the gap), before, between and after its kernels."""
        return self.gaps.idle

    @cached_property
    def path(self) -> PathReport:
        """What each step waited for: the critical path, and the slack of everything off it."""
        return path_report(self.trace, self.steps)

    @cached_property
    def summary(self) -> Summary:
        """The figures of `intertoken info`."""
        return figures(self.trace, self.name, self.steps, self.syncs, self.gaps, self.within)

    @cached_property
    def recording(self) -> Measured:
        """The measurements that `tracer.compare` compares."""
        return measure(self.trace, self.steps, self.name, within=self.within, untraced_tokens_per_s=self.rates)

    @property
    def untraced_steps_per_s(self) -> float | None:
        """The rate without a profiler: the median of the given rates, or that of run.json; None if unknown."""
        if self.rates:
            return median(self.rates)
        return measured_rate(self.trace, self.steps, self.within)

    @property
    def notes(self) -> list[str]:
        """Notes on the recording and its steps."""
        return [*self.trace.notes, *self.steps.notes]

    def __getitem__(self, name: str) -> Any:
        """The result of the analysis that another distribution adds under this name.

        Raises:
            KeyError: no installed distribution adds an analysis of this name.
            ExtensionError: the analysis cannot be loaded.
        """
        if name not in self._added:
            known = dict(extensions(ANALYSES, Callable))
            if name not in known:
                raise KeyError(f"no analysis {name!r} is installed; available: {', '.join(known) or 'none'}")
            self._added[name] = known[name](self.trace, self.steps)
        return self._added[name]


Source: TypeAlias = str | Path | Trace | Analysis
"""A recording: its path, its trace or its analysis."""


def analyse(
    source: str | Path | Trace,
    *,
    name: str | None = None,
    within: str | None = None,
    steps: slice | None = None,
    phase: str | None = None,
    pattern: str | None = None,
    untraced_steps_per_s: float | Sequence[float] = (),
) -> Analysis:
    """Analyse a recording: its steps, syncs, idle time, gaps and critical path.

    Args:
        source: a trace, or the path of a recording, whose parsed form is cached as for the commands.
        name: its name in messages, instead of the file name.
        within: only inside NVTX ranges with this text (or regular expression).
        steps: only these steps, such as `slice(5, 20)`.
        phase: only steps of this phase, or "all"; None for decode, or all if there are no decode steps.
        pattern: regular expression that matches the start of a step, instead of the engine's marks.
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
    bounds = Bounds(part.start, part.stop, phase, pattern)
    trace, path = (source, None) if isinstance(source, Trace) else (cache.read(Path(source)), Path(source))
    called = name or (printable(path.name) if path else trace.name) or "the trace"
    return Analysis(trace, called, place=str(path or ""), within=within, bounds=bounds, rates=rates)


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
        >>> found = compare("base.sqlite", ["new-1.sqlite", "new-2.sqlite"])  # doctest: +SKIP
        >>> found.verdict, found.speedup
    """
    return compare_runs(_run(base, "the base"), _run(other, "the other"), force=force)


def _run(source: Source | Sequence[Source], unnamed: str) -> Side:
    several = [source] if isinstance(source, (str, Path, Trace, Analysis)) else list(source)
    if not several:
        raise UsageError("no recording given: a run to compare needs at least one")
    found = [one if isinstance(one, Analysis) else analyse(one, name=_name(one, unnamed)) for one in several]
    return Side.of(*(one.recording for one in found), place=",".join(one.place for one in found))


def _name(source: str | Path | Trace, unnamed: str) -> str | None:
    """The name of a trace that was not read from a file, so that the two runs of a comparison differ."""
    return unnamed if isinstance(source, Trace) and not source.name else None
