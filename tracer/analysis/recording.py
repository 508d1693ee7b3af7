"""A recording with its analyses: what the command line, the Python interface, the batch, the pytest plugin and the page
hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from tracer.analysis.calls import Calls, host_calls
from tracer.analysis.gaps import GapReport, gap_report, measured_rate
from tracer.analysis.idle import IdleReport
from tracer.analysis.path.paths import PathReport, path_report
from tracer.analysis.rates import PRECISION, of_run_json, of_steps_per_s
from tracer.analysis.run_ahead import RunAhead, run_ahead
from tracer.analysis.step_work import Compute, StepSpans, all_compute, of_steps, step_spans
from tracer.analysis.stream_order import in_order
from tracer.analysis.summary import Summary, figures, figures_of
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import ALL_STEPS, Bounds, Steps, choose_steps
from tracer.errors import TraceError
from tracer.extensions import ANALYSES, extensions
from tracer.model.trace import Trace
from tracer.notes import by_weight

if TYPE_CHECKING:
    from tracer.analysis.recorded import Measured


@dataclass(frozen=True, eq=False)
class Recording:
    """A trace with the chosen steps, range and rate. Each analysis is computed on first access and then cached.

    An analysis for which the trace lacks the data raises `EmptyTraceError` on access; the others still work.
    `recording[name]` returns the result of an analysis of another distribution (entry points `intertoken.analyses`).

    Attributes:
        trace: the recording, without times that contradict the order of their stream (`stream_order.in_order`).
        name: its name in messages.
        place: its path, "" if it was not read from a file.
        within: the NVTX range that the steps are from, None for all.
        bounds: the selected steps, and the process, thread and device of them.
        rates: steps per second without a profiler, one per repeat; empty if not given.

    Example:
        >>> from tracer import Trace, analyse
        >>> analyse(Trace.from_columns()).steps
        Traceback (most recent call last):
        tracer.errors.EmptyTraceError: the trace has no kernels and no graph launches; ...
    """

    trace: Trace
    name: str = ""
    _: KW_ONLY
    place: str = ""
    within: str | None = None
    bounds: Bounds = ALL_STEPS
    rates: tuple[float, ...] = ()
    _added: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", in_order(self.trace))

    @classmethod
    def of_steps(cls, trace: Trace, steps: Steps, name: str = "", **options: Any) -> Recording:
        """A recording whose steps were chosen by other means."""
        made = cls(trace, name, **options)
        made.__dict__["steps"] = steps  # where `cached_property` keeps it
        return made

    @cached_property
    def engines(self) -> tuple[Recording, ...]:
        """The recording of each engine (`Steps.owners`), if the steps are of several; else empty."""
        engines = tuple(replace(self, bounds=self.bounds.of(owner)) for owner in self.steps.owners)
        for each in engines:
            each.__dict__["calls"] = self.calls
        return engines

    @cached_property
    def calls(self) -> Calls:
        """The host calls that copy, launch, wait or order (`calls.host_calls`)."""
        return host_calls(self.trace)

    @cached_property
    def steps(self) -> Steps:
        """The steps, how they were found, and with what confidence."""
        return choose_steps(self.trace, self.within, self.bounds, self.calls)

    @cached_property
    def compute(self) -> Compute:
        """All compute without collectives, and the step of each (`step_work.all_compute`)."""
        return all_compute(self.trace, self.steps)

    @cached_property
    def spans(self) -> StepSpans:
        """The first start and last end of the compute of each step on each device (`step_work.step_spans`)."""
        return step_spans(self.trace, self.steps, of_steps(self.compute))

    @cached_property
    def syncs(self) -> SyncReport:
        """The syncs, copies and launches of a step."""
        return sync_report(self.trace, self.steps, self.calls)

    @property
    def rate(self) -> float | None:
        """Steps per second without a profiler: the median of the given rates, or that of run.json; None if unknown."""
        return median(self.rates) if self.rates else measured_rate(self.trace, self.steps, self.within)

    @property
    def rate_error(self) -> float:
        """Half the 95 % interval of that rate's logarithm."""
        rate = of_steps_per_s(self.rates) or of_run_json(self.trace, self.within)
        return PRECISION if rate is None else rate.error

    @cached_property
    def gaps_at_rate(self) -> GapReport:
        """Like `gaps`; a given rate that belongs to another run is refused (`GapReport.refused`), not an error."""
        return gap_report(self.trace, self.steps, self.rate, error=self.rate_error, every=self.compute)

    @property
    def gaps(self) -> GapReport:
        """How long the device idles between two steps, and why.

        Raises:
            TraceError: the given rate belongs to another run; or the steps are of several engines, each of whose
                recordings (`engines`) has its own.
        """
        self.steps.of_one_engine()
        report = self.gaps_at_rate
        if report.refused is not None and self.rates:
            raise TraceError(f"{self.name}: {report.refused}")
        return report

    @property
    def idle(self) -> IdleReport:
        """How long the device idles in a step: between steps (the gap), before, between and after its kernels."""
        return self.gaps.idle

    @cached_property
    def run_ahead(self) -> RunAhead:
        """How far the host is ahead of the device when the device starts a step."""
        return run_ahead(self.trace, self.calls, self.spans)

    @cached_property
    def path(self) -> PathReport:
        """What each step waited for: the critical path, and the slack of everything off it."""
        return path_report(self.trace, self.steps)

    @cached_property
    def summary(self) -> Summary:
        """All figures; `Summary.problem` says why some are missing."""
        return figures(self)

    def figures(self, *parts: str) -> Summary:
        """Only the figures of these parts ("steps", "syncs", "gaps"), whose analyses raise if they fail."""
        return figures_of(self, *parts)

    @cached_property
    def measured(self) -> Measured:
        """What a comparison compares.

        Raises:
            EmptyTraceError: no two steps follow each other on a device, or most overlap so that they have no period.
            TraceError: the given rate belongs to another run.
        """
        from tracer.analysis.recorded import measure

        return measure(self)

    @cached_property
    def notes(self) -> list[str]:
        """Notes on the steps and the recording (`tracer.notes`): those first that change a figure."""
        return by_weight([*self.steps.notes, *self.trace.notes])

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
