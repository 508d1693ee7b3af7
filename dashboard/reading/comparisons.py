"""Comparisons of runs with the first one, as in `intertoken compare`; they take seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import pandas as pd

from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from tracer.analysis import compare
from tracer.analysis.recorded import Measured
from tracer.errors import IntertokenError, printable
from tracer.reporting.compare import compare_table

_LANE: Final = "compare"
_NUMBERS: Final = ("base", "other", "estimate", "low", "high")


@dataclass(frozen=True, eq=False)
class Against:
    """A run compared with the base; `found` is None if `problem` says why the two cannot be compared."""

    base: Run
    other: Run
    found: compare.Comparison | None = None
    problem: str = ""


def measured(run: Run) -> Measured:
    """A run's measurement for comparisons, under a name that can be shown.

    Raises:
        TraceError: it can no longer be read, or it has no two consecutive steps.
    """
    return run.analysed().measured


def against_base(runs: Sequence[Run], recording_of: Callable[[Run], Measured] = measured) -> list[Against]:
    """Compare all other runs with the first one, each on the best basis that both have.

    Args:
        runs: the base and the others.
        recording_of: run -> the result of `measured`, possibly from a cache.
    """
    sides: dict[str, compare.Side] = {}
    problems: dict[str, str] = {}
    base, *others = runs
    for run in runs if others else ():
        try:
            sides[run.key] = compare.Side.of(recording_of(run))
        except IntertokenError as problem:
            problems[run.key] = printable(str(problem))
    if not others or base.key in problems:
        return [Against(base, other, problem=problems[base.key]) for other in others]
    return [
        Against(base, other, problem=problems[other.key]) if other.key in problems
        else _against(base, sides[base.key], other, sides[other.key])
        for other in others
    ]  # fmt: skip


def _against(base: Run, base_run: compare.Side, other: Run, other_run: compare.Side) -> Against:
    try:
        return Against(base, other, compare.compare(base_run, other_run))
    except IntertokenError as problem:
        return Against(base, other, problem=printable(str(problem)))


def ask_against_base(store: RunStore, runs: Sequence[Run]) -> Future[list[Against]]:
    """Like `against_base`, but computed in the background; a run's measurement is shared by all its comparisons."""

    def recording_of(run: Run) -> Measured:
        return store.background.now((run.recorded, "measured", run.rate), lambda: measured(run), _weight)

    question = "against", *((run.recorded, run.rate) for run in runs)
    return store.background.ask(
        _LANE, question, lambda: against_base(runs, recording_of), lambda found: sum(map(_kept, found))
    )


def _weight(recording: Measured) -> int:
    return len(recording.kernels) + len(recording.device_steps)


def _kept(against: Against) -> int:
    return 1 if against.found is None else sum(_weight(r) for r in against.found.other.recordings)


def cautions_of(comparisons: Sequence[Against]) -> list[str]:
    """Cautions that apply to any of their differences, each once."""
    return list(dict.fromkeys(text for one in comparisons if one.found is not None for text in one.found.cautions))


def methods_of(comparisons: Sequence[Against]) -> str:
    """How the intervals of rates were computed; "" if there are none."""
    stated = [one.found for one in comparisons if one.found is not None and one.found.speedup is not None]
    methods = "; ".join(dict.fromkeys(comparison.method for comparison in stated))
    return f"95 % intervals of rates: {methods}." if methods else ""


def comparison_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per figure and run, except the first run, as returned by `tracer.reporting.compare.compare_table`.

    Columns run, against (the first), figure, base, other, estimate, low, high, and problem: a run that cannot be
    compared has one row that says why; for others it is empty.
    """
    columns = ["run", "against", "figure", "base", "other", "estimate", "low", "high", "problem"]
    tables = [_rows(comparison).reindex(columns=columns) for comparison in against_base(runs)] if runs else []
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def _rows(against: Against) -> pd.DataFrame:
    rows = pd.DataFrame([{"figure": ""}]) if against.found is None else compare_table([against.found])
    numbers = {name: rows.get(name, pd.Series(dtype="float64")).astype("float64") for name in _NUMBERS}
    return rows.assign(run=against.other.key, against=against.base.key, problem=against.problem, **numbers)
