"""The syncs page: the host syncs of a token, a row each, what each waits for, and the predicted gain without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
from dash import Dash, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.headline import tracing
from dashboard.pages import Page, link, parts
from dashboard.pages.runs import keep_options, keep_run, lead
from dashboard.pages.whatif import ALL, what_if_of
from dashboard.reading.answers import Listed, gain_without, inventory_of, site_of, slack_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore, known
from dashboard.text import brief_site, duration, plain
from dashboard.view import Spot, View, span
from tracer.analysis.syncs import WAITS
from tracer.model.calls import SYNC
from tracer.text import percent, signed
from tracer.whatif.prediction import Prediction

_VERDICT_LINE = 38  # letters of a verdict that fit in one line
ADDRESS: Final = "syncs/"
_PENDING: Final = "…"


def columns_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns; NVTX ranges and call sites only if there are any, kinds only if there are several."""
    return parts.with_values(parts.with_several("syncs", rows, "what"), rows, "path", "site")


def sections() -> list[Any]:
    """The page's elements."""
    return [
        parts.poll("poll"),
        dcc.Store(id="progress"),
        parts.section(
            "Syncs of a token",
            [parts.choice("run", "Run", clearable=False)],
            html.Div("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="said-of-all", className="answer", role="status"),
            html.P(id="warning", className="hint warns"),
        ),
        parts.section(
            "Inventory",
            [
                "One row per sync, blocking copy and polling loop of a step, most expensive first. Gains are predicted "
                "by replaying the run without the sync.",
                html.Button("Download CSV", id="download", className="button"),
            ],
            parts.table_of("syncs", "intertoken-syncs.csv", getRowId="params.data.key"),
            key="inventory-section",
        ),
    ]  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the syncs of a run of `store`."""
    keep_run(app, store)
    keep_options(app, store, "run")
    _render(app, store)
    parts.keep_download(app, "syncs")


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        parts.outputs(
            "syncs.columnDefs syncs.rowData syncs.style inventory-section.style said-of-all.children "
            "warning.children nothing.children nothing.style poll.disabled progress.data"
        ),
        parts.inputs("screen.data poll.n_intervals", states="view.data progress.data"),
        running=parts.asking("poll"),
    )
    def render(_: Any, __: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        run = lead(view, store)
        rows = [] if run is None else rows_of(store, run, view.theme)
        together: Prediction | str | None = ""
        if run is not None and rows:
            together = known(gain_without(store, run, None))
        missing = sum(row["pending"] for row in rows) + (together is None)
        progress = [view.query(), missing]
        if ctx.triggered_id == "poll" and progress == before:
            raise PreventUpdate
        nothing = nothing_to_show(store, run, rows)
        return (
            columns_of(rows),
            rows,
            parts.table_height(rows, [max(-(-len(row["verdict"]) // _VERDICT_LINE), 1) for row in rows]),
            parts.visible(not nothing),
            [] if run is None or nothing else in_words(run, rows, together, view.theme),
            warning_of(run),
            nothing,
            parts.visible(nothing),
            missing == 0,
            progress,
        )


def nothing_to_show(store: RunStore, run: Run | None, rows: list[Any]) -> str:
    """Instructions if there is no inventory; empty if there is one."""
    if run is None:
        return parts.no_run(store.so_far())
    if run.syncs is None:
        return f"{plain(run.name, 90)} has no CUDA calls inside its token steps."
    return "" if rows else f"The steps of {plain(run.name, 90)} have no host sync: class {run.syncs.strategy}."


def warning_of(run: Run | None) -> str:
    """A note on the recorded times."""
    if run is None:
        return ""
    given = f"{run.rate_note}. ".capitalize() if run.rate_note else ""
    if run.gaps is None or run.gaps.warning is None:
        return given.strip()
    overhead = f" ({factor})" if (factor := tracing(run)) else ""
    start = "start from the corrected times" if run.gaps.distortion is not None else "need the engine's own rate"
    return f"{given}Times inside calls are as recorded{overhead}: {run.gaps.warning}. Predictions {start}."


def rows_of(store: RunStore, run: Run, theme: str) -> list[dict[str, Any]]:
    """One row per position, with what is known so far; the rest is requested.

    Columns key, what (of `WAITS`) and position, name, stream, thread, path (NVTX ranges around it, of one step),
    waits_for, steps (that have it), waiting_share (0..1), median_us, max_us, on_path_us, slack_us, gain, low and high
    (of the tokens/s, share), gap_us (change of the median gap), gain_text and gap_text (the same in words),
    verdict, pending, site (where in the program it was called, "" if unknown), and show and try (links).
    """
    if run.syncs is None:
        return []
    slack = known(slack_of(store, run))
    by_position: dict[Any, Any] = {}
    if isinstance(slack, pd.DataFrame):
        by_position = slack.set_index("position").to_dict("index")
    rows = []
    for listed in inventory_of(store, run):
        at = known(site_of(store, run, listed.call))
        show = f"[token {listed.step}]({_timeline_link(run, listed, theme)})"
        position, is_sync = listed.row["position"], listed.row["what"] == WAITS[SYNC]
        own = by_position.get(position) if is_sync else None
        gain: Prediction | str | None = ""
        if is_sync:
            gain = known(gain_without(store, run, (position,)))
        rows.append(
            listed.row
            | _slack(own)
            | _gain(gain)
            | {
                "site": _PENDING if at is None else brief_site(at[0], 200) if isinstance(at, tuple) else "",
                "verdict": _verdict(slack, own, gain) if is_sync else "",
                "pending": at is None or (is_sync and (slack is None or gain is None)),
                "show": show,
                "try": f"[what if]({what_if_of(run, theme, ADDRESS, without=(str(position),))})" if is_sync else "",
            }
        )
    return rows


def _slack(row: dict[str, Any] | None) -> dict[str, float | None]:
    return {key: row[key] if row else None for key in ("on_path_us", "slack_us")}


def _gain(gain: Prediction | str | None) -> dict[str, float | str | None]:
    if not isinstance(gain, Prediction) or gain.of_engine is None:
        return dict.fromkeys(("gain", "low", "high", "gap_us", "gain_text", "margin", "gap_text"))
    more, bounds = gain.of_engine.estimate - 1, gain.of_engine.bounds
    low, high = (None, None) if bounds is None else (bound - 1 for bound in bounds)
    margin = "" if low is None or high is None else f"[{percent(low, 2)}, {percent(high, 2)}]"
    after, before = (figures.gap_us.get("p50") for figures in (gain.predicted, gain.before))
    gap_us = None if after is None or before is None else after - before
    return {
        "gain": more, "low": low, "high": high, "gap_us": gap_us, "gain_text": percent(more, 2), "margin": margin,
        "gap_text": None if gap_us is None else signed(gap_us, 2),
    }  # fmt: skip


def _verdict(slack: pd.DataFrame | str | None, row: dict[str, Any] | None, gain: Prediction | str | None) -> str:
    """The verdict on a sync in a few words."""
    if isinstance(gain, str):
        return plain(gain, 300)
    if row and row["verdict"]:
        return str(row["verdict"])
    if gain is None or slack is None:
        return _PENDING
    if gain.of_engine is None:
        return "not needed; enter the engine's own rate to predict the gain"
    sure = gain.of_engine.bounds is not None and gain.of_engine.bounds[0] > 1
    return "not needed: can be removed" if sure else "not needed; the gain may be zero"


def _timeline_link(run: Run, listed: Listed, theme: str) -> str:
    """The overview at a sync of a step, zoomed to it, which is selected."""
    assert run.tokens is not None
    token = run.tokens.clamp(int(run.tokens.step.searchsorted(listed.step)))
    begin, end, process, thread = (int(listed.call[name].iloc[0]) for name in ("start", "end", "process", "thread"))
    low, high = (time - run.tokens.anchor(token, "end") for time in (begin, end))
    margin = max(2 * (high - low), 5_000)
    rows = [i for i, r in enumerate(run.rows) if (r.role, r.process, r.thread) == ("api", process, thread)]
    event = Spot(run.key, rows[0], int(run.rows[rows[0]].start.searchsorted(begin))) if rows else None
    view = View((run.key,), token, range=span(low - margin, high + margin), theme=theme, event=event, rates=run.rates)
    return link("", ADDRESS) + view.query()


def in_words(run: Run, rows: list[dict[str, Any]], together: Prediction | str | None, theme: str) -> list[Any]:
    """The number of syncs per token, and the predicted gain without all unneeded ones."""
    assert run.syncs is not None
    beside = sum(row["verdict"].startswith("costs nothing") for row in rows)
    count = run.syncs.syncs_per_token
    syncs = f"{count:g} sync{'' if count == 1 else 's'} a token"
    summary = f"{syncs} (class {run.syncs.strategy}, {plain(run.syncs.signature, 80)})"
    summary += f"; {beside} of them cost nothing. " if beside else ". "
    summary += dearest(rows)
    if together is None:
        return [summary, "Predicting the gain without each …"]
    if isinstance(together, str):
        return [summary, plain(together, 300)]
    target = what_if_of(run, theme, ADDRESS, without=(ALL,))
    return [
        summary,
        html.A("Without all syncs that the data flow does not need", href=target),
        f": {_gained(together)}",
    ]


def dearest(rows: list[dict[str, Any]]) -> str:
    """The sync whose removal gains most, in a sentence; nothing while gains are being computed, or if there is none."""
    gains = [row for row in rows if row["gain"] is not None and row["gain"] > 0]
    if not gains or any(row["pending"] for row in rows):
        return ""
    row = max(gains, key=lambda row: row["gain"])
    doubt = "" if row["low"] is not None and row["low"] > 0 else ", and may be none"
    margin = f" {row['margin']}" if row["margin"] else ""
    return (
        f"Most expensive: sync {row['position']}, {plain(row['name'], 60)}: {row['gain_text']} tokens/s without it"
        f"{margin}, predicted{doubt}. "
    )


def _gained(prediction: Prediction) -> str:
    if prediction.of_engine is None:
        return "the gain is unknown: enter the engine's own rate."
    bounds = prediction.of_engine.bounds
    margin = f" [model margin {percent(bounds[0] - 1, 2)}, {percent(bounds[1] - 1, 2)}]" if bounds else ""
    idle = [one.idle_us["p50"] for one in (prediction.before, prediction.predicted) if one.idle_us]
    change = f", idle a step {duration(idle[0] * 1e3)} → {duration(idle[1] * 1e3)}" if len(idle) == 2 else ""
    return f"{percent(prediction.of_engine.estimate - 1, 2)} tokens/s{margin}{change}, predicted."


PAGE = Page(ADDRESS, "Syncs", "the syncs of a token, and those that can be removed", sections, register, place=2)
