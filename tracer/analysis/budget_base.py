"""Budgets relative to a base recording: how much slower a recording, and how much longer its gap, may be.

A limit fails only if the whole 95 % interval of the comparison is beyond it, and passes only if the whole interval is
within it. Otherwise, and where the recordings cannot be compared, the result is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.budget import Base, Limit, Line, Scope
from tracer.analysis.budget_check import Finding, verdict_of
from tracer.analysis.compare import Comparison
from tracer.analysis.interval import Interval


def check_base(base: Base, comparison: Comparison) -> Iterator[Finding]:
    """The budget's `base` limits, checked against a comparison with the base.

    `base.max_slowdown` is 1 - speedup: 0.02 if 2 % of the tokens/s are lost. `base.max_extra_gap_us` is the difference
    between the median gaps.
    """
    if base.max_slowdown is not None:
        speedup, slowdown = comparison.speedup, None
        if speedup is not None:
            low, high = (None if bound is None else 1 - bound for bound in (speedup.high, speedup.low))
            slowdown = Interval(1 - speedup.estimate, low, high)
        yield _finding("base.max_slowdown", slowdown, base.max_slowdown)
    if base.max_extra_gap_us is not None:
        yield _finding("base.max_extra_gap_us", comparison.gap_us, base.max_extra_gap_us)


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
