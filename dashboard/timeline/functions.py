"""The Python functions of a thread as rows of the timeline: each level holds the functions called by the level above.

Only functions of the program itself are shown, as in `call_chains.BELOW_PROGRAM`, to a depth of `LEVELS`; the flame
graph of the advice page has all of them. Functions that last for several steps, such as the loop over the steps, and
those that do little more than call another one are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_chains import BELOW_PROGRAM, PYTHON_FILE
from tracer.analysis.call_sites import nesting
from tracer.analysis.calls import rows_named
from tracer.model.schema import PYTHON_FUNCTION
from tracer.model.trace import Trace

LEVELS: Final = 8
_PASSES_ON: Final = 0.95  # of its time: a function that spends as much in a single call is left out
_STEPS: Final = 2  # a function that lasts longer than so many of the longest step is left out


def without_functions(trace: Trace) -> pd.DataFrame:
    """Remove the Python functions from a trace, in place; returns them."""
    nvtx = trace["nvtx"]
    found = (nvtx["domain"] == PYTHON_FUNCTION).to_numpy()
    if not found.any():
        return nvtx.iloc[:0]
    others = nvtx[~found].reset_index(drop=True)
    for column in ("text", "domain"):
        others[column] = others[column].cat.remove_unused_categories()
    trace.tables["nvtx"] = others
    return nvtx[found]


def shown_functions(functions: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The functions to show.

    Args:
        functions: rows of `trace["nvtx"]` of Python functions.
        steps: the table of the steps.
    """
    length = (functions["end"] - functions["start"]).to_numpy()
    most = _STEPS * int((steps["end"] - steps["start"]).max())
    of_program = rows_named(functions["text"], lambda text: PYTHON_FILE.search(text) and not BELOW_PROGRAM.search(text))
    return functions[of_program & (length > 0) & (length <= most)]


def levels_of(functions: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The levels of the functions of one thread, outermost first; each is sorted by start."""
    functions = functions.sort_values(["start", "end"], ascending=[True, False], kind="stable")
    parents, _ = _nested(functions)
    length, longest = (functions["end"] - functions["start"]).to_numpy(), np.zeros(len(functions) + 1, np.int64)
    np.maximum.at(longest, parents, length)
    functions = functions[longest[:-1] < _PASSES_ON * length]
    _, depth = _nested(functions)
    for level in range(min(int(depth.max(initial=-1)) + 1, LEVELS)):
        yield functions[depth == level]


def _nested(functions: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """See `call_sites.nesting`."""
    return nesting(*(functions[side].to_numpy(np.int64) for side in ("start", "end")))


def short_names(texts: pd.Series) -> pd.Series:
    """The functions without their file and line."""
    return texts.astype("str").str.replace(r"^.*\(\d+\): ", "", regex=True).astype("category")
