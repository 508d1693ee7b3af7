"""The inventory of a run's syncs: one row per position in a step, filled as answers arrive."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from dashboard.pages.frame import link
from dashboard.pages.whatif.view import what_if_of
from dashboard.reading.background import known
from dashboard.reading.predictions import Listed, gain_without, inventory_of, site_of, slack_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import brief_site, plain
from dashboard.view import Spot, View, span
from tracer.analysis.calls import SYNC
from tracer.analysis.syncs import WAITS
from tracer.analysis.whatif.prediction import Prediction
from tracer.text import percent, signed

ADDRESS: Final = "syncs/"
_PENDING: Final = "…"


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
        site = {"site": _PENDING if at is None else brief_site(at[0], 200) if isinstance(at, tuple) else ""}
        if listed.row["what"] != WAITS[SYNC]:
            nothing = {"verdict": "", "pending": at is None, "try": ""} | site
            show = f"[token {listed.step}]({timeline_link(run, listed, theme)})"
            rows.append(listed.row | _slack(None) | _gain("") | nothing | {"show": show})
            continue
        position = listed.row["position"]
        gain = known(gain_without(store, run, (position,)))
        rows.append(
            listed.row
            | _slack(by_position.get(position))
            | _gain(gain)
            | site
            | {
                "verdict": _verdict(slack, by_position.get(position), gain),
                "pending": slack is None or gain is None or at is None,
                "show": f"[token {listed.step}]({timeline_link(run, listed, theme)})",
                "try": f"[what if]({what_if_of(run, theme, ADDRESS, without=(str(position),))})",
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


def timeline_link(run: Run, listed: Listed, theme: str) -> str:
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
