"""Decode loops whose periods and gaps the test chooses, with one kernel and one sync a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.compare import Run
from tracer.analysis.recorded import Recording, measure
from tracer.analysis.tokens import find_steps

GAP = 200


def trace_of(
    periods: Sequence[int], gap: int = GAP, run: dict[str, Any] | None = None, kernel: str = "k", syncs: int = 1
) -> Trace:
    """Steps of these periods (ns), in each of which one kernel computes for all but the gap.

    Between two kernels the host is `gap - 50` ns in syncs, then 50 in the launch.
    """
    script, now = Script(), 0
    each = (gap - 50) // syncs
    for period in [*periods, 10 * gap]:
        script.range("token", now - 50, now + period - 50)
        script.launch((now - 50, now), (now, now + period - gap), name=kernel)
        for sync in range(syncs):
            script.sync(now + period - gap + sync * each, now + period - gap + (sync + 1) * each)
        now += period
    trace = script.trace
    trace.metadata |= {"run": run or {}}
    return trace


def recording(periods: Sequence[int], name: str = "run", **options: Any) -> Recording:
    untraced = options.pop("untraced", ())
    trace = trace_of(periods, **options)
    return measure(trace, find_steps(trace), name, untraced_tokens_per_s=untraced)


def run_of(periods: Sequence[int], name: str = "run", **options: Any) -> Run:
    return Run.of(recording(periods, name, **options))
