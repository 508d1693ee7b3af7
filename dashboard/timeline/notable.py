"""Notable tokens, by the length of the gap after them."""

from __future__ import annotations

from math import ceil

import numpy as np

from dashboard.timeline.align import Tokens


def token_at(tokens: Tokens, percentile: float) -> int | None:
    """The token whose gap is at a percentile (0 to 100, nearest rank) of the run's gaps; None if it has none.

    Of tokens with equal gaps the first one is taken.
    """
    known = np.flatnonzero(tokens.gap >= 0)
    if not len(known):
        return None
    ordered = np.sort(tokens.gap[known])
    rank = max(ceil(min(max(percentile, 0.0), 100.0) / 100 * len(ordered)), 1)
    return int(known[np.argmax(tokens.gap[known] == ordered[rank - 1])])
