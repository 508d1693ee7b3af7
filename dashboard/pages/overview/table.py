"""The table of runs: its columns, rows and options; and the strip of chips into which it collapses.

An untraced rate that is entered in it becomes part of the link, which the page follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_ag_grid as dag
from dash import Dash, Input, Output, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.headline import by_mean, mean_gap, mean_idle
from dashboard.pages import in_browser
from dashboard.pages.graph import GraphView
from dashboard.pages.parts import SORTABLE, basis_switch, inputs, named, outputs, table_columns
from dashboard.reading.run import Run, told
from dashboard.reading.store import RunStore
from dashboard.text import apart, plain
from dashboard.view import NoRate, View, rate_of, text_of
from tracer.model.calls import MEANING
from tracer.reporting.headline import headline

_LONGEST_ON_CHIP: Final = 26  # characters of a name on a chip
_SHORT_ON_CHIP: Final = 20  # of more than two, of which two then fit next to each other
_MEANING: Final = {
    "class": "Strategy of most of its input copies",
    "idle": "Idle time of a device in the median step; ▲: traced, so inflated",
    "gap": "Median inter-token gap; ▲: traced, so inflated",
    "rate": "Steps per second; ▲: traced",
}
_MEANS: Final = {
    "idle": "Mean idle time of a device in a step; ▲: traced, so inflated",
    "gap": "Mean inter-token gap: a rate is a mean, so the median without tracing is not known; ▲: traced, so inflated",
}

_LONGEST = 90


RATE: Final = "Untraced steps/s"
AS_TOLD: Final = "from run.json; edit to override"
_MORE: Final[dict[str, dict[str, Any]]] = {
    "rate": {
        "type": "rightAligned", "filter": False, "editable": {"function": "params.data.readable"},
        "cellEditorParams": {"maxLength": 40}, "tooltipField": "rate_note",
        "valueFormatter": {"function": "params.value || params.data.rate_told"},
        "cellClassRules": {"told": "!params.value", "refused": "params.data.rate_fails"},
    },
    "signature": {
        "headerTooltip": "A token's host calls: " + ", ".join(f"{letter} {of}" for letter, of in MEANING.items()),
    },
}  # fmt: skip
COLUMNS: Final = [column | _MORE.get(column["field"], {}) for column in table_columns("runs")]

_FITS = 34  # characters of a name
_OPTIONAL = {"model", "mode", "distortion", "untraced_gap", "untraced_idle", "graph", "steps_per_s"}


def columns(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns, without empty ones, and without the requested strategy if every run followed it."""
    shown = {field for field in _OPTIONAL if any(r[field] for r in rows)}
    if any(r["configured"] not in {"", r["strategy"]} for r in rows):
        shown.add("configured")
    hideable = _OPTIONAL | {"configured"}
    return [c | {"hide": c["field"] in hideable - shown} for c in COLUMNS]


GRID: Final[dict[str, Any]] = {
    "rowSelection": {
        "mode": "multiRow", "checkboxes": True, "headerCheckbox": False, "enableClickSelection": True,
        "enableSelectionWithoutKeys": True, "isRowSelectable": {"function": "params.data.readable"},
    },
    "domLayout": "normal", "rowHeight": 32, "headerHeight": 36, "tooltipShowDelay": 300,
    "enableCellTextSelection": True, "stopEditingWhenCellsLoseFocus": True, "localeText": {"ariaInputEditor": RATE},
}  # fmt: skip
"""Options of the table."""


