"""The chosen event: its position, the matching events of other runs, its arrows, and the next match of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from dashboard.reading.run import Run
from dashboard.timeline.flows import counterpart, flows_of
from dashboard.timeline.layout import Panel, Placed, arranged, panels, places_of
from dashboard.timeline.marks import Window
from dashboard.timeline.rows import Row
from dashboard.view import Spot, View, span
from tracer.model.intervals import Ints
from tracer.model.schema import MOST_NS

_ROOM: Final = 0.8  # largest share of the range that a focused event takes
_SEEN: Final = 0.02  # smallest share
_CLOSEST: Final = 500  # ns on both sides of an event without duration
_TOUCH: Final = 12  # px around an edge that count as the edge


def panels_of(runs: Sequence[Run], view: View) -> list[Panel]:
    """The rows of each run, as arranged by the reader."""
    return panels([arranged(run.rows, view.rows) for run in runs])


def row_at(runs: Sequence[Run], view: View, y: float) -> tuple[Run, Placed] | None:
    """The run and the row of the marks at this height in the figure."""
    for run, panel in zip(runs, panels_of(runs, view), strict=True):
        for placed in panel.rows:
            if placed.middle == y:
                return run, placed
    return None


def spot_at(
    runs: Sequence[Run], view: View, token: int, y: float, event: int, ends: tuple[int, int] | None = None
) -> Spot | None:
    """The event of a mark, of a bin the longest that it merges; None if there is none.

    Args:
        runs, view, token: as shown.
        y, event: the height of the mark in the figure, and the position of its event in its row, -1 for a bin.
        ends: of a bin, ns from time 0.
    """
    found = row_at(runs, view, y)
    if found is None:
        return None
    run, placed = found
    row, index = placed.row, placed.line.index
    if 0 <= event < len(row.events):
        return Spot(run.key, index, event)
    if ends is None:
        return None
    low, high = (time + _anchor(run, view, token) for time in ends)
    merged = row.pyramid.merged(low, high)
    if not len(merged):
        return None
    longest = int(merged[np.argmax(row.end[merged] - row.start[merged])])
    start = int(row.start[longest])
    return Spot(run.key, index, longest, (low - start, high - start) if len(merged) > 1 else None)


def found_in(runs: Sequence[Run], spot: Spot | None) -> Run | None:
    """The run of an event, None if there is no such event."""
    run = next((run for run in runs if spot is not None and run.key == spot.run), None)
    if run is None or spot is None or spot.row >= len(run.rows) or spot.event >= len(run.rows[spot.row].events):
        return None
    return run


def chosen_in(runs: Sequence[Run], view: View, token: int) -> dict[str, Spot]:
    """For each run, the chosen event or the matching one: the same occurrence of its name in the same row and token."""
    spot, run = view.event, found_in(runs, view.event)
    if spot is None or run is None or run.tokens is None:
        return {}
    place, row = places_of(run.rows)[spot.row], run.rows[spot.row]
    edges = _token_starts(run, row)
    at = int(np.searchsorted(edges, row.start[spot.event], side="right")) - 1
    found = {run.key: spot}
    for other in runs:
        known = {name: index for index, name in enumerate(places_of(other.rows))}
        if other is run or other.tokens is None or place not in known or at < 0:
            continue
        there = other.rows[known[place]]
        starts = _token_starts(other, there)
        same = at + other.tokens.clamp(token) - run.tokens.clamp(token)
        if 0 <= same < len(starts) - 1:
            event = counterpart(row, spot.event, _span(edges, at), there, _span(starts, same))
            found |= {} if event is None else {other.key: Spot(other.key, known[place], event)}
    return found


def _token_starts(run: Run, row: Row) -> Ints:
    """Start of each token in a row, ns (compute on a device, step on a host), followed by `MOST_NS`."""
    assert run.tokens is not None
    starts = run.tokens.start
    if row.role != "stream" and run.steps is not None:
        starts = run.steps.table.set_index("step")["start"].reindex(run.tokens.step).to_numpy(dtype=np.int64)
    return np.append(starts, MOST_NS)


def _span(edges: Ints, at: int) -> tuple[int, int]:
    return int(edges[at]), int(edges[at + 1])


def outline(run: Run, spot: Spot, panel: Panel, window: Window) -> pd.DataFrame:
    """The frame around a chosen event: x0 x1 (s), top bottom (px); none if its row is not shown."""
    row = run.rows[spot.row]
    ends = np.clip([row.start[spot.event], row.end[spot.event]], *window.wider)
    x0, x1 = window.seconds(ends).tolist()
    is_seen = bool(row.start[spot.event] < window.high and row.end[spot.event] >= window.low)
    places = [(x0, x1, p.top, p.bottom) for p in panel.rows if p.line.index == spot.row and is_seen]
    return pd.DataFrame(places, columns=["x0", "x1", "top", "bottom"])


def arrows_of(run: Run, spot: Spot, panel: Panel, window: Window) -> pd.DataFrame:
    """The arrows from and to a chosen event between visible rows: kind, x0 x1 (s), y0 y1 (px).

    An end outside the viewport is drawn at its edge; arrows with both ends beyond the same edge are left out.
    """
    flows, _ = flows_of(run.rows, spot.row, spot.event, run.waits, run.event_pairs)
    at = {placed.line.index: placed for placed in panel.rows}
    flows = flows[flows["row0"].isin(list(at)) & flows["row1"].isin(list(at))]
    first, last = flows[["time0", "time1"]].min(axis=1), flows[["time0", "time1"]].max(axis=1)
    flows = flows[(last > window.low) & (first < window.high)]
    times = flows[["time0", "time1"]].clip(window.low, window.high)
    middles = {index: placed.middle for index, placed in at.items()}
    return pd.DataFrame(
        {
            "kind": flows["kind"],
            "x0": window.seconds(times["time0"].to_numpy(dtype=np.int64)),
            "x1": window.seconds(times["time1"].to_numpy(dtype=np.int64)),
            "y0": flows["row0"].map(middles),
            "y1": flows["row1"].map(middles),
        }
    )


def next_match(runs: Sequence[Run], view: View, token: int, limits: tuple[int, int], step: int) -> Spot | None:
    """The next match of the view's search after the chosen event, or with a `step` of -1 the previous one.

    Without a chosen event it is the next from the start of `limits`, the visible range; the search wraps around.
    Matches are ordered by time, over all runs and visible rows; ties by run, row and event.
    """
    chosen = view.event if found_in(runs, view.event) else None
    order_of = {run.key: order for order, run in enumerate(runs)}
    here, time = (-1, -1), limits[0]
    if chosen is not None:
        here, time = (order_of[chosen.run], chosen.row), _start(runs[order_of[chosen.run]], chosen, view, token)
    found = []
    for order, run in enumerate(runs):
        for line in arranged(run.rows, view.rows):
            row, place = line.row, (order, line.index)
            if chosen is not None and place == here:
                begin = chosen.event + (step > 0)
            else:
                begin = int(np.searchsorted(row.start, time + _anchor(run, view, token) + (place < here)))
            around = 0 if step > 0 else len(row.start)
            ahead, first = (row.finder.beside(view.find, at, step) for at in (begin, around))
            if first is not None:
                spot = Spot(run.key, line.index, first if ahead is None else ahead)
                keys = (_start(run, spot, view, token), *place)
                found.append(((ahead is None, *(step * key for key in keys)), spot))
    return min(found)[1] if found else None


def place_of(runs: Sequence[Run], view: View, token: int) -> tuple[int, int]:
    """The number of the chosen match, counted from 1 in the order of `next_match`, and how many matches there are.

    The first is 0 if none of them is chosen.
    """
    finders = [
        (at, line.index, line.row.finder) for at, run in enumerate(runs) for line in arranged(run.rows, view.rows)
    ]
    count = sum(len(finder.positions(view.find)) for _, _, finder in finders)
    run = found_in(runs, view.event)
    if run is None or view.event is None:
        return 0, count
    here, time, before, found = (runs.index(run), view.event.row), _start(run, view.event, view, token), 0, False
    for at, index, finder in finders:
        if (at, index) == here:
            before += finder.before(view.find, view.event.event)
            found = finder.has(view.find, view.event.event)
        else:
            before += finder.starting_before(view.find, time + _anchor(runs[at], view, token) + ((at, index) < here))
    return before + 1 if found else 0, count


def _anchor(run: Run, view: View, token: int) -> int:
    return 0 if run.tokens is None else run.tokens.anchor(token, view.align)


def _start(run: Run, spot: Spot, view: View, token: int) -> int:
    """Start of an event, ns from time 0."""
    return int(run.rows[spot.row].start[spot.event]) - _anchor(run, view, token)


def looked_at(runs: Sequence[Run], view: View, token: int, limits: tuple[int, int], spot: Spot) -> tuple[int, int]:
    """A range centred on the event, as wide as `limits` if the event is visible at that width, else narrower or wider.

    `limits` itself if the event is visible in it.
    """
    run = found_in(runs, spot)
    if run is None:
        return limits
    low = _start(run, spot, view, token)
    high = low + int(run.rows[spot.row].end[spot.event] - run.rows[spot.row].start[spot.event])
    half, length = (limits[1] - limits[0]) / 2, max(high - low, 1)
    if limits[0] <= low and high <= limits[1] and length >= 2 * half * _SEEN:
        return limits
    half = min(max(half, length / 2 / _ROOM), max(length / 2 / _SEEN, _CLOSEST))
    return span((low + high) / 2 - half, (low + high) / 2 + half)


def snapped(
    runs: Sequence[Run], view: View, token: int, y: float, event: int, time: int, per_pixel: float
) -> int | None:
    """The edge nearest to the pointer, ns from time 0: of the mark's event, or of the nearest event in a bin.

    Args:
        runs, view, token: as shown.
        y, event: of the mark, see `spot_at`.
        time: the position of the pointer, ns from time 0.
        per_pixel: the duration of one pixel, ns.
    """
    found = row_at(runs, view, y)
    if found is None:
        return None
    row, anchor = found[1].row, _anchor(found[0], view, token)
    touch, at = int(_TOUCH * per_pixel) + 1, time + anchor
    near = np.array([event]) if 0 <= event < len(row.start) else row.pyramid.in_view(at - touch, at + touch)
    edges = np.concatenate((row.start[near], row.end[near])) - anchor
    return int(edges[np.argmin(np.abs(edges - time))]) if len(edges) else time
