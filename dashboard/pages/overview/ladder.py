"""The ladder of strategies below the table of runs: tokens/s by strategy, of runs that are otherwise the same, with the
range of their repeats; and a click that shows one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages.parts import HIDDEN, SHOWN, chart, choice
from dashboard.palette import COLOURS, THEMES
from dashboard.reading.read import is_pass
from dashboard.reading.run import SAME, Run
from dashboard.reading.store import RunStore
from dashboard.text import markup, plain
from dashboard.view import MOST_RUNS, View

_BAND: Final = 28  # px per rung
_MARGIN: Final = {"l": 190, "r": 90, "t": 4, "b": 44}
_USUAL: Final = {"batch": "1", "prompt": "0", "shared_prompt": "False", "devices": "1", "experts": "device",
                 "launch": "graph"}  # fmt: skip
_ITSELF: Final = frozenset({"model", "gpu", "concurrency", "engine", "backend"})  # say what they are without a name

_NONE: Final = (
    "No two runs differ only in their strategy. Record some to compare them: "
    "intertoken run --sync sccc,saaas,aaag -o runs"
)


def section() -> html.Details:
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


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that draw the ladder and handle clicks."""
    _render(app, store)
    _choose(app)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("ladder", "figure"),
        Output("ladder", "style"),
        Output("ladder-holder", "aria-label"),
        Output("ladder-said", "children"),
        Output("ladder-group", "options"),
        Output("ladder-group", "value"),
        *(Output(key, "style") for key in ("ladder-choice", "ladder-shown", "ladder-hint")),
        Output("ladder-drawn", "data"),
        Input("steady", "data"),
        Input("revision", "data"),
        Input("ladder-group", "value"),
        State("view", "data"),
        State("ladder-drawn", "data"),
        prevent_initial_call=True,
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
        style = HIDDEN if ladder is None else SHOWN
        return (
            no_update if ladder is None else ladder_figure(ladder, chosen, theme),
            no_update if ladder is None else {"height": f"{ladder_height(ladder)}px"},
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
    @app.callback(
        Output("followed", "data", allow_duplicate=True),
        Input("ladder", "clickData"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def choose(click: dict[str, Any] | None, data: dict[str, Any] | None) -> Any:
        return with_clicked(View.from_data(data), click).query()


def with_clicked(view: View, click: dict[str, Any] | None) -> View:
    """The view with the clicked run, which replaces the last one if the view is full."""
    runs = view.runs or ()
    match click:
        case {"points": [{"customdata": str(key)}, *_]} if key not in runs:
            return replace(view, runs=(*runs[: MOST_RUNS - 1], key))
    return view


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
    found = []
    for alike in groups.values():
        rungs = sorted((rung for run in alike if (rung := _rung(run)) is not None), key=lambda rung: -rung.rate)
        if len({rung.strategy for rung in rungs}) > 1:
            found.append(Ladder(_title(alike[0]), tuple(rungs)))
    return found


def _rung(run: Run) -> Rung | None:
    summary = run.summary
    strategy = plain(summary.configured or summary.strategy or "no class", 24)
    name = plain(run.name, 60)
    if summary.tokens_per_s is not None:
        return Rung(run.key, name, strategy, summary.tokens_per_s, summary.tokens_per_s_spread)
    if summary.traced_tokens_per_s is None:
        return None
    return Rung(run.key, name, strategy, summary.traced_tokens_per_s, traced=summary.traced)


def _title(run: Run) -> str:
    own, summary = run.summary.conditions, run.summary
    known = {key: own[key] for key in SAME if key in own and own[key] != _USUAL.get(key)}
    words = [value if key in _ITSELF else f"{key.replace('_', ' ')} {value}" for key, value in known.items()]
    level = [] if not summary.traced else [f"traced at {summary.graph_trace} level"]
    rate = ["rates as recorded"] if summary.tokens_per_s is None else []
    return plain(" · ".join([*words, *level, *rate]), 200)


def ladder_figure(ladder: Ladder, chosen: Sequence[str], theme: str) -> go.Figure:
    """A point per run with a line over its repeats, the fastest on top; hollow if traced.

    Args:
        ladder: the runs.
        chosen: keys of the selected runs; their names are bold.
        theme: "light" or "dark".
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


def ladder_height(ladder: Ladder) -> int:
    """Height of the figure, px."""
    return len(ladder.rungs) * _BAND + _MARGIN["t"] + _MARGIN["b"]


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
