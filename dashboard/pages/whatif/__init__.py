"""The what-if page: choose changes, see the predicted figures, and both timelines.

Each action creates a new view (`reduce`), which is rendered (`render`): the recorded run immediately, and the
prediction next to it when it is ready, for which the page polls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages.frame import Page, named
from dashboard.pages.parts import (
    HIDDEN,
    NO_RECORDINGS,
    SHOWN,
    asking,
    chart,
    choice,
    poll,
    rate_field,
    section,
    stepper,
    table_of_lines,
    text_field,
)
from dashboard.pages.presses import done
from dashboard.pages.runs import keep_options, lead, opened_at_once, run_options
from dashboard.pages.timeline import MOVES, Action, legend, moves
from dashboard.pages.timeline import after as moved
from dashboard.pages.whatif.figures import lines_of, notes_of
from dashboard.pages.whatif.view import (
    ADDRESS,
    ALL,
    FIELDS,
    GRAPHS,
    NUMBERS,
    STRATEGIES,
    WhatIfView,
    edits_for,
    kernel_names,
    of_run,
)
from dashboard.rates import NoRate, rate_of, text_of
from dashboard.reading.background import known
from dashboard.reading.predictions import WhatIf, inventory_of, what_if
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import timeline, token_of
from dashboard.text import plain

_BUTTONS = ("reset", "token-back", "token-on", *MOVES, "theme")


def sections() -> list[Any]:
    """The page's elements."""
    return [
        poll("poll"),
        dcc.Store(id="progress"),
        section(
            "What if",
            [choice("run", "Run", clearable=False), html.Button("No changes", id="reset", className="button")],
            html.Div(
                [
                    _list("sync", "Strategy", [(name, name) for name in STRATEGIES], "as recorded"),
                    _list("without", "Without syncs", [], "with all", multi=True),
                    _list("graph", "Kernel launches", list(GRAPHS.items()), "as recorded"),
                    _list("kernels", "Kernels", [], "all kernels", multi=True),
                    _number("times", "Time of these kernels ×"),
                    _number("host", "Time of host code ×"),
                    _number("latency", "Extra time per sync, µs"),
                    _number("streams", "Maximum streams"),
                    rate_field(),
                ],
                className="fields",
                role="group",
                **named("Changes"),
            ),
            html.P(id="rate-refused", className="problem", role="alert"),
        ),
        section(
            "Predicted",
            [],
            html.P("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="problem", className="problem", role="alert"),
            html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **named("Predicted figures")),
            html.Ul(id="notes", className="notes"),
        ),
        section(
            "Timelines",
            [_token(), moves()],
            legend(),
            chart("timeline", "Timelines of the recorded and the predicted run"),
            key="timeline-section",
        ),
    ]


def _list(key: str, label: str, options: list[tuple[str, str]], none: str, multi: bool = False) -> html.Label:
    chosen = [{"value": value, "label": text} for value, text in options]
    return html.Label([html.Span(label), dcc.Dropdown(id=key, options=chosen, placeholder=none, multi=multi)])


def _number(key: str, label: str) -> html.Label:
    low, high = NUMBERS[key]
    field = text_field(key, True, type="text", placeholder="as recorded", maxlength=20)
    return html.Label([html.Span(label), field], id=f"{key}-field", title=f"{low:,g} to {high:,g}")


def _token() -> html.Div:
    return html.Div(stepper("token", "token"), className="token", role="group", **named("Token shown"))


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that makes predictions for the runs of `store`."""
    _reduce(app, store)
    keep_options(app, store, "run")
    _render(app, store)


def _reduce(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("run", "options"),
        Output("run", "value"),
        Output("without", "options"),
        Output("kernels", "options"),
        Output("streams-field", "style"),
        Output("rate-field", "style"),
        Output("rate", "value"),
        Output("rate-refused", "children"),
        *(Output(field, "value") for field in FIELDS),
        Output("pressed", "data"),
        Input("url", "search"),
        Input("run", "value"),
        Input("rate", "value"),
        *(Input(field, "value") for field in FIELDS),
        Input("timeline", "relayoutData"),
        *(Input(button, "n_clicks") for button in _BUTTONS),
        State("pressed", "data"),
        State("view", "data"),
        State("screen", "data"),
    )
    def reduce(search: str, key: str | None, rate: Any, *rest: Any) -> tuple[Any, ...]:
        values, refused = dict(zip((*FIELDS, "timeline"), rest, strict=False)) | {"run": key}, ""
        *times, pressed, before, screen = rest[len(FIELDS) + 1 :]
        clicks = dict(zip(_BUTTONS, times, strict=True))
        sources = done([one["prop_id"] for one in ctx.triggered], clicks, pressed)
        if before is None or "url" in sources:
            view = WhatIfView.parse(search)
            view = replace(view, shared=opened_at_once(view.shared, store))
        else:
            view = WhatIfView.from_data(before)
            for source in sources:
                if source == "rate":
                    view, refused = _rated(view, rate)
                    continue
                view = after(view, source, values.get(source), _drawn(store, view), (screen or {}).get("scheme", ""))
        is_refused = bool(refused) or any(
            values[source] for source in sources if source in NUMBERS
        )  # the field is reset
        if before is not None and view == WhatIfView.from_data(before) and not is_refused and clicks == pressed:
            raise PreventUpdate
        run = lead(view.shared, store)
        link = view.query()
        return (
            view.data(),
            no_update if link == (search or "") else link,
            run_options(store),
            None if run is None else run.key,
            _sync_options(store, run),
            [] if run is None else [{"value": n, "label": plain(n, 90)} for n in kernel_names(store, run)],
            HIDDEN if run is None or run.graph_file is None else SHOWN,
            HIDDEN if run is None or not run.inflated else SHOWN,
            "" if run is None else text_of(view.shared.rate_of(run.key)),
            refused,
            *(_value(getattr(view, field), field) for field in FIELDS),
            clicks,
        )


def _rated(view: WhatIfView, given: Any) -> tuple[WhatIfView, str]:
    """The view with the entered rate of its run; or the old view and why the rate is invalid."""
    lead = next(iter(view.shared.runs or ()), None)
    try:
        return (view, "") if lead is None else (replace(view, shared=view.shared.rated(lead, rate_of(given))), "")
    except NoRate as problem:
        return view, str(problem)


def _value(value: Any, field: str) -> Any:
    """The value of a field's component."""
    if isinstance(value, tuple):
        return list(value)
    if field in NUMBERS:
        return "" if value is None else f"{value:.12g}"
    return value or None


