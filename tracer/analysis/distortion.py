"""Tracing overhead: what a profiler adds to a recording, removed by means of the program's own rate.

The share of the recorded idle time that is due to the profiler differs from program to program: in llama.cpp it comes
from the CUDA calls, in vLLM from Python code that runs slower next to the profiler's threads. So a recording without a
rate is left as it is. With a rate, the idle time is exact: what that rate leaves in addition to the device's work. Two
things must be known in addition:

- Node-level tracing stretches CUDA graphs. Between two kernels it adds a time that hardly depends on the program, and
  it lengthens the kernels themselves a little (`stretch_ns`).
- Of the causes of the idle time, graph launches contain most of the overhead: the profiler prepares a record per graph
  or per node (`fits.CausesLeft`). Copies and plain host code contain the rest; waits hardly grow (`untraced_causes`).

Source: `benchmarks/tracing_overhead.py` (`results/tracing_overhead.json`), pairs of a recording by nsys or PyTorch's
profiler and the same program without it, on H200s; the causes from passes of this project's own loop. The constants are
in `fits.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.model.fits import Stretch

UNUSED_RATE: Final = "nothing was traced, so --untraced-tokens-per-s changes nothing"

_RESOLVED: Final = 0.01
"""Of a step: idle time that a rate must tell from none for the device to be called always busy."""
_LONGER: Final = 0.03
"""By how much a device's work in a recording may exceed the step of its engine's own rate: a profiler makes kernels a
little longer, and processes differ."""
_MOST_PERIOD: Final = 1.5  # untraced / recorded; a profiler makes nothing faster, but runs differ


def stretch_ns(
    kernels: NDArray[np.int64], busy: NDArray[np.int64], stretch: Stretch, sign: int = 0
) -> NDArray[np.int64]:
    """How much longer node-level tracing makes the CUDA graphs of each step, ns.

    Args:
        kernels: the number of kernels in the step's graphs.
        busy: their total time, ns.
        stretch: the constants for the GPU.
        sign: -1 and 1 for the lower and upper bound of 95 % of programs.
    """
    per_kernel = max(stretch.per_kernel + sign * stretch.error, 0.0)
    return np.asarray(np.rint(per_kernel * kernels + stretch.share * busy), dtype=np.int64)


def untraced_causes(
    causes_us: Mapping[str, float], graph_launch_us: float, launch_left: float, total_us: float
) -> dict[str, float]:
    """The causes of an idle time without tracing, µs, which add up to what remains of it.

    The overhead is taken from graph launches first, up to the share that is overhead, then proportionally from launch,
    copy and host, then proportionally from all others. If more remains than was recorded, all grow proportionally.

    Args:
        causes_us: the names of `causes.CAUSES` -> recorded, µs.
        graph_launch_us: the part of launch that belongs to graphs, µs.
        launch_left: the share of a graph launch that remains without tracing, see `fits.CausesLeft`.
        total_us: the sum without tracing.
    """
    left = dict(causes_us)
    recorded = sum(left.values())
    if total_us >= recorded:
        return _scaled(left, list(left), total_us - recorded)
    traced = min(graph_launch_us, left["launch"]) * (1 - launch_left)
    left["launch"] -= min(traced, recorded - total_us)
    left = _scaled(left, ["launch", "copy", "host"], total_us - sum(left.values()))
    return _scaled(left, list(left), total_us - sum(left.values()))


def _scaled(causes_us: dict[str, float], names: list[str], change: float) -> dict[str, float]:
    """Apply as much of a change as possible to these causes together, in proportion to each."""
    there = sum(causes_us[name] for name in names)
    factor = max(1 + change / there, 0.0) if there > 0 else 1.0
    return {name: us * (factor if name in names else 1.0) for name, us in causes_us.items()}


def of_another_run(period_us: float, steps_per_s: float) -> str | None:
    """Why an untraced rate cannot belong to this recording, given the recorded mean period of a step; None if it
    can."""
    untraced_us = 1e6 / steps_per_s
    if untraced_us <= _MOST_PERIOD * period_us:
        return None
    return (
        f"under the profiler a step took {period_us:.1f} µs, by the untraced rate of {steps_per_s:g} steps/s "
        f"{untraced_us:.1f} µs; that rate is from another run"
    )


def is_always_busy(idle_us: float, steps_per_s: float, error: float) -> bool:
    """Whether the idle time that a rate leaves cannot be told from none: it is not longer than the rate's error, and
    the device's work hardly longer than a step.

    Args:
        idle_us: mean of 1 / rate - busy, negative if the work is longer.
        error: half the 95 % interval of the rate's logarithm.
    """
    period_us = 1e6 / steps_per_s
    return -_LONGER * period_us <= idle_us <= min(error, _RESOLVED) * period_us
