"""Building blocks of the pages: sections, fields, charts and tables, and the presses of their buttons.

Of two overlapping calls Dash drops the first one's result. So a page keeps in the store `pressed` how often each of its
buttons had been pressed when it was last handled, and handles all presses since (`done`), whatever made Dash call.

Pages with a timeline share its legend, the buttons that move it (`moves`), and how the view follows them
(`after_move`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import dash_ag_grid as dag
import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.palette import CLEAR, COLOURS, HOLE_SWATCHES, NAMES
from dashboard.reading.run import Run
from dashboard.scene import limits_of, range_of, token_of
from dashboard.view import BASES, Linked, View, span, switched, zoom
from tracer.analysis.idle import PLACES
from tracer.files.bounded import toml_of

MOST_PRESSES: Final = 200
"""Maximum number of presses that one call handles: a key held down for seven seconds. Counters come from
the browser and cannot be trusted."""
Clicks: TypeAlias = Mapping[str, float | None]  # how often each button was pressed; None for never

Seen = TypeVar("Seen", bound=Linked)

HIDDEN: Final[dict[str, str]] = {"display": "none"}
SHOWN: Final[dict[str, str]] = {}
NO_RECORDINGS: Final = (
    "No recordings yet. Make some on this machine, with or without a GPU:\n"
    "intertoken run --sync sccc,aaag -o runs\n"
    "and show them, or recordings of Nsight Systems:\nintertoken dashboard runs"
)
_ROW, _HEAD, _MOST_ROWS = 32, 36, 14  # px, px
SORTABLE: Final = {"sortable": True, "filter": True, "resizable": True, "suppressHeaderMenuButton": True}
_POLL_MS, _PAUSED_MS = 700, 20_000
_LINE = 18  # px: one more line of a wrapped text
_NUMBER = re.compile(r"[-−+±]?\d|–$")


def no_run(known: Sequence[Run]) -> str:
    """Instructions if no run is selected of those that are known."""
    return "Select a run above." if known else NO_RECORDINGS


def visible(shows: Any) -> dict[str, str]:
    """The style of an element that is shown if there is something to show."""
    return SHOWN if shows else HIDDEN


def named(label: str) -> dict[str, Any]:
    """The accessible name of an element."""
    return {"aria-label": label}


def section(title: str, bar: Sequence[Any], *content: Any, key: str | None = None, **options: Any) -> html.Section:
    """A section with a title, and controls or hints (texts) next to it; with a key, hidden until filled."""
    own: dict[str, Any] = {} if key is None else {"id": key, "style": HIDDEN}
    beside = [html.P(each, className="hint") if isinstance(each, str) else each for each in bar]
    head = html.Div([html.H2(title), *beside], className="bar")
    return html.Section([head, *content], **(named(title) | own | options))


def outputs(properties: str) -> list[Output]:
    """The outputs of a callback, as "component.property component.property"; a * follows what others set, too."""
    return [Output(*_split(each.rstrip("*")), allow_duplicate=each.endswith("*")) for each in properties.split()]


def inputs(properties: str, states: str = "") -> list[Input | State]:
    """The inputs and states of a callback, written like its `outputs`."""
    return [Input(*_split(each)) for each in properties.split()] + [State(*_split(each)) for each in states.split()]


def _split(name: str) -> tuple[str, str]:
    component, _, prop = name.rpartition(".")
    return component, prop


def clicks(buttons: Iterable[str]) -> str:
    """The presses of these buttons, as `inputs`."""
    return " ".join(f"{button}.n_clicks" for button in buttons)


def group(label: str, *content: Any, look: str = "token", **options: Any) -> html.Div:
    """Elements that belong together, and their name for screen readers."""
    return html.Div([*content], className=look, role="group", **named(label), **options)


def poll(key: str) -> dcc.Interval:
    """The timer, disabled at first, that makes a page request answers again while they are being computed: the page
    shows those that there are, and is rendered again when there are more."""
    return dcc.Interval(id=key, interval=_POLL_MS, disabled=True)


def asking(key: str) -> list[tuple[Output, int, int]]:
    """`running` of a callback that `poll` triggers: it is not triggered again until it has answered.

    Dash drops an answer if its callback was triggered again since, so answers slower than the interval would never be
    shown. It does not undo `running` where a request fails, so the poll goes on after a while without an answer, too.
    """
    return [(Output(key, "interval"), _PAUSED_MS, _POLL_MS)]


def choice(key: str, label: str, width: int | None = None, **options: Any) -> html.Label:
    """A dropdown, `width` px wide or as wide as there is room."""
    dropdown = dcc.Dropdown(id=key, options=[], **options)
    if width is not None:
        return html.Label([html.Span(label), html.Div(dropdown, style={"width": f"{width}px"})], className="token")
    return html.Label([html.Span(label), html.Div(dropdown, className="wide")], className="token grows")


def button(key: Any, text: str, says: str, **options: Any) -> html.Button:
    """A button with a short text or a sign; `says` is its tooltip, and its name for screen readers."""
    return html.Button(text, id=key, className="button", title=says, **named(says), **options)


def stepper(key: str, word: str) -> list[Any]:
    """Buttons to the previous and the next one, and between them the place that says which it is."""
    back, on = f"Previous {word}", f"Next {word}"
    return [button(f"{key}-back", "‹", back), html.Span(id=f"{key}-label"), button(f"{key}-on", "›", on)]


def text_field(key: str, debounce: int | bool, **options: Any) -> dbc.Input:
    """A text field that reports its value `delay` ms after the last key, on Enter and on blur.

    It is Bootstrap's component: Dash's restores the caret too late, after more characters may have been typed.
    """
    return dbc.Input(id=key, debounce=debounce, class_name="field", autocomplete="off", **options)


def table_of_lines(lines: Sequence[dict[str, str]]) -> html.Table:
    """A small table: rows with the same headings, the first of which names the row; numbers are right-aligned."""
    kinds = {name: "number" if all(_NUMBER.match(line[name]) for line in lines) else None for name in lines[0]}
    heads = html.Thead(html.Tr([html.Th(name, scope="col", className=kinds[name]) for name in lines[0]]))
    cells = [
        [html.Th(t, scope="row") if i == 0 else html.Td(t, className=kinds[n]) for i, (n, t) in enumerate(r.items())]
        for r in lines
    ]
    return html.Table([heads, html.Tbody([html.Tr(row) for row in cells])], className="figures")


def legend(colours: Mapping[str, str]) -> html.Ul:
    """Names and their colours."""
    return html.Ul(
        [html.Li([html.Span(style={"background": fill}, className="swatch"), name]) for name, fill in colours.items()],
        className="legend",
        **named("Colours"),
    )


def chart(key: str, label: str, height: int = 160, **options: Any) -> html.Div:
    """A figure with a description for screen readers, which is the label of its container; `height` in px."""
    figure = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False},
                                     "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR}}  # fmt: skip
    config: Any = {"displayModeBar": False, "displaylogo": False, "scrollZoom": False, "showTips": False}
    graph = dcc.Graph(id=key, figure=figure, config=config | options, responsive=True, style={"height": f"{height}px"})
    return html.Div(graph, id=f"{key}-holder", role="img", **named(label))


def table_of(key: str, csv: str | None = None, **options: Any) -> dag.AgGrid:
    """An empty table that can be sorted and filtered, with the columns of `columns.toml`; `csv` is the file's name when
    it is exported: as in `tracer.text.without_formulas`, no text becomes a formula of a spreadsheet."""
    export = {"fileName": csv, "processCellCallback": {"function": "withoutFormula(params)"}}
    return dag.AgGrid(
        id=key,
        columnDefs=table_columns(key),
        rowData=[],
        defaultColDef=SORTABLE,
        dashGridOptions={"rowHeight": _ROW, "headerHeight": _HEAD, "tooltipShowDelay": 300,
                         "enableCellTextSelection": True, "animateRows": False},
        style={"height": "120px"},
        **({} if csv is None else {"csvExportParams": export}),
        **options,
    )  # fmt: skip


def keep_download(app: Dash, key: str) -> None:
    """Have the button `download` save a table as CSV."""

    @app.callback(Output(key, "exportDataAsCsv"), inputs("download.n_clicks"))
    def download(_: Any) -> bool:
        return True


def with_several(table: str, rows: Sequence[dict[str, Any]], *fields: str) -> list[dict[str, Any]]:
    """The columns of a table without those of these fields that are equal in all rows."""
    return _without(table_columns(table), {field for field in fields if len({row[field] for row in rows}) <= 1})


def with_values(
    columns: str | list[dict[str, Any]], rows: Sequence[dict[str, Any]], *fields: str
) -> list[dict[str, Any]]:
    """The columns, perhaps of a table, and of these fields only those that some row has a value for."""
    known = table_columns(columns) if isinstance(columns, str) else columns
    return _without(known, {field for field in fields if all(row[field] in (None, "", "–") for row in rows)})


def _without(columns: list[dict[str, Any]], fields: Collection[str]) -> list[dict[str, Any]]:
    return [column | {"hide": column.get("hide", False) or column["field"] in fields} for column in columns]


def table_height(rows: Sequence[Any], lines: Sequence[int] = ()) -> dict[str, str]:
    """The style of a table as tall as its rows, up to a limit; `lines`: the number of lines that the longest text of
    each row takes."""
    more = _LINE * sum(count - 1 for count in lines[:_MOST_ROWS])
    return {"height": f"{_HEAD + _ROW * min(max(len(rows), 1), _MOST_ROWS) + more + 18}px"}


_COLUMNS: Final = toml_of(Path(__file__).with_name("columns.toml"))
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "brief": {},
    "text": {},
    "wrapped": {"wrapText": True, "autoHeight": True, "cellClass": "wrapped"},
    "links": {"cellRenderer": "markdown", "filter": False, "sortable": False,
              "suppressKeyboardEvent": {"function": "followLink(params)"}},  # Enter follows the cell's link
    "number": {"type": "rightAligned", "filter": "agNumberColumnFilter"},
}  # fmt: skip


def table_columns(table: str) -> list[dict[str, Any]]:
    """The columns of a table, as `columns.toml` has them."""
    return [_column(field, **given) for field, given in _COLUMNS[table].items()]


def _column(
    field: str, header: str, width: int, kind: str = "text", hint: str | None = None, formatter: str = "",
    form: str = "", marked: str = "", **options: Any,
) -> dict[str, Any]:  # fmt: skip
    value = f"params.data.{field}"
    if kind == "number" and not formatter:
        mark = f" + (params.data.{marked} ? ' ▲' : '')" if marked else ""
        formatter = f"{value} == null ? '–' : d3.format('{form}')({value}){mark}"
    own: dict[str, Any] = {"field": field, "headerName": header, "width": width, "headerTooltip": hint} | _KINDS[kind]
    own |= {"tooltipField": field} if kind in ("text", "wrapped") else {}
    return own | ({"valueFormatter": {"function": formatter}} if formatter else {}) | options


def basis_switch() -> html.Div:
    """The switch between figures without the profiler, where they are known, and as recorded."""
    options = [{"value": key, "label": label} for key, label in BASES.items()]
    items = dbc.RadioItems(id="basis", options=options, value="untraced", inline=True, className="choice")
    return group(
        "Gap, idle time and rate", html.Span("Times"), items, title="Without the profiler, where that is known"
    )


def rate_field() -> html.Label:
    """The field of the engine's own rate, shared with the table of runs and kept between pages."""
    field = text_field("rate", True, type="text", placeholder="from run.json, if it has one", maxlength=40)
    hint = "Steps per second of the engine without a profiler, as in the table of runs"
    return html.Label([html.Span("Untraced steps/s"), field], id="rate-field", title=hint)


