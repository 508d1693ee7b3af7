"""Layout: the position of each run's rows, in pixels from the top of the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.timeline.arrange import Line, devices_of
from dashboard.timeline.rows import Row

HEADING = 40
GAP_STRIP = 20
RULER = 33
"""Position of the tokens' numbers in a heading, px from its top."""
_BELOW = 10
_ROOMY = 300  # px of rows; fewer are drawn taller


@dataclass(frozen=True, eq=False)
class Placed:
    """A row and its position: `top` and `bottom` of its bars, px."""

    line: Line
    top: int
    bottom: int

    @property
    def row(self) -> Row:
        """The row that it shows."""
        return self.line.row

    @property
    def middle(self) -> float:
        """Centre of the bars, px."""
        return (self.top + self.bottom) / 2


@dataclass(frozen=True, slots=True)
class Band:
    """Where the gaps of a device are drawn, px: `top` to `bottom`, over its rows and a strip for their labels."""

    device: int
    top: int
    bottom: int


@dataclass(frozen=True, eq=False)
class Panel:
    """One run's place, px: `top` (its heading) to `bottom`."""

    top: int
    bottom: int
    bands: list[Band]
    rows: list[Placed]

    def row(self, **wanted: object) -> Placed | None:
        """The first row with these attributes."""
        return next((p for p in self.rows if all(getattr(p.row, k) == v for k, v in wanted.items())), None)


def panels(runs: Sequence[Sequence[Line]]) -> list[Panel]:
    """Stack the runs: each a heading, its host rows, and for each device its rows and a strip for the gaps' labels."""
    total = sum(line.height for lines in runs for line in lines)
    scale = min(max(_ROOMY / max(total, 1), 1.0), 1.4)
    placed: list[Panel] = []
    top = 0
    for lines in runs:
        y = top + HEADING
        places: list[Placed] = []
        bands: list[Band] = []
        for device, group in devices_of(lines):
            first = y - 2
            for line in group:
                tall = round(line.height * scale)
                places.append(Placed(line, y, y + tall - line.space))
                y += tall
            if device is not None:
                y += GAP_STRIP
                bands.append(Band(device, first, y))
        placed.append(Panel(top, y + _BELOW, bands, places))
        top = y + _BELOW
    return placed