def grid() -> dag.AgGrid:
    """The table, empty until the recordings are read."""
    return dag.AgGrid(
        id="runs",
        columnDefs=COLUMNS,
        rowData=None,
        getRowId="params.data.key",
        defaultColDef=SORTABLE,
        dashGridOptions={**GRID, "loading": True},
        eventListeners={"selectionChanged": ["tellChoice(params, setEventData)"]},
        rowClassRules={"unreadable": "!params.data.readable"},
        style={"height": "120px"},
    )  # fmt: skip


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The rows of runs, under distinct names."""
    short = apart([run.name for run in runs], _FITS)
    return [row(run) | {"short": name} for run, name in zip(runs, short, strict=True)]


def row(run: Run) -> dict[str, Any]:
    """The row of a run."""
    summary = run.summary
    traced, told = summary.traced, summary.untraced_steps_per_s
    untraced = summary.tokens_per_s is not None
    return {
        "key": run.key,
        "name": plain(run.name, 300),
        "short": plain(run.name, _FITS),
        "model": plain(summary.model, 40),
        "strategy": summary.strategy or "",
        "configured": plain(summary.configured, 20),
        "mode": plain(summary.concurrency, 20),
        "tokens_per_s": summary.tokens_per_s if untraced else summary.traced_tokens_per_s,
        "rate_traced": traced and not untraced,
        "steps_per_s": summary.steps_per_s if not untraced and summary.traced_tokens_per_s is None else None,
        "rate": text_of(run.given_rate),
        "rate_told": "not traced" if not traced else "give it" if told is None else f"{told:,.1f}",
        "rate_note": run.rate_note or (AS_TOLD if told else ""),
        "rate_fails": bool(run.rate_problem),
        "idle_p50": summary.idle_us.get("p50"),
        "idle_where": summary.idle_where or "",
        "untraced_idle": summary.untraced_idle_us if traced else None,
        "gap_p50": summary.gap_p50_us,
        "gap_p90": summary.gap_p90_us,
        "untraced_gap": summary.untraced_gap_us,
        "traced": traced,
        "syncs": summary.syncs_per_token,
        "copies": summary.copies_per_token,
        "launches": summary.launches_per_token,
        "signature": plain(summary.signature or "", 300),
        "problem": plain((summary.problem or "").removeprefix(f"{run.path}: "), 300),
        "device": plain(summary.gpu or summary.backend, 40),
        "distortion": run.overhead,
        "level": summary.graph_trace or "",
        "graph": f"[show]({GraphView(run=run.key, rates=run.rates).link()})" if run.graph_file is not None else "",
        "readable": run.steps is not None,
        "about": ": ".join(filter(None, (plain(run.name, 300), plain(summary.problem or summary.warning or "")))),
    }


def height(rows: Sequence[dict[str, Any]]) -> str:
    """The height of the table: that of its rows, up to eight of them."""
    return f"{36 + 32 * min(max(len(rows), 1), 8) + 4}px"


def below() -> list[Any]:
    """The place below the table: why a rate was rejected, and the effect of the given ones."""
    return [
        dcc.Store(id="rated"),
        html.P(id="rate-refused", className="problem", role="alert"),
        html.Ul(id="rates-said", className="notes", **named("Given rates")),
    ]


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that fill the strip and fold the table, take a rate from the table, and show the view's
    rates there."""
    _fill_strip(app, store)
    _give(app, store)
    _show(app, store)


