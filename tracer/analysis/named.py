"""Token steps that begin with a call or kernel of a given name."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import by_thread, match_rows
from tracer.analysis.cycles import turn_differences
from tracer.analysis.periods import within_any
from tracer.trace import Trace


def steps_by_name(
    trace: Trace, pattern: str, window: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, str, float] | None:
    """Steps that begin with each call whose name matches, or that launches a kernel whose name does.

    The last step of a thread takes as long as the median one, or until the thread's last call.

    Args:
        trace: the recording.
        pattern: regular expression, searched in API names; in kernels' names if none of these has it.
        window: NVTX rows; only calls inside them begin steps.

    Returns:
        (table as in `tokens.Steps`, with phase "" for not known, description, confidence), or None where nothing
        matches. The confidence is one minus the mean share by which the steps' calls differ from the median step's.
    """
    api, kernels = trace["api"], trace["kernels"]
    chosen = _matching(api["name"], pattern)
    if not chosen.any():
        rows = match_rows(api, kernels[_matching(kernels["name"], pattern)])
        chosen[rows[rows >= 0]] = True
    if window is not None:
        chosen &= within_any(api, window)
    if not chosen.any():
        return None
    tables, regular = [], []
    for group, (process, thread, rows) in enumerate(by_thread(api)):
        heads = np.flatnonzero(chosen[rows])
        if not len(heads):
            continue
        starts = api["start"].to_numpy()[rows[heads]]
        last = int(api["end"].to_numpy()[rows].max())
        end = min(last, int(starts[-1] + np.median(np.diff(starts)))) if len(heads) > 1 else last
        table = pd.DataFrame({"start": starts, "end": np.append(starts[1:], end), "process": process})
        tables.append(table.assign(thread=thread, group=group, phase=""))
        if len(heads) > 1:
            names = np.asarray(api["name"].cat.codes.to_numpy()[rows], dtype=np.int64)
            differences, usual = turn_differences(names, heads)
            regular.append(1 - float(np.minimum(differences / max(usual, 1), 1).mean()))
    table = pd.concat(tables).sort_values("start", kind="stable", ignore_index=True)
    table["step"] = np.arange(len(table))
    return table, f"calls and kernels that match {pattern!r}", float(np.mean(regular)) if regular else 0.0


def _matching(names: pd.Series, pattern: str) -> NDArray[np.bool_]:
    words = [word for word in names.cat.categories if re.search(pattern, str(word))]
    return np.array(names.isin(words), dtype=bool)
