"""The selected runs as a strip of chips, into which the table of all runs collapses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.pages import in_browser, named
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import apart, plain
from dashboard.view import View
from tracer.reporting.headline import headline

_LONGEST: Final = 26  # characters of a name on a chip
_SHORT: Final = 20  # of more than two, of which two then fit next to each other
_MEANING: Final = {
    "class": "Strategy of most of its input copies",
    "idle": "Idle time of a device in the median step; ▲: traced, so inflated",
    "gap": "Median inter-token gap; ▲: traced, so inflated",
    "rate": "Steps per second; ▲: traced",
}


def strip() -> html.Div:
    """The chips, and the button that unfolds the table below them."""
    controls: dict[str, Any] = {"aria-controls": "runs-panel", "aria-expanded": "false"}
    return html.Div(
        [
            html.H2("Runs"),
            html.Ul(id="chips", className="chips", **named("Selected runs; the first is the base")),
            html.P("Looking for recordings …", id="reading-said", role="status", className="hint"),
            html.Button("Add recordings …", id="add", className="button upload",
                        title="Upload recordings, or drop them anywhere on the page"),
            html.Button("All runs", id="runs-open", className="button folds", **controls,
                        title="All runs: select one to six, enter the engine's own rate"),
            dcc.Store(id="chipped"),
        ],
        className="bar strip",
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that fill the strip, and fold and unfold the table."""
    in_browser(app, "runs", "fold", Output("runs-panel", "hidden"), Input("chipped", "data"))

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
        keys = view.runs or ()
        ready = {run.key: run for run in store.ready(keys, view.rates)}
        shown = [ready.get(key, key) for key in keys if key in (*ready, *store.awaited(keys))]
        there = store.progress().total
        chipped = [len(shown), there, *(one if isinstance(one, str) else one.identity for one in shown)]
        if view.runs is None or chipped == before:
            raise PreventUpdate
        return chips(shown), chipped, "All runs" if there < 2 else f"All {len(store.so_far())} runs"


def chips(shown: Sequence[Run | str]) -> list[html.Li]:
    """A chip for each run, and for each key whose recording is not read yet."""
    names = [one if isinstance(one, str) else one.name for one in shown]
    short = apart(names, _LONGEST if len(names) <= 2 else _SHORT)
    return [
        html.Li([html.B(name), " is loading …"]) if isinstance(one, str)
        else _chip(one, name, is_base=not at and len(shown) > 1)
        for at, (one, name) in enumerate(zip(shown, short, strict=True))
    ]  # fmt: skip


def _chip(run: Run, name: str, is_base: bool) -> html.Li:
    told = headline(run.summary)
    figures: list[Any] = [
        html.Span([html.Span(f"{label} ", className="about"), told[label]] if label in ("idle", "gap") else told[label],
                  title=_MEANING[label], className=f"of-{label}")
        for label in told
    ]  # fmt: skip
    if run.summary.traced:
        leads: dict[str, Any] = {"data-rate": run.key}
        give = f"Enter the engine's own rate of {plain(run.name, 90)}, without a profiler"
        figures.append(html.Button("rate", className="link", title=give, **leads, **named(f"rate: {give}")))
    base = [html.Span("base", className="tag")] if is_base else []
    return html.Li([html.B(name, title=plain(run.name, 300)), *base, *figures])
