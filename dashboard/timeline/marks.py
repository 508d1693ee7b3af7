"""Marks: the rectangles and lines that a timeline draws, as tables in the figure's own coordinates; and the shades of
the idle holes of the steps, by device and place, at any scale.

x is seconds from time 0 (Plotly writes them with SI prefixes), y pixels from the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.text import duration, markup, width_of
from dashboard.timeline.layout import Panel, Placed
from dashboard.timeline.pyramid import AtAnyScale, Detail
from dashboard.timeline.rows import Row, lines_of, times_of
from tracer.analysis.causes import CAUSE_OF, CAUSES, PART_NAMES
from tracer.analysis.idle import PLACES, IdleReport
from tracer.model.intervals import Ints
from tracer.model.schema import MISSING

COLUMNS: Final = ["x", "dx", "y", "height", "what", "share", "wide", "title", "more", "text", "text_x", "event"]
WAIT_COLUMNS: Final = ["start", "end", "process", "thread", "stream", "waited_for", "waited_until"]
NO_WAITS: Final = pd.DataFrame({c: pd.Series(dtype="str" if c == "waited_for" else "int64") for c in WAIT_COLUMNS})
_MOST_WHOLE = 150  # visible events of a row; above, whole hovers have short names and only times
SIZE_OF_TEXTS = 10.5  # of the letters inside bars, px
_CHARACTER = 6.4  # px of one of them, and of the space around it
_BESIDE = 4  # px on both sides of a text
_SHARPEST = 4.0  # px; bars at least this wide are set apart from their neighbours
_MOST_CONNECTORS = 40


@dataclass(frozen=True, slots=True)
class Viewport:
    """The viewport of a run: [low, high) and time 0 in ns of its clock, `width` px, at most `bins` per row."""

    low: int
    high: int
    anchor: int
    width: int
    bins: int

    @property
    def ns_per_pixel(self) -> float:
        """The duration of one pixel, ns."""
        return (self.high - self.low) / self.width

    @property
    def wider(self) -> tuple[int, int]:
        """The range drawn: the viewport and a tenth of it on either side."""
        margin = (self.high - self.low) // 10
        return self.low - margin, self.high + margin

    def seconds(self, times: Ints) -> NDArray[np.float64]:
        """Times as x."""
        return (times - self.anchor) / 1e9


def detail_of(row: Row, viewport: Viewport) -> Detail:
    """How the row is drawn in a viewport with a margin for panning."""
    return row.pyramid.detail(*viewport.wider, viewport.bins)


def marks_of(
    placed: Placed, drawn: Detail, viewport: Viewport, waits: pd.DataFrame, find: str = "", brief: bool = False
) -> pd.DataFrame:
    """The marks of one row; `brief`: hovers of events have only names and durations.

    Columns: x dx (s), y height (px), what (position in KINDS), share (busy share, 1 for an event), wide (whether it is
    wide enough for an outline), title (of the event, or the longest of a bin), more (a list: the other facts in the
    hover of an event, or for a bin its count, width, busy share in % and the longest event's length), text and text_x
    (the text inside, and its position), event (its position in the row's events, MISSING for a bin), found (1 for an
    event that matches the search, the number of matches that begin in a bin, 1 for all without a search).
    """
    marks = joined([_exact(placed, drawn.exact, viewport, waits, brief), _merged(placed, drawn, viewport)])
    events, finder = marks["event"].to_numpy(), placed.row.finder
    matches = np.ones(len(marks), np.int64)
    if find:
        exact = events != MISSING
        matches[exact] = finder.among(events[exact], find)
        matches[~exact] = finder.within(drawn.start, drawn.end, find)
    return marks.assign(found=matches)


def joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several tables of marks as one."""
    full = [part for part in parts if len(part)] or [*parts[:1]]
    return pd.concat(full, ignore_index=True) if full else pd.DataFrame(columns=[*COLUMNS, "found"])


def _exact(placed: Placed, index: Ints, viewport: Viewport, waits: pd.DataFrame, brief: bool) -> pd.DataFrame:
    row, (low, high) = placed.row, viewport.wider
    index = index[(row.start[index] < high) & ((row.end[index] > low) | (row.start[index] >= low))]
    start, end = np.maximum(row.start[index], low), np.minimum(row.end[index], high)
    seen_start, seen_end = np.maximum(start, viewport.low), np.minimum(end, viewport.high)
    room = (seen_end - seen_start) / viewport.ns_per_pixel
    whole = not brief and len(index) <= _MOST_WHOLE
    return pd.DataFrame(
        {
            "x": viewport.seconds(start),
            "dx": (end - start) / 1e9,
            "y": placed.middle,
            "height": placed.bottom - placed.top,
            "what": row.events["what"].to_numpy()[index],
            "share": 1.0,
            "wide": (end - start) / viewport.ns_per_pixel >= _SHARPEST,
            "title": (row.titles if whole else row.brief_titles)[row.codes[1][index]],
            "more": [[more] for more in _hovers(row, index, viewport, waits, brief, whole)],
            "text": _texts(row, index, room),
            "text_x": viewport.seconds((seen_start + seen_end) // 2),
            "event": index,
        },
        columns=COLUMNS,
    )


def _merged(placed: Placed, drawn: Detail, viewport: Viewport) -> pd.DataFrame:
    row = placed.row
    width, length = drawn.end - drawn.start, row.end[drawn.longest] - row.start[drawn.longest]
    share = drawn.busy / width
    facts = (drawn.count, width, np.floor(share * 100 + 0.5).astype(np.int64), length)
    return pd.DataFrame(
        {
            "x": viewport.seconds(drawn.start),
            "dx": width / 1e9,
            "y": placed.middle,
            "height": placed.bottom - placed.top,
            "what": row.events["what"].to_numpy()[drawn.longest],
            "share": share,
            "wide": False,
            "title": row.brief_titles[row.codes[1][drawn.longest]],
            "more": [
                [count, busy, duration(longest), duration(wide)]
                for count, wide, busy, longest in zip(*(f.tolist() for f in facts), strict=True)
            ],
            "text": "",
            "text_x": 0.0,
            "event": MISSING,
        },
        columns=COLUMNS,
    )


def _texts(row: Row, index: Ints, room: NDArray[np.float64]) -> list[str]:
    """The text that fits inside each bar, shortened if needed; nothing if not even three characters fit."""
    names = row.texts[row.codes[0][index]]
    return [_fitted(name, px) for name, px in zip(names, room.tolist(), strict=True)]


def _fitted(name: str, px: float) -> str:
    most = int((px - 6) / _CHARACTER)
    for limit in range(most, 3, -1):  # capitals are wider than most letters
        cut = name if len(name) <= limit else f"{name[: limit - 1]}…"
        if width_of(cut, SIZE_OF_TEXTS) <= px - _BESIDE:
            return markup(cut, limit=limit)
    return ""


def _hovers(row: Row, index: Ints, viewport: Viewport, waits: pd.DataFrame, brief: bool, whole: bool) -> list[str]:
    """The hovers of events below their titles; only times if there are very many, to keep the payload small."""
    if brief:
        return list(map(duration, (row.end[index] - row.start[index]).tolist()))
    if not whole:
        return times_of(row, index, viewport.anchor)
    return ["<br>".join(map(markup, lines)) for lines in lines_of(row, index, viewport.anchor, waits)]


def waits_of(calls: pd.DataFrame) -> pd.DataFrame:
    """The syncs of a sync report's calls, by start, with `WAIT_COLUMNS`."""
    syncs = calls[calls["letter"] == "s"].sort_values("start", kind="stable", ignore_index=True)
    return syncs[WAIT_COLUMNS]


def connectors(panel: Panel, waits: pd.DataFrame, viewport: Viewport) -> pd.DataFrame:
    """Lines from the end of the activity that a sync waited for to the sync's return: x0 y0 x1 y1.

    Only for syncs that are wide enough to be distinguished, and none if there are more than a few: lines would hide
    what they explain.
    """
    seen = waits[(waits["end"] > viewport.low) & (waits["start"] < viewport.high) & (waits["waited_until"] != MISSING)]
    seen = seen[seen["end"] - seen["start"] >= _SHARPEST * viewport.ns_per_pixel]
    seen = seen if len(seen) <= _MOST_CONNECTORS else seen[:0]
    lines = []
    columns = [seen[c].tolist() for c in ("process", "thread", "stream", "waited_until", "end")]
    for process, thread, stream, until, end in zip(*columns, strict=True):
        call = panel.row(role="api", process=process, thread=thread)
        source = _source(panel, process, stream, until)
        if call is not None and source is not None:
            x0, x1 = ((t - viewport.anchor) / 1e9 for t in (until, end))
            lines.append((x0, source.middle, x1, call.bottom))
    return pd.DataFrame(lines, columns=["x0", "y0", "x1", "y1"], dtype="float64")


def _source(panel: Panel, process: int, stream: int, until: int) -> Placed | None:
    """The row of the activity that ended at `until`, on this stream unless the sync's stream is unknown."""
    rows = [p for p in panel.rows if p.row.role == "stream" and p.row.process == process]
    return next((p for p in rows if stream in (p.row.stream, MISSING) and p.row.ending(until) is not None), None)


SHADE_COLUMNS: Final = ["x", "dx", "ns", "place", "share", "text", "top", "bottom"]
_FINEST: Final = 4  # px; narrower holes are merged


@dataclass(frozen=True, eq=False)
class HoleRow(AtAnyScale):
    """Where a device idles at one place of its steps.

    Attributes:
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


def detail_of_holes(row: HoleRow, viewport: Viewport) -> Detail:
    """How the holes are drawn in a viewport with a margin for panning."""
    return row.pyramid.detail(*viewport.wider, max(viewport.bins // _FINEST, 1))


def shades_of(rows: Sequence[HoleRow], drawn: Sequence[Detail], panel: Panel, viewport: Viewport) -> pd.DataFrame:
    """The shaded areas, each over the rows of its device.

    Columns: x dx (s), ns (the length of a hole; for several, the idle part of the bin), place, share (the idle part of
        what is shaded), text (a hover, escaped), top bottom (px).
    """
    bands = {band.device: band for band in panel.bands}
    parts = [
        part.assign(place=row.place, top=bands[row.device].top, bottom=bands[row.device].bottom)
        for row, detail in zip(rows, drawn, strict=True)
        if row.device in bands
        for part in (_exact_holes(row, detail, viewport), _merged_holes(row, detail, viewport))
        if len(part)
    ]
    return pd.concat(parts, ignore_index=True)[SHADE_COLUMNS] if parts else pd.DataFrame(columns=SHADE_COLUMNS)


def _exact_holes(row: HoleRow, detail: Detail, viewport: Viewport) -> pd.DataFrame:
    low, high = viewport.wider
    index = detail.exact
    index = index[(row.start[index] < high) & (row.end[index] > low)]
    start, end = np.maximum(row.start[index], low), np.minimum(row.end[index], high)
    length = row.end[index] - row.start[index]
    return pd.DataFrame({
        "x": viewport.seconds(start), "dx": (end - start) / 1e9, "ns": length, "share": 1.0,
        "text": [
            f"<b>idle {PLACES[row.place]}: {duration(ns)}</b>{why}"
            for why, ns in zip(_whys(row, index), length.tolist(), strict=True)
        ],
    })  # fmt: skip


def _merged_holes(row: HoleRow, detail: Detail, viewport: Viewport) -> pd.DataFrame:
    width, longest = detail.end - detail.start, row.end[detail.longest] - row.start[detail.longest]
    return pd.DataFrame({
        "x": viewport.seconds(detail.start), "dx": width / 1e9, "ns": detail.busy, "share": detail.busy / width,
        "text": [
            f"<b>idle {PLACES[row.place]}: {duration(idle)} of {duration(wide)}</b><br>{count} holes; the longest "
            f"{duration(longest)}{why}"
            for idle, wide, count, longest, why in zip(
                *(each.tolist() for each in (detail.busy, width, detail.count, longest)),
                _whys(row, detail.longest), strict=True,
            )
        ],
    })  # fmt: skip


def _whys(row: HoleRow, index: Ints) -> list[str]:
    """The compute that follows each hole, and what it mostly waits for."""
    holes = row.events.iloc[index]
    return [_why(part, behind) for part, behind in zip(holes["part"].tolist(), holes["next"].tolist(), strict=True)]


@lru_cache(maxsize=4096)
def _why(part: str, behind: str) -> str:
    return f"<br>until {markup(str(behind), 60)}<br>mostly {CAUSES[CAUSE_OF[part]]}: {PART_NAMES[part]}"
