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

from dashboard.pages import Page, named
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
from dashboard.pages.timeline import MOVES, legend, moves
from dashboard.pages.whatif.view import (
    ADDRESS,
    FIELDS,
    GRAPHS,
    NUMBERS,
    STRATEGIES,
    WhatIfView,
    after,
    edits_for,
    kernel_names,
    rated,
    sync_options,
    value_of,
)
from dashboard.rates import text_of
from dashboard.reading.background import known
from dashboard.reading.predictions import WhatIf, what_if
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import timeline, token_of
from dashboard.text import plain
from dashboard.units import duration
from tracer.analysis.whatif.prediction import Prediction

_BUTTONS = ("reset", "token-back", "token-on", *MOVES, "theme")
_WITHOUT_RATE = (
    "Without the rate the prediction includes tracing overhead: both timelines are slowed by it, and the "
    "gain is unknown. Enter the engine's own rate above (untraced steps/s), or put it into run.json (measured)."
)


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
    return html.Label([html.Span(label), field], title=f"{low:,g} to {high:,g}")


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
                    view, refused = rated(view, rate)
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
            sync_options(store, run),
            [] if run is None else [{"value": n, "label": plain(n, 90)} for n in kernel_names(store, run)],
            HIDDEN if run is None or not run.inflated else SHOWN,
            "" if run is None else text_of(view.shared.rate_of(run.key)),
            refused,
            *(value_of(getattr(view, field), field) for field in FIELDS),
            clicks,
        )


def answer_of(store: RunStore, view: WhatIfView) -> WhatIf | str | None:
    """The prediction, why there is none ("" if nothing is changed), or None if it is still being computed."""
    run = lead(view.shared, store)
    if run is None or not view.is_different:
        return ""
    return known(what_if(store, run, view.asked, lambda: edits_for(view)))


def _drawn(store: RunStore, view: WhatIfView) -> list[Run]:
    """The runs whose timelines are shown."""
    answer, run = answer_of(store, view), lead(view.shared, store)
    if isinstance(answer, WhatIf):
        return [one for one in answer.runs if one.tokens is not None]
    return [] if run is None else [run]


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
        run, runs = lead(view.shared, store), _drawn(store, view)
        figure, tall = timeline(runs, view.shared, theme, int(screen["width"]))
        nothing = nothing_to_show(store.so_far(), run, answer)
        given = [html.Li(run.rate_note)] if run is not None and run.rate_note else []
        return (
            nothing,
            SHOWN if nothing else HIDDEN,
            plain(answer, 600) if isinstance(answer, str) else "",
            [table_of_lines(lines_of(answer.found))] if isinstance(answer, WhatIf) else [],
            [*given, *(notes_of(answer) if isinstance(answer, WhatIf) else [])],
            figure,
            {"height": f"{tall}px"},
            SHOWN if runs else HIDDEN,
            f"token {token_of(runs, view.shared)}",
            answer is not None,
            progress,
        )


def nothing_to_show(known_runs: Sequence[Run], run: Run | None, answer: WhatIf | str | None) -> str:
    """Instructions if there is no prediction; empty if there is one, or a reason."""
    if not known_runs:
        return NO_RECORDINGS
    if run is None:
        return "Select a run above."
    if answer is None:
        return "Replaying the run …"
    return "Choose a change above, such as a different strategy." if answer == "" else ""


def lines_of(prediction: Prediction) -> list[dict[str, str]]:
    """One row per figure: heading -> text, as recorded, without the profiler and predicted."""
    traced = prediction.of_engine is None
    label = plain(prediction.label, 120) + (", still under the profiler" if traced else "")
    columns = {"as recorded": prediction.recorded, "corrected": prediction.corrected, label: prediction.predicted}
    shown = {name: one for name, one in columns.items() if one is not None}
    has_tokens = prediction.recorded.tokens_per_s is not None
    per_s = {name: one.tokens_per_s if has_tokens else one.steps_per_s for name, one in shown.items()}
    rates = {name: f"{rate:,.1f}" for name, rate in per_s.items()} | ({label: "–"} if traced else {})
    lines = [
        {"": "Tokens/s" if has_tokens else "Steps/s"} | rates,
        {"": "Token to token"} | {name: duration(one.period_us * 1e3, 4) for name, one in shown.items()},
        _times("Idle a step p50", "p50", {name: one.idle_us for name, one in shown.items()}),
        *(
            _times(f"Gap {key}", key, {name: one.gap_us for name, one in shown.items()})
            for key in ("p50", "p90", "mean")
        ),
    ]
    before, bounds = list(shown)[-2], prediction.speedup.bounds
    nothing = dict.fromkeys(shown, "–")
    speedup = "withheld" if traced else f"{prediction.speedup.estimate:.4f}"
    margin = "–" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"
    return [
        *lines,
        {"": "Speed-up"} | nothing | {before: "1", label: speedup},
        {"": "Model margin"} | nothing | {label: margin},
    ]


def _times(heading: str, key: str, us: dict[str, dict[str, float]]) -> dict[str, str]:
    return {"": heading} | {name: duration(each[key] * 1e3) if key in each else "–" for name, each in us.items()}


def notes_of(answer: WhatIf) -> list[html.Li]:
    """The assumptions, and the limitations of the recording."""
    notes = [plain(note, 300) for note in answer.found.notes]
    notes += [] if answer.found.of_engine else [_WITHOUT_RATE]
    if any(run.tokens is None for run in answer.runs):
        notes.append("No token steps were found in the new timeline, so it is not drawn.")
    return [html.Li(note) for note in notes]


_MOTTO = "predict the effect of changes to a run"
PAGE = Page(ADDRESS, "What if", _MOTTO, sections, register, WhatIfView.from_data, place=4)
