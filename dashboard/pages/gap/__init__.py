"""The gap page: causes token by token, distribution, longest gaps, and the figures of their causes.

Each action creates a new view (`reduce`), which is rendered (`render`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import dash_bootstrap_components as dbc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.figures.causes import CAUSE_COLOURS, causes_figure, causes_height, causes_text, places_of
from dashboard.figures.gaps import distribution_figure, height_of, steps_figure
from dashboard.links import Linked, part
from dashboard.pages import Page, in_browser, named
from dashboard.pages.gap.tables import (
    ADDRESS,
    LONGEST_COLUMNS,
    MADE_OF_COLUMNS,
    figures_of,
    longest_of,
    made_of,
    panels_of,
    timeline_link,
)
from dashboard.pages.parts import (
    HIDDEN,
    NO_RECORDINGS,
    SHOWN,
    chart,
    choice,
    csv_file,
    keep_download,
    legend,
    section,
    table_height,
    table_of,
    table_of_lines,
    with_several,
)
from dashboard.pages.presses import done
from dashboard.pages.runs import keep_options, opened_at_once, run_options, shown
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import MOST_RUNS, WORD, View, one_of, switched

_SECTIONS = ("idle-section", "steps-section", "distribution-section", "longest-section", "made-of-section")
_SCALES: Final = {"typical": "typical gaps", "all": "the longest gap"}
"""Range of the axes -> its label."""


@dataclass(frozen=True)
class GapView(Linked):
    """The state of the page.

    Attributes:
        shared: the runs; also token and theme, which links to other pages keep.
        scale: a key of `_SCALES`.
    """

    shared: Annotated[View, part(View)]
    scale: Annotated[str, one_of(_SCALES), WORD] = "typical"


def after(view: GapView, source: str, value: Any, scheme: str) -> GapView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        scheme: "light" or "dark", the page's current theme.
    """
    match source, value:
        case "chosen", list(keys):
            runs = tuple(dict.fromkeys(key for key in keys if isinstance(key, str)))[:MOST_RUNS]
            return replace(view, shared=replace(view.shared, runs=runs))
        case "scale", str(scale) if scale in _SCALES:
            return replace(view, scale=scale)
        case "theme", _:
            return replace(view, shared=replace(view.shared, theme=switched(view.shared.theme, scheme)))
    return view


def sections() -> list[Any]:
    """The page's elements."""
    return [dcc.Store(id="destination"), _figures(), _idle(), _steps(), _distribution(), _longest(), _made_of()]


def _figures() -> html.Section:
    return section(
        "Gap between tokens",
        [choice("chosen", "Runs", multi=True, placeholder="Select one to six runs"), _scale()],
        html.Div("Loading the recordings …", id="nothing", className="empty", role="status"),
        html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **named("Gaps in figures")),
        html.Div(id="warnings"),
    )


def _scale() -> html.Div:
    return html.Div(
        [
            html.Span("Axes up to"),
            dbc.RadioItems(
                id="scale",
                options=[{"value": key, "label": label} for key, label in _SCALES.items()],
                value="typical",
                inline=True,
                className="choice",
            ),
        ],
        className="token",
        role="group",
        **named("Range of the axes"),
    )


def _idle() -> html.Section:
    hint = html.P("Mean idle time per step by place and cause. The gap is the part between steps.", className="hint")
    figure = chart("idle", "Causes of the idle time, by place")
    return section("Idle time of a step", [hint], legend(CAUSE_COLOURS), figure, key="idle-section")


def _steps() -> html.Section:
    return section(
        "Causes, token by token",
        [html.P("Each bar is the gap after a token, or the mean of several. ▲: beyond the axis. "
                "Click one to show it in the timeline.",
                className="hint")],
        legend(CAUSE_COLOURS),
        chart("steps", "Causes of the gap over the run"),
        key="steps-section",
    )  # fmt: skip


def _distribution() -> html.Section:
    return section("Distribution", [], chart("distribution", "Distribution of the gap"), key="distribution-section")


def _longest() -> html.Section:
    hint = html.P("The longest gaps of each run, with links to the timeline.", className="hint")
    return section("Longest gaps", [hint], table_of("longest", LONGEST_COLUMNS), key="longest-section")


