"""How far a prediction may be off: by as much as the model was on programs that it was not fitted to.

Half the width of a margin, in the logarithm of the speed-up, is

    share · (`FLOOR` + |logarithm of the predicted speed-up|)

the share being the 95 % quantile of (error / (FLOOR + predicted)) over the cases that were measured, corrected for
their number as in split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world",
2005). What that is worth was counted with whole programs left out, one at a time: the share is that of the others'
cases, tried on the cases of the one (benchmarks/whatif_coverage.py, results/whatif_prediction.json). The model was
chosen with a part of these cases in view, so it is called a margin, and no interval of so many per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Final

FLOOR: Final = 0.02
"""About what rates of one program differ by between processes and days."""

_LEVEL: Final = 0.95


@dataclass(frozen=True)
class Margin:
    """The errors of the checked cases of one kind of what-if on one kind of recording.

    Attributes:
        share: see the module.
        cases, programs: how many it is from.
    """

    share: float
    cases: int
    programs: int

    def half_width(self, speedup: float) -> float:
        """Of the logarithm of a predicted speed-up."""
        return self.share * (FLOOR + abs(log(speedup)))


FEWER_CALLS: Final = {False: Margin(0.52, 56, 8), True: Margin(0.34, 33, 3)}
"""Of strategies and syncs: from light passes (False), and from recordings made under a profiler, with the rate."""

ONE_GRAPH: Final = Margin(0.30, 10, 8)
"""Of one graph with early starts, from recordings of single launches made under a profiler, with the rate."""


def share_of(cases: Sequence[tuple[float, float]]) -> float:
    """The share that cases (predicted, measured speed-up) ask for; of few of them the largest."""
    found = sorted(abs(log(measured / predicted)) / (FLOOR + abs(log(predicted))) for predicted, measured in cases)
    return found[min(ceil((len(found) + 1) * _LEVEL), len(found)) - 1]


def together(half_widths: Sequence[float | None]) -> float | None:
    """Of several independent edits; None where one of them was never measured."""
    known = [half for half in half_widths if half is not None]
    return sqrt(sum(half**2 for half in known)) if len(known) == len(half_widths) else None
