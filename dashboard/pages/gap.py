"""The gap page: causes token by token, distribution, longest gaps, and the figures of their causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import dash_bootstrap_components as dbc
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html
from dash.exceptions import PreventUpdate
from plotly.subplots import make_subplots

from dashboard.figures import CAUSE_COLOURS, causes_figure, causes_height, causes_text, places_of
from dashboard.headline import mean_gap, tracing
from dashboard.pages import Page, in_browser, link, parts
from dashboard.pages.runs import keep_options, opened_at_once, run_options, shown
from dashboard.palette import COLOURS, THEMES
from dashboard.reading.run import Run, told
from dashboard.reading.store import RunStore
from dashboard.scene import range_of
from dashboard.text import duration, markup, microseconds, plain
from dashboard.view import BASES, MOST_RUNS, WORD, Linked, View, one_of, part, switched
from tracer.analysis.causes import CAUSES, PART_NAMES, PARTS
from tracer.analysis.gaps import GapReport
from tracer.analysis.summary import Summary
from tracer.reporting.headline import gap, idle

ADDRESS: Final = "gap/"
LONGEST: Final = 12  # number of gaps of each run in the table of the longest
_PANEL = 150  # px
_FOOT = 46
_MOST_BARS = 1200  # of all panels; keeps a figure under 300 KB
_BINS = 60
_WIDE, _CHARACTER = 1360, 7.6  # px
_BEYOND = 1.5  # times the 90th percentile: the end of an axis of typical gaps

_SCALES: Final = {"typical": "typical gaps", "all": "the longest gap"}  # range of the axes -> its label


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
    """The view after an action of the reader: the component, its new value, and what the theme looks like."""
    match source, value:
        case "chosen", list() | None as keys:
            runs = tuple(dict.fromkeys(key for key in keys or () if isinstance(key, str)))[:MOST_RUNS]
            return replace(view, shared=replace(view.shared, runs=runs))
        case "scale", str(scale) if scale in _SCALES:
            return replace(view, scale=scale)
        case "basis", str(basis) if basis in BASES:
            return replace(view, shared=replace(view.shared, basis=basis))
        case "theme", _:
            return replace(view, shared=replace(view.shared, theme=switched(view.shared.theme, scheme)))
    return view


def sections() -> list[Any]:
    """The page's elements."""
    return [
        dcc.Store(id="destination"),
        parts.section(
            "Gap between tokens",
            [parts.choice("chosen", "Runs", multi=True, placeholder="Select one to six runs"), _scale(),
             parts.basis_switch()],
            html.Div("Loading the recordings …", id="nothing", className="empty", role="status"),
            html.Div(id="figures", className="scrolls", tabIndex=0, role="region", **parts.named("Gaps in figures")),
            html.Div(id="warnings"),
        ),
        parts.section(
            "Idle time of a step",
            ["Mean idle time per step by place and cause. The gap is the part between steps."],
            parts.legend(CAUSE_COLOURS), parts.chart("idle", "Causes of the idle time, by place"), key="idle-section",
        ),
        parts.section(
            "Causes, token by token",
            ["As recorded. Each bar is the gap after a token, or the mean of several. ▲: beyond the axis. "
             "Click one to show it in the timeline."],
            parts.legend(CAUSE_COLOURS), parts.chart("steps", "Causes of the gap over the run"), key="steps-section",
        ),
        parts.section(
            "Distribution", ["As recorded."], parts.chart("distribution", "Distribution of the gap"),
            key="distribution-section",
        ),
        parts.section(
            "Longest gaps", ["As recorded: the longest gaps of each run, with links to the timeline."],
            parts.table_of("longest"),
            key="longest-section",
        ),
        parts.section(
            "Causes of the gap",
            ["Shares, medians and p90 as recorded: a traced recording's are inflated.",
             html.Button("Download CSV", id="download", className="button")],
            parts.table_of("made-of", "intertoken-gap-causes.csv"), key="made-of-section",
        ),
    ]  # fmt: skip


