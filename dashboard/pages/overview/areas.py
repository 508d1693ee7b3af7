"""The sums of an area: number and time of its events by kind, name, operator, stream or thread, in a table with the
runs side by side; its text for the clipboard, and the controls that choose an area.

Events that reach beyond the area count with the part inside. The area is processed in pieces, so that ten million
events need no more memory than one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, State, dcc, html
from numpy.typing import NDArray

from dashboard.pages import in_browser
from dashboard.pages.overview.event import ask
from dashboard.pages.parts import button, inputs, named
from dashboard.palette import KINDS, NAMES
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import anchor_of, token_of
from dashboard.text import difference, duration, plain
from dashboard.timeline.layout import arranged, places_of
from dashboard.timeline.rows import Row
from dashboard.view import GROUPINGS, Area, Arrangement, View
from tracer.model.intervals import Ints
from tracer.text import without_formulas

COLUMNS: Final = ["count", "total", "union", "mean", "of_area", "of_step"]
_AT_ONCE: Final = 500_000  # events of a row in a piece
_FIRST: Final = -(2**62)

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
_SEARCHED: Final = {"kernel"}  # groupings whose names can be searched for from the table


def buttons() -> list[Any]:
    """The button that sums the visible range."""
    return [button("sum", "Sums", "Sum the visible range, or Ctrl-drag (⌘-drag) over a part of it")]


def below() -> list[Any]:
    """Where the sums are shown."""
    return [dcc.Store(id="summed"), html.Div(id="sums", role="region", **named("Sums of the chosen area"))]


def register(app: Dash, store: RunStore) -> None:
    """Register the callback that sums; it asks again only when the area or its contents have changed."""
    in_browser(app, "timeline", "summed", Output("summed", "data"), Input("chosen", "data"), State("summed", "data"))

    @app.callback(Output("sums", "children"), inputs("summed.data arrived.data", states="view.data"))
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
    tables = [sums_of(run, area, view.rows, anchor_of(run, view, token)) for run in runs]
    longest = pd.concat([table["union"] for table in tables], axis=1).max(axis=1)
    names = [str(name) for name in longest.sort_values(ascending=False, kind="stable").index]
    by = [
        ask(words, {"what": "sum by", "by": key}, f"Sum by {words}", "button",
            **{"aria-pressed": str(key == area.by).lower()})
        for key, words in GROUPINGS.items()
    ]  # fmt: skip
    copies: dict[str, Any] = {"data-copies": "sums-text"}
    controls = [
        html.Span([html.B("Sums "), _where(area)]),
        html.Span(by, role="group", className="moves", **named("Sum by")),
        html.Button("Copy as text", id="copy-sums", className="button", title="Tab-separated", **copies),
        html.Pre(text_of(runs, tables), id="sums-text", hidden=True),
        ask("Close", {"what": "no area"}, "Clear the sums", "link"),
    ]
    head = html.Div(controls, className="bar")
    if not names:
        return [head, html.P("No events of this kind in the area.", className="hint")]
    table = html.Div(_table(runs, tables, names[:_MOST_SHOWN], area.by), className="scrolls", tabIndex=0, role="region",
                     **named(f"Sums by {GROUPINGS[area.by]}"))  # fmt: skip
    more = len(names) - _MOST_SHOWN
    said = f"and {more:,} more; the text has the first {_MOST_COPIED:,} of each run"
    return [head, table, *([html.P(said, className="hint")] if more > 0 else [])]


def text_of(runs: Sequence[Run], totals: Sequence[pd.DataFrame]) -> str:
    """The first rows of each run, tab-separated: run, name and the columns of `scene.sums.sums`; names that a
    spreadsheet would interpret as formulas are escaped."""
    tables = [
        table.head(_MOST_COPIED)[COLUMNS].rename_axis("name").reset_index().assign(run=run.name)
        for run, table in zip(runs, totals, strict=True)
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


def _table(runs: Sequence[Run], totals: Sequence[pd.DataFrame], names: Sequence[str], by: str) -> html.Table:
    of_runs = [html.Th(plain(run.name, 40), colSpan=len(COLUMNS), scope="colgroup") for run in runs]
    heads = [html.Th(text, title=hint, scope="col") for _ in runs for text, hint in _HEADINGS.values()]
    known = [table.to_dict("index") for table in totals]
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


@dataclass(frozen=True, eq=False)
class GroupedRow:
    """A row to be summed, and the group of each of its events.

    `code_of` gives the positions of events in `groups`, -1 for none.
    """

    row: Row
    groups: Sequence[str]
    code_of: Callable[[Ints], NDArray[np.integer]]


def sums_of(run: Run, area: Area, arrangement: Arrangement, anchor: int) -> pd.DataFrame:
    """The sums of a run's rows that are shown and in the area, see `sums`; time 0 is at `anchor` on its clock."""
    step = 0 if run.tokens is None else run.tokens.period
    low, high = area.ends
    return sums(grouped_rows(run, area, arrangement), low + anchor, high + anchor, step)


