"""Checks a recording against a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tracer.analysis.bounds import ALL_STEPS, Bounds
from tracer.analysis.budget import COUNTS, STATISTICS, TRACINGS, BaseLimits, Budget, Limit, Line, Scope, toml_string
from tracer.analysis.call_sites import NATIVE, PYTHON, call_sites, without_site
from tracer.analysis.gaps import GapReport, gap_report
from tracer.analysis.interval import Interval
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import tokens_per_step
from tracer.analysis.summary import Summary
from tracer.analysis.surplus import Surplus, first_deviation, first_surplus
from tracer.analysis.syncs import SyncReport
from tracer.errors import EmptyTraceError, TraceError, UsageError, printable
from tracer.model.columns import Names, among
from tracer.model.trace import Trace
from tracer.notes import sentence

if TYPE_CHECKING:
    from tracer.analysis.compare import Comparison

Verdict = Literal["kept", "broken", "not shown"]
"""`not shown` is inconclusive: the figure's interval contains the bound, or only a lower bound of the figure is
known."""

_NO_TOKENS: Final = "tokens/s are unknown, because the number of tokens per step is unknown"

HEADROOM: Final = 0.1
"""How much worse than measured times and rates may be under a budget from `--write-budget`."""


@dataclass(frozen=True)
class Finding:
    """A line of a budget and the recording's figure.

    Attributes:
        line: the limit.
        found: the figure, the class or signature, or the interval of a figure that has only a wide one.
        verdict: whether the limit is met.
        excess: by how much a figure is above (positive) or below the limit; None for words and intervals.
        surplus: for a failed count or signature, the first surplus call, if any.
        interval: the 95 % interval of a figure that is an estimate or comes from a comparison.
    """

    line: Line
    found: float | str
    verdict: Verdict
    excess: float | None = None
    surplus: Surplus | None = None
    interval: tuple[float, float] | None = None


class ScopeFigures:
    """The figures of one scope of a recording. Each analysis runs on first use.

    Args:
        recording: the recording, with the steps of the scope.

    Raises:
        TraceError: the steps are of several engines.
    """

    def __init__(self, recording: Recording, scope: Scope) -> None:
        self.recording, self.scope = recording, scope
        self.trace, self.steps = recording.trace, recording.steps.of_one_engine()

    @cached_property
    def syncs(self) -> SyncReport:
        """Counts, class and signature; for a call site, of its calls only."""
        report = self.recording.syncs
        return report if self.scope.site is None else _at_site(self.trace, report, self.scope.site)

    @cached_property
    def rates(self) -> Summary:
        """The summary, used for its rates."""
        return self.recording.figures("steps")

    @cached_property
    def gaps(self) -> GapReport:
        """Gap and causes as recorded."""
        if self.scope.device is None:
            return self.recording.gaps_at_rate
        rate, error = self.recording.rate, self.recording.rate_error
        return gap_report(self.trace, self.steps, rate, error=error, device=self.scope.device)

    @cached_property
    def untraced_gaps(self) -> GapReport:
        """The gap and causes as they would be without a profiler.

        Raises:
            TraceError: they are unknown.
        """
        if self.gaps.distortion is None:
            raise EmptyTraceError("the gap without a profiler is unknown; give --untraced-tokens-per-s")
        return self.gaps.corrected()

    def figure(self, name: str) -> float | str:
        """The value for a line's name.

        Raises:
            TraceError: the recording does not have it.
            KeyError: no such cause.
        """
        kind, *rest = name.split(".", 2)
        if kind in COUNTS and self.scope.site is not None:
            calls = self.syncs.rows  # the maximum over the steps
            return float(np.bincount(calls.at[among(calls.letter, COUNTS[kind])]).max(initial=0))
        if kind in COUNTS:
            return float(getattr(self.syncs, f"{kind}_per_token"))
        if kind == "signature":
            return self.syncs.signature
        if kind == "class":
            if not self.steps.decodes:
                raise EmptyTraceError(f"{self.steps.what}: there is no class, because no step decodes")
            return self.syncs.strategy
        if kind == "tokens_per_s":
            return self._untraced_rate() if rest[0] == "untraced" else self._recorded_rate()
        tracing, which = rest
        if estimate := self.estimate(name):
            return str(estimate) if estimate.figure is None else estimate.figure
        gaps = self.untraced_gaps if tracing == "untraced" else self.gaps
        if kind == "gap_us" and which not in gaps.gap_us:
            raise EmptyTraceError(f"a rate is a mean and does not give the {which} of the gap without a profiler")
        if kind == "gap_us":
            return gaps.gap_us[which]
        return gaps.causes_us[which]

    def estimate(self, name: str) -> Interval | None:
        """The estimate, with its interval, for the name of a line whose figure follows from a rate."""
        kind, _, which = name.partition(".untraced.")
        return self.gaps.between.get(f"{kind} {which}") if kind == "gap_us" else None

    def _recorded_rate(self) -> float:
        if self.rates.traced_tokens_per_s is None:
            raise EmptyTraceError(f"the recorded {_NO_TOKENS}")
        return self.rates.traced_tokens_per_s

    def _untraced_rate(self) -> float:
        light, refused = self.gaps.warning is None, self.gaps.refused
        if self.recording.rates and not light:
            if refused is not None:
                raise TraceError(refused)
            gained = tokens_per_step(self.trace, self.steps, self.scope.within)
            if gained is None:
                raise EmptyTraceError(f"the untraced {_NO_TOKENS}")
            return median(self.recording.rates) * gained
        rate = None if refused else self.rates.tokens_per_s
        if rate is None and light:
            rate = self._recorded_rate()
        if rate is None:
            raise EmptyTraceError("tokens/s without a profiler are unknown; give --untraced-tokens-per-s")
        return rate


def measure(
    trace: Trace, scope: Scope, bounds: Bounds = ALL_STEPS, untraced_steps_per_s: float | None = None
) -> ScopeFigures:
    """The figures of a scope, over the requested steps.

    Raises:
        EmptyTraceError: no steps there.
    """
    rates = () if untraced_steps_per_s is None else (untraced_steps_per_s,)
    return ScopeFigures(Recording(trace, within=scope.within, bounds=bounds, rates=rates), scope)


def check_lines(
    trace: Trace, budget: Budget, within: str | None = None, bounds: Bounds = ALL_STEPS,
    untraced_steps_per_s: float | None = None,
) -> list[Finding]:  # fmt: skip
    """Check each line of a budget against the recording; caveats about its steps are added to its notes.

    Args:
        within: the NVTX ranges for lines that name none.
        bounds: only these steps of each scope.
        untraced_steps_per_s: without a profiler.

    Raises:
        TraceError: the recording lacks what a line needs, such as the Python functions for a call site.
        UsageError: a line names an unknown cause.
    """
    measured: dict[Scope, ScopeFigures] = {}
    findings = []
    for line in budget.lines:
        scope = replace(line.scope, within=within) if line.scope.within is None else line.scope
        if scope not in measured:
            measured[scope] = measure(trace, scope, bounds, untraced_steps_per_s)
            trace.notes += [note for note in measured[scope].steps.notes if note not in trace.notes]
        try:
            findings.append(judge(line, measured[scope], budget.signature(line.scope)))
        except KeyError:
            causes = ", ".join(measured[scope].gaps.causes_us)
            raise UsageError(f"{budget.origin}: unknown cause {printable(line.name)}; it may be {causes}") from None
    return findings


def judge(line: Line, measured: ScopeFigures, signature: str | None) -> Finding:
    """Check a line against the figure; `signature` is the expected one, used to find a surplus call."""
    value = measured.figure(line.name)
    if isinstance(line.allowed, tuple):
        if value in line.allowed:
            return Finding(line, value, "kept")
        surplus = None
        if line.name == "signature" and signature is not None:
            surplus = first_deviation(measured.trace, measured.syncs, signature)
        return Finding(line, value, "broken", surplus=surplus)
    if (estimate := measured.estimate(line.name)) and (interval := estimate.bounds):
        excess = None if estimate.figure is None else line.allowed.excess(estimate.figure)
        return Finding(line, value, verdict_of(line.allowed, *interval), excess, interval=interval)
    excess = line.allowed.excess(float(value))
    if not excess:
        return Finding(line, value, "kept", excess)
    surplus = None
    if excess > 0 and line.name in COUNTS:
        surplus = first_surplus(measured.trace, measured.syncs, COUNTS[line.name], line.allowed.most, signature)
    return Finding(line, value, "broken", excess, surplus)


def verdict_of(limit: Limit, low: float, high: float) -> Verdict:
    """Check a limit against the interval of a figure: failed if all of it is beyond, met if all is within."""
    if low > limit.most or high < limit.least:
        return "broken"
    return "kept" if limit.least <= low and high <= limit.most else "not shown"


def _at_site(trace: Trace, report: SyncReport, words: str) -> SyncReport:
    """The steps with only those calls whose call site contains all these words.

    Raises:
        EmptyTraceError: there are none, and without functions the recording does not show whether there should be.
    """
    sites = call_sites(trace, report.rows)
    texts, sources = sites.site.tolist(), sites.source.tolist()
    without = sources.count("") / len(sources) if sources else math.nan
    chosen = {text for text in texts if all(word in text for word in words.split())}
    if not chosen and not {PYTHON, NATIVE} & {*sources}:
        where = sentence(without_site(1.0)[0]) if without == 1 else "no range has this name, and there are no functions"
        raise EmptyTraceError(f"site {printable(words)}: {where}")
    notes = [] if chosen else [f"site {words}: the steps make no call there"]
    trace.notes += [note for note in (*notes, *without_site(without)) if note not in trace.notes]
    return replace(report, rows=report.rows[Names.of(texts).rows(*chosen)])


def fulfilled_budget(measured: ScopeFigures) -> str:
    """A budget, as TOML, that the recording meets: counts, class, signature, and gap and rate with `HEADROOM`."""
    scope, syncs = measured.scope, measured.syncs
    facts = [f"{kind} = {measured.figure(kind):.10g}" for kind in COUNTS]
    words = ("class", "signature") if measured.steps.decodes else ("signature",)
    facts += [f"{kind} = {toml_string(str(measured.figure(kind)))}" for kind in words]
    facts += [f"# gap and tokens/s may be {HEADROOM:.0%} worse than they were", *_measures(measured)]
    where = [] if scope.within is None else [f"[range.{toml_string(scope.within)}]"]
    return "\n".join([f"# per token, median of {syncs.steps} steps", *where, *facts, ""])


def _measures(measured: ScopeFigures) -> Iterator[str]:
    """Lines for gaps and rates, as far as they are known."""
    for tracing in TRACINGS:
        by_rate = tracing == "untraced" and measured.gaps.between
        statistics = ("mean",) if by_rate else STATISTICS[:2]
        for name in [f"tokens_per_s.{tracing}", *(f"gap_us.{tracing}.{which}" for which in statistics)]:
            try:
                value = measured.figure(name)
            except TraceError:
                continue
            if isinstance(value, str):  # an interval
                continue
            if name.startswith("tokens"):
                yield f"{name}.min = {math.floor(value / (1 + HEADROOM) * 10) / 10:.10g}"
            else:
                yield f"{name}.max = {math.ceil(value * (1 + HEADROOM) * 10) / 10:.10g}"


def check_base(base: BaseLimits, comparison: Comparison) -> Iterator[Finding]:
    """The budget's `base` limits, checked against a comparison with the base: how much slower a recording, and how much
    longer its gap, may be.

    A limit fails only if the whole 95 % interval of the comparison is beyond it, and passes only if the whole interval
    is within it. Otherwise, and where the recordings cannot be compared, the result is inconclusive.

    `base.max_slowdown` is 1 - speedup: 0.02 if 2 % of the tokens/s are lost. `base.max_extra_gap_us` is the difference
    between the median gaps, or between the means where a rate does not tell the medians.
    """
    if base.max_slowdown is not None:
        speedup, slowdown = comparison.speedup, None
        if speedup is not None:
            low, high = (None if bound is None else 1 - bound for bound in (speedup.high, speedup.low))
            slowdown = Interval(1 - speedup.estimate, low, high)
        yield _finding("base.max_slowdown", slowdown, base.max_slowdown)
    if base.max_extra_gap_us is not None:
        yield _finding("base.max_extra_gap_us", comparison.gap, base.max_extra_gap_us)


def _finding(name: str, change: Interval | None, most: float) -> Finding:
    limit = Limit(most=most)
    line = Line(Scope(), name, limit)
    if change is None:
        return Finding(line, "no verdict", "not shown")
    excess = limit.excess(change.estimate)
    if change.low is None or change.high is None:
        return Finding(line, change.estimate, "not shown", excess)
    interval = change.low, change.high
    return Finding(line, change.estimate, verdict_of(limit, *interval), excess, interval=interval)