def done(triggered: Sequence[str], clicks: Clicks, heeded: Clicks | None) -> list[str]:
    """The components that a reader changed, and each button once per unhandled press, up to `MOST_PRESSES`.

    Args:
        triggered: properties that have changed, as "component.property".
        clicks: presses of the buttons now.
        heeded: presses when they were last handled.

    Example:
        >>> done(["run.value", "theme.n_clicks"], {"theme": 1, "on": 5}, {"theme": None, "on": 3})
        ['run', 'theme', 'on', 'on']
    """
    changed = dict.fromkeys(prop.rsplit(".", 1)[0] for prop in triggered)
    since = {button: int((times or 0) - ((heeded or {}).get(button) or 0)) for button, times in clicks.items()}
    presses = chain.from_iterable(repeat(button, min(times, MOST_PRESSES)) for button, times in since.items())
    return [*(name for name in changed if name not in clicks), *islice(presses, MOST_PRESSES)]


def keep_view(
    app: Dash, kind: type[Seen], fields: str, buttons: Sequence[str], shown: str, *, opened: Callable[[Seen], Seen],
    after: Callable[[Seen, str, Any, str], Seen], show: Callable[[Seen], Sequence[Any]],
) -> None:  # fmt: skip
    """Keep a page's view, from its link and then by each action of the reader.

    Args:
        fields: what a reader changes, as for `inputs`.
        shown: what the page shows of its view, as for `outputs`.
        opened: the view of a link -> the view to begin with.
        after: view, component, its new value, and what the theme looks like ("light" or "dark") -> the view afterwards.
        show: the values of `shown`.
    """

    @app.callback(
        outputs(f"view.data url.search pressed.data {shown}"),
        inputs(f"url.search {fields} {clicks(buttons)}", states="pressed.data view.data screen.data"),
        prevent_initial_call=False,
    )
    def reduce(search: str, *rest: Any) -> tuple[Any, ...]:
        *given, pressed, before, screen = rest
        values = dict(zip(fields.split(), given, strict=False))
        presses = dict(zip(buttons, given[len(values) :], strict=True))
        sources = done([one["prop_id"] for one in ctx.triggered], presses, pressed)
        if before is None or "url" in sources:
            view = opened(kind.parse(search))
        else:
            of_source = {name.rpartition(".")[0]: value for name, value in values.items()}
            view = kind.from_data(before)
            for source in sources:
                view = after(view, source, of_source.get(source), (screen or {}).get("scheme", ""))
        answer = dict(zip(shown.split(), show(view), strict=True))
        agree = all(values[name] == answer[name] for name in values.keys() & answer.keys())
        if before is not None and view == kind.from_data(before) and agree and presses == pressed:
            raise PreventUpdate
        link = view.query()
        return view.data(), no_update if link == (search or "") else link, presses, *answer.values()


