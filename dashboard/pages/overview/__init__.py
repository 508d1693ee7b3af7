"""The overview: a table of runs, the timelines of the selected ones, the causes of their gaps, and downloads.

Two callbacks and one in the browser: each action creates a new view (`reduce`), the browser sets theme and width
(`screen`), and the view is rendered (`render`). The figures below and what is around the view follow.

A zoom or pan needs no `reduce`: `assets/gestures.js` changes the view and the link. The other files of the folder are
the parts of the page: its table, its tools, what is known about an event, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.downloads import FORMS, TABLES
from dashboard.figures import causes_figure, causes_height, causes_of, causes_text, idle_of, packed
from dashboard.pages import Page, in_browser, parts
from dashboard.pages.overview import areas, compare, event, minimap, table, tools
from dashboard.pages.overview.actions import actions_of, after
from dashboard.pages.overview.table import GRID, columns, height, rows_of
from dashboard.pages.runs import opened, seen
from dashboard.reading.run import Run
from dashboard.reading.store import Progress, RunStore
from dashboard.scene import around_of, timeline_of, token_of
from dashboard.text import plain
from dashboard.timeline.align import token_at
from dashboard.view import ALIGNMENTS, View

_FIGURES: Final = {"timeline": "Timeline, as shown", "causes": "Causes of the gap"}
_PICTURES: Final = ("svg", "png")

_BUTTONS = (
    *("token-back", "token-on", "show-gap", "show-token", "show-all"),
    *("zoom-in", "zoom-out", "pan-left", "pan-right", "theme"),
    *("find-on", "find-back", "measure", "sum"),
)
_FIELDS = ("token", "align", "timeline", "find", "only", "asked", "basis")
_MOMENT = 0.3  # seconds in which a few small recordings are read, so that the table is sent once
_WANTED = 1.5  # seconds in which those of a link are read, so that they are drawn once
_HIDDEN, _SHOWN = {"display": "none"}, {"display": "block"}

_BY_GAP: Final = {"token-median": ("Median", 50.0), "token-worst": ("Worst", 100.0)}  # percentiles


def sections() -> list[Any]:
    """The page's elements."""
    stores = [*(dcc.Store(id=key) for key in ("listed", "followed", "arrived", "drawn", "wanted", "ahead")),
              parts.poll("reading")]  # fmt: skip
    causes = [_causes("idle", "the idle time of a step"), _causes("causes", "the gap")]
    shown = [_runs(), compare.section(), _timeline(), *causes, _downloads()]
    return [*stores, *tools.stores(), *shown]


def _runs() -> html.Section:
    hint = html.P("Select one to six.  ▲: from a traced pass, so inflated.", className="hint")
    uploads = html.Ul(id="uploads", className="uploads", **parts.named("Uploads"))
    panel = html.Div([hint, table.grid()], id="runs-panel", hidden=True)
    return html.Section([table.strip(), uploads, panel, *table.below()], **parts.named("Runs"))


def _timeline() -> html.Section:
    return html.Section(
        [
            html.Div(
                [html.H2("Timeline"), _token(), _by_gap(), parts.moves(*tools.buttons()), *tools.above()],
                className="bar tools",
            ),
            minimap.above(),
            tools.replies(),
            html.Div("Loading the recordings …", id="nothing", className="empty"),
            parts.chart("timeline", "Timelines of the selected runs", 300, doubleClick=False),
            html.P("Wheel to zoom, shift-wheel or drag to pan, shift-drag to zoom to a range, "
                   "double-click a token to zoom to it. Rest on an event, or click it, for all that is known about it. "
                   "Dotted: the base's gap; hatched: the difference of a run's gap from it.",
                   className="hint foot"),
            *tools.below(),
            parts.legend_of_timeline(),
        ],
        **parts.named("Timeline"),
    )  # fmt: skip


def _token() -> html.Div:
    align = dbc.Select(
        id="align", options=[{"value": key, "label": key} for key in ALIGNMENTS], value="end", class_name="field small"
    )
    number = dcc.Slider(id="token", min=0, max=1, step=1, value=0, marks=None, updatemode="mouseup", included=False)
    return parts.group(
        "Token at which the runs are aligned",
        html.Label([html.Span("Align at the ", className="spelled"), align]),
        html.Span("of token", id="token-label"),
        parts.button("token-back", "‹", "Previous token"),
        html.Div(number, className="slider"),
        parts.button("token-on", "›", "Next token"),
    )


