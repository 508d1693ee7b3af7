"""Explains why a run is faster: a sentence that compares each run with the base, and the matrix of their figures.

The comparison takes seconds, so it is computed in the background, and the page polls until it is ready.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.pages.parts import HIDDEN, SHOWN, asking, button, named, poll
from dashboard.reading.background import known
from dashboard.reading.comparisons import Against, ask_against_base, cautions_of, methods_of
from dashboard.reading.run import LONGEST_NAME, Run
from dashboard.reading.store import RunStore
from dashboard.text import apart, plain
from dashboard.view import View
from tracer.reporting.compare_matrix import Cell, Row, matrix
from tracer.reporting.compare_words import phrases
from tracer.reporting.headline import Figure, gap, idle, rate, sentence

_MAKE_BASE: Final = "make-base"
_ROOM: Final = 2  # lines
_BESIDE: Final = 2
"""Up to this many runs, the matrix fits next to the sentences."""
_HEAD: Final = 26  # characters of a column's name
_SHORT: Final = 16  # of a run's name in one of several sentences, which then fit on a line
_NOTHING: Final = ({"0"}, {"1.00"})
"""A line with one of these values for all runs is left out of the matrix of several: no time, no tracing overhead."""


def section(*below: Any) -> html.Section:
    """The place of the sentences and the figures, with cautions and methods below."""
    return html.Section(
        [
            dcc.Store(id="compared"),
            poll("compare-poll"),
            html.Div(
                [
                    html.H2("Summary", className="unseen"),
                    html.Div(skeleton(1), id="compare-words", role="status"),
                    html.Ul(_items_of(None), id="compare-cautions", className="notes", **named("Before you compare")),
                ],
                className="said",
            ),
            html.Div(
                [
                    html.Div(_SPACE, id="compare-figures", className="scrolls"),
                    html.Details(
                        [
                            html.Summary("About these figures", className="hint"),
                            html.P("Differences are the other run minus the base, or the relative change for rates, "
                                   "with 95 % intervals in brackets. Highlighted: the largest difference of a row or, "
                                   "for two runs, the cause that changes most. Causes add up to the mean gap. Save "
                                   "the table under Downloads.", className="hint"),
                            html.P(id="compare-methods", className="hint"),
                        ],
                        className="about-figures",
                    ),
                ],
                id="compare-figures-holder",
                className="shown",
            ),
            *below,
        ],
        id="compare-section",
        className="answers few",
        **named("Comparison"),
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that show the comparison of the selected runs, or the one run, and that set the base."""
    _render(app, store)
    _make_base(app, store)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("compare-section", "style"),
        Output("compare-section", "className"),
        Output("compare-words", "children"),
        Output("compare-figures-holder", "style"),
        Output("compare-figures", "children"),
        Output("compare-methods", "children"),
        Output("compare-cautions", "children"),
        Output("compare-poll", "disabled"),
        Output("compared", "data"),
        Input("steady", "data"),
        Input("arrived", "data"),
        Input("compare-poll", "n_intervals"),
        State("view", "data"),
        State("compared", "data"),
        prevent_initial_call=True,
        running=asking("compare-poll"),
    )
    def render(_: Any, __: Any, ___: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        runs, awaited = store.ready(view.runs or (), view.rates), store.awaited(view.runs or ())
        waits = bool(awaited) or (view.runs is None and not store.progress().done)
        answer: list[Against] | str | None = None if waits else []
        if len(runs) > 1 and not waits:
            answer = known(ask_against_base(store, runs))
        compared = [[run.identity for run in runs], awaited, waits, answer is None]
        if compared == before:
            raise PreventUpdate
        several = f"answers {'several' if len(runs) + len(awaited) > _BESIDE else 'few'}"
        shown = SHOWN if runs or waits else HIDDEN
        return shown, several, *_outputs(runs, answer, len(awaited)), answer is not None, compared


def _outputs(runs: Sequence[Run], answer: list[Against] | str | None, awaited: int) -> tuple[Any, ...]:
    """The sentences, whether there are figures, the figures, methods and cautions."""
    if answer is None:
        return skeleton(max(len(runs) + awaited - 1, 1)), SHOWN, _SPACE, "", _items_of(None)
    if isinstance(answer, str):
        return answer, HIDDEN, None, "", []
    if len(runs) == 1:
        return _words_alone(runs[0]), SHOWN, _table_alone(runs[0]), "", _items_of(_known_of(runs[0]))
    shown = SHOWN if any(one.found for one in answer) else HIDDEN
    return words_of(answer), shown, table_of(answer), methods_of(answer), _items_of(cautions_of(answer))


def _make_base(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("followed", "data", allow_duplicate=True),
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
    """The placeholder while the comparison is computed."""
    return [html.P("Comparing …", className="skeleton"), *[html.P(className="skeleton")] * (lines - 1)]


_SPACE: Final = html.Div(className="skeleton tall")
"""Reserves space for the figures while they are computed."""


def _items_of(cautions: Sequence[str] | None) -> list[html.Li]:
    """Cautions, or space reserved for them while they are computed, so that the layout barely changes."""
    if cautions is None:
        return [html.Li(className="skeleton")] * _ROOM
    return [html.Li(plain(text, 1000)) for text in cautions]


def words_of(found: Sequence[Against]) -> list[Any]:
    """A paragraph for each run, whose figures link to the table, with a button that makes the run the base."""
    names = [_name(run) for run in ([found[0].base] if found else []) + [one.other for one in found]]
    short = dict(zip(names, apart(names, _SHORT if len(names) > _BESIDE else LONGEST_NAME), strict=True))
    return [
        html.P([*_sentence(number, one, short), " ", _button(number, one)], className="answer")
        for number, one in enumerate(found)
    ]


def _sentence(number: int, against: Against, short: Mapping[str, str]) -> list[Any]:
    base, other = _name(against.base), _name(against.other)
    if against.found is None:
        return [f"{short[other]}: {plain(against.problem)}."]
    return [
        html.A(phrase.text, href=f"#{_cell_id(number, phrase.figure)}", className="figure") if phrase.figure
        else _with_names(phrase.text, {name: short[name] for name in (base, other)})
        for phrase in phrases(against.found)
    ]  # fmt: skip


def _with_names(text: str, short: Mapping[str, str]) -> Any:
    """The text with short names, whose tooltip has them whole."""
    if all(name == brief or name not in text for name, brief in short.items()):
        return text
    names = "|".join(map(re.escape, sorted(short, key=len, reverse=True)))
    return html.Span(re.sub(names, lambda found: short[found[0]], text), title=text)


def _button(number: int, against: Against) -> html.Button:
    return button({"type": _MAKE_BASE, "run": number + 1}, "Make base", f"Make {_name(against.other)} the base")


def _words_alone(run: Run) -> list[Any]:
    """A run without a comparison, in a sentence."""
    return [html.P(f"{plain(sentence(run.summary, _name(run)), 1000)}.", className="answer")]


def _known_of(run: Run) -> list[str]:
    """Notes on a run without a comparison."""
    return [f"{text}." for text in (run.summary.warning, run.summary.left_out, run.summary.problem) if text]


def table_of(found: Sequence[Against]) -> html.Table | None:
    """The matrix of figures and runs; None if nothing can be compared."""
    compared = [(number, one) for number, one in enumerate(found) if one.found is not None]
    if not compared:
        return None
    lines = matrix([one.found for _, one in compared if one.found is not None])
    runs = [found[0].base, *(one.other for _, one in compared)]
    short = apart([run.name for run in runs], _HEAD)
    heads = [
        html.Th(text, scope="col", title=_name(run), colSpan=2 if at else 1)
        for at, (text, run) in enumerate(zip(short, runs, strict=True))
    ]
    if len(runs) > _BESIDE:
        lines = [line for line in lines if {line.base, *(cell.text for cell in line.cells)} not in _NOTHING]
    rows = [_row(line, [number for number, _ in compared]) for line in lines]
    return html.Table(
        [html.Thead(html.Tr([html.Th("per token", scope="col"), *heads])), html.Tbody(rows)], className="figures matrix"
    )


def _table_alone(run: Run) -> html.Table | None:
    """The figures of a run without a comparison."""
    of = run.summary
    per_token = {"Syncs": of.syncs_per_token, "Copies": of.copies_per_token, "Launches": of.launches_per_token}
    said = {
        "Idle p50": idle(of).text, "Gap p50": gap(of).text, "Rate": rate(of).text,
        "GPU busy, a step": Figure(of.busy_us, "µs", of.traced).text,
        **{f"{what} per token": f"{count:g}" for what, count in per_token.items() if count is not None},
    }  # fmt: skip
    rows = [html.Tr([html.Th(label, scope="row"), html.Td(text)]) for label, text in said.items()]
    return html.Table(html.Tbody(rows), className="figures matrix") if of.steps is not None else None


def _row(line: Row, numbers: Sequence[int]) -> html.Tr:
    each = zip(numbers, line.cells, strict=True)
    cells = [part for number, cell in each for part in _cells(line, number, cell)]
    return html.Tr([html.Th(line.label, scope="row"), html.Td(line.base), *cells])


def _cells(line: Row, number: int, cell: Cell) -> tuple[html.Td, html.Td]:
    lit = "change largest" if cell.is_largest else "change"
    own = html.Td(cell.text, id=_cell_id(number, line.figure), tabIndex="-1")
    return own, html.Td(html.Span(cell.change), className=lit)


def _cell_id(number: int, figure: str) -> str:
    return f"figure-{number}-{''.join(c if c.isalnum() else '-' for c in figure)}"


def _name(run: Run) -> str:
    return plain(run.name, LONGEST_NAME)
