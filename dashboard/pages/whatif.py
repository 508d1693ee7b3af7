"""The what-if page: choose changes, see the predicted figures, and both timelines.

The recorded run is rendered immediately, and the prediction next to it when it is ready.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final

from dash import Dash, ctx, dcc, html
from dash.exceptions import PreventUpdate
from pydantic import AfterValidator, Field

from dashboard.pages import Page, link, parts
from dashboard.pages.runs import keep_options, keep_rate, lead, opened_at_once, run_options
from dashboard.reading.answers import WhatIf, inventory_of, what_if
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore, known
from dashboard.scene import timeline, token_of
from dashboard.text import duration, plain
from dashboard.view import WORD, Linked, View, one, one_of, part, several
from tracer.errors import UsageError
from tracer.model.schema import COMPUTE_TABLES
from tracer.whatif.changes import Edit
from tracer.whatif.edits import LADDER, FollowStrategy, ScaleKernels, edits_of
from tracer.whatif.prediction import Prediction

ADDRESS: Final = "whatif/"
ALL: Final = "all"
STRATEGIES: Final = LADDER[1:]
GRAPHS: Final = {"plain": "as one CUDA graph", "early": "as one CUDA graph, early starts"}
"""How kernels launched individually could be launched instead -> label."""
NUMBERS: Final = {"times": (0.0, 1e6), "host": (0.0, 1e6), "latency": (-1e6, 1e6)}
"""Field -> its lowest and highest value."""
_MOST_NAMES: Final = 20
_NUMBER: Final = one(float, "{:.12g}".format)
_MOST_LISTED: Final = 300

_WITHOUT_RATE = (
    "Without the rate the prediction includes tracing overhead: both timelines are slowed by it, and the "
    "gain is unknown. Enter the engine's own rate above (untraced steps/s), or put it into run.json (measured)."
)


def _within(field: str) -> Any:
    low, high = NUMBERS[field]
    return Field(ge=low, le=high, allow_inf_nan=False)


@dataclass(frozen=True)
class WhatIfView(Linked):
    """The state of the page.

    Attributes:
        shared: the runs, of which the first is used; their rates; token, alignment and range of its timeline; the
            theme.
        sync: another strategy, "" for the recorded one.
        without: positions of removed syncs, or `ALL` alone for all unneeded ones.
        graph: a key of `GRAPHS`, "" for launches as recorded.
        kernels: names of the kernels that take `times` as long; none for all.
        times, host: factors of the time of these kernels and of host code; None for 1.
        latency: extra time of every sync, µs.
    """

    shared: Annotated[View, part(View)]
    sync: Annotated[str, one_of(("", *STRATEGIES)), WORD] = ""
    without: Annotated[tuple[str, ...], AfterValidator(lambda values: _positions(values)), several()] = ()
    graph: Annotated[str, one_of(("", *GRAPHS)), WORD] = ""
    kernels: Annotated[tuple[str, ...], AfterValidator(lambda names: names[:_MOST_NAMES]), several()] = ()
    times: Annotated[Annotated[float, _within("times")] | None, _NUMBER] = None
    host: Annotated[Annotated[float, _within("host")] | None, _NUMBER] = None
    latency: Annotated[Annotated[float, _within("latency")] | None, _NUMBER] = None

    @property
    def asked(self) -> tuple[Any, ...]:
        """The changes as one value, to compare them with others."""
        return tuple(getattr(self, field) for field in FIELDS)

    @property
    def is_different(self) -> bool:
        """Whether there are any changes."""
        return self.asked != WhatIfView(self.shared).asked


FIELDS: Final = tuple(field.name for field in fields(WhatIfView) if field.name != "shared")
"""The changes in the order of the page; also the components and the fields of a link."""


def what_if_of(run: Run, theme: str, here: str, **changes: Any) -> str:
    """The address of the page for a run with changes, relative to the page `here`."""
    return link(ADDRESS, here) + WhatIfView(View(runs=(run.key,), theme=theme, rates=run.rates), **changes).query()


def value_of(value: Any, field: str) -> Any:
    """The value of a field's component."""
    if isinstance(value, tuple):
        return list(value)
    if field in NUMBERS:
        return "" if value is None else f"{value:.12g}"
    return value or None


