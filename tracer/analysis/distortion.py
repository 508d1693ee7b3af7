"""What a profiler adds to a recording, as far as programs that ran with one and without it tell.

How much of the recorded idle time is the profiler's differs more between programs than a model fitted to some of them
can say of the others: by its calls for llama.cpp, by Python code that runs slower beside the profiler's threads for
vLLM. So nothing is estimated from a recording alone (`LEFT` is what was seen), and with the program's own rate the idle
time is exact: what that leaves beside the device's work. Two things then remain to be known:

- Node-level tracing stretches CUDA graphs: between two kernels it adds a time that hardly depends on the program, and a
  little to the kernels themselves (`stretch_ns`).
- Of the causes of the idle time a graph launch holds most of what tracing adds; it prepares a record per graph or per
  node (`LAUNCH_LEFT`). Copies and plain host code hold the rest: waiting hardly grows (`untraced_causes`).

Source: `benchmarks/gap_estimate.py` (`results/gap_estimate.json`), pairs of a recording under nsys, or by
PyTorch's profiler, and the same program without it, on H200s; the causes by passes of our own loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Left:
    """What was left of the recorded idle time without the profiler, as a share.

    Attributes:
        least, most: among all runs without one.
        recordings: how many there were.
        programs: of how many programs.
    """

    least: float
    most: float
    recordings: int
    programs: int


LEFT: Final = {
    "graph": Left(0.05, 1.73, 23, 4),
    "node": Left(0.06, 0.92, 23, 5),
    "none": Left(0.4, 0.69, 3, 3),
    "PyTorch": Left(0.18, 1.91, 5, 2),
}
"""Level of nsys' tracing ("none": no CUDA graphs), or PyTorch's profiler -> what was left of the idle time. Runs of one
program differ, too, so that of some recordings more than all was left."""


@dataclass(frozen=True)
class Stretch:
    """What node-level tracing adds to the CUDA graphs of a step, ns: per kernel, and per ns of kernels.

    Attributes:
        per_kernel, share: of the fitted line.
        error: per kernel, 95 % of programs that it was not fitted to.
        union: the least share of the kernels' durations, added up, that their union was. Kernels that begin early or
            on several streams overlap, and where they do by more, the stretch may be hidden.
    """

    per_kernel: float
    share: float
    error: float
    union: float


STRETCH: Final = Stretch(93.7, 0.00618, 62.8, 0.77)

RATES: Final = (1e-3, 1e9)
"""The least and the most steps per second that a user may give."""

UNUSED_RATE: Final = "nothing was traced, so --untraced-tokens-per-s changes nothing"

_MOST_PERIOD: Final = 1.5  # untraced over recorded; a profiler speeds nothing up, but runs differ
_LIKE_NSYS: Final = ("nsys", "cupti")  # CUPTI's records both

LAUNCH_LEFT: Final = {"graph": 0.21, "node": 0.04}
"""Level of tracing -> the share of a graph launch, call and latency, that is left without it."""


CAUSE_ERROR: Final = 0.27
"""By how much `untraced_causes` was off, as a share of their sum: the most for a cause of our own loop's gap."""


def stretch_ns(kernels: NDArray[np.int64], busy: NDArray[np.int64], sign: int = 0) -> NDArray[np.int64]:
    """How much longer node-level tracing makes the CUDA graphs of each step, ns.

    Args:
        kernels: how many kernels the step's graphs run.
        busy: how long these take together, ns.
        sign: -1 and 1 for the least and the most of 95 % of programs.
    """
    per_kernel = max(STRETCH.per_kernel + sign * STRETCH.error, 0.0)
    return np.asarray(np.rint(per_kernel * kernels + STRETCH.share * busy), dtype=np.int64)


def untraced_causes(
    causes_us: Mapping[str, float], graph_launch_us: float, level: str, total_us: float
) -> dict[str, float]:
    """The causes of an idle time without tracing, µs, which add up to what is left of it.

    What tracing added is taken from the graph launch first, up to the share that is tracing, then from launch, copy and
    host alike, then from all others alike. Where more is left than was recorded, all grow alike.

    Args:
        causes_us: the names of `causes.CAUSES` -> recorded, µs.
        graph_launch_us: how much of launch is a graph's, µs.
        level: of tracing.
        total_us: the sum without tracing.
    """
    left = dict(causes_us)
    recorded = sum(left.values())
    if total_us >= recorded:
        return _scaled(left, list(left), total_us - recorded)
    traced = min(graph_launch_us, left["launch"]) * (1 - LAUNCH_LEFT.get(level, 1.0))
    left["launch"] -= min(traced, recorded - total_us)
    left = _scaled(left, ["launch", "copy", "host"], total_us - sum(left.values()))
    return _scaled(left, list(left), total_us - sum(left.values()))


def _scaled(causes_us: dict[str, float], names: list[str], change: float) -> dict[str, float]:
    """With a change, as far as it can be, of these causes together, each by its share."""
    there = sum(causes_us[name] for name in names)
    factor = max(1 + change / there, 0.0) if there > 0 else 1.0
    return {name: us * (factor if name in names else 1.0) for name, us in causes_us.items()}


def of_another_run(period_us: float, steps_per_s: float) -> str | None:
    """Why a rate without a profiler cannot be this recording's, by the recorded period of a step; None if it may be."""
    untraced_us = 1e6 / steps_per_s
    if untraced_us <= _MOST_PERIOD * period_us:
        return None
    return (
        f"under the profiler a step took {period_us:.1f} µs, by the untraced rate of {steps_per_s:g} steps/s "
        f"{untraced_us:.1f} µs; that rate is of another run"
    )


def known(level: str, source: str) -> str:
    """What is known of recordings of that level and by that recorder (`metadata["source"]`), in words."""
    warning = "recorded under a profiler, which lengthens the idle time"
    kinds = {"graph": "at graph level", "node": "at node level", "none": "without CUDA graphs"}
    if source.startswith("PyTorch"):
        level = "PyTorch"
    elif not source.startswith(_LIKE_NSYS):
        return f"{warning}, by how much is not known of recordings of this kind"
    seen, how = LEFT[level], kinds.get(level, "by PyTorch's profiler")
    return (
        f"{warning}: of {seen.recordings} recordings of {seen.programs} programs {how}, {seen.least:.0%} to "
        f"{seen.most:.0%} of it was left in runs without one"
    )
