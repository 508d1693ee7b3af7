"""Numbering and grouping of rows that are equal in several columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray


def numbered(*columns: ArrayLike) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """Number the distinct rows in order of appearance: the number of each row, and the distinct rows.

    (`pandas.factorize` of a MultiIndex makes a tuple of every row, and fails in pandas 2.2 if there are no rows.)

    Example:
        >>> numbered([3, 1, 3], [0, 0, 0])
        (array([0, 1, 0]), [(3, 0), (1, 0)])
    """
    frame = pd.DataFrame({number: np.asarray(column) for number, column in enumerate(columns)})
    codes = np.asarray(frame.groupby(list(frame), sort=False, dropna=False).ngroup(), dtype=np.int64)
    return codes, list(frame.drop_duplicates().itertuples(index=False, name=None))


def groups_of(frame: pd.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], int]:
    """Number the rows by their integers in these columns, 0 to the number of groups - 1; and that number.

    Columns with one value in all rows, which most recordings have, take almost no time.

    Example:
        >>> groups_of(pd.DataFrame({"device": [0, 0, 1], "stream": [7, 9, 7]}), ["device", "stream"])
        (array([0, 1, 2]), 3)
    """
    number, count = np.zeros(len(frame), np.int64), min(len(frame), 1)
    for column in columns:
        values = frame[column].to_numpy()
        if (values == values[:1]).all():
            continue
        mine, different = pd.factorize(values)
        number, distinct = pd.factorize(number * len(different) + mine)
        count = len(distinct)
    return np.asarray(number, dtype=np.int64), count


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
