"""What a host sync waited for."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def last_ended(activities: pd.DataFrame, syncs: pd.DataFrame) -> NDArray[np.int64]:
    """For each sync call the position in `activities` of the last one of its stream that ended inside it, or -1.

    Args:
        activities: process stream end (ns).
        syncs: start end (ns) process stream; where the stream is unknown (a device synchronisation) the call may have
            waited for any stream of its process.
    """
    found = np.full(len(syncs), -1, dtype=np.int64)
    process_of, stream_of, end_of = (activities[column].to_numpy() for column in ("process", "stream", "end"))
    start, end = syncs["start"].to_numpy(), syncs["end"].to_numpy()
    for key, index in syncs.groupby(["process", "stream"]).indices.items():
        process, stream = cast("tuple[int, int]", key)
        mine = np.flatnonzero((process_of == process) & ((stream_of == stream) | (stream < 0)))
        mine = mine[np.argsort(end_of[mine], kind="stable")]
        ends = end_of[mine]
        last = np.searchsorted(ends, end[index], side="right") - 1
        waited = (last >= 0) & (ends[last] > start[index]) if len(ends) else last >= 0
        found[index[waited]] = mine[last[waited]]
    return found
