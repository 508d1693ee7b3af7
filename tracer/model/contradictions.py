"""Records of the device that contradict the order of their stream, as `analysis.stream_order` finds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tracer.model.intervals import Bools
from tracer.model.tables import Activities
from tracer.notes import fitting
from tracer.text import plain

_MOST_NAMES: Final = 2
_LONGEST: Final = 60
_REMEDY: Final = "record again, with intertoken record or a newer version of the profiler"
_SHORTER: Final = "record again, with intertoken record"


class Contradicting(Activities):
    """Such records, with the times that were recorded; `is_cut` are those whose end alone is wrong."""

    is_cut: Bools


@dataclass(frozen=True, eq=False)
class Contradictions:
    """What contradicts the order of a stream in a trace.

    Attributes:
        rows: those records.
        among: the number of all records of devices.
        is_most: whether more than half of these have wrong times, so that the trace has none.
    """

    rows: Contradicting
    among: int
    is_most: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def note(self) -> str:
        """What they are, and what became of them, in a sentence with the remedy last.

        Example:
            "1 of the device's 2,136 records contradicts the order of its stream: 1 cut where the next work begins;
            record again, ...", then their names
        """
        cut = int(self.rows.is_cut.sum())
        parts = [f"{cut:,} cut where the next work begins"] * (cut > 0)
        parts += [f"{len(self) - cut:,} left out"] * (cut < len(self))
        became = f": {', '.join(parts)}; "
        one, several = "contradicts the order of its stream", "contradict the order of their stream"
        shorter = f"{self._among} {one if len(self) == 1 else several}{became}{_SHORTER}"
        return fitting(f"{self._which}{became}{_REMEDY}", shorter)

    @property
    def refusal(self) -> str:
        """Why the trace has no times, if most are wrong."""
        return f"the recording has no times of the device: {self._which}; {_REMEDY}"

    @property
    def _which(self) -> str:
        names = [name for name, _ in Counter(self.rows.name).most_common(_MOST_NAMES + 1)]
        more = " and others" if len(names) > _MOST_NAMES else ""
        told = ", ".join(plain(name, _LONGEST) for name in names[:_MOST_NAMES])
        one = "contradicts the order of its stream or has no time"
        does = one if len(self) == 1 else "contradict the order of their stream or have no time"
        return f"{self._among} {does} ({told}{more})"

    @property
    def _among(self) -> str:
        return f"{len(self):,} of the device's {self.among:,} records"