def after(view: WhatIfView, source: str, value: Any, runs: Sequence[Run], scheme: str) -> WhatIfView:
    """The view after an action of the reader: the component, its new value, the runs drawn, and what the theme looks
    like."""
    if source in FIELDS:
        return view.having(source, value)
    if source == "run":
        if not value or not isinstance(value, str):
            return view
        without = view.without if view.without == (ALL,) else ()  # positions are those of the other run, as are names
        return replace(view, shared=replace(view.shared.led_by(value), token=None), without=without, kernels=())
    if source == "reset":
        return WhatIfView(view.shared)
    return replace(view, shared=parts.after_move(view.shared, parts.Action(source, value), runs, scheme))


def _positions(values: tuple[str, ...]) -> tuple[str, ...]:
    """Positions in order, or `ALL` alone if it was chosen last."""
    chosen = [value for value in dict.fromkeys(values) if value == ALL or (value.isdecimal() and len(value) <= 6)]
    if chosen and chosen[-1] == ALL:
        return (ALL,)
    return tuple(sorted((v for v in chosen if v != ALL and int(v) > 0), key=int))


@dataclass(frozen=True)
class NamedKernels(ScaleKernels):
    """Kernels with exactly these names. A reader's regular expression could keep the server busy for hours."""

    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short description."""
        return f"kernels {', '.join(plain(name, 40) for name in self.names)} × {self.factor:g}"

    @classmethod
    def of(cls, names: tuple[str, ...], factor: float) -> NamedKernels:
        """The edit for these names."""
        return cls(rf"\A(?:{'|'.join(map(re.escape, names))})\Z", factor, names)


def edits_for(view: WhatIfView) -> list[Edit]:
    """The edits in the order in which `intertoken whatif` applies them.

    Raises:
        UsageError: kernels are named without a factor.
    """
    if view.kernels and view.times is None:
        raise UsageError("enter the factor for the kernels' time")
    edits: list[Edit] = [FollowStrategy(view.sync)] if view.sync else []
    edits += edits_of(
        without_syncs=view.without == (ALL,),
        positions=[int(position) for position in view.without if position != ALL],
        one_graph=bool(view.graph),
        early_starts=view.graph == "early",
        kernels=[("", view.times)] if view.times is not None and not view.kernels else [],
        scale_host=view.host,
        sync_latency_us=view.latency,
    )
    if view.kernels and view.times is not None:
        edits.append(NamedKernels.of(view.kernels, view.times))
    return edits


def sync_options(store: RunStore, run: Run | None) -> list[dict[str, str]]:
    """What can be chosen of `without`: all unneeded syncs, or a sync by its position."""
    if run is None:
        return []
    every = {"value": ALL, "label": "all syncs that the data flow does not need"}
    rows = [place.row for place in inventory_of(store, run)]
    labels = [
        f"{r['position']}: {r['name']}" + (f", waits for {r['waits_for']}" if r["waits_for"] else "") for r in rows
    ]
    return [every, *({"value": row["key"], "label": text} for row, text in zip(rows, labels, strict=True))]


def kernel_names(store: RunStore, run: Run) -> list[str]:
    """The names of a run's kernels and graphs, largest total time first."""

    def work() -> list[str]:
        if run.trace is None:
            return []
        kernels = run.trace.activities(COMPUTE_TABLES).frame()
        took = (kernels["end"] - kernels["start"]).groupby(kernels["name"], observed=True).sum()
        return [str(name) for name in took.nlargest(_MOST_LISTED).index]

    return store.background.now((run.recorded, "kernels"), work, len)


