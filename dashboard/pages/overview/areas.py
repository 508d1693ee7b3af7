"""The sums of an area: a table with the runs side by side, its text for the clipboard, and the controls that choose an
area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
from dash import Dash, Input, Output, State, dcc, html

from dashboard.pages import in_browser, named
from dashboard.pages.overview.event import ask
from dashboard.pages.parts import button
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import token_of
from dashboard.scene.sums import COLUMNS, sums_of
from dashboard.text import plain
from dashboard.units import difference, duration
from dashboard.view import GROUPINGS, Area, View
from tracer.text import without_formulas

_MOST_SHOWN: Final = 40
_MOST_COPIED: Final = 2_000
_HEADINGS: Final = {
    "count": ("Count", "Events that overlap the area"),
    "total": ("Total", "Sum of their durations inside the area"),
    "union": ("Union", "Time in which at least one of them runs"),
    "mean": ("Mean", "Mean of their durations inside the area"),
    "of_area": ("Of the area", "Union divided by the length of the area"),
    "of_step": ("Of a step", "Union divided by the median token period"),
}
_SEARCHED: Final = {"kernel"}
"""Groupings whose names can be searched for from the table."""


def buttons() -> list[Any]:
    """The button that sums the visible range."""
    hint = "Sum the visible range, or Ctrl-drag (⌘-drag) over a part of it"
    return [button("sum", "Sums", hint)]


def below() -> list[Any]:
    """Where the sums are shown."""
    return [dcc.Store(id="summed"), html.Div(id="sums", role="region", **named("Sums of the chosen area"))]


def register(app: Dash, store: RunStore) -> None:
    """Register the callback that sums; it asks again only when the area or its contents have changed."""
    in_browser(app, "timeline", "summed", Output("summed", "data"), Input("chosen", "data"), State("summed", "data"))

    @app.callback(
        Output("sums", "children"),
        Input("summed", "data"),
        Input("arrived", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def say(_: Any, __: Any, data: dict[str, Any] | None) -> list[Any]:
        view = View.from_data(data)
        return area_sums(view, store.ready(view.runs or (), view.rates))


def area_sums(view: View, runs: Sequence[Run]) -> list[Any]:
    """The sums of the view's area in every run; nothing if no area is chosen."""
    area = view.area
    runs = [run for run in runs if run.tokens is not None]
    if area is None or not runs:
        return []
    token = token_of(runs, view)
    found = [_table_of(run, view, token) for run in runs]
    names = _order_of(found)
    by = [
        ask(words, {"what": "sum by", "by": key}, f"Sum by {words}", "button",
            **{"aria-pressed": str(key == area.by).lower()})
        for key, words in GROUPINGS.items()
    ]  # fmt: skip
    copies: dict[str, Any] = {"data-copies": "sums-text"}
    copied = html.Button("Copy as text", id="copy-sums", className="button", title="Tab-separated", **copies)
    copied_text = html.Pre(text_of(runs, found), id="sums-text", hidden=True)
    head = html.Div(
        [
            html.Span([html.B("Sums "), _where(area)]),
            html.Span(by, role="group", className="moves", **named("Sum by")),
            copied,
            copied_text,
            ask("Close", {"what": "no area"}, "Clear the sums", "link"),
        ],
        className="bar",
    )
    if not names:
        return [head, html.P("No events of this kind in the area.", className="hint")]
    table = html.Div(_table(runs, found, names[:_MOST_SHOWN], area.by), className="scrolls", tabIndex=0, role="region",
                     **named(f"Sums by {GROUPINGS[area.by]}"))  # fmt: skip
    more = len(names) - _MOST_SHOWN
    said = f"and {more:,} more; the text has the first {_MOST_COPIED:,} of each run"
    return [head, table, *([html.P(said, className="hint")] if more > 0 else [])]


def _table_of(run: Run, view: View, token: int) -> pd.DataFrame:
    """The sums of a run, see `scene.sums.sums`; the area is relative to its own token's time 0."""
    assert view.area is not None
    assert run.tokens is not None
    return sums_of(run, view.area, view.rows, run.tokens.anchor(token, view.align))


def _order_of(found: Sequence[pd.DataFrame]) -> list[str]:
    """The names in all the tables, sorted by their largest union in any of them."""
    if not found:
        return []
    longest = pd.concat([table["union"] for table in found], axis=1).max(axis=1)
    return [str(name) for name in longest.sort_values(ascending=False, kind="stable").index]


def text_of(runs: Sequence[Run], found: Sequence[pd.DataFrame]) -> str:
    """The first rows of each run, tab-separated: run, name and the columns of `scene.sums.sums`; names that a
    spreadsheet would interpret as formulas are escaped."""
    tables = [
        table.head(_MOST_COPIED)[COLUMNS].rename_axis("name").reset_index().assign(run=run.name)
        for run, table in zip(runs, found, strict=True)
    ]
    joined = pd.concat(tables, ignore_index=True)[["run", "name", *COLUMNS]]
    for column in ("run", "name"):
        joined[column] = [plain(str(name), 300) for name in joined[column]]
    joined = joined.rename(columns={name: f"{name}_ns" for name in ("total", "union", "mean")})
    return without_formulas(joined).to_csv(index=False, sep="\t", lineterminator="\n", float_format="%.6g")


def _where(area: Area) -> str:
    rows = f" in {', '.join(plain(name, 30) for name in area.rows[:6])}" if area.rows else " in the visible rows"
    more = f" and {len(area.rows) - 6} more" if len(area.rows) > 6 else ""
    low, high = area.ends
    return f"of {duration(high - low)}, from {difference(low, 4)} to {difference(high, 4)},{rows}{more}"


def _table(runs: Sequence[Run], found: Sequence[pd.DataFrame], names: Sequence[str], by: str) -> html.Table:
    of_runs = [html.Th(plain(run.name, 40), colSpan=len(COLUMNS), scope="colgroup") for run in runs]
    heads = [html.Th(text, title=hint, scope="col") for _ in runs for text, hint in _HEADINGS.values()]
    known = [table.to_dict("index") for table in found]
    rows = [
        html.Tr([html.Th(_name(name, by), scope="row"), *(cell for table in known for cell in _cells(table.get(name)))])
        for name in names
    ]
    first = html.Th(GROUPINGS[by].capitalize(), rowSpan=2, scope="col")
    return html.Table([html.Thead([html.Tr([first, *of_runs]), html.Tr(heads)]), html.Tbody(rows)], className="figures")


def _name(name: str, by: str) -> Any:
    shown = plain(name, 60)
    if by not in _SEARCHED:
        return html.Span(shown, title=plain(name, 300))
    return ask(shown, {"what": "find", "find": plain(name, 200)}, f"Search for {plain(name, 300)}", "link")


def _cells(sums: dict[Any, Any] | None) -> list[html.Td]:
    if sums is None:
        return [html.Td("–") for _ in COLUMNS]
    shares = [("–" if pd.isna(sums[name]) else f"{sums[name]:.1%}") for name in ("of_area", "of_step")]
    times = [duration(sums[name]) for name in ("total", "union", "mean")]
    return [html.Td(text) for text in (f"{sums['count']:,}", *times, *shares)]
