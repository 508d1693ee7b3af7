"""What to change in each run, for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.reading.run import Run
from dashboard.text import plain
from tracer.analysis.advice import advise
from tracer.analysis.causality.paths import Causality
from tracer.analysis.whatif.base import TRACED, Base
from tracer.analysis.whatif.prediction import WITHOUT_RATE
from tracer.errors import TraceError
from tracer.reporting.advice import cells, details, eager_cells, facts_of, rest, unused_of


@dataclass(frozen=True)
class Advice:
    """The advice for a run.

    Attributes:
        name: of the run.
        changes: edit, gain, margin, steps/s and call sites of each edit that is listed.
        eager: kernel, operator, idle time before it (µs a step) and predicted gain of launches outside the graph.
        notes: what must be true for the changes, what shows no gain, and the bound.
    """

    name: str
    changes: list[list[str]]
    eager: list[list[str]]
    notes: list[str]


def advice_for(run: Run) -> Advice | None:
    """Return the results of `intertoken advise` for a run; None if nothing can be predicted for it."""
    if run.trace is None or run.steps is None:
        return None
    try:
        base = Base.of(Causality.of(run.trace), run.steps, run.rate, run.within)
        facts = facts_of(advise(run.trace, run.steps, base), plain(run.name, 90), [])
    except TraceError:
        return None
    notes = [WITHOUT_RATE, *unused_of(facts)] if facts["base"] == TRACED else [*details(facts), *rest(facts)]
    return Advice(plain(run.name, 90), [_change(one) for one in facts["advice"]],
                  [_eager(one) for one in facts["eager_launches"]], [plain(note, 600) for note in notes])  # fmt: skip


def _change(one: dict[str, Any]) -> list[str]:
    return [*cells(one).values(), plain("; ".join(one["sites"]), 400) or "–"]


def _eager(one: dict[str, Any]) -> list[str]:
    row = eager_cells(one)
    return [plain(row["kernel"], 120), plain(row["operator"], 120), row["where"], row["hole"], row["gain"]]