def _made_of() -> html.Section:
    return section(
        "Causes of the gap",
        [
            html.P("As recorded: a traced recording's figures are inflated.", className="hint"),
            html.Button("Download CSV", id="download", className="button"),
        ],
        table_of("made-of", MADE_OF_COLUMNS, csvExportParams=csv_file("intertoken-gap-causes.csv")),
        key="made-of-section",
    )


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the gaps of the runs of `store`."""
    _reduce(app, store)
    keep_options(app, store, "chosen")
    _render(app, store)
    _lead(app, store)
    in_browser(app, "intertoken", "go", Input("destination", "data"))
    keep_download(app, "made-of")


def _reduce(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("chosen", "options"),
        Output("chosen", "value"),
        Output("scale", "value"),
        Output("pressed", "data"),
        Input("url", "search"),
        Input("chosen", "value"),
        Input("scale", "value"),
        Input("theme", "n_clicks"),
        State("pressed", "data"),
        State("view", "data"),
        State("screen", "data"),
    )
    def reduce(
        search: str, chosen: Any, scale: str, theme: Any, pressed: Any, before: Any, screen: Any
    ) -> tuple[Any, ...]:
        clicks, values = {"theme": theme}, {"chosen": chosen or [], "scale": scale}
        sources = done([one["prop_id"] for one in ctx.triggered], clicks, pressed)
        if before is None or "url" in sources:
            view = GapView.parse(search)
            view = replace(view, shared=replace(opened_at_once(view.shared, store), range=None, align="end"))
        else:
            view = GapView.from_data(before)
            for source in sources:
                view = after(view, source, values.get(source), (screen or {}).get("scheme", ""))
        keys = shown(view.shared, store)
        if before is not None and view == GapView.from_data(before) and keys == chosen and clicks == pressed:
            raise PreventUpdate
        link = no_update if view.query() == (search or "") else view.query()
        return view.data(), link, run_options(store), keys, view.scale, clicks


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("nothing", "children"),
        Output("nothing", "style"),
        Output("figures", "children"),
        Output("warnings", "children"),
        *(Output(key, "style") for key in _SECTIONS),
        *(Output(key, part) for key in ("idle", "steps", "distribution") for part in ("figure", "style")),
        *(Output(f"{key}-holder", "aria-label") for key in ("idle", "steps", "distribution")),
        *(Output(key, part) for key in ("longest", "made-of") for part in ("columnDefs", "rowData", "style")),
        Input("screen", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def render(screen: dict[str, Any] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme, width = GapView.from_data(data), str(screen["scheme"]), int(screen["width"])
        chosen = store.chosen(view.shared.runs or (), view.shared.rates)
        runs = [run for run in chosen if run.gaps is not None]
        panels, places = panels_of(runs), places_of(runs)
        style = {"height": f"{height_of(panels)}px"}
        longest, parts = longest_of(runs, view.shared.theme), made_of(runs)
        nothing = nothing_to_show(store.so_far(), chosen, runs)
        return (
            nothing,
            SHOWN if nothing else HIDDEN,
            [table_of_lines([figures_of(run) for run in runs])] if runs else [],
            _warnings(runs),
            *(SHOWN if shown else HIDDEN for shown in (places, *[runs] * (len(_SECTIONS) - 1))),
            causes_figure(places, theme, width), {"height": f"{causes_height(places, width)}px"},
            steps_figure(panels, view.scale, theme, width), style,
            distribution_figure(panels, view.scale, theme, width), style,
            f"Causes of the idle time. {causes_text(places)}",
            f"Causes of the gap over the run. {_medians(runs)}", f"Distribution of the gap. {_medians(runs)}",
            with_several(LONGEST_COLUMNS, longest, "run", "device"), longest, table_height(longest),
            with_several(MADE_OF_COLUMNS, parts, "run"), parts, table_height(parts),
        )  # fmt: skip


def _lead(app: Dash, store: RunStore) -> None:
    """A click on a bar opens the timeline."""

    @app.callback(
        Output("destination", "data"), Input("steps", "clickData"), State("view", "data"), prevent_initial_call=True
    )
    def leads(click: dict[str, Any] | None, data: dict[str, Any]) -> str:
        match click:
            case {"points": [{"customdata": [int(panel), int(step)]}, *_]}:
                view = GapView.from_data(data).shared
                panels = panels_of([run for run in store.chosen(view.runs or (), view.rates) if run.gaps is not None])
                run = (
                    next(iter(store.chosen([panels[panel].run], view.rates)), None)
                    if 0 <= panel < len(panels)
                    else None
                )
                if run is not None and run.tokens is not None:
                    return timeline_link(run, step, view.theme)
        raise PreventUpdate


def nothing_to_show(known: Sequence[Run], chosen: Sequence[Run], shown: Sequence[Run]) -> str:
    """Instructions if a selected run has no gap to show; empty if all have one."""
    if not known:
        return NO_RECORDINGS
    if not any(run.steps is not None for run in known):
        return "None of these recordings has token steps; the table on the Runs page says why."
    if not chosen:
        return "Select one to six runs above."
    without = [plain(run.name, 60) for run in chosen if run not in shown]
    return f"{', '.join(without)}: no two consecutive tokens, so there is no gap." if without else ""


def _warnings(runs: Sequence[Run]) -> list[html.P]:
    notes: dict[str, list[str]] = {}
    for run in runs:
        if run.rate_note:
            notes.setdefault(run.rate_note, []).append(plain(run.name, 60))
        if run.gaps is not None and run.gaps.warning is not None:
            notes.setdefault(run.gaps.warning, []).append(plain(run.name, 60))
    return [html.P([html.B(", ".join(names)), f": {text}."], className="hint warns") for text, names in notes.items()]


def _medians(runs: Sequence[Run]) -> str:
    return "; ".join(f"{line['Run']}: p50 {line['p50']}, p90 {line['p90']}" for line in map(figures_of, runs))


PAGE = Page(ADDRESS, "Gap", "why the device waits between tokens", sections, register, GapView.from_data, place=1)
