"""Layout: which rows of a run are shown, as arranged by the reader, and where, in pixels from the top of the figure.

Rows are in groups. A group is a process or a device; it contains the levels of a thread's NVTX ranges, its API calls,
or a stream. They are identified by name, so that an arrangement applies to all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeVar

from dashboard.timeline.rows import Row
from dashboard.view import Arrangement
from tracer.model.schema import MISSING

HEADING = 40
GAP_STRIP = 20
RULER = 33  # position of the tokens' numbers in a heading, px from its top
_BELOW = 10
_ROOMY = 300  # px of rows; fewer are drawn taller
_FOLDED: Final = "▸ "
_PINNED: Final = "● "
_THIN, _SPACE, _CLOSE = 7, 4, 1  # px: a thin line with its space, the space below others, and below thin ones
AS_RECORDED: Final = Arrangement()


@dataclass(frozen=True, eq=False)
class Line:
    """A row as shown: its position among the run's rows, its label, and its height with the space below, px."""

    row: Row
    index: int
    label: str
    height: int
    space: int = _SPACE


@dataclass(frozen=True)
class Unit:
    """Rows that stay together, as their positions: the levels of nested ranges, or one row.

    `aside` counts those without events during the steps, which are shown only if the arrangement says so.
    """

    name: str
    rows: tuple[int, ...]
    aside: int = 0

    @property
    def is_aside(self) -> bool:
        """Whether all are."""
        return self.aside == len(self.rows)


@dataclass(frozen=True)
class Group:
    """The units of a process or a device."""

    name: str
    units: tuple[Unit, ...]


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """The groups of a run's rows, as recorded."""
    processes = {row.process for row in rows if row.role != "stream" and row.thread != MISSING}
    groups: dict[str, list[Unit]] = {}
    ranges: dict[tuple[int, int], int] = {}  # which unit of its group holds those of a thread
    for index, row in enumerate(rows):
        units = groups.setdefault(_group_name(row, len(processes)), [])
        above = None if row.label else ranges.get((row.process, row.thread))
        if above is not None:  # a deeper level of the ranges above it
            unit = units[above]
            units[above] = replace(unit, rows=(*unit.rows, index), aside=unit.aside + row.aside)
            continue
        if row.role == "nvtx":
            ranges[row.process, row.thread] = len(units)
        units.append(Unit(row.label, (index,), int(row.aside)))
    return [Group(name, tuple(units)) for name, units in groups.items()]


def places_of(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """For each row its group, its unit and its position in that."""
    places = {
        index: (group.name, unit.name, level)
        for group in groups_of(rows)
        for unit in group.units
        for level, index in enumerate(unit.rows)
    }
    return [places[index] for index in range(len(rows))]


def all_groups(runs: Iterable[Sequence[Row]], arrangement: Arrangement = AS_RECORDED) -> list[Group]:
    """The groups of several runs together, in the order of the arrangement; positions are those of the first run."""
    units_of: dict[str, dict[str, Unit]] = {}
    for rows in runs:
        for group in groups_of(rows):
            known = units_of.setdefault(group.name, {})
            for unit in group.units:
                if unit.name not in known or (known[unit.name].is_aside and not unit.is_aside):
                    known[unit.name] = unit
    groups = [Group(name, tuple(_ordered(units.values(), arrangement))) for name, units in units_of.items()]
    return _ordered(groups, arrangement)


def arranged(rows: Sequence[Row], arrangement: Arrangement = AS_RECORDED) -> list[Line]:
    """The visible rows, top to bottom."""
    lines: list[Line] = _pinned(rows, arrangement.pinned)
    for group in _ordered(groups_of(rows), arrangement):
        if group.name in arrangement.hidden:
            continue
        units = [_without_aside(group, unit, rows, arrangement) for unit in _ordered(group.units, arrangement)]
        units = [unit for unit in units if unit.rows and _is_shown(group, unit, arrangement)]
        if group.name in arrangement.folded:
            lines += _thin(group.name, [index for unit in units for index in unit.rows], rows)
            continue
        for unit in units:
            if unit.name in arrangement.folded:
                lines += _thin(unit.name, unit.rows, rows)
            else:
                lines += [Line(rows[index], index, rows[index].label, rows[index].height) for index in unit.rows]
    return lines


def _pinned(rows: Sequence[Row], names: Sequence[str]) -> list[Line]:
    """The pinned rows, in the order in which they were pinned."""
    units = {unit.name: unit for group in groups_of(rows) for unit in group.units}
    pinned = [(name, index) for name in names if name in units for index in units[name].rows]
    return [Line(rows[i], i, f"{_PINNED}{rows[i].label}" if rows[i].label else "", rows[i].height) for _, i in pinned]


def moved(groups: Sequence[Group], arrangement: Arrangement, name: str, by: int) -> Arrangement:
    """The arrangement with a group or unit moved down by a number of places among its neighbours; `groups` are all."""
    siblings = [group.name for group in groups]
    if name not in siblings:
        siblings = next(([u.name for u in g.units] for g in groups if name in {u.name for u in g.units}), [])
    if name not in siblings:
        return arrangement
    at = siblings.index(name)
    siblings.insert(min(max(at + by, 0), len(siblings) - 1), siblings.pop(at))
    return replace(arrangement, order=(*(n for n in arrangement.order if n not in siblings), *siblings))


def toggled(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Toggle a name: remove it from the names if they contain it, else add it."""
    return tuple(n for n in names if n != name) if name in names else (*names, name)


def _group_name(row: Row, processes: int) -> str:
    if row.role == "stream":
        return f"GPU {row.device}"
    if row.process == MISSING:
        return "No process"
    return "Host" if processes <= 1 else f"Process {row.process}"


_Named = TypeVar("_Named", Group, Unit)


def _ordered(given: Iterable[_Named], arrangement: Arrangement) -> list[_Named]:
    place = {name: at for at, name in enumerate(arrangement.order)}
    return sorted(given, key=lambda each: place.get(each.name, len(place)))


def _without_aside(group: Group, unit: Unit, rows: Sequence[Row], arrangement: Arrangement) -> Unit:
    if not unit.aside or {group.name, unit.name} & {*arrangement.shown}:
        return unit
    return replace(unit, rows=tuple(index for index in unit.rows if not rows[index].aside))


def _is_shown(group: Group, unit: Unit, arrangement: Arrangement) -> bool:
    wanted = arrangement.only.casefold()
    if unit.name in arrangement.pinned:
        return False  # it stands above
    return unit.name not in arrangement.hidden and wanted in f"{group.name}\n{unit.name}".casefold()


def _thin(name: str, indices: Sequence[int], rows: Sequence[Row]) -> list[Line]:
    """Thin lines, if any: the middle one shows the name, and there is space below the last."""
    if not indices:
        return []
    if len(indices) == 1:
        return [Line(rows[indices[0]], indices[0], _FOLDED + name, 2 * _THIN)]
    middle = (len(indices) - 1) // 2
    room = [_CLOSE] * (len(indices) - 1) + [_SPACE]
    return [
        Line(rows[index], index, _FOLDED + name if at == middle else "", _THIN - _CLOSE + below, below)
        for at, (index, below) in enumerate(zip(indices, room, strict=True))
    ]


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
        by_device = groupby(lines, key=lambda line: line.row.device if line.row.role == "stream" else None)
        for device, group in by_device:  # None for the host's
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
