"""A run in the minimap: how busy its busiest stream is in each bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dashboard.timeline.pyramid import Pyramid, grid
from dashboard.timeline.rows import Row
from tracer.model.intervals import Ints, covered

BINS: Final = 256


@dataclass(frozen=True, eq=False)
class Busy:
    """Bins of one width from `low` on, ns of the recording, and the share of each that the busiest stream is busy."""

    low: int
    width: int
    share: NDArray[np.float64]

    @property
    def middles(self) -> Ints:
        """The bins' middles, ns."""
        return self.low + self.width // 2 + self.width * np.arange(len(self.share), dtype=np.int64)


def busy_of(rows: Sequence[Row], low: int, high: int) -> Busy:
    """How busy the streams among these rows are in [low, high], in at most `BINS` + 1 bins."""
    shift, low, high = grid(low, high, BINS)
    width, most = 1 << shift, np.zeros((high - low) >> shift)
    for row in rows:
        if row.role == "stream":
            most = np.maximum(most, _busy(row.pyramid, low, high, shift))
    return Busy(low, width, np.minimum(most / width, 1.0))


def _busy(pyramid: Pyramid, low: int, high: int, shift: int) -> NDArray[np.float64]:
    drawn = pyramid.detail(low, high, (high - low) >> shift)
    edges = np.arange(low, high + 1, 1 << shift, dtype=np.int64)
    busy = covered(pyramid.start[drawn.exact], pyramid.end[drawn.exact], edges[:-1], edges[1:]).astype(np.float64)
    busy[(drawn.start - low) >> shift] += drawn.busy
    return busy