def _scale() -> html.Div:
    options = [{"value": key, "label": label} for key, label in _SCALES.items()]
    items = dbc.RadioItems(id="scale", options=options, value="typical", inline=True, className="choice")
    return parts.group("Range of the axes", html.Span("Axes up to"), items)


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the gaps of the runs of `store`."""
    _keep(app, store)
    keep_options(app, store, "chosen")
    _render(app, store)
    _lead(app, store)
    in_browser(app, "intertoken", "go", Input("destination", "data"))
    parts.keep_download(app, "made-of")


def _keep(app: Dash, store: RunStore) -> None:
    def opened(view: GapView) -> GapView:
        return replace(view, shared=replace(opened_at_once(view.shared, store), range=None, align="end"))

    parts.keep_view(
        app, GapView, "chosen.value scale.value basis.value", ["theme"],
        "chosen.options chosen.value scale.value basis.value",
        opened=opened, after=after,
        show=lambda view: (run_options(store), shown(view.shared, store), view.scale, view.shared.basis),
    )  # fmt: skip


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        parts.outputs(
            "nothing.children nothing.style figures.children warnings.children "
            "idle-section.style steps-section.style distribution-section.style longest-section.style "
            "made-of-section.style idle.figure idle.style steps.figure steps.style distribution.figure "
            "distribution.style idle-holder.aria-label steps-holder.aria-label distribution-holder.aria-label "
            "longest.columnDefs longest.rowData longest.style made-of.columnDefs made-of.rowData made-of.style"
        ),
        parts.inputs("screen.data", states="view.data"),
    )
    def render(screen: dict[str, Any] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        view, theme, width = GapView.from_data(data), str(screen["scheme"]), int(screen["width"])
        chosen = told(store.chosen(view.shared.runs or (), view.shared.rates), view.shared.basis)
        runs = [run for run in chosen if run.gaps is not None]
        panels, places = panels_of(runs), places_of(runs)
        style = {"height": f"{max(len(panels), 1) * _PANEL + _FOOT}px"}
        longest, causes = longest_of(runs, view.shared.theme), made_of(runs)
        nothing = nothing_to_show(store.so_far(), chosen, runs)
        return (
            nothing,
            parts.visible(nothing),
            [parts.table_of_lines([figures_of(run) for run in runs])] if runs else [],
            _warnings(runs),
            *map(parts.visible, (places, runs, runs, runs, runs)),
            causes_figure(places, theme, width), {"height": f"{causes_height(places, width)}px"},
            steps_figure(panels, view.scale, theme, width), style,
            distribution_figure(panels, view.scale, theme, width), style,
            f"Causes of the idle time. {causes_text(places)}",
            f"Causes of the gap over the run. {_medians(runs)}", f"Distribution of the gap. {_medians(runs)}",
            parts.with_several("longest", longest, "run", "device"), longest, parts.table_height(longest),
            parts.with_several("made-of", causes, "run"), causes, parts.table_height(causes),
        )  # fmt: skip


def _lead(app: Dash, store: RunStore) -> None:
    """A click on a bar opens the timeline."""

    @app.callback(Output("destination", "data"), parts.inputs("steps.clickData", states="view.data"))
    def leads(click: dict[str, Any] | None, data: dict[str, Any]) -> str:
        match click:
            case {"points": [{"customdata": [int(panel), int(step)]}, *_]}:
                view = GapView.from_data(data).shared
                panels = panels_of([run for run in store.chosen(view.runs or (), view.rates) if run.gaps is not None])
                keys = [panels[panel].run] if 0 <= panel < len(panels) else []
                for run in store.chosen(keys, view.rates):
                    return timeline_link(run, step, view.theme)
        raise PreventUpdate


def nothing_to_show(known: Sequence[Run], chosen: Sequence[Run], shown: Sequence[Run]) -> str:
    """Instructions if a selected run has no gap to show; empty if all have one."""
    if not known:
        return parts.NO_RECORDINGS
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
    return "; ".join(
        f"{line['Run']}: mean {line['Mean gap']}, p50 {line['Median gap']}" for line in map(figures_of, runs)
    )


@dataclass(frozen=True)
class GapPanel:
    """A run's gaps on one device: name, note, rows of `GapReport.table`, and the run's key."""

    name: str
    note: str
    table: pd.DataFrame
    run: str = ""


def limit_of(panels: Sequence[GapPanel], scale: str) -> float:
    """The end of the gap axis, µs: the longest gap ("all"), or slightly more than the 90th percentile."""
    gaps = [panel.table["gap"].to_numpy() / 1e3 for panel in panels if len(panel.table)]
    most = max((float(us.max()) for us in gaps), default=0.0)
    typical = max((float(np.percentile(us, 90)) for us in gaps), default=0.0) * _BEYOND
    return (1.05 * most if scale == "all" or typical <= 0 else min(1.05 * most, typical)) or 1.0


def binned(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """Individual gaps, or means of consecutive ones so that there are `most` rows.

    Returns:
        Columns first, last (step), longest (gap, µs), longest_step, and the mean of each cause, µs, by its column in
        `CAUSES`.
    """
    rows = min(len(table), most)
    groups = table.groupby(np.arange(len(table)) * rows // max(len(table), 1))
    bins = groups[list(CAUSES)].mean() / 1e3
    bins["first"], bins["last"] = groups["step"].min(), groups["step"].max()
    bins["longest"] = groups["gap"].max() / 1e3
    bins["longest_step"] = table.loc[groups["gap"].idxmax(), "step"].to_numpy()
    return bins


def steps_figure(panels: Sequence[GapPanel], scale: str, theme: str, width: int = _WIDE) -> go.Figure:
    """Stacked bars over the steps, one panel below the other, on the same axes; ▲ for gaps beyond them.

    A bar's `customdata` is the number of its panel and the step of its longest gap.
    """
    limit = limit_of(panels, scale)
    figure = _stacked(panels, theme, width)
    for row, panel in enumerate(panels, 1):
        bars = binned(panel.table, max(_MOST_BARS // len(panels), 1))
        at = ((bars["first"] + bars["last"]) / 2).tolist()
        wide = (bars["last"] - bars["first"] + 1).tolist()
        shows = [[row - 1, step] for step in bars["longest_step"].tolist()]
        for column, cause in CAUSES.items():
            if bars[column].any():
                figure.add_trace(
                    go.Bar(name=cause, x=at, y=bars[column].round(3).tolist(), width=wide, showlegend=False,
                           marker={"color": CAUSE_COLOURS[cause], "line": {"width": 0}},
                           customdata=shows, hovertemplate="%{y:.2f} µs"),
                    row=row, col=1,
                )  # fmt: skip
        beyond = bars[bars["longest"] > limit]
        figure.add_trace(
            go.Scatter(name="longest", mode="markers", showlegend=False, hoverinfo="text",
                       x=((beyond["first"] + beyond["last"]) / 2).tolist(), y=[limit * 0.96] * len(beyond),
                       hovertext=[f"longest {duration(us * 1e3)}" for us in beyond["longest"]],
                       marker={"symbol": "triangle-up", "size": 9, "color": THEMES[theme].ink}),
            row=row, col=1,
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0, hovermode="x unified")
    figure.update_yaxes(range=[0, limit], ticksuffix=" µs")
    figure.update_xaxes(title_text="token step", row=max(len(panels), 1))
    return figure


def distribution_figure(panels: Sequence[GapPanel], scale: str, theme: str, width: int = _WIDE) -> go.Figure:
    """A histogram per panel, all on the same axis, with median and 90th percentile."""
    limit, look = limit_of(panels, scale), THEMES[theme]
    figure = _stacked(panels, theme, width)
    for row, panel in enumerate(panels, 1):
        gaps = panel.table["gap"].to_numpy() / 1e3
        counts, edges = np.histogram(gaps, _BINS, (0, limit))
        share = counts / max(len(gaps), 1)
        text = [f"{n:,} of {len(gaps):,} gaps: {duration(low * 1e3)} to {duration(high * 1e3)}"
                for n, low, high in zip(counts, edges, edges[1:], strict=False)]  # fmt: skip
        figure.add_trace(
            go.Bar(x=((edges[:-1] + edges[1:]) / 2).round(4).tolist(), y=share.round(5).tolist(), showlegend=False,
                   marker={"color": COLOURS["gap"], "line": {"width": 0.6, "color": look.muted}},
                   hovertext=text, hoverinfo="text"),
            row=row, col=1,
        )  # fmt: skip
        top = float(share.max()) * 1.5 or 1.0
        for name, percentile, high in (("p50", 50, 0.93), ("p90", 90, 0.78)):
            us = float(np.percentile(gaps, percentile))
            line = {"color": look.ink, "width": 1.4, "dash": "solid" if name == "p50" else "dot"}
            figure.add_shape(type="line", x0=us, x1=us, y0=0, y1=top, line=line, row=row, col=1)
            if us <= limit:
                left = us > 0.8 * limit
                figure.add_annotation(x=us, y=top * high, text=f"{name} {duration(us * 1e3)}", showarrow=False,
                                      name=name, xanchor="right" if left else "left", xshift=-4 if left else 4,
                                      font={"size": 11, "color": look.ink}, row=row, col=1)  # fmt: skip
        beyond = int((gaps > limit).sum())
        if beyond:
            figure.add_annotation(x=limit, y=top / 2, text=f"{beyond:,} longer ▸", showarrow=False, xanchor="right",
                                  name="beyond", font={"size": 11, "color": look.muted}, row=row, col=1)  # fmt: skip
        figure.update_yaxes(range=[0, top], row=row)
    figure.update_layout(bargap=0)
    figure.update_yaxes(tickformat=".0%")
    figure.update_xaxes(range=[0, limit], ticksuffix=" µs")
    return figure


def _stacked(panels: Sequence[GapPanel], theme: str, width: int) -> go.Figure:
    """Empty panels below each other, each with its name above, and as much of its note as fits."""
    look, rows = THEMES[theme], max(len(panels), 1)
    spacing = 36 / (rows * _PANEL) if rows > 1 else 0
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=spacing)
    axis: dict[str, Any] = {"gridcolor": look.line, "zeroline": False, "fixedrange": True,
                            "tickfont": {"color": look.muted, "size": 11}}  # fmt: skip
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, nticks=5)
    for row, panel in enumerate(panels, 1):
        room = max(int(width / _CHARACTER) - len(panel.name), 0)
        note = f'  <span style="color:{look.muted}">{markup(panel.note, room)}</span>' if panel.note and room else ""
        suffix = str(row) if row > 1 else ""
        figure.add_annotation(text=f"<b>{markup(panel.name)}</b>{note}", name="panel", showarrow=False, align="left",
                              xref="paper", x=0, xanchor="left", xshift=-54, yshift=2,
                              yref=f"y{suffix} domain", y=1, yanchor="bottom", font={"size": 12.5})  # fmt: skip
    figure.update_layout(
        margin={"l": 62, "r": 12, "t": 24, "b": 40}, **look.layout, dragmode=False,
    )  # fmt: skip
    return figure


def panels_of(runs: Sequence[Run]) -> list[GapPanel]:
    """The panels of the figures: one per run, or per device of a run on several devices."""
    panels = []
    for run in runs:
        if run.gaps is not None:
            devices = run.gaps.table["device"].unique()
            for device in sorted(map(int, devices)):
                table = run.gaps.table[run.gaps.table["device"] == device]
                name = plain(run.name, 60) + (f" · GPU {device}" if len(devices) > 1 else "")
                panels.append(GapPanel(name, _note(run, run.gaps), table, run.key))
    return panels


def _note(run: Run, report: GapReport) -> str:
    """A note on how the times were recorded."""
    if report.warning is None:
        return report.left_out or ""
    factor = f", {of}" if (of := tracing(run)) else ""
    return f"as recorded ({report.graph_trace} level): inflated{factor}"


def figures_of(run: Run) -> dict[str, str]:
    """A run's row in the table of gaps: heading -> text."""
    assert run.gaps is not None
    of = run.summary
    return {
        "Run": plain(run.name, 90),
        "Mean gap": mean_gap(of).text,
        "Median gap": gap(of).text,
        "Median idle": idle(of).text,
        "Tracing, × on the gap": "–" if run.overhead is None else f"{run.overhead:.1f}",
        "Gaps": f"{len(run.gaps.table):,}",
        "p50 as recorded": microseconds(of.gap_p50_us),
        "p90 as recorded": microseconds(of.gap_p90_us),
        "Host ahead, p50": _ahead(of),
        "Recorded": f"traced, {of.graph_trace} level" if of.traced else "no profiler",
    }


