"""The callbacks of the overview's view.

Two callbacks and one in the browser: each action creates a new view (`reduce`), the browser sets theme and width
(`screen`), and the view is rendered (`render`). The figures below and what is around the view follow.

A zoom or pan needs no `reduce`: `assets/gestures.js` changes the view and the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.causes import causes_figure, causes_height, causes_of, causes_text, idle_of
from dashboard.figures.payload import packed
from dashboard.pages import in_browser
from dashboard.pages.overview.actions import actions_of, after
from dashboard.pages.overview.table import GRID, columns, height, rows_of
from dashboard.pages.parts import asking
from dashboard.pages.runs import opened
from dashboard.reading.run import Run
from dashboard.reading.store import Progress, RunStore
from dashboard.scene import around_of, timeline_of, token_of
from dashboard.text import plain
from dashboard.view import View

_BUTTONS = (
    *("token-back", "token-on", "show-gap", "show-token", "show-all"),
    *("zoom-in", "zoom-out", "pan-left", "pan-right", "theme"),
    *("find-on", "find-back", "measure", "sum"),
)
_FIELDS = ("token", "align", "timeline", "find", "only", "asked")
_MOMENT = 0.3  # seconds in which a few small recordings are read, so that the table is sent once
_WANTED = 1.5  # seconds in which those of a link are read, so that they are drawn once
_HIDDEN, _SHOWN = {"display": "none"}, {"display": "block"}


def register(app: Dash, store: RunStore) -> None:
    """Register these callbacks with an app that shows the runs of `store`."""
    _table(app, store)
    _reduce(app, store)
    _render(app, store)
    _causes(app, store)
    _ahead(app, store)


def _table(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("listed", "data"),
        Output("runs", "rowData"),
        Output("runs", "columnDefs"),
        Output("runs", "style"),
        Output("runs", "dashGridOptions"),
        Output("reading", "disabled"),
        Output("reading-said", "children"),
        Output("revision", "data"),
        Output("arrived", "data"),
        Input("url", "pathname"),
        Input("reading", "n_intervals"),
        Input("revision", "data"),
        State("url", "search"),
        State("view", "data"),
        State("arrived", "data"),
        running=asking("reading"),
    )
    def load(
        _: Any, asks: int | None, before: int | None, search: str | None, data: Any, there: list[str] | None
    ) -> tuple[Any, ...]:  # fmt: skip
        view = View.parse(search) if data is None else View.from_data(data)
        store.read_ahead(keys := [store.key_of(name) for name in view.runs or ()])
        first = before is None and not asks
        if first:
            store.wait(_WANTED if keys else _MOMENT, keys)
        revision, progress = store.revision, store.progress()  # before the rows: the last call has all of them
        rows = rows_of(store.so_far(view.rates))
        arrived = [run.identity for run in store.ready(keys, view.rates)] or [f"{progress.read} of {progress.total}"]
        return (
            [revision, asks],  # changed, so that the callback fires
            rows,
            columns(rows),
            {"height": height(rows)},
            {**GRID, "loading": False} if before is None else no_update,
            progress.done,
            progress_text(progress, store.reading()),
            no_update if first or before == revision else revision,
            no_update if arrived == there else arrived,
        )

    in_browser(app, "intertoken", "listed", Input("listed", "data"))


def progress_text(progress: Progress, reading: Sequence[str]) -> str:
    """The progress of reading, as text; nothing once all recordings are read."""
    if progress.done:
        return ""
    now = f", now {', '.join(plain(name, 40) for name in reading)}" if reading else ""
    return f"{progress.read} of {progress.total} recordings read; {progress.total - progress.read} left{now}"


def _reduce(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("runs", "selectedRows"),
        Output("token", "value"),
        Output("token", "max"),
        Output("token-label", "children"),
        Output("align", "value"),
        Output("runs", "scrollTo"),
        Output("pressed", "data"),
        Output("find", "value"),
        Output("only", "value"),
        Input("listed", "data"),
        Input("followed", "data"),
        Input("runs", "eventData"),
        Input("token", "value"),
        Input("align", "value"),
        Input("timeline", "relayoutData"),
        Input("find", "value"),
        Input("only", "value"),
        Input("asked", "data"),
        *(Input(button, "n_clicks") for button in _BUTTONS),
        State("pressed", "data"),
        State("runs", "selectedRows"),
        State("view", "data"),
        State("screen", "data"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def reduce(
        listed: list[int | None] | None, followed: str | None, picked: dict[str, Any] | None, *rest: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        *values, pressed, selected, before, screen, search = rest
        if listed is None:
            raise PreventUpdate
        triggered = [t["prop_id"] for t in ctx.triggered]
        arrives = "listed.data" in triggered
        follows = "followed.data" in triggered
        opens = before is None or follows or View.from_data(before).runs is None
        view = View.parse(followed if follows else search) if opens else View.from_data(before)
        view = opened(view, store) if opens or arrives else view
        fields = dict(zip(_FIELDS, values, strict=False))
        stamps = {name: (fields[name] or {}).get("at") for name in ("asked", "timeline")}
        clicks = dict(zip(_BUTTONS, values[len(_FIELDS) :], strict=True)) | stamps
        if not opens:
            unread = store.awaited(view.runs or ())  # the table cannot select them yet
            keys = [*(picked or {"data": []})["data"], *unread]
            actions = actions_of(triggered, {"runs": keys, **fields}, clicks, pressed)
            for action in actions:
                view = after(
                    view, action, store.ready(view.runs or (), view.rates), (screen or {}).get("scheme", "light")
                )
        runs = store.ready(view.runs or ())
        agreed = {run.key for run in runs} == set(_keys(selected)) and not arrives  # which the grid may have refused
        same = before is not None and view == View.from_data(before)
        if same and agreed and clicks == pressed:
            raise PreventUpdate
        most = max((len(run.tokens) for run in runs if run.tokens is not None), default=2) - 1
        link = view.query()
        return (
            no_update if same else view.data(),
            no_update if link == (search or "") else link,
            no_update if agreed else {"ids": [run.key for run in runs]},
            token_of(runs, view),
            max(most, 1),
            f"of token {token_of(runs, view)} (0–{most})",
            view.align,
            {"rowId": runs[0].key, "rowPosition": "top"} if opens and runs else no_update,
            clicks,
            view.find if opens or _asks_to_find(triggered, fields["asked"]) else no_update,
            view.rows.only if opens or not view.rows.only else no_update,
        )


def _asks_to_find(triggered: Sequence[str], wish: Any) -> bool:
    """Whether a button started the search; the search field must then be updated."""
    return "asked.data" in triggered and (wish or {}).get("what") == "find"


def _keys(selected: Any) -> list[str]:
    if isinstance(selected, dict):
        return list(selected.get("ids", []))
    return [r["key"] for r in selected or []]


def _render(app: Dash, store: RunStore) -> None:
    watched = [path for path in store.given if path.is_dir()]

    @app.callback(
        Output("timeline", "figure"),
        Output("timeline", "style"),
        Output("timeline-holder", "style"),
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("drawn", "data"),
        Input("screen", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any] | None, _: Any, data: dict[str, Any], drawn: list[str] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme = View.from_data(data), str(screen["scheme"])
        runs = store.ready(view.runs or (), view.rates)
        draws = [theme, *(run.identity for run in runs)]  # a run that was read again has a new identity
        if ctx.triggered_id == "arrived" and draws == drawn and runs:
            raise PreventUpdate
        plot, tall = timeline_of(runs, view, theme, int(screen["width"]))
        return (
            packed(plot),
            {"height": f"{tall}px"},
            _SHOWN if runs else _HIDDEN,
            "" if runs else nothing_to_show(store.so_far(), store.progress(), watched, store.inbox is not None),
            _HIDDEN if runs else _SHOWN,
            no_update if draws == drawn else draws,
        )


def _causes(app: Dash, store: RunStore) -> None:
    """The figures of the causes of idle time and gap, after the timeline; with descriptions for screen readers."""

    @app.callback(
        *(Output(key, part) for key in ("idle", "causes") for part in ("figure", "style")),
        *(Output(f"{key}-section", "style") for key in ("idle", "causes")),
        *(Output(f"{key}-holder", "aria-label") for key in ("idle", "causes")),
        Input("drawn", "data"),
        State("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def render(_: Any, screen: dict[str, Any] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        runs, screen = store.ready(view.runs or (), view.rates), screen or {"scheme": "light", "width": 1440}
        theme, width = str(screen["scheme"]), int(screen["width"])
        idle, gap = idle_of(runs), causes_of(runs)
        figures = [
            (causes_figure(each, theme, width), {"height": f"{causes_height(each, width)}px"}) for each in (idle, gap)
        ]
        return (
            *chain.from_iterable(figures),
            *(_SHOWN if each else _HIDDEN for each in (idle, gap)),
            f"Causes of the idle time. {causes_text(idle)}",
            f"Causes of the gap. {causes_text(gap)}",
        )


def _ahead(app: Dash, store: RunStore) -> None:
    """What is around the view: the browser asks for it when the timeline is at rest, and draws it."""
    in_browser(app, "ahead", "show", Input("ahead", "data"))

    @app.callback(
        Output("ahead", "data"),
        Input("wanted", "data"),
        State("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def fetch(_: Any, screen: dict[str, Any] | None, data: dict[str, Any] | None) -> dict[str, Any]:
        if screen is None:
            raise PreventUpdate
        view = View.from_data(data)
        found = packed(around_of(store.ready(view.runs or (), view.rates), view, str(screen["scheme"])))
        return dict(found)


def nothing_to_show(
    runs: Sequence[Run], progress: Progress, watched: Sequence[Path] = (), uploads: bool = False
) -> list[Any]:
    """Instructions for the reader if no timeline is shown.

    Args:
        runs: all runs, whether read or not.
        progress: how many are read.
        watched: directories watched for new recordings.
        uploads: whether recordings can be dropped on the page.
    """
    if not progress.done:
        return [html.P(f"Loading the recordings: {progress.read} of {progress.total} …")]
    if not runs:
        places = ", ".join(plain(path.absolute().name or str(path), 60) for path in watched[:3])
        where: list[Any] = (
            ["New recordings in ", html.B(places), " appear here automatically."]
            if watched
            else ["Then start with ", html.Code("intertoken dashboard runs my-recording"), "."]
        )
        dropped = " You can also drop Nsight Systems reports and PyTorch traces on this page." if uploads else ""
        return [
            html.P([html.B("No recordings yet."), " Make some on this machine, with a GPU or without:"]),
            html.Pre("intertoken run --sync sccc,saaas,aaag -o runs\nintertoken record -o my-recording -- COMMAND ..."),
            html.P([*where, dropped]),
        ]
    if not any(run.steps is not None for run in runs):
        return [html.P("None of these recordings has token steps to show; the table says why.")]
    return [html.P("Select one to six runs in the table to see them on one time axis.")]