def _by_gap() -> html.Details:
    """Buttons for characteristic tokens: the median, the worst, or any percentile of the base's gaps."""
    percentile = dcc.Input(id="percentile", type="number", min=0, max=100, step="any", value=90, className="small")
    inside = parts.group(
        "Tokens by the base's gap",
        *(html.Button(text, id=key, className="button", title=f"{text} token by the base's gap")
          for key, (text, _) in _BY_GAP.items()),
        html.Label(["percentile ", percentile]),
        parts.button("token-percentile", "Show", "Show the token at this percentile"),
    )  # fmt: skip
    return html.Details([html.Summary("By gap", id="tokens-open", title="Tokens by the base's gap"), inside],
                        className="rows")  # fmt: skip


def _causes(key: str, of: str) -> html.Section:
    hint = html.P("Mean over all tokens of each run.", className="hint")
    figure = parts.chart(key, f"Causes of {of}", 80, doubleClick=False)
    return parts.section(f"Causes of {of}", [hint], figure, id=f"{key}-section")


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the runs of `store`."""
    _table(app, store)
    _reduce(app, store)
    _render(app, store)
    _draw_causes(app, store)
    _ahead(app, store)
    for part in (compare, table, tools, minimap, areas, event):
        part.register(app, store)
    _fill_downloads(app, store)
    _go_by_gap(app, store)


def _go_by_gap(app: Dash, store: RunStore) -> None:
    """Go to a characteristic token, by a link with its number, which the page follows."""

    @app.callback(
        Output("followed", "data", allow_duplicate=True),
        parts.inputs(
            f"{parts.clicks((*_BY_GAP, 'token-percentile'))} percentile.n_submit", states="percentile.value view.data"
        ),
    )
    def show(*values: Any) -> Any:
        percentile, data = values[-2:]
        if ctx.triggered_id in _BY_GAP:
            percentile = _BY_GAP[str(ctx.triggered_id)][1]
        if not isinstance(percentile, int | float):  # the field is empty or not a number from 0 to 100
            raise PreventUpdate
        view = View.from_data(data)
        base = next(iter(store.ready(view.runs or ())), None)
        token = None if base is None or base.tokens is None else token_at(base.tokens, percentile)
        return no_update if token in (None, view.token) else replace(view, token=token).query()


def _table(app: Dash, store: RunStore) -> None:
    @app.callback(
        parts.outputs(
            "listed.data runs.rowData runs.columnDefs runs.style runs.dashGridOptions reading.disabled "
            "reading-said.children revision.data arrived.data"
        ),
        parts.inputs("url.pathname reading.n_intervals revision.data", states="url.search view.data arrived.data"),
        running=parts.asking("reading"),
        prevent_initial_call=False,
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
        parts.outputs(
            "view.data url.search runs.selectedRows token.value token.max token-label.children align.value "
            "runs.scrollTo pressed.data find.value only.value basis.value"
        ),
        parts.inputs(
            "listed.data followed.data runs.eventData token.value align.value timeline.relayoutData find.value "
            f"only.value asked.data basis.value {parts.clicks(_BUTTONS)}",
            states="pressed.data runs.selectedRows view.data screen.data url.search",
        ),
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
            view.find
            if opens or ("asked.data" in triggered and (fields["asked"] or {}).get("what") == "find")
            else no_update,
            view.rows.only if opens or not view.rows.only else no_update,
            view.basis,
        )


def _keys(selected: Any) -> list[str]:
    if isinstance(selected, dict):
        return list(selected.get("ids", []))
    return [r["key"] for r in selected or []]


def _render(app: Dash, store: RunStore) -> None:
    watched = [path for path in store.given if path.is_dir()]

    @app.callback(
        parts.outputs("timeline.figure timeline.style timeline-holder.style nothing.children nothing.style drawn.data"),
        parts.inputs("screen.data arrived.data", states="view.data drawn.data"),
    )
    def render(screen: dict[str, Any] | None, _: Any, data: dict[str, Any], drawn: list[str] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        (view, runs), theme = seen(store, data), str(screen["scheme"])
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


def _draw_causes(app: Dash, store: RunStore) -> None:
    """The figures of the causes of idle time and gap, after the timeline; with descriptions for screen readers."""

    @app.callback(
        parts.outputs(
            "idle.figure idle.style causes.figure causes.style idle-section.style causes-section.style "
            "idle-holder.aria-label causes-holder.aria-label"
        ),
        parts.inputs("drawn.data", states="screen.data view.data"),
    )
    def render(_: Any, screen: dict[str, Any] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        _, runs = seen(store, data)
        screen = screen or {"scheme": "light", "width": 1440}
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

    @app.callback(Output("ahead", "data"), parts.inputs("wanted.data", states="screen.data view.data"))
    def fetch(_: Any, screen: dict[str, Any] | None, data: dict[str, Any] | None) -> dict[str, Any]:
        if screen is None:
            raise PreventUpdate
        view = View.from_data(data)
        around = packed(around_of(store.ready(view.runs or (), view.rates), view, str(screen["scheme"])))
        return dict(around)


def nothing_to_show(
    runs: Sequence[Run], progress: Progress, watched: Sequence[Path] = (), uploads: bool = False
) -> list[Any]:
    """Instructions for the reader if no timeline is shown."""
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


def _downloads() -> html.Section:
    """The place of the links."""
    pictures = [
        _download_row(words, [_save_button(key, words, form) for form in _PICTURES]) for key, words in _FIGURES.items()
    ]
    return parts.section(
        "Downloads",
        [],
        html.Table([html.Tbody(id="downloads-of-runs"), html.Tbody(pictures)], className="downloads"),
        html.P("Recordings contain the names of commands, files and machines. "
               "Remove them with intertoken scrub.", className="hint foot"),
    )  # fmt: skip


def _save_button(figure: str, words: str, form: str) -> html.Button:
    label = parts.named(f"{words}, as {form.upper()}")
    return html.Button(form.upper(), id=f"save-{figure}-{form}", className="link", **label)


def _fill_downloads(app: Dash, store: RunStore) -> None:
    """Register the callbacks that update the links and save the figures."""

    @app.callback(
        Output("downloads-of-runs", "children"),
        parts.inputs("steady.data", states="view.data"),
        prevent_initial_call=False,
    )
    def links(_: Any, data: dict[str, Any] | None) -> list[html.Tr]:
        view = View.from_data(data)
        return download_rows(store.chosen(view.runs or (), view.rates), view)

    pressed = parts.clicks(f"save-{figure}-{form}" for figure in _FIGURES for form in _PICTURES)
    in_browser(app, "intertoken", "save", *parts.inputs(pressed))


def download_rows(runs: Sequence[Run], view: View) -> list[html.Tr]:
    """A row of links per table, the report and the recordings; only the table of all runs if none is selected."""
    every = View(rates=view.rates).query()
    rates = tuple(rate for run in runs for rate in run.rates)
    of_chosen = View(tuple(run.key for run in runs), rates=rates, basis=view.basis)
    chosen = of_chosen.query()
    has_graph = any(run.graph_file is not None for run in runs)
    shown = {name: table for name, table in TABLES.items() if name == "runs" or (has_graph if table.of_graph else runs)}
    rows = []
    for name, of in shown.items():
        query = every if name == "runs" else chosen
        links = [_download_link(f"{name}.{form}", query, form, of.words) for form in FORMS]
        rows.append(_download_row(of.words, links))
    if runs:
        words = f"Report of this comparison, token {token_of(runs, view)}: one self-contained file"
        query = replace(of_chosen, token=token_of(runs, view)).query()
        rows.append(_download_row(words, [_download_link("report.html", query, "html", "Report")]))
    for run in runs:
        words = f"Recording {plain(run.name, 90)}: nsys parquetdir"
        rows.append(_download_row(words, [_download_link("recording.zip", View((run.key,)).query(), "zip", words)]))
    return rows


def _download_row(words: str, links: Sequence[Any]) -> html.Tr:
    return html.Tr([html.Th(words, scope="row"), *(html.Td(link) for link in links)])


def _download_link(file: str, query: str, form: str, words: str) -> html.A:
    name = "Parquet" if form == "parquet" else form.upper()
    return html.A(name, href=f"download/{file}{query}", download="", **parts.named(f"{words}, as {name}"))


PAGE = Page("", "Runs", "what happens between two tokens", sections, register, place=0)
