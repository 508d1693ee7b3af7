"""Navigation tools of the timeline: keys, search, rows, ruler and bookmarks.

Bookmarks with a note: in the link and, where this server may write, in a file next to the recording.

The file, NAME.bookmarks.json, is JSON: {"bookmarks": [{"low": ns, "high": ns, "note": text, "within": text}, ...]},
times from the start of the first token's compute; `within` names the part of a recording that holds several runs. A
file with other contents, one that is too large, or anything but a regular file is ignored and never overwritten.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dashboard.pages import in_browser
from dashboard.pages.overview import areas, event
from dashboard.pages.overview.actions import after_request, gone, wishes
from dashboard.pages.overview.event import ask
from dashboard.pages.parts import Clicks, button, inputs, named, outputs, text_field
from dashboard.pages.runs import seen
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import place_of, token_of
from dashboard.text import difference, duration, plain
from dashboard.timeline.layout import Group, all_groups, arranged
from dashboard.timeline.rows import HINT, counted
from dashboard.view import MOST_BOOKMARKS, Arrangement, Bookmark, Time, View, Words, words_of
from tracer.errors import UsageError
from tracer.files.bounded import toml_of

KEYS: Final = toml_of(Path(__file__).with_name("keys.toml"))["keys"]
SUFFIX: Final = ".bookmarks.json"
_MOST_BYTES: Final = 256 * 1024
_DELAY: Final = 300  # ms after the last letter


def stores() -> list[Any]:
    """What is requested, and what is shown."""
    return [*(dcc.Store(id=key) for key in ("asked", "chosen", "steady")), *event.stores()]


def buttons() -> list[Any]:
    """The tools that do not move the timeline."""
    measure = "Measure the visible range; between two edges: shift-click both events"
    return [button("measure", "Measure", measure), *areas.buttons(), button("help", "?", "Keys")]


def above() -> list[Any]:
    """Search, the field for destinations, rows and bookmarks."""
    finds = [
        _field("find", "Search", f"Search, such as {HINT}"),
        button("find-back", "‹", "Previous match", disabled=True),
        button("find-on", "›", "Next match", disabled=True),
        _field("go", "Go to", "Go to 17, 1.5 ms, > 100 µs"),
        button("go-back", "‹", "Previous gap"),
        button("go-on", "›", "Next gap that is longer than the time in the field"),
    ]
    only = html.Div([_field("only", "Only rows named", "Only rows named")], className="bar")
    rows = [html.Summary("Rows", id="rows-open"), only, html.Div(id="row-list")]
    return [html.Div(finds, className="bar finds", role="search"), html.Details(rows, className="rows"), _bookmarks()]


def replies() -> html.Div:
    """The answers of search and of the field for destinations, beside the title of the time axis: nothing moves."""
    return html.Div(
        [html.Span(id=key, role="status", className="hint") for key in ("found", "gone")], className="replies"
    )


def below() -> list[Any]:
    """The measurement, the chosen event and the list of keys."""
    return [html.P(id="measured", role="status", className="picked"), *areas.below(), *event.below(), _keys()]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that show the chosen event, matches, measurement and bookmarks."""
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
    _keep_bookmarks(app, store)


