"""Downloads of the overview: tables, figures, the report and the recordings of the selected runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, State, html

from dashboard.pages import in_browser, named, parts
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.report.tables import FORMS, TABLES
from dashboard.scene import token_of
from dashboard.text import plain
from dashboard.view import View

_FIGURES: Final = {"timeline": "Timeline, as shown", "causes": "Causes of the gap"}
_PICTURES: Final = ("svg", "png")


def section() -> html.Section:
    """The place of the links."""
    return parts.section(
        "Downloads",
        [],
        html.Table(
            [
                html.Tbody(id="downloads-of-runs"),
                html.Tbody([_row(_FIGURES[key], [_button(key, form) for form in _PICTURES]) for key in _FIGURES]),
            ],
            className="downloads",
        ),
        html.P("Recordings contain the names of commands, files and machines. "
               "Remove them with intertoken scrub.", className="hint foot"),
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that update the links and save the figures."""

    @app.callback(Output("downloads-of-runs", "children"), Input("steady", "data"), State("view", "data"))
    def links(_: Any, data: dict[str, Any] | None) -> list[html.Tr]:
        view = View.from_data(data)
        return rows(store.chosen(view.runs or (), view.rates), view)

    pressed = [Input(_key(figure, form), "n_clicks") for figure in _FIGURES for form in _PICTURES]
    in_browser(app, "intertoken", "save", *pressed)


def rows(runs: Sequence[Run], view: View) -> list[html.Tr]:
    """A row of links per table, the report and the recordings; only the table of all runs if none is selected."""
    every = View(rates=view.rates).query()
    of_chosen = View(tuple(run.key for run in runs), rates=tuple(rate for run in runs for rate in run.rates))
    chosen = of_chosen.query()
    has_graph = any(run.graph_file is not None for run in runs)
    shown = {name: table for name, table in TABLES.items() if name == "runs" or (has_graph if table.of_graph else runs)}
    found = [
        _row(
            table.words,
            [_link(f"{name}.{form}", every if name == "runs" else chosen, form, table.words) for form in FORMS],
        )
        for name, table in shown.items()
    ]
    if runs:
        words = f"Report of this comparison, token {token_of(runs, view)}: one self-contained file"
        query = replace(of_chosen, token=token_of(runs, view)).query()
        found.append(_row(words, [_link("report.html", query, "html", "Report")]))
    for run in runs:
        words = f"Recording {plain(run.name, 90)}: nsys parquetdir"
        found.append(_row(words, [_link("recording.zip", View((run.key,)).query(), "zip", words)]))
    return found


def _row(words: str, links: Sequence[Any]) -> html.Tr:
    return html.Tr([html.Th(words, scope="row"), *(html.Td(link) for link in links)])


def _link(file: str, query: str, form: str, words: str) -> html.A:
    address = f"download/{file}{query}"
    return html.A(_shown(form), href=address, download="", **named(f"{words}, as {_shown(form)}"))


def _button(figure: str, form: str) -> html.Button:
    label = f"{_FIGURES[figure]}, as {_shown(form)}"
    return html.Button(_shown(form), id=_key(figure, form), className="link", **named(label))


def _key(figure: str, form: str) -> str:
    return f"save-{figure}-{form}"


def _shown(form: str) -> str:
    return "Parquet" if form == "parquet" else form.upper()
