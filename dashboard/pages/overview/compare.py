"""Why one run is faster than another: a sentence for each run against the first, and the table of its figures.

The answer takes seconds, so it is worked out in the background and asked for until it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.comparisons import LONGEST_NAME, Against, ask_against_base, cautions_of, methods_of
from dashboard.frame import named
from dashboard.pages.parts import HIDDEN, SHOWN
from dashboard.pages.syncs.table import known
from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.text import plain
from dashboard.view import View
from tracer.analysis.interval import Interval
from tracer.compare_report import compare_table
from tracer.compare_words import (
    BUSY,
    DISTORTION,
    GAP,
    RATES,
    cause_row,
    count_row,
    difference,
    needed_row,
    percent,
    phrases,
)

_KERNEL: Final = "kernel_us "
_LABELS: Final = {
    **{row: unit.capitalize() for unit, row in RATES.items()},
    GAP: "Gap p50, µs",
    "gap_us mean": "Gap mean, µs",
    BUSY: "GPU busy, µs per token",
    count_row("syncs"): "Syncs per token",
    count_row("copies"): "Copies per token",
    count_row("launches"): "Launches per token",
    DISTORTION: "Distortion of the recording",
    **{
        needed_row(unit): f"{unit.capitalize()} a run that would show it" for unit in ("steps", "repeats", "recordings")
    },
}
"""Row of `compare_report.compare_table` -> its label; causes stand under their own names."""

_MAKE_BASE: Final = "make-base"
_ROOM: Final = 2  # lines


def section() -> html.Section:
    """Where the sentences stand."""
    return html.Section(
        [
            dcc.Store(id="compared"),
            dcc.Interval(id="compare-poll", interval=400, disabled=True),
            html.Div([html.H2("Comparison"), html.P(id="compare-base", className="hint")], className="bar"),
            html.Ul(id="compare-cautions", className="notes", **named("Before you compare")),
            html.Div(id="compare-words", role="status"),
        ],
        id="compare-section",
        style=HIDDEN,
        **named("Comparison"),
    )


def figures() -> html.Section:
    """Where their figures stand."""
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Figures of this comparison"),
                    html.P("Differences are the other run minus the base, of rates the change; in brackets 95 % "
                           "intervals. Causes add up to the mean gap. To take away under Downloads.", className="hint"),
                ],
                className="bar",
            ),
            html.Div(id="compare-figures", className="scrolls"),
            html.P(id="compare-methods", className="hint foot"),
        ],
        id="compare-figures-section",
        style=HIDDEN,
        **named("Figures of this comparison"),
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Attach what says the comparison of the chosen runs, and what makes another of them the base."""
    _render(app, store)
    _make_base(app, store)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("compare-section", "style"),
        Output("compare-base", "children"),
        Output("compare-words", "children"),
        Output("compare-figures-section", "style"),
        Output("compare-figures", "children"),
        Output("compare-methods", "children"),
        Output("compare-cautions", "children"),
        Output("compare-poll", "disabled"),
        Output("compared", "data"),
        Input("steady", "data"),
        Input("revision", "data"),
        Input("compare-poll", "n_intervals"),
        State("view", "data"),
        State("compared", "data"),
        prevent_initial_call=True,
    )
    def render(_: Any, __: Any, ___: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
        answer: list[Against] | str | None = []
        if len(runs) > 1:
            answer = known(ask_against_base(store, runs))
        compared = [[run.identity for run in runs], answer is None]
        if compared == before:
            raise PreventUpdate
        found = answer if isinstance(answer, list) else []
        tables = [table_of(number, one) for number, one in enumerate(found)]
        return (
            SHOWN if len(runs) > 1 else HIDDEN,
            ["against ", html.B(_name(runs[0]))] if runs else "",
            skeleton(len(runs) - 1) if answer is None else answer if isinstance(answer, str) else words_of(found),
            SHOWN if any(one.found for one in found) else HIDDEN,
            tables,
            methods_of(found),
            items_of(None if answer is None else cautions_of(found)),
            answer is not None,
            compared,
        )


def _make_base(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("url", "search", allow_duplicate=True),
        Input({"type": _MAKE_BASE, "run": ALL}, "n_clicks"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def lead(clicks: list[int | None], data: dict[str, Any] | None) -> Any:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
        match ctx.triggered_id:
            case {"run": int(number)} if any(clicks) and 0 <= number < len(runs):
                return view.led_by(runs[number].key).query()
        raise PreventUpdate


def skeleton(lines: int) -> list[Any]:
    """What stands there while the answer is worked out."""
    return [html.P("Comparing …", className="skeleton"), *[html.P(className="skeleton")] * (lines - 1)]


def items_of(cautions: Sequence[str] | None) -> list[html.Li]:
    """What to know before, or the room for some of it while it is worked out, so that the page moves little then."""
    if cautions is None:
        return [html.Li(className="skeleton")] * _ROOM
    return [html.Li(plain(text, 1000)) for text in cautions]


def words_of(found: Sequence[Against]) -> list[Any]:
    """A paragraph for each run, whose figures lead to the table, with a button that makes the run the base."""
    return [
        html.P([*_sentence(number, one), " ", _button(number, one)], className="answer")
        for number, one in enumerate(found)
    ]


def _sentence(number: int, against: Against) -> list[Any]:
    if against.found is None:
        return [f"{_name(against.other)}: {plain(against.problem)}."]
    return [
        html.A(phrase.text, href=f"#{_row_id(number, phrase.figure)}", className="figure") if phrase.figure
        else phrase.text
        for phrase in phrases(against.found)
    ]  # fmt: skip


def _button(number: int, against: Against) -> html.Button:
    label = f"Make {_name(against.other)} the base"
    key: Any = {"type": _MAKE_BASE, "run": number + 1}
    return html.Button("Make base", id=key, className="button", title=label, **named(label))


def table_of(number: int, against: Against) -> html.Table | None:
    """The figures of a run beside those of the base."""
    if against.found is None:
        return None
    head = ["per token", against.found.base.name, against.found.other.name, "Difference"]
    rows = [row for row in compare_table([against.found]).to_dict("records") if not row["figure"].startswith(_KERNEL)]
    return html.Table(
        [
            html.Thead(html.Tr([html.Th(text, scope="col") for text in head])),
            html.Tbody([html.Tr(_cells(row), id=_row_id(number, row["figure"]), tabIndex="-1") for row in rows]),
        ],
        className="figures",
    )


def _cells(row: dict[Any, Any]) -> list[Any]:
    figure = row["figure"]
    change, low, high = (None if pd.isna(row[key]) else row[key] for key in ("estimate", "low", "high"))
    said = "" if change is None else (percent if figure in RATES.values() else difference)(Interval(change, low, high))
    own = [_number(row[key], 2 if figure == DISTORTION else 1) for key in ("base", "other")]
    return [html.Th(label_of(figure), scope="row"), *(html.Td(text) for text in (*own, said))]


def label_of(figure: str) -> str:
    """How a row of the table is called on the page."""
    return _LABELS.get(figure) or f"of it {figure.removeprefix(cause_row(''))}, µs"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:,.{digits}f}".removesuffix(".0")


def _row_id(number: int, figure: str) -> str:
    return f"figure-{number}-{''.join(c if c.isalnum() else '-' for c in figure)}"


def _name(run: Run) -> str:
    return plain(run.name, LONGEST_NAME)