def _ahead(of: Summary) -> str:
    """How far the host is ahead of the device when the device starts a step."""
    if of.run_ahead is None:
        return "not known"
    return f"{microseconds(of.run_ahead['time_us']['p50'])}, {of.run_ahead['launches']['p50']:g} launches"


def longest_of(runs: Sequence[Run], theme: str) -> list[dict[str, Any]]:
    """The longest gaps of every run: run, step, device, gap and median (µs), cause, its share (0..1), part and link."""
    longest = [(run, run.gaps, run.gaps.table.nlargest(LONGEST, "gap")) for run in runs if run.gaps is not None]
    return [_row_of_gap(run, report, gap, theme) for run, report, table in longest for gap in table.to_dict("records")]


def _row_of_gap(run: Run, report: GapReport, gap: dict[Any, Any], theme: str) -> dict[str, Any]:
    step, length, median = int(gap["step"]), gap["gap"], report.gap_us["p50"]
    cause = max(CAUSES, key=lambda column: gap[column])
    part = max(PARTS[cause], key=lambda column: gap[column])
    return {
        "run": plain(run.name, 90),
        "step": step,
        "device": int(gap["device"]),
        "gap": length / 1e3,
        "times": length / 1e3 / median if median > 0 else None,
        "cause": CAUSES[cause] if length else "",
        "share": gap[cause] / length if length else None,
        "part": PART_NAMES[part] if length else "",
        "show": f"[token {step}]({timeline_link(run, step, theme)})",
    }


