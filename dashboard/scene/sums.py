"""Sums of an area: number and time of its events by kind, name, operator, stream or thread.

Events that reach beyond the area count with the part inside. The area is processed in pieces, so that ten million
events need no more memory than one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.palette import KINDS, NAMES
from dashboard.reading.run import Run
from dashboard.timeline.layout import arranged, places_of
from dashboard.timeline.rows import Row
from dashboard.view import Area, Arrangement
from tracer.model.intervals import Ints

COLUMNS: Final = ["count", "total", "union", "mean", "of_area", "of_step"]
_AT_ONCE: Final = 500_000  # events of a row in a piece
_FIRST: Final = -(2**62)


@dataclass(frozen=True, eq=False)
class GroupedRow:
    """A row to be summed, and the group of each of its events.

    Attributes:
        row: the events.
        groups: the names of groups.
        code_of: positions of events -> the group of each; -1 for none.
    """

    row: Row
    groups: Sequence[str]
    code_of: Callable[[Ints], NDArray[np.integer]]


def sums_of(run: Run, area: Area, arrangement: Arrangement, anchor: int) -> pd.DataFrame:
    """The sums of a run's rows that are shown and in the area, see `sums`; time 0 is at `anchor` on its clock."""
    step = 0 if run.tokens is None else run.tokens.period
    low, high = area.ends
    return sums(grouped_rows(run, area, arrangement), low + anchor, high + anchor, step)


def grouped_rows(run: Run, area: Area, arrangement: Arrangement) -> list[GroupedRow]:
    """The rows of an area and their groups.

    Kernels, copies and operators belong to devices. Streams are rows of devices, and threads rows of hosts, whose calls
    and ranges are kept separate because they are nested.
    """
    places = places_of(run.rows)
    lines = [line for line in arranged(run.rows, arrangement) if not area.rows or places[line.index][1] in area.rows]
    if area.by == "kind":
        return [
            GroupedRow(line.row, [NAMES[kind] for kind in KINDS], _codes(line.row.events["what"])) for line in lines
        ]
    on_device = area.by != "thread"
    lines = [line for line in lines if (line.row.role == "stream") == on_device]
    if area.by == "kernel":
        return [GroupedRow(line.row, _names(line.row.events["full"]), _codes(line.row.codes[1])) for line in lines]
    if area.by == "operator":
        found = [(line.row, run.operators(line.row)) for line in lines]
        return [GroupedRow(row, _names(names), _codes(names.cat.codes)) for row, names in found]
    return [
        GroupedRow(line.row, [places[line.index][1]], lambda events: np.zeros(len(events), np.int8)) for line in lines
    ]


def sums(grouped: Sequence[GroupedRow], low: int, high: int, step: int = 0) -> pd.DataFrame:
    """The sums of [low, high), ns, by group, largest first.

    Args:
        grouped: the rows and their groups.
        low, high: the area, on the recording's clock.
        step: duration of a step of the run, 0 if unknown.

    Returns:
        By the name of the group: count (events with a part inside, including those of zero duration), total (sum of the
        durations inside, ns), union (the time in which at least one runs, ns), mean (of the durations inside, ns),
        of_area and of_step (union divided by the length of the area and by the duration of a step; NaN if that is 0).
    """
    groups = list(dict.fromkeys(name for each in grouped for name in each.groups))
    number = {name: at for at, name in enumerate(groups)}
    numbers = [np.array([number[name] for name in each.groups] or [0], dtype=np.int64) for each in grouped]
    found = np.zeros((3, len(groups)), np.int64)
    for first, last in _pieces([each.row for each in grouped], low, high):
        found += _summed(grouped, numbers, first, last, first == low, len(groups))
    table = pd.DataFrame(dict(zip(COLUMNS[:3], found, strict=True)), index=pd.Index(groups, dtype="str"))
    table = table[table["count"] > 0]
    table = table.assign(
        mean=table["total"] / table["count"],
        of_area=table["union"] / (high - low) if high > low else np.nan,
        of_step=table["union"] / step if step > 0 else np.nan,
    )
    return table.sort_values(["union", "total", "count"], ascending=False, kind="stable")


def _pieces(rows: Sequence[Row], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The area in pieces in which no row has more than `_AT_ONCE` events that start there, except for equal starts."""
    cuts = [np.array([low, high], np.int64)] if high > low else []
    for row in rows if cuts else ():
        first, last = np.searchsorted(row.start, (low, high))
        cuts.append(row.start[first:last][_AT_ONCE::_AT_ONCE])
    edges = np.unique(np.concatenate(cuts)).tolist() if cuts else []
    return pairwise(edges)


def _summed(
    grouped: Sequence[GroupedRow], numbers: Sequence[Ints], low: int, high: int, is_first: bool, groups: int
) -> NDArray[np.int64]:
    """Count, total and union by group of a piece; events that began in an earlier one are counted there."""
    pieces = []
    for one, numbered in zip(grouped, numbers, strict=True):
        events = one.row.pyramid.in_view(low, high)
        code = one.code_of(events)
        events, code = events[code >= 0], code[code >= 0]
        start, end = one.row.start[events], one.row.end[events]
        begins = np.ones(len(events), bool) if is_first else start >= low
        pieces.append((numbered[code], np.maximum(start, low), np.minimum(end, high), begins))
    if not pieces:
        return np.zeros((3, groups), np.int64)
    code, start, end, begins = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.argsort(start, kind="stable")
    code, start, end, begins = code[order], start[order], end[order], begins[order]
    reach = pd.Series(end).groupby(code).cummax().groupby(code).shift(fill_value=_FIRST).to_numpy()
    table = pd.DataFrame(
        {"count": begins.astype(np.int64), "total": end - start, "union": np.maximum(end - np.maximum(start, reach), 0)}
    )
    return cast(Ints, table.groupby(code).sum().reindex(range(groups), fill_value=0).to_numpy().T)


def _names(column: pd.Series) -> list[str]:
    return [str(name) for name in cast(pd.Categorical, column.array).categories]


def _codes(codes: pd.Series | NDArray[np.integer]) -> Callable[[Ints], NDArray[np.integer]]:
    array = np.asarray(codes)
    return lambda events: array[events]