def after(view: WhatIfView, source: str, value: Any, runs: Sequence[Run], scheme: str) -> WhatIfView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        runs: the runs drawn.
        scheme: "light" or "dark", the page's current theme.
    """
    if source in FIELDS:
        return view.having(source, value)
    if source == "run":
        return of_run(view, value) if isinstance(value, str) and value else view
    if source == "reset":
        return WhatIfView(view.shared)
    return replace(view, shared=moved(view.shared, Action(source, value), runs, scheme))


def answer_of(store: RunStore, view: WhatIfView) -> WhatIf | str | None:
    """The prediction, why there is none ("" if nothing is changed), or None if it is still being computed."""
    run = lead(view.shared, store)
    if run is None or not view.is_different:
        return ""
    return known(what_if(store, run, view.asked, lambda: edits_for(store, run, view)))


def _drawn(store: RunStore, view: WhatIfView) -> list[Run]:
    """The runs whose timelines are shown."""
    answer, run = answer_of(store, view), lead(view.shared, store)
    if isinstance(answer, WhatIf):
        return [one for one in answer.runs if one.tokens is not None]
    return [] if run is None else [run]


def _sync_options(store: RunStore, run: Run | None) -> list[dict[str, str]]:
    if run is None:
        return []
    every = {"value": ALL, "label": "all syncs that the data flow does not need"}
    rows = [place.row for place in inventory_of(store, run)]
    labels = [
        f"{r['position']}: {r['name']}" + (f", waits for {r['waits_for']}" if r["waits_for"] else "") for r in rows
    ]
    return [every, *({"value": row["key"], "label": text} for row, text in zip(rows, labels, strict=True))]


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("problem", "children"),
        Output("figures", "children"),
        Output("notes", "children"),
        Output("timeline", "figure"),
        Output("timeline", "style"),
        Output("timeline-section", "style"),
        Output("token-label", "children"),
        Output("poll", "disabled"),
        Output("progress", "data"),
        Input("screen", "data"),
        Input("poll", "n_intervals"),
        State("view", "data"),
        State("progress", "data"),
        prevent_initial_call=True,
        running=asking("poll"),
    )
    def render(screen: dict[str, Any] | None, _: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme = WhatIfView.from_data(data), str(screen["scheme"])
        answer = answer_of(store, view)
        progress = [view.query(), answer is None]
        if ctx.triggered_id == "poll" and progress == before:
            raise PreventUpdate
        runs = _drawn(store, view)
        figure, tall = timeline(runs, view.shared, theme, int(screen["width"]))
        nothing = nothing_to_show(store.so_far(), lead(view.shared, store), answer)
        return (
            nothing,
            SHOWN if nothing else HIDDEN,
            plain(answer, 600) if isinstance(answer, str) else "",
            [table_of_lines(lines_of(answer.found))] if isinstance(answer, WhatIf) else [],
            [*_rate_notes(lead(view.shared, store)), *(notes_of(answer) if isinstance(answer, WhatIf) else [])],
            figure,
            {"height": f"{tall}px"},
            SHOWN if runs else HIDDEN,
            f"token {token_of(runs, view.shared)}",
            answer is not None,
            progress,
        )


def _rate_notes(run: Run | None) -> list[html.Li]:
    return [] if run is None or not run.rate_note else [html.Li(run.rate_note)]


def nothing_to_show(known_runs: Sequence[Run], run: Run | None, answer: WhatIf | str | None) -> str:
    """Instructions if there is no prediction; empty if there is one, or a reason."""
    if not known_runs:
        return NO_RECORDINGS
    if run is None:
        return "Select a run above."
    if answer is None:
        return "Replaying the run …"
    return "Choose a change above, such as a different strategy." if answer == "" else ""


_MOTTO = "predict the effect of changes to a run"
PAGE = Page(ADDRESS, "What if", _MOTTO, sections, register, WhatIfView.from_data, place=4)
