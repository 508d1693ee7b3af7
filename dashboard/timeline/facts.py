"""The facts about an event as lines of text, the same on the page and in the hovers of a figure outside of it; and the
launch parameters of kernels in words.

Only recorded facts are included. Names are shortened but not escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from dashboard.palette import KINDS
from dashboard.text import plain
from dashboard.units import difference, duration, size
from tracer.analysis.waits import UNKNOWN
from tracer.model.intervals import Ints, covered
from tracer.model.rows import of_thread
from tracer.model.schema import MISSING

if TYPE_CHECKING:  # rows.py describes its kernels with this module
    from dashboard.timeline.rows import Row

_SYNC: Final = KINDS.index("sync")
_SHAPE_COLUMNS: Final = [
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
    *("static_shared", "dynamic_shared", "registers"),
]  # fmt: skip


def times_of(row: Row, index: Ints, anchor: int) -> list[str]:
    """Durations of events, and their starts on the axis whose zero is at `anchor`."""
    return [
        f"{duration(end - start)}, from {difference(start - anchor, 4)}"
        for start, end in zip(row.start[index].tolist(), row.end[index].tolist(), strict=True)
    ]


def lines_of(row: Row, index: Ints, anchor: int, waits: pd.DataFrame) -> list[list[str]]:
    """All known facts about events, by start, from their own rows.

    Args:
        row: of the events.
        index: their positions in it.
        anchor: time 0, ns of the recording.
        waits: as returned by `marks.waits_of`.
    """
    columns = [row.events[c].iloc[index].tolist() for c in ("stream", "correlation", "bytes", "shape")]
    lengths = (row.end[index] - row.start[index]).tolist()
    each = zip(times_of(row, index, anchor), *columns, lengths, _waits(row, index, waits), strict=True)
    return [
        [line for line in (times, _ids(stream, number, count, ns), shape, wait) if line]
        for times, stream, number, count, shape, ns, wait in each
    ]


def line_of_bar(row: Row, low: int, high: int) -> str:
    """What a bar from `low` to `high`, ns of the recording, stands for; the facts of its longest event follow."""
    merged = row.pyramid.merged(low, high)
    busy = int(covered(row.start[merged], row.end[merged], [low], [high])[0])
    share = int(100 * busy / (high - low) + 0.5)
    return f"{len(merged):,} events in {duration(high - low)}, busy {share}%; the longest of them:"


def _ids(stream: int, correlation: int, count: int, ns: int) -> str:
    known = [f"stream {stream}"] if stream != MISSING else []
    known += [f"correlation {correlation}"] if correlation != MISSING else []
    known += [size(count)] if count != MISSING else []
    known += [f"{count / ns:.2f} GB/s"] if count > 0 and ns > 0 else []
    return " · ".join(known)


def _waits(row: Row, index: Ints, waits: pd.DataFrame) -> Sequence[str]:
    """For the syncs among the events, what they waited for."""
    notes = [""] * len(index)
    if row.role != "api" or not len(index):
        return notes
    near = slice(*waits["start"].searchsorted([row.start[index].min(), row.start[index].max() + 1]))
    mine = of_thread(waits.iloc[near], row.process, row.thread)
    if not len(mine):
        return notes
    starts = mine["start"].to_numpy()
    at = np.minimum(np.searchsorted(starts, row.start[index]), len(starts) - 1)
    syncs = np.flatnonzero((starts[at] == row.start[index]) & (row.events["what"].to_numpy()[index] == _SYNC))
    found = mine.iloc[at[syncs]]
    columns = [found[c].tolist() for c in ("waited_until", "waited_for", "end")]
    for i, until, activity, end in zip(syncs.tolist(), *columns, strict=True):
        notes[i] = _wait(until, activity, end)
    return notes


def _wait(until: int, activity: str, end: int) -> str:
    """What a sync that returned at `end` waited for; nothing if the trace does not say."""
    if activity == UNKNOWN:
        return ""
    if until == MISSING:
        return "waited for nothing: all that it waits for had ended before"
    return f"waited for {plain(activity, 60)}, which ended {duration(end - until)} before it returned"


def shapes_of(kernels: pd.DataFrame) -> pd.Categorical:
    """Grid, block, shared memory and registers of each kernel in words; "" if the recording has none.

    Of millions of kernels few are distinct, and each distinct one is described once.

    Args:
        kernels: as in `schema.TABLES`.
    """
    number = np.zeros(len(kernels), np.int64)
    most = 1  # numbers are smaller
    for values in (kernels[column].to_numpy() for column in _SHAPE_COLUMNS) if len(kernels) else ():
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if most * span >= 1 << 62:
            number, values = (pd.factorize(each)[0] for each in (number, values))
            low, most, span = 0, int(number.max()) + 1, int(values.max()) + 1
        if span > 1:
            number, most = number * span + np.subtract(values, low, dtype=np.int64), most * span
    code, _ = pd.factorize(number)
    first = np.flatnonzero(~pd.Series(code).duplicated())  # codes count up as they appear
    words, of_code = pd.factorize(
        np.array([_words_of_shape(kernel) for kernel in kernels.iloc[first].to_dict("records")], object)
    )
    return pd.Categorical.from_codes(words[code] if len(code) else code, pd.Index(of_code, dtype="str"))


def _words_of_shape(kernel: dict[Any, Any]) -> str:
    known = [
        f"{of} {' × '.join(str(kernel[f'{of}_{axis}']) for axis in 'xyz')}"
        for of in ("grid", "block")
        if min(kernel[f"{of}_{axis}"] for axis in "xyz") > 0
    ]
    shared = kernel["static_shared"], kernel["dynamic_shared"]
    known += [f"shared memory {size(sum(shared))}"] if known and min(shared) >= 0 else []
    known += [f"{kernel['registers']} registers per thread"] if kernel["registers"] > 0 else []
    return " · ".join(known)
