"""The recording without its profiler: by how much the times of host and device shrink.

What a profiler adds is spread over them in proportion, so that a token takes as long as it does without: by a rate that
was measured, or else by the estimate of `tracer.analysis.distortion`. Node-level tracing stretches the device's part as
well, and that at graph level may be too long even so; by how much is what the estimated gap leaves of the measured
period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from tracer.analysis.causality.paths import Causality
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Assumed, Changes
from tracer.analysis.whatif.step_times import StepTimes
from tracer.errors import TraceError

MEASURED: Final = "measured"
ESTIMATED: Final = "estimated"
TRACED: Final = "traced"
"""Where the period of the recording without a profiler is from: it is the recorded one, an estimate, or not known."""

_SEARCH: Final = 14
_LEAST_DEVICE: Final = 0.75  # a profiler that stretched kernels by more than that was never seen

_MOST_PERIOD: Final = 1.5  # untraced over recorded; a profiler speeds nothing up, but runs differ


def untraced(causality: Causality, steps: Steps, times: StepTimes, rate: float | None) -> tuple[Assumed, str]:
    """How the recording's times are to be read, and which of the above the untraced period is.

    Args:
        causality: of the recording.
        steps: its steps.
        times: of these.
        rate: steps per second without a profiler, if known.

    Raises:
        TraceError: the rate leaves no time for what the recording shows of the device, or is far below the recorded.
    """
    if causality.trace.metadata.get("source") == "host":  # nothing was traced
        return Assumed(), MEASURED
    if rate is None and "whatif" in causality.trace.metadata:  # a prediction, which lacks the profiler's part already
        return Assumed(), ESTIMATED
    report = gap_report(causality.trace, steps)  # without the rate, for its estimate
    gap_us = report.estimated.estimate if report.estimated else None
    if rate is None and gap_us is None:
        return Assumed(), TRACED
    period_us = 1e6 / rate if rate is not None else report.compute_us + (gap_us or 0.0)
    recorded_us = float(np.median(times.periods(causality.dag.time))) / 1e3
    if rate is not None and period_us > _MOST_PERIOD * recorded_us:
        raise TraceError(
            f"cannot correct the recording: under the profiler a token took {recorded_us:.1f} µs, by the untraced rate "
            f"{period_us:.1f} µs; that figure is of another run"
        )
    left = (period_us - gap_us) / report.compute_us if gap_us is not None and report.compute_us > 0 else 1.0
    device = min(left, 1.0) if left >= _LEAST_DEVICE else 1.0
    assumed = Assumed(device=device if rate is not None and report.graph_trace == "node" else 1.0)
    found = _with_host(causality, times, period_us * 1e3, [assumed, replace(assumed, device=device)])
    return found, MEASURED if rate is not None else ESTIMATED


def _with_host(causality: Causality, times: StepTimes, period_ns: float, assumed: list[Assumed]) -> Assumed:
    """The first of these with which a token can take `period_ns`, and the host's share that makes it, by bisection."""
    least = np.inf
    for candidate in assumed:

        def period(factor: float, candidate: Assumed = candidate) -> float:
            replayed = Changes(causality, replace(candidate, host=factor)).dag().replayed()[0]
            return float(np.median(times.periods(replayed)))

        if period(1.0) <= period_ns:
            return candidate
        if (least := period(0.0)) <= period_ns:
            return replace(candidate, host=_root(period, period_ns))
    raise TraceError(
        f"cannot correct the recording: without any time of the host a token takes {least / 1e3:.1f} µs, longer than "
        f"the {period_ns / 1e3:.1f} µs that the untraced rate leaves it; tracing stretched the kernels (graph level "
        "does so least), or the figure is of another run"
    )


def _root(period: Callable[[float], float], period_ns: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if period(middle) > period_ns else (middle, high)
    return high
