"""Layout: where each run's rows stand, in pixels from the top of the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.timeline.rows import Row

HEADING = 34
GAP_STRIP = 20
_BELOW = 10
_ROOMY = 300  # px of rows; fewer are drawn taller


@dataclass(frozen=True, eq=False)
class Placed:
    """A row and where it stands: `top` and `bottom` of its bars, px."""

    row: Row
    top: int
    bottom: int

    @property
    def middle(self) -> float:
        """Centre of the bars, px."""
        return (self.top + self.bottom) / 2


@dataclass(frozen=True, eq=False)
class Panel:
    """One run's place, px: `top` (its heading) to `bottom`; `devices` spans device rows and gap strip."""

    top: int
    bottom: int
    devices: tuple[int, int]
    rows: list[Placed]

    def row(self, **wanted: object) -> Placed | None:
        """The first row whose attributes are as wanted."""
        return next((p for p in self.rows if all(getattr(p.row, k) == v for k, v in wanted.items())), None)


def panels(runs: Sequence[Sequence[Row]]) -> list[Panel]:
    """Stack the runs: each a heading, its host rows, its device rows, a strip for the gap's label."""
    total = sum(row.height for rows in runs for row in rows)
    scale = min(max(_ROOMY / max(total, 1), 1.0), 1.4)
    placed: list[Panel] = []
    top = 0
    for rows in runs:
        y = top + HEADING
        places: list[Placed] = []
        strip = None
        for row in rows:
            if row.role == "stream" and strip is None:
                strip = y - 2
            tall = round(row.height * scale)
            places.append(Placed(row, y, y + tall - 4))
            y += tall
        y += GAP_STRIP
        placed.append(Panel(top, y + _BELOW, (y if strip is None else strip, y), places))
        top = y + _BELOW
    return placed
