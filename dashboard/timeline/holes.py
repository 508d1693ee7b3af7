"""The idle holes of the steps as the timeline shades them: by device and place, at any scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import pandas as pd

from dashboard.text import markup
from dashboard.timeline.layout import Panel
from dashboard.timeline.marks import Window
from dashboard.timeline.pyramid import AtAnyScale, Detail
from dashboard.units import duration
from tracer.analysis.causes import CAUSE_OF, CAUSES, PART_NAMES
from tracer.analysis.idle import PLACES, IdleReport
from tracer.model.intervals import Ints

COLUMNS: Final = ["x", "dx", "ns", "place", "share", "text", "top", "bottom"]
_FINEST: Final = 4  # px; narrower holes are merged


@dataclass(frozen=True, eq=False)
class HoleRow(AtAnyScale):
    """Where a device idles at one place of its steps.

    Attributes:
        device: the device.
        place: one of `PLACES`.
        events: rows of `IdleReport.table`, by start: start end (ns) next part.
    """

    device: int
    place: str
    events: pd.DataFrame = field(repr=False)


def hole_rows(idle: IdleReport) -> list[HoleRow]:
    """The holes of each device and place that has some."""
    table = idle.table.sort_values("start", kind="stable")
    return [
        HoleRow(device, place, holes[["start", "end", "next", "part"]].reset_index(drop=True))
        for device in sorted(map(int, table["device"].unique()))
        for place in PLACES
        if len(holes := table[(table["device"] == device) & (table["place"] == place)])
    ]


def detail_of(row: HoleRow, window: Window) -> Detail:
    """How the holes are drawn in a window with a margin for panning."""
    return row.pyramid.detail(*window.wider, max(window.bins // _FINEST, 1))


def shades_of(rows: Sequence[HoleRow], drawn: Sequence[Detail], panel: Panel, window: Window) -> pd.DataFrame:
    """The shaded areas, each over the rows of its device.

    Columns: x dx (s), ns (the length of a hole; for several, the idle part of the bin), place, share (the idle part of
        what is shaded), text (a hover, escaped), top bottom (px).
    """
    bands = {band.device: band for band in panel.bands}
    parts = [
        part.assign(place=row.place, top=bands[row.device].top, bottom=bands[row.device].bottom)
        for row, detail in zip(rows, drawn, strict=True)
        if row.device in bands
        for part in (_exact(row, detail, window), _merged(row, detail, window))
        if len(part)
    ]
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def _exact(row: HoleRow, detail: Detail, window: Window) -> pd.DataFrame:
    low, high = window.wider
    index = detail.exact
    index = index[(row.start[index] < high) & (row.end[index] > low)]
    start, end = np.maximum(row.start[index], low), np.minimum(row.end[index], high)
    length = row.end[index] - row.start[index]
    return pd.DataFrame({
        "x": window.seconds(start), "dx": (end - start) / 1e9, "ns": length, "share": 1.0,
        "text": [
            f"<b>{_named(row.place)}: {duration(ns)}</b>{why}"
            for why, ns in zip(_whys(row, index), length.tolist(), strict=True)
        ],
    })  # fmt: skip


def _merged(row: HoleRow, detail: Detail, window: Window) -> pd.DataFrame:
    width, longest = detail.end - detail.start, row.end[detail.longest] - row.start[detail.longest]
    return pd.DataFrame({
        "x": window.seconds(detail.start), "dx": width / 1e9, "ns": detail.busy, "share": detail.busy / width,
        "text": [
            f"<b>{_named(row.place)}: {duration(idle)} of {duration(wide)}</b><br>{count} holes; the longest "
            f"{duration(longest)}{why}"
            for idle, wide, count, longest, why in zip(
                *(each.tolist() for each in (detail.busy, width, detail.count, longest)),
                _whys(row, detail.longest), strict=True,
            )
        ],
    })  # fmt: skip


def _named(place: str) -> str:
    return f"idle {PLACES[place]}"


def _whys(row: HoleRow, index: Ints) -> list[str]:
    """The compute that follows each hole, and what it mostly waits for."""
    holes = row.events.iloc[index]
    return [_why(part, behind) for part, behind in zip(holes["part"].tolist(), holes["next"].tolist(), strict=True)]


@lru_cache(maxsize=4096)
def _why(part: str, behind: str) -> str:
    return f"<br>until {markup(str(behind), 60)}<br>mostly {CAUSES[CAUSE_OF[part]]}: {PART_NAMES[part]}"