LEGEND = ("kernel", "graph", "communication", "copy", "memset", "sync", "launch", "host", "api", "other", "nvtx", "gap")
MOVES = {
    "show-gap": ("Gap", "Zoom to the gap"),
    "show-token": ("Token", "Show one token"),
    "show-all": ("Whole run", "Show the whole recording"),
    "zoom-out": ("−", "Zoom out"),
    "zoom-in": ("+", "Zoom in"),
    "pan-left": ("←", "Pan left"),
    "pan-right": ("→", "Pan right"),
}
_ZOOMS = {"zoom-in": (0.5, 0.0), "zoom-out": (2.0, 0.0), "pan-left": (1.0, -0.35), "pan-right": (1.0, 0.35)}
_SHOWS = {"show-gap", "show-token", "show-all"}


@dataclass(frozen=True)
class Action:
    """One action of the reader: the component and its new value."""

    source: str
    value: Any = None


def after_move(view: View, action: Action, runs: Sequence[Run], scheme: str = "light") -> View:
    """The view after the timeline was moved or the theme switched.

    `scheme`: what the theme looks like now, "light" or "dark".
    """
    match action:
        case Action("token-back" | "token-on" as which):
            step = 1 if which == "token-on" else -1
            return replace(view, token=max(token_of(runs, view) + step, 0))
        case Action("timeline", dict(change)):
            return _dragged(view, change)
        case Action(source) if source in _ZOOMS:
            return replace(view, range=zoom(limits_of(runs, view), *_ZOOMS[source]))
        case Action(source) if source in _SHOWS:
            return replace(view, range=range_of(runs, view, source.removeprefix("show-")))
        case Action("theme"):
            return replace(view, theme=switched(view.theme, scheme))
    return view


def moves(*more: Any) -> html.Div:
    """The buttons of `MOVES`, and more after them."""
    buttons = [button(key, text, hint) for key, (text, hint) in MOVES.items()]
    return group("Range of the time axis", *buttons, *more, look="moves")


def legend_of_timeline() -> html.Ul:
    """The legend of the timeline: colours, and the patterns of idle holes."""
    drawn = {NAMES[kind]: COLOURS[kind] for kind in LEGEND}
    drawn |= {f"idle {PLACES[place]}": swatch for place, swatch in HOLE_SWATCHES.items()}
    return legend(drawn)


def _dragged(view: View, change: dict[str, Any]) -> View:
    """Plotly's report after a drag or a double click."""
    if change.get("xaxis.autorange"):
        return replace(view, range=None)
    low, high = change.get("xaxis.range[0]"), change.get("xaxis.range[1]")
    if isinstance(low, int | float) and isinstance(high, int | float):
        return replace(view, range=span(low * 1e9, high * 1e9))
    return view