def timeline_link(run: Run, step: int, theme: str) -> str:
    """The overview at a step of the run, zoomed to the gap after it."""
    assert run.tokens is not None
    at = run.tokens.clamp(int(np.searchsorted(run.tokens.step, step)))
    view = View(runs=(run.key,), token=at, theme=theme, rates=run.rates)
    return link("", ADDRESS) + replace(view, range=range_of([run], view, "gap")).query()


def made_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The causes of the gaps: per run the gap, its causes and their components.

    Columns run, cause, part ("" for the whole cause), and over all gaps, in µs, mean (parts add up to their cause,
    causes to the gap), median and p90, as recorded; untraced is the mean from the untraced rate, None where that cannot
    give it; share is of the mean gap, 0..1.
    """
    return [row for run in runs if run.gaps is not None for row in _made_of_part(plain(run.name, 90), run.gaps)]


def _made_of_part(name: str, report: GapReport) -> list[dict[str, Any]]:
    total, table = report.gap_us["mean"], report.table
    corrected = report.corrected() if report.warning and report.untraced_gap_us else None

    def row(cause: str, part: str, mean: float, untraced: Any, ns: pd.Series) -> dict[str, Any]:
        return {
            "run": name, "cause": cause, "part": part, "mean": mean, "untraced": untraced,
            "share": mean / total if total > 0 else None,
            "median": float(ns.median() / 1e3), "p90": float(ns.quantile(0.9) / 1e3),
        }  # fmt: skip

    rows = [row("gap", "", total, corrected and corrected.gap_us["mean"], table["gap"])]
    for column, cause in CAUSES.items():
        if cause == "communication" and not table[column].any():
            continue  # most recordings have one device
        rows.append(row(cause, "", report.causes_us[cause], corrected and corrected.causes_us[cause], table[column]))
        rows += [
            row(cause, PART_NAMES[part], us, corrected and corrected.parts_us[cause][part], table[part])
            for part, us in report.parts_us[cause].items()
            if us
        ]
    return rows


PAGE = Page(ADDRESS, "Gap", "why the device waits between tokens", sections, register, GapView.from_data, place=1)
