"""Rows that are equal in several columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray


def numbered(*columns: ArrayLike) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """The number of each row, equal rows having the same, and the distinct rows: 0, 1, ... in the order of appearance.

    (`pandas.factorize` of a MultiIndex makes a tuple of every row, and in pandas 2.2 fails where there is none.)

    Example:
        >>> numbered([3, 1, 3], [0, 0, 0])
        (array([0, 1, 0]), [(3, 0), (1, 0)])
    """
    frame = pd.DataFrame({number: np.asarray(column) for number, column in enumerate(columns)})
    codes = np.asarray(frame.groupby(list(frame), sort=False, dropna=False).ngroup(), dtype=np.int64)
    return codes, list(frame.drop_duplicates().itertuples(index=False, name=None))
