"""Numbering of rows that are equal in several columns."""

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
