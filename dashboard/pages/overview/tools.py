"""Navigation tools of the timeline: keys, search, rows and ruler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.pages import in_browser
from dashboard.pages.overview import areas, bookmarks, event
from dashboard.pages.overview.actions import after_request, gone, wishes
from dashboard.pages.overview.event import ask
from dashboard.pages.parts import Clicks, button, named, text_field
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import place_of, token_of
from dashboard.text import plain
from dashboard.timeline.layout import Group, all_groups, arranged
from dashboard.timeline.search import HINT, counted
from dashboard.view import Arrangement, View, words_of

KEYS: Final = {
    "w s": "zoom in, zoom out; also the wheel over the timeline, at the pointer",
    "a d ← →": "pan left, pan right; also shift-wheel, drag and touch",
    "Home": "whole recording",
    "g": "the gap",
    "t": "one token",
    "n p": "next match, previous match; tokens if there is no search",
    ". ,": "next token, previous token",
    "/": "search by name, kind:, stream: or >50us; Enter: next match, shift-Enter: previous match",
    "j": "go to a token, a time on the axis, or the next gap longer than a given time",
    "[ ]": "previous gap, next gap; longer than the time in the field, if any",
    "e": "sum the visible range (Ctrl-drag or ⌘-drag: a part of it); clear",
    "b": "bookmarks",
    "m": "measure the visible range; clear",
    "r": "rows",
    "Escape": "deselect the event",
    "?": "these keys",
}
"""The timeline's keys, separated by spaces, and what they do; `assets/keys.js` handles them."""
_DELAY: Final = 300  # ms after the last letter


def stores() -> list[Any]:
    """What is requested, and what is shown."""
    return [*(dcc.Store(id=key) for key in ("asked", "chosen", "steady")), *event.stores()]


def buttons() -> list[Any]:
    """The tools that do not move the timeline."""
    measure = "Measure the visible range; between two edges: shift-click both events"
    return [
        button("measure", "Measure", measure),
        *areas.buttons(),
        button("help", "?", "Keys"),
    ]


def above() -> list[Any]:
    """Search, the field for destinations, rows and bookmarks."""
    return [
        html.Div(
            [
                _field("find", "Search", f"Search, such as {HINT}"),
                button("find-back", "‹", "Previous match", disabled=True),
                button("find-on", "›", "Next match", disabled=True),
                _field("go", "Go to", "Go to 17, 1.5 ms, > 100 µs"),
                button("go-back", "‹", "Previous gap"),
                button("go-on", "›", "Next gap that is longer than the time in the field"),
            ],
            className="bar finds",
            role="search",
        ),
        html.Details(
            [
                html.Summary("Rows", id="rows-open"),
                html.Div([_field("only", "Only rows named", "Only rows named")], className="bar"),
                html.Div(id="row-list"),
            ],
            className="rows",
        ),
        bookmarks.above(),
    ]


def replies() -> html.Div:
    """The answers of search and of the field for destinations, beside the title of the time axis: nothing moves."""
    return html.Div(
        [html.Span(id=key, role="status", className="hint") for key in ("found", "gone")], className="replies"
    )


def below() -> list[Any]:
    """The measurement, the chosen event and the list of keys."""
    return [
        html.P(id="measured", role="status", className="picked"),
        *areas.below(),
        *event.below(),
        _keys(),
    ]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that show the chosen event, matches and measurement."""
    in_browser(app, "timeline", "chosen", Output("chosen", "data"), Input("view", "data"), State("chosen", "data"))
    in_browser(
        app, "timeline", "steady",
        Output("steady", "data"),
        Input("screen", "data"), Input("drawn", "data"),  # the timeline comes first
        State("view", "data"), State("steady", "data"),
    )  # fmt: skip
    in_browser(app, "gestures", "heard", Input("pressed", "data"), State("view", "data"))
    in_browser(app, "gestures", "drawn", Input("drawn", "data"))
    in_browser(app, "timeline", "refocus", Input("row-list", "children"), Input("picked", "children"))
    _say(app, store)
    _go(app, store)


def _say(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("found", "children"),
        Output("find-on", "disabled"),
        Output("find-back", "disabled"),
        Output("row-list", "children"),
        Output("measured", "children"),
        Input("chosen", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def say(_: Any, __: Any, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
        return (
            _whole(found(view, runs)),
            not view.find,
            not view.find,
            row_list(all_groups([run.rows for run in runs], view.rows), view.rows),
            measured(view),
        )


def _go(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("gone", "children"),
        Input("asked", "data"),
        State("view", "data"),
        State("pressed", "data"),
        prevent_initial_call=True,
    )
    def say(wish: dict[str, Any] | None, data: dict[str, Any] | None, pressed: Clicks | None) -> html.Span:
        match wish:
            case {"what": "go", "text": str(text), "step": 1 | -1 as step}:
                view = View.from_data(data)
                runs = store.ready(view.runs or (), view.rates)
                for earlier in wishes(wish, (pressed or {}).get("asked"))[:-1]:
                    view = after_request(view, earlier or {}, runs)
                return _whole(gone(view, runs, words_of(text), step).said)
        raise PreventUpdate


def found(view: View, runs: Sequence[Run]) -> str:
    """The position of the chosen match, and the number of matches in the visible rows."""
    if not view.find or not runs:
        return ""
    at, count = place_of(runs, view, token_of(runs, view))
    place = f"{at:,} of {count:,} · " if at else ""
    return place + counted((line.row.finder for run in runs for line in arranged(run.rows, view.rows)), view.find)


def _whole(answer: str) -> html.Span:
    """An answer that may be cut where its place ends."""
    return html.Span(answer, title=answer)


def measured(view: View) -> list[Any]:
    """The ruler's result, to be copied."""
    if view.ruler is None:
        return []
    low, high = sorted(view.ruler)
    if low == high:
        return [f"Measuring from {low} ns: click the other event."]
    times = html.Code(f"{high - low} ns", id="measured-ns")
    return ["Measured: ", times, dcc.Clipboard(target_id="measured-ns", title="Copy", className="inline copies"),
            f" from {low} ns to {high} ns after time 0"]  # fmt: skip


