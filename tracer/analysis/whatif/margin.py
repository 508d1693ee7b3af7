"""The margin of a prediction: the model's error on programs that it was not fitted to.

Half the width of a margin, in the logarithm of the speed-up, is
    share · (floor + |logarithm of the predicted speed-up|)
where share is the 95 % quantile of error / (floor + predicted) over the measured cases, corrected for their number as
in split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005). Coverage was
counted with whole programs left out, one at a time: the share of the other programs' cases, applied to the cases of the
one left out (benchmarks/whatif_coverage.py, results/whatif_prediction.json). Some of these cases were known when the
model was chosen, so this is called a margin and not an interval of a stated confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from tracer.files.bounded import Count, Figure


@dataclass(frozen=True)
class Margin:
    """The errors of the measured cases of one kind of what-if on one kind of recording.

    Attributes:
        share: see the module.
        cases, programs: number of cases and of programs.
    """

    share: Figure
    cases: Count
    programs: Count

    def half_width(self, speedup: float, floor: float) -> float:
        """Half the margin for the logarithm of a predicted speed-up."""
        return self.share * (floor + abs(log(speedup)))


def together(half_widths: Sequence[float | None]) -> float | None:
    """The margin of several independent edits; None if one of them was never measured."""
    known = [half for half in half_widths if half is not None]
    return sqrt(sum(half**2 for half in known)) if len(known) == len(half_widths) else None
