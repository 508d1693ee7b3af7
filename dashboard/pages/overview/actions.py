"""The effect of each action on the view, also of search, rows, ruler and minimap: from the old view to the new one.

A destination is a token, a time on the axis, or the next gap longer than a given time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dashboard.pages import parts
from dashboard.pages.parts import Action, Clicks, done
from dashboard.reading.run import Run
from dashboard.scene import found_in, limits_of, looked_at, next_match, panels_of, snapped, spot_at, token_of, whole_of
from dashboard.text import duration, plain
from dashboard.timeline.align import token_range
from dashboard.timeline.layout import Panel, all_groups, moved, places_of, toggled
from dashboard.view import (
    ALIGNMENTS,
    BASES,
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

ASKS: Final = "Type a token's number, a time on the axis such as 1.5 ms, or > 100 µs for the next gap longer than that."
_UNITS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_TOKEN: Final = re.compile(r"(?:token\s*|#)?(\d{1,12})", re.IGNORECASE)
_TIME: Final = re.compile(r"([-+−]?\d{1,15}(?:\.\d{0,9})?)\s*(ns|us|µs|μs|ms|s)", re.IGNORECASE)
_GAP: Final = re.compile(r"(?:gap\s*>?|>)\s*(.*)", re.IGNORECASE)
_FITS: Final = (1.2, 20)  # times the gap: views of such a width keep it
_ROOM: Final = 3  # times the gap, for other views

_STAMPED = {"asked": "asked.data", "timeline": "timeline.relayoutData"}  # time-stamped by the browser
_MOST = 50  # requests handled by one call
_TOGGLED: Final = {"fold": "folded", "hide": "hidden", "show": "shown", "pin": "pinned"}
"""Request -> the names of the arrangement that it toggles."""
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
    """The view after an action."""
    match action:
        case Action("runs", keys):
            return replace(view, runs=_ordered(view.runs or (), keys))
        case Action("token", int(number)):
            return replace(view, token=min(max(number, 0), FURTHEST))
        case Action("align", str(how)) if how in ALIGNMENTS:
            return replace(view, align=how)
        case Action("basis", str(basis)) if basis in BASES:
            return replace(view, basis=basis)
        case Action("find", text) if text is None or isinstance(text, str):
            return replace(view, find=words_of(text))
        case Action("only", text) if text is None or isinstance(text, str):
            return replace(view, rows=replace(view.rows, only=words_of(text)))
        case Action("find-on" | "find-back" as which):
            return next_found(view, runs, 1 if which == "find-on" else -1)
        case Action("sum"):
            return replace(view, area=Area(limits_of(runs, view)) if view.area is None else None)
        case Action("measure"):
            return replace(view, ruler=limits_of(runs, view) if view.ruler is None else None)
        case Action("asked", dict(wish)):
            return after_request(view, wish, runs)
    return parts.after_move(view, action, runs, scheme)


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
        case {"what": str(what), "name": str(name)} if what in _TOGGLED and name in _names(runs, view):
            names: dict[str, Any] = {_TOGGLED[what]: toggled(getattr(view.rows, _TOGGLED[what]), name)}
            return replace(view, rows=replace(view.rows, **names))
        case {"what": "spot", "spot": [str(run), int(row), int(event)]}:
            return _at(view, runs, Spot(run, row, event)) if min(row, event) >= 0 else view
        case {"what": "go", "text": str(text), "step": 1 | -1 as step}:
            return gone(view, runs, words_of(text), step).view
        case {"what": "token", "x": int() | float() as x, "y": int() | float() as y}:
            return at_token(view, runs, panels_of(runs, view), within(x * 1e9), y)
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


@dataclass(frozen=True)
class Gone:
    """The new view, and a message."""

    view: View
    said: str


def gone(view: View, runs: Sequence[Run], text: str, step: int = 1) -> Gone:
    """Go to the place that the text describes; an empty text means any gap.

    Args:
        text: "17" or "token 17", "-3.5 ms", "> 100 us" or "gap > 100 us".
        step: 1 for the next gap, -1 for the previous one.
    """
    wanted = text.strip()
    if not any(run.tokens for run in runs):
        return Gone(view, "No run shown has token steps.")
    if match := _TOKEN.fullmatch(wanted):
        return _to_token(view, runs, int(match[1]))
    if match := _TIME.fullmatch(wanted):
        return _to_time(view, runs, _ns(match))
    gap = _GAP.fullmatch(wanted)
    longer = _TIME.fullmatch(gap[1].strip()) if gap is not None else None
    if longer is not None or not wanted or (gap is not None and not gap[1]):
        return _to_gap(view, runs, 0 if longer is None else _ns(longer), step)
    return Gone(view, f"“{plain(wanted, 40)}” is not a destination. {ASKS}")


def _ns(match: re.Match[str]) -> float:
    return float(match[1].replace("−", "-")) * _UNITS[match[2].lower()]


def _to_token(view: View, runs: Sequence[Run], number: int) -> Gone:
    last = max(len(run.tokens) for run in runs if run.tokens is not None) - 1
    if number > last:
        return Gone(view, f"There is no token {number}; the last one is {last}.")
    return Gone(replace(view, token=number, range=None), f"Token {number} of 0 to {last}.")


def _to_time(view: View, runs: Sequence[Run], time: float) -> Gone:
    low, high = whole_of(runs, view)
    if not low <= time <= high:
        held = f"from {duration(low)} to {duration(high)}"
        return Gone(view, f"Nothing was recorded at {duration(time)}: on this axis the recording is {held}.")
    first, last = limits_of(runs, view)
    half = (last - first) / 2
    return Gone(replace(view, range=span(time - half, time + half)), f"{duration(time)} is in the middle.")


def _to_gap(view: View, runs: Sequence[Run], longer: float, step: int) -> Gone:
    token, limits = token_of(runs, view), limits_of(runs, view)
    starts, gaps, whose = [], [], []
    for number, run in enumerate(runs):
        if run.tokens is not None:
            has = run.tokens.gap > max(longer, 0)
            starts.append(run.tokens.end[has] - run.tokens.anchor(token, view.align))
            gaps.append(run.tokens.gap[has])
            whose += [(number, name) for name in run.tokens.step[has].tolist()]
    start, gap = np.concatenate(starts), np.concatenate(gaps)
    if not len(gap):
        longest = max(int(run.tokens.gap.max()) for run in runs if run.tokens is not None and len(run.tokens))
        return Gone(view, f"No gap is longer than {duration(longer)}; the longest is {duration(max(longest, 0))}.")
    order = np.argsort(start + gap / 2, kind="stable")
    middles, here = (start + gap / 2)[order], sum(limits) / 2
    beside = int(np.searchsorted(middles, here + step, "right" if step > 0 else "left")) - (step < 0)
    around, at = not 0 <= beside < len(order), beside % len(order)
    which = int(order[at])
    wide, long = limits[1] - limits[0], int(gap[which])
    half = (wide if _FITS[0] * long <= wide <= _FITS[1] * long else _ROOM * long) / 2
    number, name = whose[which]
    of = f" of {plain(runs[number].name, 60)}" if len(runs) > 1 else ""
    again = (" Continued from the start." if step > 0 else " Continued from the end.") if around else ""
    said = f"Gap {at + 1} of {len(order)}{f' longer than {duration(longer)}' if longer > 0 else ''}: {duration(long)} "
    middle = start[which] + long / 2
    return Gone(replace(view, range=span(middle - half, middle + half)), f"{said}after token {name}{of}.{again}")


def at_token(view: View, runs: Sequence[Run], panels: Sequence[Panel], x: float, y: float) -> View:
    """The view of the token that is at a point of the figure, `x` ns from time 0 and `y` px from its top."""
    shown = [(run, panel) for run, panel in zip(runs, panels, strict=True) if run.tokens is not None]
    under = [run for run, panel in shown if panel.top <= y < panel.bottom] or [run for run, _ in shown[:1]]
    if not under or under[0].tokens is None:
        return view
    tokens = under[0].tokens
    anchor = tokens.anchor(token_of(runs, view), view.align)
    at = tokens.clamp(int(np.searchsorted(tokens.start, x + anchor, side="right")) - 1)
    return replace(view, range=token_range(tokens, at, anchor))
