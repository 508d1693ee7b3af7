"""The effect of each action on the view, also of search, rows, ruler and minimap: from the old view to the new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dashboard.pages import timeline
from dashboard.pages.presses import Clicks, done
from dashboard.pages.timeline import Action
from dashboard.reading.run import Run
from dashboard.scene import limits_of, token_of
from dashboard.scene.choice import found_in, looked_at, next_match, panels_of, snapped, spot_at
from dashboard.scene.goto import at_token, gone
from dashboard.timeline.layout import all_groups, moved, places_of, toggled
from dashboard.view import (
    ALIGNMENTS,
    FURTHEST,
    GROUPINGS,
    MOST_BOOKMARKS,
    MOST_RUNS,
    Area,
    Arrangement,
    Bookmark,
    Spot,
    View,
    span,
    within,
    words_of,
)

_STAMPED = {"asked": "asked.data", "timeline": "timeline.relayoutData"}  # time-stamped by the browser
_MOST = 50  # requests handled by one call
_PIXELS: Final = 1000  # about the width of the timeline


def actions_of(
    triggered: Sequence[str], values: Mapping[str, Any], clicks: Clicks, before: Clicks | None
) -> list[Action]:
    """The actions of the reader since the last call.

    Args:
        triggered: properties that have changed, as "component.property".
        values: current values of fields and the table, by component.
        clicks: how often each button was pressed, and when the last request was made or the timeline moved.
        before: the same when it was last handled.
    """
    buttons = {name: times for name, times in clicks.items() if name not in _STAMPED}
    sources = done([prop for prop in triggered if prop not in _STAMPED.values()], buttons, before)

    def is_new(name: str) -> bool:
        at = clicks.get(name)
        return _STAMPED[name] in triggered if at is None else at != (before or {}).get(name)

    sources = [*filter(is_new, ["timeline"]), *sources]  # the move came before the press
    actions = [Action(source, values.get(source)) for source in sources if source in buttons or source in values]
    if "asked" not in values or not is_new("asked"):
        return actions
    return [*actions, *(Action("asked", wish) for wish in wishes(values["asked"], (before or {}).get("asked")))]


def wishes(asked: dict[str, Any] | None, heeded: float | None) -> list[dict[str, Any] | None]:
    """The requests since the last one handled, the newest last."""
    earlier = (asked or {}).get("earlier", [])[-_MOST:]
    times = [(wish.get("at"), wish) for wish in earlier]
    return [*(wish for at, wish in times if isinstance(at, int | float) and at > (heeded or 0)), asked]


def after(view: View, action: Action, runs: Sequence[Run], scheme: str = "light") -> View:
    """The view after an action.

    Args:
        view: the view before.
        action: what happened.
        runs: the runs of `view`.
        scheme: "light" or "dark", the page's current theme.
    """
    match action:
        case Action("runs", keys):
            return replace(view, runs=_ordered(view.runs or (), keys))
        case Action("token", int(number)):
            return replace(view, token=min(max(number, 0), FURTHEST))
        case Action("align", str(how)) if how in ALIGNMENTS:
            return replace(view, align=how)
        case Action("find", text) if text is None or isinstance(text, str):
            return replace(view, find=words_of(text))
        case Action("only", text) if text is None or isinstance(text, str):
            return replace(view, rows=replace(view.rows, only=words_of(text)))
        case Action("find-on" | "find-back" as which):
            return next_found(view, runs, 1 if which == "find-on" else -1)
        case Action("sum"):
            return summed(view, runs)
        case Action("measure"):
            return measured(view, runs)
        case Action("asked", dict(wish)):
            return after_request(view, wish, runs)
    return timeline.after(view, action, runs, scheme)


def _ordered(before: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """The keys now selected, those shown before first and in their old order, so that nothing moves."""
    kept = [key for key in before if key in keys]
    return tuple(kept + [key for key in keys if key not in kept])[:MOST_RUNS]


def after_request(view: View, wish: dict[str, Any], runs: Sequence[Run]) -> View:
    """The view after the request `what`, as `assets/keys.js` and the buttons in `tools` send it."""
    match wish:
        case {"what": "click", "y": int() | float(), "event": int(), "x": int() | float() as x}:
            return _clicked(view, runs, wish, x)
        case {"what": "next", "find": str(text)}:
            return next_found(replace(view, find=words_of(text)), runs, -1 if wish.get("back") else 1)
        case {"what": "find", "find": str(text)}:
            return replace(view, find=words_of(text))
        case {
            "what": "area",
            "x": [int() | float() as low, int() | float() as high],
            "y": [int() | float() as top, int() | float() as bottom],
        }:
            return replace(view, area=_area(view, runs, span(low * 1e9, high * 1e9), (top, bottom)))
        case {"what": "sum by", "by": str(by)} if by in GROUPINGS and view.area is not None:
            return replace(view, area=replace(view.area, by=by))
        case {"what": "no area"}:
            return replace(view, area=None)
        case {"what": "bookmark"}:
            return _bookmarked(view, runs, words_of(note) if isinstance(note := wish.get("note"), str) else "")
        case {"what": "unmark", "of": [str(run), int(low), int(high), str(note)]}:
            return replace(view, bookmarks=tuple(b for b in view.bookmarks if b != (run, low, high, note)))
        case {"what": "go to bookmark", "of": [str(key), int(low), int(high), _]}:
            meant = next((run for run in runs if run.key == key and run.tokens is not None), None)
            zero = 0 if meant is None else _first_token(meant, view, runs)
            return view if meant is None else replace(view, range=span(within(low) + zero, within(high) + zero))
        case {"what": "pin", "name": str(name)} if name in _names(runs, view):
            return replace(view, rows=replace(view.rows, pinned=toggled(view.rows.pinned, name)))
        case {"what": "spot", "spot": [str(run), int(row), int(event)]}:
            return _at(view, runs, Spot(run, row, event)) if min(row, event) >= 0 else view
        case {"what": "go", "text": str(text), "step": 1 | -1 as step}:
            return gone(view, runs, words_of(text), step).view
        case {"what": "token", "x": int() | float() as x, "y": int() | float() as y}:
            return at_token(view, runs, panels_of(runs, view), within(x * 1e9), y)
        case {"what": "fold", "name": str(name)} if name in _names(runs, view):
            return replace(view, rows=replace(view.rows, folded=toggled(view.rows.folded, name)))
        case {"what": "hide", "name": str(name)} if name in _names(runs, view):
            return replace(view, rows=replace(view.rows, hidden=toggled(view.rows.hidden, name)))
        case {"what": "show", "name": str(name)} if name in _names(runs, view):
            return replace(view, rows=replace(view.rows, shown=toggled(view.rows.shown, name)))
        case {"what": "all rows"}:
            groups = all_groups([run.rows for run in runs], view.rows)
            shown = tuple(group.name for group in groups)
            return replace(view, rows=replace(view.rows, shown=shown, hidden=(), only=""))
        case {"what": "move", "name": str(name), "by": int(by)}:
            groups = all_groups([run.rows for run in runs], view.rows)
            return replace(view, rows=moved(groups, view.rows, name, by))
        case {"what": "as recorded"}:
            return replace(view, rows=Arrangement())
        case {"what": "forget"}:
            return replace(view, event=None)
        case {"what": "measure", "from": "start" | "end" as edge}:
            return _measured_from(view, runs, edge)
    return view


def marked(view: View, runs: Sequence[Run], mark: dict[str, Any]) -> Spot | None:
    """The event of a mark, as `mark` in `assets/timeline.js` says it: y (px), event, and of a bin its ends (s)."""
    match mark:
        case {
            "y": int() | float() as y,
            "event": int(event),
            "ends": [int() | float() as low, int() | float() as high],
        }:
            low, high = (round(within(time * 1e9)) for time in (low, high))
            return spot_at(runs, view, token_of(runs, view), y, event, (low, high))
        case {"y": int() | float() as y, "event": int(event)}:
            return spot_at(runs, view, token_of(runs, view), y, event)
    return None


def next_found(view: View, runs: Sequence[Run], step: int) -> View:
    """The view of the next match, or of the previous one."""
    if not view.find:
        return view
    spot = next_match(runs, view, token_of(runs, view), limits_of(runs, view), step)
    return view if spot is None else _at(view, runs, spot)


def summed(view: View, runs: Sequence[Run]) -> View:
    """The view with the visible range summed, or without a sum if there was one."""
    return replace(view, area=Area(limits_of(runs, view)) if view.area is None else None)


def measured(view: View, runs: Sequence[Run]) -> View:
    """The view with the visible range measured, or without a measurement if there was one."""
    return replace(view, ruler=limits_of(runs, view) if view.ruler is None else None)


def _at(view: View, runs: Sequence[Run], spot: Spot) -> View:
    if found_in(runs, spot) is None:
        return view
    limits = limits_of(runs, view)
    range_ = looked_at(runs, view, token_of(runs, view), limits, spot)
    return replace(view, event=spot, range=view.range if range_ == limits else range_)


def _measured_from(view: View, runs: Sequence[Run], edge: str) -> View:
    """The view after choosing an edge of the event as the start of a measurement; the next click ends it."""
    run = found_in(runs, view.event)
    if run is None or run.tokens is None or view.event is None:
        return view
    row = run.rows[view.event.row]
    time = int((row.start if edge == "start" else row.end)[view.event.event])
    time = within(time - run.tokens.anchor(token_of(runs, view), view.align))
    return replace(view, ruler=(time, time))


def _area(view: View, runs: Sequence[Run], times: tuple[int, int], heights: tuple[float, float]) -> Area:
    """The area of a box drawn over the figure: the rows that it touches, or all if it touches none."""
    top, bottom = sorted(heights)
    names: dict[str, None] = {}
    for run, panel in zip(runs, panels_of(runs, view), strict=True):
        places = places_of(run.rows)
        names |= {places[p.line.index][1]: None for p in panel.rows if p.top <= bottom and p.bottom >= top}
    return Area(times, tuple(names), view.area.by if view.area is not None else "kind")


def _bookmarked(view: View, runs: Sequence[Run], note: str) -> View:
    """The view with a bookmark of the visible range, in the run of the chosen event, or else in the first one."""
    run = found_in(runs, view.event) or next((run for run in runs if run.tokens is not None), None)
    if run is None or run.tokens is None or len(view.bookmarks) >= MOST_BOOKMARKS:
        return view
    low, high = (within(time - _first_token(run, view, runs)) for time in limits_of(runs, view))
    mark = Bookmark(run.key, low, high, note)
    return view if mark in view.bookmarks else replace(view, bookmarks=(*view.bookmarks, mark))


def _first_token(run: Run, view: View, runs: Sequence[Run]) -> int:
    """Start of a run's first token's compute, ns from time 0."""
    tokens = run.tokens
    assert tokens is not None
    zero: int = tokens.anchor(token_of(runs, view), view.align)
    return int(tokens.start[0]) - zero


def _clicked(view: View, runs: Sequence[Run], mark: dict[str, Any], x: float) -> View:
    is_begun = view.ruler is not None and view.ruler[0] == view.ruler[1]
    if not mark.get("measure") and not is_begun:
        spot = marked(view, runs, mark)
        return view if spot is None else replace(view, event=None if spot == view.event else spot)
    low, high = limits_of(runs, view)
    time = sum(span(x * 1e9, x * 1e9)) // 2
    edge = snapped(runs, view, token_of(runs, view), mark["y"], mark["event"], time, (high - low) / _PIXELS)
    if edge is None:
        return view
    edge = within(edge)
    return replace(view, ruler=(view.ruler[0], edge) if is_begun and view.ruler else (edge, edge))


def _names(runs: Sequence[Run], view: View) -> set[str]:
    """The names that can be hidden or folded, and those that are."""
    groups = all_groups(run.rows for run in runs)
    units = {unit.name for group in groups for unit in group.units}
    known = {*view.rows.hidden, *view.rows.folded, *view.rows.shown, *view.rows.pinned}
    return units | {group.name for group in groups} | known