def _give(app: Dash, store: RunStore) -> None:
    @app.callback(
        outputs("followed.data* runs.rowTransaction* rate-refused.children"),
        inputs("runs.cellValueChanged", states="view.data"),
    )
    def give(changes: list[dict[str, Any]] | None, data: dict[str, Any] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        given, problem = _with_given(view, changes or [])
        shown = {change["rowId"] for change in changes or []}
        again = [one for one in rows_of(store.so_far(given.rates)) if one["key"] in shown]
        if not again:
            raise PreventUpdate
        return no_update if given == view else given.query(), _update(again), problem


def _with_given(view: View, changes: Sequence[dict[str, Any]]) -> tuple[View, str]:
    """The view with the rates entered in the table; or the old view and why one of them is invalid."""
    given = view
    try:
        for change in changes:
            given = given.rated(change["rowId"], rate_of(change["value"]))
    except NoRate as problem:
        return view, str(problem)
    return given, ""


def _show(app: Dash, store: RunStore) -> None:
    @app.callback(
        outputs("runs.rowTransaction runs.columnDefs* rates-said.children rated.data"),
        inputs("steady.data revision.data", states="view.data rated.data"),
    )
    def show(_: Any, revision: int | None, data: dict[str, Any] | None, before: list[str] | None) -> tuple[Any, ...]:
        view = View.from_data(data)
        rated = [str(revision), *(text for _, text in View(rates=view.rates).pairs())]
        if rated == before:
            raise PreventUpdate
        runs = store.so_far(view.rates)
        rows = rows_of(runs)
        others = {text.partition(":")[2] for text in (*rated, *(before or ()))}
        notes = [html.Li([html.B(plain(r.name, _LONGEST)), f": {r.rate_note}."]) for r in runs if r.rate_note]
        changed = [one for one in rows if one["key"] in others]
        return _update(changed) if changed else no_update, columns(rows), notes, rated


def _update(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"update": list(rows), "async": False}


def strip() -> html.Div:
    """The chips, and the button that unfolds the table below them."""
    controls: dict[str, Any] = {"aria-controls": "runs-panel", "aria-expanded": "false"}
    return html.Div(
        [
            html.H2("Runs"),
            html.Ul(id="chips", className="chips", **named("Selected runs; the first is the base")),
            html.P("Looking for recordings …", id="reading-said", role="status", className="hint"),
            basis_switch(),
            html.Button("Add recordings …", id="add", className="button upload",
                        title="Upload recordings, or drop them anywhere on the page"),
            html.Button("All runs", id="runs-open", className="button folds", **controls,
                        title="All runs: select one to six, enter the engine's own rate"),
            dcc.Store(id="chipped"),
        ],
        className="bar strip",
    )  # fmt: skip


def _fill_strip(app: Dash, store: RunStore) -> None:
    """Register the callbacks that fill the strip, and fold and unfold the table."""
    in_browser(app, "runs", "fold", Output("runs-panel", "hidden"), Input("chipped", "data"))

    @app.callback(
        outputs("chips.children chipped.data runs-open.children"),
        inputs("steady.data revision.data", states="view.data chipped.data"),
    )
    def fill(_: Any, __: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        keys = view.runs or ()
        ready = {run.key: run for run in told(store.ready(keys, view.rates), view.basis)}
        shown = [ready.get(key, key) for key in keys if key in (*ready, *store.awaited(keys))]
        there = store.progress().total
        chipped = [len(shown), there, *(one if isinstance(one, str) else one.identity for one in shown)]
        if view.runs is None or chipped == before:
            raise PreventUpdate
        return chips(shown), chipped, "All runs" if there < 2 else f"All {len(store.so_far())} runs"


def chips(shown: Sequence[Run | str]) -> list[html.Li]:
    """A chip for each run, and for each key whose recording is not read yet."""
    names = [one if isinstance(one, str) else one.name for one in shown]
    short = apart(names, _LONGEST_ON_CHIP if len(names) <= 2 else _SHORT_ON_CHIP)
    mean = by_mean([one for one in shown if isinstance(one, Run)])
    return [
        html.Li([html.B(name), " is loading …"]) if isinstance(one, str)
        else _chip(one, name, is_base=not at and len(shown) > 1, mean=mean)
        for at, (one, name) in enumerate(zip(shown, short, strict=True))
    ]  # fmt: skip


def _chip(run: Run, name: str, is_base: bool, mean: bool) -> html.Li:
    says = headline(run.summary) | (
        {"idle": mean_idle(run.summary).text, "gap": mean_gap(run.summary).text} if mean else {}
    )
    of = "mean " if mean else ""
    figures: list[Any] = [
        html.Span([html.Span(f"{of}{label} ", className="about"), text] if label in ("idle", "gap") else text,
                  title=(_MEANS if mean else _MEANING).get(label, _MEANING[label]), className=f"of-{label}")
        for label, text in says.items()
    ]  # fmt: skip
    if run.summary.traced:
        leads: dict[str, Any] = {"data-rate": run.key}
        give = f"Enter the engine's own rate of {plain(run.name, 90)}, without a profiler"
        figures.append(html.Button("rate", className="link", title=give, **leads, **named(f"rate: {give}")))
    base = [html.Span("base", className="tag")] if is_base else []
    return html.Li([html.B(name, title=plain(run.name, 300)), *base, *figures])