def _say(app: Dash, store: RunStore) -> None:
    @app.callback(
        outputs("found.children find-on.disabled find-back.disabled row-list.children measured.children"),
        inputs("chosen.data arrived.data", states="view.data"),
    )
    def say(_: Any, __: Any, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view, runs = seen(store, data)
        return (
            _whole(matched(view, runs)),
            not view.find,
            not view.find,
            row_list(all_groups([run.rows for run in runs], view.rows), view.rows),
            measured(view),
        )


def _go(app: Dash, store: RunStore) -> None:
    @app.callback(Output("gone", "children"), inputs("asked.data", states="view.data pressed.data"))
    def say(wish: dict[str, Any] | None, data: dict[str, Any] | None, pressed: Clicks | None) -> html.Span:
        match wish:
            case {"what": "go", "text": str(text), "step": 1 | -1 as step}:
                view, runs = seen(store, data)
                for earlier in wishes(wish, (pressed or {}).get("asked"))[:-1]:
                    view = after_request(view, earlier or {}, runs)
                return _whole(gone(view, runs, words_of(text), step).said)
        raise PreventUpdate


def matched(view: View, runs: Sequence[Run]) -> str:
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


def _bookmarks() -> html.Details:
    """The list, and a field for a new bookmark's note."""
    field = text_field("note", True, placeholder="Note", maxLength=200)
    data: dict[str, Any] = {"data-notes": "note"}
    note = html.Label([html.Span("Note of the bookmark", className="unseen"), field])
    add = html.Button("Bookmark this view", id="bookmark", className="button", **data)
    return html.Details(
        [
            html.Summary("Bookmarks", id="bookmarks-open"),
            html.Div([note, add], className="bar"),
            html.Div(id="bookmark-list"),
            html.P(id="bookmarks-refused", className="problem", role="alert"),
            dcc.Store(id="bookmarks-kept"),
        ],
        className="rows",
    )


def _keep_bookmarks(app: Dash, store: RunStore) -> None:
    """List bookmarks, and write and remove those in files."""

    @app.callback(
        Output("bookmark-list", "children"), inputs("chosen.data bookmarks-kept.data arrived.data", states="view.data")
    )
    def say(_: Any, __: Any, ___: Any, data: dict[str, Any] | None) -> list[Any]:
        view = View.from_data(data)
        return listed(view, store.ready(view.runs or (), view.rates))

    @app.callback(
        outputs("bookmarks-kept.data bookmarks-refused.children"), inputs("asked.data", states="view.data pressed.data")
    )
    def write(wish: dict[str, Any] | None, data: dict[str, Any] | None, pressed: Clicks | None) -> tuple[Any, str]:
        view, runs = seen(store, data)
        try:
            done = [written(each or {}, view, runs) for each in wishes(wish, (pressed or {}).get("asked"))]
        except UsageError as problem:
            return None, f"Not saved: {problem}."
        if not any(done):
            raise PreventUpdate
        return (wish or {}).get("at"), ""


def written(wish: dict[str, Any], view: View, runs: Sequence[Run]) -> bool:
    """Whether the browser's request has changed a file.

    Raises:
        UsageError: it could not be written.
    """
    match wish:
        case {"what": "keep bookmarks", "run": str(key)}:
            run = next((run for run in runs if run.key == key), None)
            if run is not None:
                keep(run, [*kept(run), *(mark for mark in view.bookmarks if mark.run == key)])
            return run is not None
        case {"what": "drop bookmark", "of": [str(key), int(low), int(high), str(note)]}:
            run = next((run for run in runs if run.key == key), None)
            if run is None or Bookmark(key, low, high, note) not in kept(run):
                return False
            keep(run, [mark for mark in kept(run) if mark != Bookmark(key, low, high, note)])
            return True
    return False


def listed(view: View, runs: Sequence[Run]) -> list[Any]:
    """All bookmarks of the visible runs, those in files first, and the buttons that save those of the link."""
    in_files = {run.key: kept(run) for run in runs}
    items = [_item(run, mark, "drop bookmark") for run in runs for mark in in_files[run.key]]
    names = {run.key: run for run in runs}
    linked = [mark for mark in view.bookmarks if mark.run in names and mark not in in_files[mark.run]]
    items += [_item(names[mark.run], mark, "unmark") for mark in linked]
    buttons = [
        ask(f"Save those of {plain(run.name, 40)} next to the recording", {"what": "keep bookmarks", "run": run.key},
            f"Write them to {plain(run.name, 60)}{SUFFIX}")
        for run in runs
        if any(mark.run == run.key for mark in linked) and may_keep(run)
    ]  # fmt: skip
    if not items:
        return [html.P("None yet. Bookmarks are in the link and can be saved next to the recording.", className="hint")]
    return [html.Ul(items, **named("Bookmarks")), *buttons]


def _item(run: Run, mark: Bookmark, forgets: str) -> html.Li:
    called = plain(mark.note, 200) or "without a note"
    where = "in the file next to the recording" if forgets == "drop bookmark" else "in the link"
    wish = {"of": [mark.run, mark.low, mark.high, mark.note]}
    return html.Li(
        [
            ask(called, {"what": "go to bookmark", **wish}, f"Go to {called}", "link"),
            html.Span(
                f"{plain(run.name, 40)}, {duration(mark.high - mark.low)} from {difference(mark.low, 4)} after the "
                f"first token began, {where}",
                className="hint",
            ),
            ask("×", {"what": forgets, **wish}, f"Forget {called}"),
        ]
    )


class _Kept(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    low: Time
    high: Time
    note: Words = ""
    within: Annotated[str, Field(max_length=2_000)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    bookmarks: Annotated[list[_Kept], Field(max_length=MOST_BOOKMARKS)]


def file_of(run: Run) -> Path | None:
    """The bookmarks file of a run's recording; None for a run without one."""
    return None if run.path is None or run.predicted else run.path.with_name(run.path.name + SUFFIX)


def may_keep(run: Run) -> bool:
    """Whether this server may write the file: in an existing directory, replacing only a bookmarks file."""
    file = file_of(run)
    if file is None or run.tokens is None or not os.access(file.parent, os.W_OK):
        return False
    return not os.path.lexists(file) or _read(file) is not None


def kept(run: Run) -> list[Bookmark]:
    """The bookmarks of a run in the file."""
    file = file_of(run)
    saved = None if file is None else _read(file)
    return [
        Bookmark(run.key, min(one.low, one.high), max(one.low, one.high), words_of(one.note))
        for one in (saved.bookmarks if saved else ())
        if one.within == run.part
    ]


def keep(run: Run, bookmarks: Iterable[Bookmark]) -> None:
    """Write the bookmarks of a run; those of other parts of its recording are kept.

    Raises:
        UsageError: the server may not write there, or there are more than `MOST_BOOKMARKS`.
    """
    file = file_of(run)
    if file is None or not may_keep(run):
        raise UsageError("this server may not write next to the recording; the bookmarks are in the link")
    before = _read(file)
    others = [one for one in before.bookmarks if one.within != run.part] if before else []
    own = [_Kept(low=b.low, high=b.high, note=b.note, within=run.part) for b in dict.fromkeys(bookmarks)]
    if len(others) + len(own) > MOST_BOOKMARKS:
        raise UsageError(f"a recording can have at most {MOST_BOOKMARKS} bookmarks")
    try:
        _write(file, _File(bookmarks=[*others, *own]).model_dump())
    except OSError as problem:
        raise UsageError(f"the bookmarks cannot be written: {problem.strerror}") from None


def _read(file: Path) -> _File | None:
    """The file's content; None if it is not a bookmarks file."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return None
        return _File.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(file: Path, content: Any) -> None:
    """Write atomically, also for concurrent readers."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=SUFFIX, dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
