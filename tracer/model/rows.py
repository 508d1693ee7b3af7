"""Numbering, grouping and matching of rows that are equal in several columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tracer.model.schema import MISSING

THREAD: Final = ["process", "thread"]
"""The columns that tell the threads of a recording apart."""

LANE: Final = ["process", "device", "context", "stream"]
"""The columns that tell the streams of a recording apart."""

_DENSE: Final = 4  # so many numbers per row may be listed to find rows by their number
_LARGEST: Final = np.iinfo(np.int64).max


def numbered(*columns: ArrayLike) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """Number the distinct rows in order of appearance: the number of each row, and the distinct rows.

    (`pandas.factorize` of a MultiIndex makes a tuple of every row, and fails in pandas 2.2 if there are no rows.)

    Example:
        >>> numbered([3, 1, 3], [0, 0, 0])
        (array([0, 1, 0]), [(3, 0), (1, 0)])
    """
    values = [np.asarray(column) for column in columns]
    codes, _ = _numbers(values)
    first = np.unique(codes, return_index=True)[1]
    return codes, list(zip(*(each[first].tolist() for each in values), strict=True))


def taken(frame: pd.DataFrame, rows: NDArray[np.bool_], columns: list[str]) -> pd.DataFrame:
    """Some rows and columns of a frame, numbered anew: `frame.loc[rows, columns]`, which takes five times as long if
    they are few.

    Example:
        >>> taken(pd.DataFrame({"start": [5, 9], "end": [6, 11]}), np.array([False, True]), ["end"])["end"].tolist()
        [11]
    """
    return pd.DataFrame({name: frame[name].array[rows] for name in columns}, copy=False)


def of_thread(frame: pd.DataFrame, process: int, thread: int) -> pd.DataFrame:
    """The rows of a thread.

    Example:
        >>> of_thread(pd.DataFrame({"process": [1, 1, 2], "thread": [1, 2, 1], "end": [5, 6, 7]}), 1, 2)["end"].tolist()
        [6]
    """
    return frame[(frame["process"] == process) & (frame["thread"] == thread)]


def groups_of(frame: pd.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], int]:
    """Number the rows by their integers in these columns, 0 to the number of groups - 1; and that number.

    Columns with one value in all rows, which most recordings have, take almost no time.

    Example:
        >>> groups_of(pd.DataFrame({"device": [0, 0, 1], "stream": [7, 9, 7]}), ["device", "stream"])
        (array([0, 1, 2]), 3)
    """
    return _numbers([frame[column].to_numpy() for column in columns])


def _numbers(columns: list[NDArray[Any]]) -> tuple[NDArray[np.int64], int]:
    number, count = np.zeros(len(columns[0]), np.int64), min(len(columns[0]), 1)
    for values in columns:
        if (values == values[:1]).all():
            continue
        mine, different = pd.factorize(values, use_na_sentinel=False)
        number, distinct = pd.factorize(number * len(different) + mine)
        count = len(distinct)
    return np.asarray(number, dtype=np.int64), count


def grouped(frame: pd.DataFrame, columns: list[str]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """(its integers in these columns, the positions of its rows) of each group of equal rows, in order of appearance.

    Example:
        >>> [(key, at.tolist()) for key, at in grouped(pd.DataFrame({"device": [1, 0, 1]}), ["device"])]
        [((1,), [0, 2]), ((0,), [1])]
    """
    number, count = groups_of(frame, columns)
    order = np.argsort(number, kind="stable") if count > 1 else np.arange(len(number))
    sizes = np.bincount(number, minlength=count)
    values = [frame[column].to_numpy() for column in columns]
    for rows in np.split(order, np.cumsum(sizes)[:-1]) if count else ():
        yield tuple(int(each[rows[0]]) for each in values), rows


def runs_of(frame: pd.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the rows sorted by their integers in these columns, stably; and where in that order each group
    of equal rows begins, as `numpy.ufunc.reduceat` takes it.

    Example:
        >>> runs_of(pd.DataFrame({"at": [1, 0, 1]}), ["at"])
        (array([1, 0, 2]), array([0, 1]))
    """
    values = [frame[column].to_numpy() for column in columns]
    values = [each for each in values if (each != each[:1]).any()] or [np.zeros(len(frame), np.int64)]
    order = np.argsort(values[0], kind="stable") if len(values) == 1 else np.lexsort(values[::-1])
    begins = np.logical_or.reduce([each[order][1:] != each[order][:-1] for each in values])
    return order, np.flatnonzero(np.append(True, begins))[: len(order)]


def ranks_of(frame: pd.DataFrame, columns: list[str]) -> NDArray[np.int64]:
    """Number the rows by their integers in these columns, 0, 1, ... in the order of these integers.

    Example:
        >>> ranks_of(pd.DataFrame({"device": [1, 0, 1], "stream": [7, 9, 7]}), ["device", "stream"]).tolist()
        [1, 0, 1]
    """
    order, first = runs_of(frame, columns)
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
    return number


def positions(rows: pd.DataFrame, others: pd.DataFrame, columns: list[str]) -> NDArray[np.int64]:
    """For each of `rows`, the position in `others` of the last row with the same integers in these columns, or -1.

    Example:
        >>> steps = pd.DataFrame({"device": [0, 0, 1], "step": [7, 8, 7]})
        >>> positions(pd.DataFrame({"device": [1, 1], "step": [7, 8]}), steps, ["device", "step"]).tolist()
        [2, -1]
    """
    mine, theirs = _alike(rows, others, columns)
    at = np.full(max(mine.max(initial=-1), theirs.max(initial=-1)) + 1, -1)
    at[theirs] = np.arange(len(theirs))
    return at[mine]


