"""What runs under the light recorder now: each process by its last calls, with the analyses of any recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from tracer.analysis.gaps import gap_report
from tracer.analysis.rates import steps_per_s
from tracer.analysis.steps import ALL_STEPS
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import choose_steps
from tracer.errors import TraceError
from tracer.recorders.light import light_trace
from tracer.recorders.light_folder import running_rings
from tracer.recorders.light_ring import Ring, read_ring

LAST_CALLS: Final = 20_000
"""Of each process, what its figures are from."""


@dataclass(frozen=True)
class Live:
    """A device of a process, or a process without steps (`why` says why there are none).

    Attributes:
        process, program: which.
        calls, overwritten: how many calls were recorded since it began, and how many of them are gone.
        device: number, None without steps.
        steps_per_s: of the last calls.
        idle_us, gap_us: p50 and p95 of a step.
        syncs, launches: per step, median.
        why: there are no figures.
    """

    process: int
    program: str
    calls: int
    overwritten: int
    device: int | None = None
    steps_per_s: float | None = None
    idle_us: tuple[float, float] | None = None
    gap_us: tuple[float, float] | None = None
    syncs: float | None = None
    launches: float | None = None
    why: str = ""


def live(chosen: str | None = None) -> list[Live]:
    """Figures of all that runs now.

    Args:
        chosen: only the process of this id, or those whose program has this in its name.
    """
    rows: list[Live] = []
    for path in running_rings():
        with suppress(TraceError):  # it is being made
            ring = read_ring(path, LAST_CALLS)
            if chosen is None or chosen == str(ring.process) or chosen in ring.program:
                rows += figures(ring)
    return rows


def figures(ring: Ring) -> Iterator[Live]:
    """Figures of a process, one row per device."""
    facts = (ring.process, ring.program, ring.written, ring.overwritten)
    try:
        trace = light_trace([ring])
        steps = choose_steps(trace, None, ALL_STEPS)
        gaps, syncs = gap_report(trace, steps), sync_report(trace, steps)
        rate = steps_per_s(trace, steps)
    except TraceError as problem:
        yield Live(*facts, why=str(problem))
        return
    for device, table in gaps.table.groupby("device"):
        idle = gaps.idle.steps
        of_steps = idle.loc[idle["device"] == device, "idle"].to_numpy() / 1e3
        idle_us = _quantiles(of_steps) if len(of_steps) else None
        gap_us = _quantiles(table["gap"].to_numpy() / 1e3)
        counts = (syncs.syncs_per_token, syncs.launches_per_token)
        yield Live(*facts, cast("int", device), rate, idle_us, gap_us, *counts)


def _quantiles(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return float(p50), float(p95)
