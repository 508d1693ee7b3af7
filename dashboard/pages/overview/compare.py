"""Explains why a run is faster: a sentence that compares each run with the base, and the matrix of their figures.

The comparison takes seconds, so it is computed in the background, and the page polls until it is ready.

Below is the ladder of strategies: tokens/s by strategy, of runs that are otherwise the same, with the range of their
repeats; and a click that shows one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import plotly.graph_objects as go
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.headline import by_mean, mean_gap, mean_idle, sentence_of
from dashboard.pages.parts import HIDDEN, SHOWN, asking, button, chart, choice, inputs, named, outputs, poll, visible
from dashboard.pages.runs import seen
from dashboard.palette import COLOURS, THEMES
from dashboard.reading.answers import Against, ask_against_base, cautions_of, methods_of
from dashboard.reading.run import LONGEST_NAME, SAME, Run, is_pass
from dashboard.reading.store import RunStore, known
from dashboard.text import apart, markup, plain
from dashboard.view import MOST_RUNS, View
from tracer.analysis.compare import DISTORTION, Line
from tracer.reporting.compare import Cell, Row, matrix
from tracer.reporting.compare_words import Phrase, phrases
from tracer.reporting.headline import Figure, gap, idle, rate

_MAKE_BASE: Final = "make-base"
_ROOM: Final = 2  # lines
_BESIDE: Final = 2  # up to this many runs, the matrix fits next to the sentences
_HEAD: Final = 26  # characters of a column's name
_SHORT: Final = 16  # of a run's name in one of several sentences, which then fit on a line
_NOTHING: Final = ({"0"}, {"1.00"})
"""A line with one of these values for all runs is left out of the matrix of several: no time, no tracing overhead."""


def section() -> html.Section:
    """The place of the sentences and the figures, with cautions, methods and the ladder below."""
    about = html.Details(
        [
            html.Summary("About these figures", className="hint"),
            html.P("Differences are the other run minus the base, or the relative change for rates, with 95 % "
                   "intervals in brackets. Highlighted: the largest difference of a row or, for two runs, the cause "
                   "that changes most. Causes add up to the mean gap. Save the table under Downloads.",
                   className="hint"),
            html.P(id="compare-methods", className="hint"),
        ],
        className="about-figures",
    )  # fmt: skip
    said = [
        html.H2("Summary", className="unseen"),
        html.Div(skeleton(1), id="compare-words", role="status"),
        html.Ul(_items_of(None), id="compare-cautions", className="notes", **named("Before you compare")),
    ]
    figures = [html.Div(_SPACE, id="compare-figures", className="scrolls"), about]
    return html.Section(
        [
            dcc.Store(id="compared"),
            poll("compare-poll"),
            html.Div(said, className="said"),
            html.Div(figures, id="compare-figures-holder", className="shown"),
            _ladder(),
        ],
        id="compare-section",
        className="answers few",
        **named("Comparison"),
    )


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that show the comparison of the selected runs, or the one run, that set the base, and
    those of the ladder."""
    _render(app, store)
    _make_base(app, store)
    _render_ladder(app, store)
    _choose(app)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        outputs(
            "compare-section.style compare-section.className compare-words.children compare-figures-holder.style "
            "compare-figures.children compare-methods.children compare-cautions.children compare-poll.disabled "
            "compared.data"
        ),
        inputs("steady.data arrived.data compare-poll.n_intervals", states="view.data compared.data"),
        running=asking("compare-poll"),
    )
    def render(_: Any, __: Any, ___: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view, runs = seen(store, data)
        awaited = store.awaited(view.runs or ())
        waits = bool(awaited) or (view.runs is None and not store.progress().done)
        answer: list[Against] | str | None = None if waits else []
        if len(runs) > 1 and not waits:
            answer = known(ask_against_base(store, runs))
        compared = [[run.identity for run in runs], awaited, waits, answer is None]
        if compared == before:
            raise PreventUpdate
        several = f"answers {'several' if len(runs) + len(awaited) > _BESIDE else 'few'}"
        shown = visible(runs or waits)
        return shown, several, *_outputs(runs, answer, len(awaited)), answer is not None, compared


def _outputs(runs: Sequence[Run], answer: list[Against] | str | None, awaited: int) -> tuple[Any, ...]:
    """The sentences, whether there are figures, the figures, methods and cautions."""
    if answer is None:
        return skeleton(max(len(runs) + awaited - 1, 1)), SHOWN, _SPACE, "", _items_of(None)
    if isinstance(answer, str):
        return answer, HIDDEN, None, "", []
    if len(runs) == 1:
        of, name = runs[0].summary, _name(runs[0])
        words = [html.P(f"{plain(sentence_of(runs[0], name), 1000)}.", className="answer")]
        notes = [f"{text}." for text in (of.warning, of.left_out, of.problem) if text]
        return words, SHOWN, _table_alone(runs[0]), "", _items_of(notes)
    shown = visible(any(one.comparison for one in answer))
    return words_of(answer), shown, table_of(answer), methods_of(answer), _items_of(cautions_of(answer))


def _make_base(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("followed", "data", allow_duplicate=True),
        Input({"type": _MAKE_BASE, "run": ALL}, "n_clicks"),
        State("view", "data"),
    )
    def lead(clicks: list[int | None], data: dict[str, Any] | None) -> Any:
        view, runs = seen(store, data)
        match ctx.triggered_id:
            case {"run": int(number)} if any(clicks) and 0 <= number < len(runs):
                return view.led_by(runs[number].key).query()
        raise PreventUpdate


def skeleton(lines: int) -> list[Any]:
    """The placeholder while the comparison is computed."""
    return [html.P("Comparing …", className="skeleton"), *[html.P(className="skeleton")] * (lines - 1)]


_SPACE: Final = html.Div(className="skeleton tall")  # reserves space for the figures while they are computed


def _items_of(cautions: Sequence[str] | None) -> list[html.Li]:
    """Cautions, or space reserved for them while they are computed, so that the layout barely changes."""
    if cautions is None:
        return [html.Li(className="skeleton")] * _ROOM
    return [html.Li(plain(text, 1000)) for text in cautions]


def words_of(answers: Sequence[Against]) -> list[Any]:
    """A paragraph for each run, whose figures link to the table, with a button that makes the run the base."""
    names = [_name(run) for run in ([answers[0].base] if answers else []) + [one.other for one in answers]]
    short = dict(zip(names, apart(names, _SHORT if len(names) > _BESIDE else LONGEST_NAME), strict=True))
    return [
        html.P(
            [
                *_sentence(number, one, short), " ",
                button({"type": _MAKE_BASE, "run": number + 1}, "Make base", f"Make {_name(one.other)} the base"),
            ],
            className="answer",
        )
        for number, one in enumerate(answers)
    ]  # fmt: skip


def _sentence(number: int, against: Against, short: Mapping[str, str]) -> list[Any]:
    base, other = _name(against.base), _name(against.other)
    if against.comparison is None:
        return [f"{short[other]}: {plain(against.problem)}."]
    return [
        html.A(_text(phrase, against), href=f"#{_cell_id(number, phrase.figure)}", className="figure") if phrase.figure
        else _with_names(phrase.text, {name: short[name] for name in (base, other)})
        for phrase in phrases(against.comparison)
    ]  # fmt: skip


def _text(phrase: Phrase, against: Against) -> str:
    """A phrase, with what tracing does to the gap in place of what it does to the period."""
    if phrase.figure != DISTORTION:
        return phrase.text
    factors = [f"× {run.overhead:.1f}" for run in (against.base, against.other) if run.overhead]
    return f"tracing {' and '.join(dict.fromkeys(factors))} on the gap" if factors else "with what the profiler adds"


def _with_names(text: str, short: Mapping[str, str]) -> Any:
    """The text with short names, whose tooltip has them whole."""
    if all(name == brief or name not in text for name, brief in short.items()):
        return text
    names = "|".join(map(re.escape, sorted(short, key=len, reverse=True)))
    return html.Span(re.sub(names, lambda match: short[match[0]], text), title=text)


def table_of(answers: Sequence[Against]) -> html.Table | None:
    """The matrix of figures and runs; None if nothing can be compared."""
    compared = [(number, one) for number, one in enumerate(answers) if one.comparison is not None]
    if not compared:
        return None
    lines = matrix([one.comparison for _, one in compared if one.comparison is not None])
    runs = [answers[0].base, *(one.other for _, one in compared)]
    short = apart([run.name for run in runs], _HEAD)
    heads = [
        html.Th(text, scope="col", title=_name(run), colSpan=2 if at else 1)
        for at, (text, run) in enumerate(zip(short, runs, strict=True))
    ]
    if len(runs) > _BESIDE:
        lines = [line for line in lines if {line.base, *(cell.text for cell in line.cells)} not in _NOTHING]
    lines = [line if line.figure != DISTORTION else _overheads(line, runs) for line in lines]
    lines = [line for line in lines if line.figure != DISTORTION or {line.base, *(c.text for c in line.cells)} != {"–"}]
    known = [(number, one.comparison) for number, one in compared if one.comparison is not None]
    unsure = {(number, line.figure) for number, comparison in known for line in comparison.lines() if _is_unsure(line)}
    rows = [_row(line, [number for number, _ in compared], unsure) for line in lines]
    return html.Table(
        [html.Thead(html.Tr([html.Th("per token", scope="col"), *heads])), html.Tbody(rows)], className="figures matrix"
    )


def _overheads(line: Row, runs: Sequence[Run]) -> Row:
    """The row of what tracing does to the gaps of these runs."""
    base, *others = ["–" if run.overhead is None else f"{run.overhead:.1f}" for run in runs]
    return Row(DISTORTION, "Tracing overhead on the gap, ×", base, [Cell(text) for text in others])


def _is_unsure(line: Line) -> bool:
    """Whether the interval of a difference holds none, so that no direction is told."""
    if line.change is None or line.change.bounds is None:
        return False
    return line.change.bounds[0] <= (1.0 if line.is_rate else 0.0) <= line.change.bounds[1]


def _table_alone(run: Run) -> html.Table | None:
    """The figures of a run without a comparison."""
    of = run.summary
    per_token = {"Syncs": of.syncs_per_token, "Copies": of.copies_per_token, "Launches": of.launches_per_token}
    said = {
        **({"Idle mean": mean_idle(of).text, "Gap mean": mean_gap(of).text} if by_mean([run])
           else {"Idle p50": idle(of).text, "Gap p50": gap(of).text}),
        "Rate": rate(of).text,
        "GPU busy, a step": Figure(of.busy_us, "µs", of.traced).text,
        **{f"{what} per token": f"{count:g}" for what, count in per_token.items() if count is not None},
    }  # fmt: skip
    rows = [html.Tr([html.Th(label, scope="row"), html.Td(text)]) for label, text in said.items()]
    return html.Table(html.Tbody(rows), className="figures matrix") if of.steps is not None else None


def _row(line: Row, numbers: Sequence[int], unsure: Collection[tuple[int, str]]) -> html.Tr:
    cells = [html.Th(line.label, scope="row"), html.Td(line.base)]
    for number, cell in zip(numbers, line.cells, strict=True):
        cells.append(html.Td(cell.text, id=_cell_id(number, line.figure), tabIndex="-1"))
        look = "largest" if cell.is_largest else "unsure" if (number, line.figure) in unsure else ""
        cells.append(html.Td(html.Span(cell.change), className=f"change {look}".strip()))
    return html.Tr(cells)


def _cell_id(number: int, figure: str) -> str:
    return f"figure-{number}-{''.join(c if c.isalnum() else '-' for c in figure)}"


def _name(run: Run) -> str:
    return plain(run.name, LONGEST_NAME)


_BAND: Final = 28  # px per rung
_MARGIN: Final = {"l": 190, "r": 90, "t": 4, "b": 44}
_USUAL: Final = {"batch": "1", "prompt": "0", "shared_prompt": "False", "devices": "1", "experts": "device",
                 "launch": "graph"}  # fmt: skip
_ITSELF: Final = frozenset({"model", "gpu", "concurrency", "engine", "backend"})  # say what they are without a name

_NONE: Final = (
    "No two runs differ only in their strategy. Record some to compare them: "
    "intertoken run --sync sccc,saaas,aaag -o runs"
)


def _ladder() -> html.Details:
    """The ladder, folded; its summary gives the rates."""
    return html.Details(
        [
            html.Summary("Ladder of strategies", id="ladder-said"),
            dcc.Store(id="ladder-drawn"),
            html.Div(
                choice("ladder-group", "Runs with the same", clearable=False), id="ladder-choice", className="bar"
            ),
            html.Div(chart("ladder", "Tokens/s by strategy"), id="ladder-shown"),
            html.P("Lines: range of the repeats. Hollow: as traced. Click a point to show its run; from the "
                   "keyboard, use the table above.", id="ladder-hint", className="hint foot"),
        ],
        className="ladder",
    )  # fmt: skip


def _render_ladder(app: Dash, store: RunStore) -> None:
    @app.callback(
        outputs(
            "ladder.figure ladder.style ladder-holder.aria-label ladder-said.children ladder-group.options "
            "ladder-group.value ladder-choice.style ladder-shown.style ladder-hint.style ladder-drawn.data"
        ),
        inputs("steady.data revision.data ladder-group.value", states="view.data ladder-drawn.data"),
    )
    def render(screen: dict[str, Any] | None, revision: Any, asked: str | None, data: Any, before: Any) -> Any:
        if screen is None:
            raise PreventUpdate
        view, theme = View.from_data(data), str(screen["scheme"])
        chosen, rates = list(view.runs or ()), [list(rate) for rate in view.rates]
        shown = (before or {}).get("shown")
        if before == {"for": [theme, chosen, revision, rates], "shown": asked, "auto": (before or {}).get("auto")}:
            raise PreventUpdate
        ladders = ladders_of(store.so_far(view.rates))
        by_itself = asked is None or (asked == shown and (before or {}).get("auto", True))
        ladder = ladder_for(ladders, chosen, None if by_itself else asked)
        drawn = {"for": [theme, chosen, revision, rates], "shown": ladder and ladder.key, "auto": by_itself}
        style = visible(ladder is not None)
        return (
            no_update if ladder is None else ladder_figure(ladder, chosen, theme),
            no_update if ladder is None else {"height": f"{len(ladder.rungs) * _BAND + _MARGIN['t'] + _MARGIN['b']}px"},
            "" if ladder is None else f"Tokens/s by strategy. {'; '.join(map(rung_text, ladder.rungs))}",
            ladder_line(ladder, chosen),
            [{"value": one.key, "label": one.title} for one in ladders],
            ladder and ladder.key,
            style, style, style,
            drawn,
        )  # fmt: skip


def ladder_for(ladders: Sequence[Ladder], chosen: Sequence[str], asked: str | None) -> Ladder | None:
    """The requested ladder, else that of the first selected run, else the longest; None if there is none."""
    lead = chosen[0] if chosen else None
    wanted = [one for one in ladders if one.key == asked] if asked is not None else []
    wanted = wanted or [one for one in ladders if any(rung.key == lead for rung in one.rungs)]
    return next(iter(wanted), None) or max(ladders, key=lambda one: len(one.rungs), default=None)


def ladder_line(ladder: Ladder | None, chosen: Sequence[str]) -> str:
    """The ladder's summary; with what its runs are of if none of them is selected."""
    if ladder is None:
        return f"Ladder of strategies: {_NONE}"
    rates = [f"{rung.strategy} {rung.rate:,.0f}{' ▲' if rung.traced else ''}" for rung in ladder.rungs]
    of = "" if any(rung.key in chosen for rung in ladder.rungs) else f" of other runs ({ladder.title})"
    return f"Ladder of strategies{of}, tokens/s: {plain(' › '.join(rates), 160)}"


def _choose(app: Dash) -> None:
    @app.callback(Output("followed", "data", allow_duplicate=True), inputs("ladder.clickData", states="view.data"))
    def choose(click: dict[str, Any] | None, data: dict[str, Any] | None) -> Any:
        """The link with the clicked run, which replaces the last one if the view is full."""
        view = View.from_data(data)
        match click:
            case {"points": [{"customdata": str(key)}, *_]} if key not in (runs := view.runs or ()):
                view = replace(view, runs=(*runs[: MOST_RUNS - 1], key))
        return view.query()


@dataclass(frozen=True)
class Rung:
    """A run's rate, tokens/s: untraced, with the lowest and highest of its repeats if known, or as recorded."""

    key: str
    name: str
    strategy: str
    rate: float
    spread: tuple[float, float] | None = None
    traced: bool = False


@dataclass(frozen=True)
class Ladder:
    """Runs that differ only in their strategy, the fastest first, under their common properties."""

    title: str
    rungs: tuple[Rung, ...]

    @property
    def key(self) -> str:
        """A unique key, since each run is in only one ladder."""
        return min(rung.key for rung in self.rungs)


def ladders_of(runs: Sequence[Run]) -> list[Ladder]:
    """All ladders of at least two strategies, of runs with a known model.

    Traced passes inside run directories have the rate of their run, so they are left out.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if "model" in run.summary.conditions and not (run.path is not None and is_pass(run.path)):
            groups.setdefault(run.kind, []).append(run)
    ladders = []
    for alike in groups.values():
        rungs = sorted((rung for run in alike if (rung := _rung(run)) is not None), key=lambda rung: -rung.rate)
        if len({rung.strategy for rung in rungs}) > 1:
            ladders.append(Ladder(_title(alike[0]), tuple(rungs)))
    return ladders


def _rung(run: Run) -> Rung | None:
    of, name = run.summary, plain(run.name, 60)
    strategy = plain(of.configured or of.strategy or "no class", 24)
    if of.tokens_per_s is not None:
        return Rung(run.key, name, strategy, of.tokens_per_s, of.tokens_per_s_spread)
    recorded = of.traced_tokens_per_s
    return None if recorded is None else Rung(run.key, name, strategy, recorded, traced=of.traced)


def _title(run: Run) -> str:
    own, summary = run.summary.conditions, run.summary
    known = {key: own[key] for key in SAME if key in own and own[key] != _USUAL.get(key)}
    words = [value if key in _ITSELF else f"{key.replace('_', ' ')} {value}" for key, value in known.items()]
    level = [] if not summary.traced else [f"traced at {summary.graph_trace} level"]
    rate = ["rates as recorded"] if summary.tokens_per_s is None else []
    return plain(" · ".join([*words, *level, *rate]), 200)


def ladder_figure(ladder: Ladder, chosen: Sequence[str], theme: str) -> go.Figure:
    """A point per run with a line over its repeats, the fastest on top; hollow if traced.

    The names of the selected runs, whose keys are `chosen`, are bold.
    """
    look, rungs = THEMES[theme], ladder.rungs
    spreads = [rung.spread or (rung.rate, rung.rate) for rung in rungs]
    low, high = min(s[0] for s in spreads), max(s[1] for s in spreads)
    margin = 0.06 * ((high - low) or high)
    above, below = zip(*((s[1] - r.rate, r.rate - s[0]) for s, r in zip(spreads, rungs, strict=True)), strict=True)
    points = go.Scatter(
        mode="markers", x=[rung.rate for rung in rungs], y=list(range(len(rungs))),
        error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": below,
                 "color": look.ink, "thickness": 1.4, "width": 5},
        marker={"size": 11, "color": COLOURS["kernel"],
                "symbol": ["circle-open" if rung.traced else "circle" for rung in rungs]},
        customdata=[rung.key for rung in rungs], hoverinfo="text",
        hovertext=[rung_text(rung, markup) for rung in rungs],
        showlegend=False,
    )  # fmt: skip
    figure = go.Figure(points)
    figure.update_layout(
        margin=_MARGIN, **look.layout, dragmode=False,
        xaxis={"range": [low - margin, high + margin], "fixedrange": True, "gridcolor": look.line, "zeroline": False,
               "tickfont": {"color": look.muted, "size": 11},
               "title": {"text": "tokens/s (the axis does not begin at 0)", "standoff": 6,
                         "font": {"color": look.muted, "size": 12}}},
        yaxis={"range": [len(rungs) - 0.5, -0.5], "fixedrange": True, "gridcolor": look.line, "zeroline": False,
               "tickvals": list(range(len(rungs))), "ticktext": _labels(rungs, chosen), "ticklabelstandoff": 8},
        annotations=[
            {"x": 1, "xref": "paper", "y": at, "text": f"{rung.rate:,.1f}", "xanchor": "left", "xshift": 10,
             "showarrow": False}
            for at, rung in enumerate(rungs)
        ],
    )  # fmt: skip
    return figure


def rung_text(rung: Rung, shown: Any = plain) -> str:
    """A description of a rung."""
    spread = f" ({rung.spread[0]:,.1f} to {rung.spread[1]:,.1f} in its repeats)" if rung.spread else ""
    how = ", as traced" if rung.traced else ""
    return f"{shown(rung.strategy)}: {rung.rate:,.1f} tokens/s{spread}{how} · {shown(rung.name)}"


def _labels(rungs: Sequence[Rung], chosen: Sequence[str]) -> list[str]:
    """The names of the strategies; if several runs have the same one, the ends of the runs' names are added."""
    several = Counter(rung.strategy for rung in rungs)
    labels = [
        markup(rung.strategy if several[rung.strategy] == 1 else f"{rung.strategy} · {plain(rung.name, 18)}", 48)
        for rung in rungs
    ]
    return [f"<b>{label}</b>" if rung.key in chosen else label for label, rung in zip(labels, rungs, strict=True)]
