"""Bookmarks with a note: in the link and, where this server may write, in a file next to the recording.

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

from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dashboard.pages.overview.actions import wishes
from dashboard.pages.overview.event import ask
from dashboard.pages.parts import Clicks, named, text_field
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.units import difference, duration
from dashboard.view import MOST_BOOKMARKS, Bookmark, Time, View, Words, words_of
from tracer.errors import UsageError

SUFFIX: Final = ".bookmarks.json"
_MOST_BYTES: Final = 256 * 1024


def above() -> html.Details:
    """The list, and a field for a new bookmark's note."""
    field = text_field("note", True, placeholder="Note", maxLength=200)
    add: dict[str, Any] = {"data-notes": "note"}
    return html.Details(
        [
            html.Summary("Bookmarks", id="bookmarks-open"),
            html.Div(
                [
                    html.Label([html.Span("Note of the bookmark", className="unseen"), field]),
                    html.Button("Bookmark this view", id="bookmark", className="button", **add),
                ],
                className="bar",
            ),
            html.Div(id="bookmark-list"),
            html.P(id="bookmarks-refused", className="problem", role="alert"),
            dcc.Store(id="bookmarks-kept"),
        ],
        className="rows",
    )


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that list bookmarks, and that write and remove those in files."""

    @app.callback(
        Output("bookmark-list", "children"),
        Input("chosen", "data"),
        Input("bookmarks-kept", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def say(_: Any, __: Any, ___: Any, data: dict[str, Any] | None) -> list[Any]:
        view = View.from_data(data)
        return listed(view, store.ready(view.runs or (), view.rates))

    @app.callback(
        Output("bookmarks-kept", "data"),
        Output("bookmarks-refused", "children"),
        Input("asked", "data"),
        State("view", "data"),
        State("pressed", "data"),
        prevent_initial_call=True,
    )
    def write(wish: dict[str, Any] | None, data: dict[str, Any] | None, pressed: Clicks | None) -> tuple[Any, str]:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
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
    found = None if file is None else _read(file)
    return [_shown(run, one) for one in found.bookmarks if one.within == run.within] if found else []


def keep(run: Run, bookmarks: Iterable[Bookmark]) -> None:
    """Write the bookmarks of a run; those of other parts of its recording are kept.

    Raises:
        UsageError: the server may not write there, or there are more than `MOST_BOOKMARKS`.
    """
    file = file_of(run)
    if file is None or not may_keep(run):
        raise UsageError("this server may not write next to the recording; the bookmarks are in the link")
    before = _read(file)
    others = [one for one in before.bookmarks if one.within != run.within] if before else []
    own = [_Kept(low=b.low, high=b.high, note=b.note, within=run.within) for b in dict.fromkeys(bookmarks)]
    if len(others) + len(own) > MOST_BOOKMARKS:
        raise UsageError(f"a recording can have at most {MOST_BOOKMARKS} bookmarks")
    try:
        _write(file, _File(bookmarks=[*others, *own]).model_dump())
    except OSError as problem:
        raise UsageError(f"the bookmarks cannot be written: {problem.strerror}") from None


def _shown(run: Run, one: _Kept) -> Bookmark:
    return Bookmark(run.key, min(one.low, one.high), max(one.low, one.high), words_of(one.note))


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