def sections() -> list[Any]:
    """The page's elements."""
    return [
        parts.poll("poll"),
        dcc.Store(id="progress"),
        parts.section(
            "What if",
            [parts.choice("run", "Run", clearable=False), html.Button("No changes", id="reset", className="button")],
            parts.group(
                "Changes",
                _list("sync", "Strategy", [(name, name) for name in STRATEGIES], "as recorded"),
                _list("without", "Without syncs", [], "with all", multi=True),
                _list("graph", "Kernel launches", list(GRAPHS.items()), "as recorded"),
                _list("kernels", "Kernels", [], "all kernels", multi=True),
                _number("times", "Time of these kernels ×"),
                _number("host", "Time of host code ×"),
                _number("latency", "Extra time per sync, µs"),
                parts.rate_field(),
                look="fields",
            ),
            html.P(id="rate-refused", className="problem", role="alert"),
        ),
        parts.section(
            "Predicted",
            [],
            html.P("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="problem", className="problem", role="alert"),
            html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **parts.named("Predicted figures")),
            html.Ul(id="notes", className="notes"),
        ),
        parts.section(
            "Timelines",
            [
                parts.group("Token shown", *parts.stepper("token", "token")),
                parts.moves(),
            ],
            parts.legend_of_timeline(),
            parts.chart("timeline", "Timelines of the recorded and the predicted run"),
            key="timeline-section",
        ),
    ]


def _list(key: str, label: str, options: list[tuple[str, str]], none: str, multi: bool = False) -> html.Label:
    chosen = [{"value": value, "label": text} for value, text in options]
    return html.Label([html.Span(label), dcc.Dropdown(id=key, options=chosen, placeholder=none, multi=multi)])


def _number(key: str, label: str) -> html.Label:
    low, high = NUMBERS[key]
    field = parts.text_field(key, True, type="text", placeholder="as recorded", maxlength=20)
    return html.Label([html.Span(label), field], title=f"{low:,g} to {high:,g}")


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that makes predictions for the runs of `store`."""
    _keep(app, store)
    keep_options(app, store, "run")
    keep_rate(app, store, WhatIfView)
    _render(app, store)


def _keep(app: Dash, store: RunStore) -> None:
    def show(view: WhatIfView) -> tuple[Any, ...]:
        run = lead(view.shared, store)
        names = [] if run is None else [{"value": n, "label": plain(n, 90)} for n in kernel_names(store, run)]
        own = (value_of(getattr(view, field), field) for field in FIELDS)
        return run_options(store), None if run is None else run.key, sync_options(store, run), names, *own

    changes = " ".join(f"{field}.value" for field in FIELDS)
    parts.keep_view(
        app, WhatIfView, f"run.value {changes} timeline.relayoutData",
        ("reset", "token-back", "token-on", *parts.MOVES, "theme"),
        f"run.options run.value without.options kernels.options {changes}",
        opened=lambda view: replace(view, shared=opened_at_once(view.shared, store)),
        after=lambda view, source, value, scheme: after(view, source, value, _drawn(store, view), scheme),
        show=show,
    )  # fmt: skip


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
        parts.outputs(
            "nothing.children nothing.style problem.children figures.children notes.children timeline.figure "
            "timeline.style timeline-section.style token-label.children poll.disabled progress.data"
        ),
        parts.inputs("screen.data poll.n_intervals", states="view.data progress.data"),
        running=parts.asking("poll"),
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
            parts.visible(nothing),
            plain(answer, 600) if isinstance(answer, str) else "",
            [parts.table_of_lines(lines_of(answer.prediction))] if isinstance(answer, WhatIf) else [],
            [*given, *(notes_of(answer) if isinstance(answer, WhatIf) else [])],
            figure,
            {"height": f"{tall}px"},
            parts.visible(runs),
            f"token {token_of(runs, view.shared)}",
            answer is not None,
            progress,
        )


def nothing_to_show(known_runs: Sequence[Run], run: Run | None, answer: WhatIf | str | None) -> str:
    """Instructions if there is no prediction; empty if there is one, or a reason."""
    if run is None:
        return parts.no_run(known_runs)
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
    notes = [plain(note, 300) for note in answer.prediction.notes]
    notes += [] if answer.prediction.of_engine else [_WITHOUT_RATE]
    if any(run.tokens is None for run in answer.runs):
        notes.append("No token steps were found in the new timeline, so it is not drawn.")
    return [html.Li(note) for note in notes]


PAGE = Page(
    ADDRESS, "What if", "predict the effect of changes to a run", sections, register, WhatIfView.from_data, place=4
)
