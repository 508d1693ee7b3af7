"""Decode loops whose periods and gaps the test chooses, with one kernel and one sync a token, and sides of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.tracer.handmade import Script
from tracer import Trace, analyse
from tracer.analysis.compare import Side
from tracer.analysis.recorded import Measured

GAP = 200
LIGHT, NSYS, TORCH = "host", "nsys 2025.3.2.0", "PyTorch profiler"
"""What recorded a trace: nothing that disturbs, or a profiler."""
ONE_PROCESS = {"created": "2026-11-28T00:00:00+00:00"}
"""Of a run.json of runs of one process, whose difference has nothing of that between processes."""


def trace_of(
    periods: Sequence[int],
    gap: int = GAP,
    run: dict[str, Any] | None = None,
    kernel: str = "k",
    syncs: int = 1,
    kernels: int = 1,
    source: str = LIGHT,
) -> Trace:
    """Steps of these periods (ns), in each of which kernels, one behind the other, compute for all but the gap.

    Between the last kernel and the next the host is `gap - 50` ns in syncs, then 50 in the launch.
    """
    script, now = Script(), 0
    each = (gap - 50) // syncs
    for period in [*periods, 10 * gap]:
        script.range("token", now - 50, now + period - 50)
        edges = [now + (period - gap) * part // kernels for part in range(kernels + 1)]
        script.launch((now - 50, now), *itertools.pairwise(edges), name=kernel)
        for sync in range(syncs):
            script.sync(now + period - gap + sync * each, now + period - gap + (sync + 1) * each)
        now += period
    return sourced(script, source, run)


def sourced(script: Script, source: str = LIGHT, run: dict[str, Any] | None = None) -> Trace:
    """As if this recorder had made it, in the one process of a command, with a run.json."""
    trace = script.trace
    trace.metadata |= {"run": ONE_PROCESS | (run or {}), "source": source}
    return trace


def side(trace: Trace, name: str = "run", **options: Any) -> Side:
    """A run of one recording."""
    return Side.of(analyse(trace, name=name, **options).measured)


def recording(periods: Sequence[int], name: str = "run", **options: Any) -> Measured:
    return _recording(json.dumps([list(periods), name, options]))


@cache
def _recording(told: str) -> Measured:
    """Measured once, as many tests compare with the same."""
    periods, name, options = json.loads(told)
    rates = options.pop("untraced", ())
    return analyse(trace_of(periods, **options), name=name, untraced_steps_per_s=rates).measured


def run_of(periods: Sequence[int], name: str = "run", **options: Any) -> Side:
    return Side.of(recording(periods, name, **options))
