"""Comparisons with one base as a matrix: figures as rows, runs as columns, the largest difference of a row marked.

The figures are the rows of `compare.compare_table`, worded as in `compare_words`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Final

import pandas as pd

from tracer.analysis.causes import CAUSES
from tracer.analysis.compare import Comparison
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import COUNTS
from tracer.reporting.compare import compare_table
from tracer.reporting.compare_words import (
    BUSY,
    DISTORTION,
    GAP,
    RATE_BASIS,
    RATES,
    cause_row,
    count_row,
    difference,
    is_shown,
    needed_row,
    percent,
)

_MEAN: Final = "gap_us mean"
_CAUSES: Final = {cause_row(cause): f"of which {cause}, µs" for cause in CAUSES.values()}
LABELS: Final = {
    **{row: unit.capitalize() for unit, row in RATES.items()},
    GAP: "Gap p50, µs",
    _MEAN: "Gap mean, µs",
    **_CAUSES,
    BUSY: "GPU busy, µs per token",
    **{count_row(kind): f"{kind.capitalize()} per token" for kind in COUNTS},
    DISTORTION: "Tracing overhead of the recording, ×",
    **{
        needed_row(unit): f"{unit.capitalize()} per run to show it" for unit in ("steps", "repeats", "recordings")
    },
}  # fmt: skip
"""Row of `compare.compare_table` -> its label, in display order; kernels are not in the matrix."""


@dataclass(frozen=True)
class Cell:
    """A run's own figure, and its difference from the base with the interval; "" if there is none.

    `is_largest` marks the largest difference of the line that excludes 0 (`compare_words.is_shown`); if only one run
    is compared, the cause that changes most.
    """

    text: str
    change: str = ""
    is_largest: bool = False


@dataclass(frozen=True)
class Row:
    """A figure: its row in `compare_table`, its label, its value in the base, and a cell for each other run."""

    figure: str
    label: str
    base: str
    cells: list[Cell]


def matrix(comparisons: Sequence[Comparison]) -> list[Row]:
    """The matrix of comparisons with one base."""
    bases = {(one.rate, one.basis) for one in comparisons}
    tables = [dict(_rows(one, several=len(bases) > 1)) for one in comparisons]
    names = dict.fromkeys(name for table in tables for name in table)
    ordered = sorted(names, key=lambda name: list(LABELS).index(name[0]))
    sizes = {
        name: [_size(one, table.get(name)) for one, table in zip(comparisons, tables, strict=True)] for name in ordered
    }
    lit = _largest(sizes)
    return [
        Row(
            name[0], f"{LABELS[name[0]]}{name[1]}",
            next(number_of(name[0], table[name]["base"]) for table in tables if name in table),
            [replace(_cell(table.get(name)), is_largest=(name, at) in lit) for at, table in enumerate(tables)],
        )
        for name in ordered
    ]  # fmt: skip


_Name = tuple[str, str]
"""A line: its row in `compare_table`, and the suffix of its label if several lines have that row."""


def _rows(comparison: Comparison, several: bool) -> Iterator[tuple[_Name, dict[Any, Any]]]:
    """The rows of a comparison by line; rates on different bases have separate lines."""
    for row in compare_table([comparison]).to_dict("records"):
        figure = row["figure"]
        if figure in LABELS:
            yield (figure, f", {RATE_BASIS[comparison.basis]}" if several and figure in RATES.values() else ""), row


def _cell(row: dict[Any, Any] | None) -> Cell:
    if row is None:
        return Cell("–")
    return Cell(number_of(row["figure"], row["other"]), _change(row["figure"], _interval(row)))


def _interval(row: dict[Any, Any]) -> Interval | None:
    change, low, high = (None if pd.isna(row.get(key)) else row[key] for key in ("estimate", "low", "high"))
    return None if change is None else Interval(change, low, high)


def _change(figure: str, change: Interval | None) -> str:
    return (percent if figure in RATES.values() else difference)(change)


def _size(comparison: Comparison, row: dict[Any, Any] | None) -> float:
    """The size of a difference, 0 if its interval includes 0."""
    change = None if row is None else _interval(row)
    if row is None or change is None:
        return 0.0
    if row["figure"] in RATES.values():
        return abs(log(change.estimate)) if comparison.verdict in ("faster", "slower") else 0.0
    return abs(change.estimate) if is_shown(change) else 0.0


def _largest(sizes: dict[_Name, list[float]]) -> set[tuple[_Name, int]]:
    """The marked cells, as line and index in it."""
    if all(len(line) > 1 for line in sizes.values()):
        groups = [{(name, at): size for at, size in enumerate(line)} for name, line in sizes.items()]
    else:
        groups = [{(name, 0): line[0] for name, line in sizes.items() if name[0] in _CAUSES}]
    return {max(group, key=lambda place: group[place]) for group in groups if any(group.values())}


def number_of(figure: str, value: float | None) -> str:
    """Format a run's own figure."""
    if value is None or pd.isna(value):
        return "–"
    return f"{value:,.{2 if figure == DISTORTION else 1}f}".removesuffix(".0")
