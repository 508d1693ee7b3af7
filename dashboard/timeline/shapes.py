"""Launch parameters of kernels in words: grid, block, shared memory and registers. Of millions of kernels few are
distinct, and each distinct one is described once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.units import size

_COLUMNS: Final = [
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
    *("static_shared", "dynamic_shared", "registers"),
]  # fmt: skip


def shapes_of(kernels: pd.DataFrame) -> pd.Categorical:
    """A description of each kernel; "" if the recording has none.

    Args:
        kernels: as in `schema.TABLES`.
    """
    number = np.zeros(len(kernels), np.int64)
    most = 1  # numbers are smaller
    for values in (kernels[column].to_numpy() for column in _COLUMNS) if len(kernels) else ():
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if most * span >= 1 << 62:
            number, values = (pd.factorize(each)[0] for each in (number, values))
            low, most, span = 0, int(number.max()) + 1, int(values.max()) + 1
        if span > 1:
            number, most = number * span + np.subtract(values, low, dtype=np.int64), most * span
    code, _ = pd.factorize(number)
    first = np.flatnonzero(~pd.Series(code).duplicated())  # codes count up as they appear
    words, of_code = pd.factorize(
        np.array([_words(kernel) for kernel in kernels.iloc[first].to_dict("records")], object)
    )
    return pd.Categorical.from_codes(words[code] if len(code) else code, pd.Index(of_code, dtype="str"))


def _words(kernel: dict[Any, Any]) -> str:
    known = [
        f"{of} {' × '.join(str(kernel[f'{of}_{axis}']) for axis in 'xyz')}"
        for of in ("grid", "block")
        if min(kernel[f"{of}_{axis}"] for axis in "xyz") > 0
    ]
    shared = kernel["static_shared"], kernel["dynamic_shared"]
    known += [f"shared memory {size(sum(shared))}"] if known and min(shared) >= 0 else []
    known += [f"{kernel['registers']} registers per thread"] if kernel["registers"] > 0 else []
    return " · ".join(known)