def last_at(
    rows: pd.DataFrame, times: ArrayLike, others: pd.DataFrame, when: str, columns: list[str]
) -> NDArray[np.int64]:
    """For each of `rows`, the position in `others` of the last row with the same integers in these columns whose time
    (its column `when`, ns) is at or before one of `times`, or -1; of equal times that of the last row.

    Example:
        >>> records = pd.DataFrame({"event": [1, 2, 1], "recorded": [5, 6, 9]})
        >>> last_at(pd.DataFrame({"event": [1, 1, 2]}), [8, 9, 5], records, "recorded", ["event"]).tolist()
        [0, 2, -1]
    """
    if not len(others):
        return np.full(len(rows), -1)
    mine, theirs = _alike(rows, others, columns)
    known = others[when].to_numpy()
    by_time = np.argsort(known, kind="stable")
    rank = np.empty(len(known), np.int64)  # from 1, of each of `others`
    rank[by_time] = np.arange(1, len(known) + 1)
    begun = np.searchsorted(known[by_time], np.asarray(times), side="right")  # how many of them, at each time
    key = theirs * (len(known) + 1) + rank
    order = np.argsort(key, kind="stable")
    found = np.append(order, -1)[np.searchsorted(key[order], mine * (len(known) + 1) + begun, side="right") - 1]
    return np.where((found >= 0) & (theirs[found] == mine), found, -1)


def _alike(rows: pd.DataFrame, others: pd.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers that are equal for rows, of both frames, with equal integers in these columns."""
    both = [np.concatenate([frame[column].to_numpy() for frame in (rows, others)]) for column in columns]
    number, _ = _numbers(both)
    return number[: len(rows)], number[len(rows) :]


def among(values: NDArray[Any], wanted: Iterable[Any]) -> NDArray[np.bool_]:
    """Which values are in a small set: `np.isin` without sorting."""
    return np.asarray(np.logical_or.reduce([values == one for one in wanted]))


def rows_named(names: pd.Series, chosen: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows of a categorical name column have a chosen name; each distinct name is checked once."""
    if not len(names):
        return np.zeros(0, dtype=bool)
    return np.asarray(np.array([bool(chosen(str(name))) for name in names.cat.categories])[names.cat.codes.to_numpy()])


def match_rows(table: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.int64]:
    """For each of `rows`, the position in `table` of the first row with its (process, correlation), or -1."""
    if not len(table) or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    of_table, of_rows = ([frame[name].to_numpy() for name in ("process", "correlation")] for frame in (table, rows))
    low = int(of_table[1].min())
    span = int(of_table[1].max()) - low + 1
    processes = _distinct(of_table[0])
    given = of_rows[1] >= 0
    if len(processes) * span > _LARGEST:  # no profiler numbers calls like this, but a file may
        distinct = np.unique(of_table[1])
        at = np.minimum(np.searchsorted(distinct, of_rows[1]), len(distinct) - 1)
        of_rows[1] = np.where(distinct[at] == of_rows[1], at, MISSING)
        of_table[1] = np.searchsorted(distinct, of_table[1])
        low, span = 0, len(distinct)

    def keys(of: NDArray[np.int64], number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Process and correlation as one number below `len(processes) * span`, and which rows have one."""
        number = number - low
        if len(processes) == 1:
            return number, (of == processes[0]) & (number >= 0) & (number < span)
        place = np.minimum(np.searchsorted(processes, of), len(processes) - 1)
        return place * span + number, (processes[place] == of) & (number >= 0) & (number < span)

    table_key, (row_key, known) = keys(*of_table)[0], keys(*of_rows)
    known &= given
    row_key = np.where(known, row_key, 0)
    if len(processes) * span <= _DENSE * (len(table) + len(rows)):
        first = np.full(len(processes) * span, -1, dtype=np.int64)
        first[table_key[::-1]] = np.arange(len(table))[::-1]  # of equal keys the last assignment stays
        return np.where(known, first[row_key], -1)
    order = np.argsort(table_key, kind="stable")
    candidate = order[np.minimum(np.searchsorted(table_key, row_key, sorter=order), len(order) - 1)]
    return np.asarray(np.where(known & (table_key[candidate] == row_key), candidate, -1), dtype=np.int64)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct values, sorted; usually there is only one."""
    return values[:1] if (values == values[0]).all() else np.unique(values)


def by_thread(frame: pd.DataFrame) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(process, thread, positions of its rows) for every thread in a frame."""
    for (process, thread), rows in grouped(frame, ["process", "thread"]):
        yield process, thread, rows


def last_before(rows: pd.DataFrame, times: ArrayLike, others: pd.DataFrame) -> NDArray[np.int64]:
    """For each of `rows`, the position in `others` of the last row of its thread that starts at or before a time (ns),
    or -1; `others` are sorted by start, at least within each thread."""
    times, starts = np.asarray(times), others["start"].to_numpy()
    of_thread = {(process, thread): candidates for process, thread, candidates in by_thread(others)}
    result = np.full(len(rows), -1, dtype=np.int64)
    for process, thread, positions in by_thread(rows):
        candidates = of_thread.get((process, thread), result[:0])
        result[positions] = np.append(candidates, -1)[
            np.searchsorted(starts[candidates], times[positions], side="right") - 1
        ]
    return result
