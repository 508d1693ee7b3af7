"""Where a thread is between calls with call chains: in the innermost function on the stacks of both the previous and
the next call, or in a function called from it that makes no CUDA call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import outer_calls
from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace, conform

_LINE: Final = re.compile(r"\(\d+\): ")
Ints = NDArray[np.int64]
Frames = Sequence[tuple[str, str]]
"""Symbol and module of each function, the outermost first."""


def with_chains(trace: Trace, process: int, thread: int) -> pd.DataFrame:
    """The calls of a thread that have a call chain, by start; calls inside others are left out."""
    api = trace["api"]
    here = (api["process"] == process) & (api["thread"] == thread) & (api["callchain"] != MISSING)
    return outer_calls(api[here & api["callchain"].isin(trace["callchains"]["chain"].unique())])


def chains_at(trace: Trace, process: int, thread: int, times: Ints) -> tuple[Ints, pd.DataFrame]:
    """The stack of a thread at each time (ns), as far as its calls show it.

    Returns:
        For each time the number of a chain, `MISSING` if unknown: that of the call in progress, or else one of the
        functions that the previous and the next call have in common. And these chains, with the columns of
        `trace["callchains"]`.
    """
    calls = with_chains(trace, process, thread)
    start, end, chain = (calls[name].to_numpy(np.int64) for name in ("start", "end", "callchain"))
    at = np.searchsorted(start, times, side="right") - 1
    inside = (at >= 0) & (times < np.append(end, 0)[at])
    between = ~inside & (at >= 0) & (at < len(start) - 1)
    pairs = np.column_stack([chain[at[between]], chain[at[between] + 1]])
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    known = trace["callchains"]
    frames: dict[int, Frames] = {
        int(str(one)): list(zip(of["symbol"].astype(str), of["module"].astype(str), strict=True))
        for one, of in known[known["chain"].isin(chain)].sort_values("depth", ascending=False).groupby("chain")
    }
    first = max(frames, default=0) + 1
    for pair, (before, after) in enumerate(distinct.tolist()):
        frames[first + pair] = _common(frames[before], frames[after])
    found = np.full(len(times), MISSING)
    found[inside], found[between] = chain[at[inside]], first + number.ravel()
    rows = [
        (one, depth, *frame)
        for one in np.unique(found[found != MISSING]).tolist()
        for depth, frame in enumerate(reversed(frames[one]))
    ]
    table = pd.DataFrame(rows, columns=["chain", "depth", "symbol", "module"])
    return found, conform(table, TABLES["callchains"])


def _common(one: Frames, other: Frames) -> Frames:
    """The outer functions that two stacks share, as they are in the first one: line numbers of Python functions may
    differ."""
    alike = 0
    for (symbol, module), (its_symbol, its_module) in zip(one, other, strict=False):
        if (_LINE.sub("", symbol), module) != (_LINE.sub("", its_symbol), its_module):
            break
        alike += 1
    return one[:alike]