def grouped_rows(run: Run, area: Area, arrangement: Arrangement) -> list[GroupedRow]:
    """The rows of an area and their groups.

    Kernels, copies and operators belong to devices. Streams are rows of devices, and threads rows of hosts, whose calls
    and ranges are kept separate because they are nested.
    """
    places = places_of(run.rows)
    lines = [line for line in arranged(run.rows, arrangement) if not area.rows or places[line.index][1] in area.rows]
    if area.by == "kind":
        return [
            GroupedRow(line.row, [NAMES[kind] for kind in KINDS], _codes(line.row.events["what"])) for line in lines
        ]
    on_device = area.by != "thread"
    lines = [line for line in lines if (line.row.role == "stream") == on_device]
    if area.by == "kernel":
        return [GroupedRow(line.row, _names(line.row.events["full"]), _codes(line.row.codes[1])) for line in lines]
    if area.by == "operator":
        operators = [(line.row, run.operators(line.row)) for line in lines]
        return [GroupedRow(row, _names(names), _codes(names.cat.codes)) for row, names in operators]
    return [
        GroupedRow(line.row, [places[line.index][1]], lambda events: np.zeros(len(events), np.int8)) for line in lines
    ]


def sums(grouped: Sequence[GroupedRow], low: int, high: int, step: int = 0) -> pd.DataFrame:
    """The sums of [low, high), ns, by group, largest first.

    Args:
        low, high: the area, on the recording's clock.
        step: duration of a step of the run, 0 if unknown.

    Returns:
        By the name of the group: count (events with a part inside, including those of zero duration), total (sum of the
        durations inside, ns), union (the time in which at least one runs, ns), mean (of the durations inside, ns),
        of_area and of_step (union divided by the length of the area and by the duration of a step; NaN if that is 0).
    """
    groups = list(dict.fromkeys(name for each in grouped for name in each.groups))
    number = {name: at for at, name in enumerate(groups)}
    numbers = [np.array([number[name] for name in each.groups] or [0], dtype=np.int64) for each in grouped]
    summed = np.zeros((3, len(groups)), np.int64)
    for first, last in _pieces([each.row for each in grouped], low, high):
        summed += _summed(grouped, numbers, first, last, first == low, len(groups))
    table = pd.DataFrame(dict(zip(COLUMNS[:3], summed, strict=True)), index=pd.Index(groups, dtype="str"))
    table = table[table["count"] > 0]
    table = table.assign(
        mean=table["total"] / table["count"],
        of_area=table["union"] / (high - low) if high > low else np.nan,
        of_step=table["union"] / step if step > 0 else np.nan,
    )
    return table.sort_values(["union", "total", "count"], ascending=False, kind="stable")


def _pieces(rows: Sequence[Row], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The area in pieces in which no row has more than `_AT_ONCE` events that start there, except for equal starts."""
    cuts = [np.array([low, high], np.int64)] if high > low else []
    for row in rows if cuts else ():
        first, last = np.searchsorted(row.start, (low, high))
        cuts.append(row.start[first:last][_AT_ONCE::_AT_ONCE])
    edges = np.unique(np.concatenate(cuts)).tolist() if cuts else []
    return pairwise(edges)


def _summed(
    grouped: Sequence[GroupedRow], numbers: Sequence[Ints], low: int, high: int, is_first: bool, groups: int
) -> NDArray[np.int64]:
    """Count, total and union by group of a piece; events that began in an earlier one are counted there."""
    pieces = []
    for one, numbered in zip(grouped, numbers, strict=True):
        events = one.row.pyramid.in_view(low, high)
        code = one.code_of(events)
        events, code = events[code >= 0], code[code >= 0]
        start, end = one.row.start[events], one.row.end[events]
        begins = np.ones(len(events), bool) if is_first else start >= low
        pieces.append((numbered[code], np.maximum(start, low), np.minimum(end, high), begins))
    if not pieces:
        return np.zeros((3, groups), np.int64)
    code, start, end, begins = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.argsort(start, kind="stable")
    code, start, end, begins = code[order], start[order], end[order], begins[order]
    reach = pd.Series(end).groupby(code).cummax().groupby(code).shift(fill_value=_FIRST).to_numpy()
    table = pd.DataFrame(
        {"count": begins.astype(np.int64), "total": end - start, "union": np.maximum(end - np.maximum(start, reach), 0)}
    )
    return cast(Ints, table.groupby(code).sum().reindex(range(groups), fill_value=0).to_numpy().T)


def _names(column: pd.Series) -> list[str]:
    return [str(name) for name in cast(pd.Categorical, column.array).categories]


def _codes(codes: pd.Series | NDArray[np.integer]) -> Callable[[Ints], NDArray[np.integer]]:
    array = np.asarray(codes)
    return lambda events: array[events]
