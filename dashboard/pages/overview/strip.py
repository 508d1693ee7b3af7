"""The runs that are shown, as a strip of chips, into which the table of all runs folds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.frame import named
from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.text import apart, plain
from dashboard.view import View
from tracer.headline import headline

_LONGEST: Final = 30  # characters of a name on a chip
_MEANING: Final = {
    "class": "The strategy that most of its input copies follow",
    "idle": "What a device idles in the median step; ▲: as traced, so inflated",
    "gap": "The median gap between two tokens; ▲: as traced, so inflated",
    "rate": "Steps per second; ▲: as traced",
}


def strip() -> html.Div:
    """Where the chips stand, and what opens the table below them."""
    controls: dict[str, Any] = {"aria-controls": "runs-panel", "aria-expanded": "false"}
    return html.Div(
        [
            html.H2("Runs"),
            html.Ul(id="chips", className="chips", **named("Runs that are shown, the first is the base")),
            html.P("Looking for recordings …", id="reading-said", role="status", className="hint"),
            html.Button("Add recordings …", id="add", className="button upload",
                        title="Upload recordings, or drop them anywhere on the page"),
            html.Button("All runs", id="runs-open", className="button folds", **controls,
                        title="The table of all runs: choose one to six, give the engine's own rate"),
            dcc.Store(id="chipped"),
        ],
        className="bar strip",
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Attach what fills the strip, and what folds and unfolds the table."""
    browser: Any = app
    browser.clientside_callback(
        ClientsideFunction("runs", "fold"),
        Output("runs-panel", "hidden"), Input("chipped", "data"),
        prevent_initial_call=True,
    )  # fmt: skip

    @app.callback(
        Output("chips", "children"),
        Output("chipped", "data"),
        Output("runs-open", "children"),
        Input("steady", "data"),
        Input("revision", "data"),
        State("view", "data"),
        State("chipped", "data"),
        prevent_initial_call=True,
    )
    def fill(_: Any, __: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        runs = store.ready(view.runs or (), view.rates)
        awaited, there = store.awaited(view.runs or ()), store.progress()
        chipped = [len(runs) + len(awaited), there.total, *(run.identity for run in runs), *awaited]
        if view.runs is None or chipped == before:
            raise PreventUpdate
        return chips(runs, awaited), chipped, "All runs" if there.total < 2 else f"All {len(store.so_far())} runs"


def chips(runs: Sequence[Run], awaited: Sequence[str] = ()) -> list[html.Li]:
    """One for each run, and for each whose recording is still to be read."""
    short = apart([*(run.name for run in runs), *awaited], _LONGEST)
    shown = [_chip(run, name, is_base=not at and len(runs) > 1)
             for at, (run, name) in enumerate(zip(runs, short, strict=False))]  # fmt: skip
    return shown + [html.Li([html.B(name), " is being read …"]) for name in short[len(runs) :]]


def _chip(run: Run, name: str, is_base: bool) -> html.Li:
    told = headline(run.summary)
    rate: dict[str, Any] = {"data-rate": run.key}
    give = f"Give the engine's own rate of {plain(run.name, 90)}, without a profiler"
    figures: list[Any] = [
        html.Span([html.Span(f"{label} ", className="about"), told[label]] if label in ("idle", "gap") else told[label],
                  title=_MEANING[label], className=f"of-{label}")
        for label in told if label != "rate"
    ]  # fmt: skip
    figures.append(
        html.Button(told["rate"], className="link", title=give, **rate, **named(f"{told['rate']}: {give}"))
        if run.summary.traced else html.Span(told["rate"], title=_MEANING["rate"])
    )  # fmt: skip
    base = [html.Span("base", className="tag")] if is_base else []
    return html.Li([html.B(name, title=plain(run.name, 300)), *base, *figures])
