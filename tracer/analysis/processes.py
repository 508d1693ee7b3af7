"""How much two processes of one program differ: in cores, clocks, and where their memory lies.

A recording is of one process and does not show it. The device computes for nearly the same time in each; the time in
which it waits for the host differs much more. So the rate of an engine differs more, the more its device idles.
"""

from __future__ import annotations

from math import hypot
from typing import Final, NamedTuple

from tracer.analysis.recorded import Measured


class Spread(NamedTuple):
    """Standard deviations between processes, relative to the time itself: of that in which the device computes for a
    step, and of that in which it idles."""

    busy: float
    idle: float


MEASURED: Final = {"llama.cpp": Spread(0.0013, 0.21), "vLLM": Spread(0.006, 0.66), "SGLang": Spread(0.006, 0.6)}
"""Engine -> its spread. llama.cpp: busy, the largest of 14 sets of 3 to 6 processes, 0.0001 to 0.0013; idle, the root
mean square of 11 such sets, 0.09 to 0.39 (benchmarks/results/light_beside_cupti.json). vLLM: idle, of 6 processes by
their rates (benchmarks/results/engine_samples.json). SGLang: idle, of 4 processes that decoded 700 to 771 tokens/s."""

USUAL: Final = Spread(0.006, 0.2)
"""Of all others. Our own executor: idle 0.13 to 0.29 (benchmarks/results/executor_light.json)."""


def deviation(run: Measured, column: str) -> float:
    """The standard deviation between processes of the mean of a column of `Measured.steps` other than the period, µs.

    A gap that repeats of the rate tell varies with these, not with the recording.
    """
    spread = MEASURED.get(run.engine, USUAL)
    if column == "busy":
        return spread.busy * run.steps.mean("busy")
    if run.corrected and run.untraced is not None and run.untraced.is_repeated:
        return 0.0
    return spread.idle * run.steps.mean(column)


def deviation_of_rate(run: Measured, period_us: float | None = None) -> float:
    """The same of the logarithm of the rate; `period_us` without a profiler, if it is not that of the steps."""
    spread, busy = MEASURED.get(run.engine, USUAL), run.steps.mean("busy")
    period = run.steps.mean("period") if period_us is None else period_us
    return hypot(spread.busy * min(busy, period), spread.idle * max(period - busy, 0.0)) / period


def deviation_of_kernels(*runs: Measured) -> float:
    """The same of the logarithm of the time of a kernel, the largest of these runs."""
    return max(MEASURED.get(run.engine, USUAL).busy for run in runs)
