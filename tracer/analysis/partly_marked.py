"""Engines that mark only part of their steps: every third, or only while they log.

A marked step lasts until the next mark of its thread, and would include the steps without one in between. So if marks
are followed by further passes like their own, before the next mark, the steps are those found without marks. Passes
inside a mark, such as drafts whose tokens are fetched, or all tokens of a marked request, remain one step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import LAUNCHES, among
from tracer.analysis.passes import CONSTANT, steps_of_fetches
from tracer.analysis.phases import results_of
from tracer.analysis.steps import Steps
from tracer.model.rows import groups_of, taken
from tracer.model.trace import Trace

_THREAD: Final = ["process", "thread"]


def all_if_partly_marked(trace: Trace, marked: Steps, calls: pd.DataFrame) -> Steps | None:
    """All steps, marked or not, if marks are on only part of them; None if the marks are on all, as far as is known.

    Args:
        trace: the recording.
        marked: its steps from `steps_of_marks`.
        calls: from `calls.host_calls`.
    """
    if results_of(marked, calls).mean() <= 2 - CONSTANT:  # a step without a mark brings a result of its own
        return None
    found = steps_of_fetches(trace, calls)
    if found is None:
        return None
    launches = taken(calls, among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES), ["start", *_THREAD])
    times = tuple(launches[name].to_numpy() for name in ("start", *_THREAD))
    mark, at = marked.of(*times), found.of(*times)
    inside = times[0] <= marked.table["closes"].to_numpy()[mark]
    both = (mark >= 0) & (at >= 0)
    inside, mark, at = inside[both], mark[both], at[both]
    with_mark = np.bincount(at[inside], minlength=len(found)) > 0
    kind, kinds = groups_of(found.table, [*_THREAD, "kind"])
    of_mark = mark * kinds + kind[at]
    unmarked = np.unique(at[~with_mark[at] & np.isin(of_mark, of_mark[inside])])
    few = len(unmarked) <= (1 - CONSTANT) * with_mark.sum()
    if few or len(np.unique(mark[inside])) < CONSTANT * len(marked):
        return None
    alike = np.isin(kind, kind[with_mark])
    marks = f"with marks ({marked.detail}) on only {with_mark.sum()} of {alike.sum()} similar passes"
    return replace(found, detail=f"{found.detail}, {marks}")