def row_list(groups: Sequence[Group], arrangement: Arrangement) -> list[Any]:
    """The rows and their controls."""
    if not groups:
        return []
    items: list[Any] = []
    for group in groups:
        inside = html.Ul([_row(unit.name, arrangement, len(unit.rows) > 1, unit.is_aside) for unit in group.units])
        items.append(_row(group.name, arrangement, True, all(unit.is_aside for unit in group.units), inside))
    some_aside = any(unit.aside for group in groups for unit in group.units)
    every = ask("All rows", {"what": "all rows"}, "Also show rows without events during the steps")
    as_recorded = ask("As recorded", {"what": "as recorded"}, "Show the rows of the steps in their default order")
    return [html.Ul(items), as_recorded, *([every] if some_aside else [])]


def _row(name: str, arrangement: Arrangement, can_fold: bool, aside: bool, *inside: html.Ul) -> html.Li:
    called, is_folded = plain(name, 60), name in arrangement.folded
    shown = name in arrangement.shown if aside else name not in arrangement.hidden
    switch = {"what": "show" if aside else "hide", "name": name}
    checked: dict[str, Any] = {"aria-checked": str(shown).lower()}
    expanded: dict[str, Any] = {"aria-expanded": str(not is_folded).lower()}
    fold = ask("▸" if is_folded else "▾", {"what": "fold", "name": name}, f"Collapse {called}", **expanded)
    return html.Li(
        [
            ask("☑" if shown else "☐", switch, f"Show {called}", role="checkbox", **checked),
            *([fold] if can_fold else []),
            *([] if inside else [_pin(name, arrangement, called)]),
            ask("↑", {"what": "move", "name": name, "by": -1}, f"Move {called} up"),
            ask("↓", {"what": "move", "name": name, "by": 1}, f"Move {called} down"),
            html.Span(called),
            *([html.Span("outside the steps", className="hint")] if aside else []),
            *inside,
        ]
    )


def _pin(name: str, arrangement: Arrangement, called: str) -> html.Button:
    pressed: dict[str, Any] = {"aria-pressed": str(name in arrangement.pinned).lower()}
    text = "●" if name in arrangement.pinned else "○"
    return ask(text, {"what": "pin", "name": name}, f"Keep {called} on top", **pressed)


def _keys() -> html.Dialog:
    """The list of keys. They can be turned off, for users of speech input (WCAG 2.1, 2.1.4)."""
    parts = [
        part for keys, does in KEYS.items() for part in (html.Dt([html.Kbd(k) for k in keys.split()]), html.Dd(does))
    ]
    is_on = dbc.Checklist(
        id="keys-on", options=[{"value": "on", "label": "Keys are on"}], value=["on"], persistence=True,
        className="choice",
    )  # fmt: skip
    close = html.Button("Close", id="keys-close", className="button")
    title = "Keys of the timeline"
    return html.Dialog([html.H2(title), html.Dl(parts), is_on, close], id="keys", className="keys", **named(title))


def _field(key: str, brief: str, label: str) -> html.Label:
    field = text_field(key, _DELAY, type="search", placeholder=brief)
    return html.Label([html.Span(label, className="unseen"), field], title=label)
