"""What is behind an event: its place in the program, its slack and, for a sync, its row on the syncs page and the
predicted gain without it.

Slack and gain take seconds, so the page asks again until they are ready. For long recordings only the syncs page
computes them.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

import pandas as pd
from dash import html

from dashboard.pages.frame import link
from dashboard.pages.whatif.view import what_if_of
from dashboard.reading.predictions import activities_of, calls_of, gain_without, site_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import brief_site, plain
from dashboard.timeline.operators import launch_of, open_ranges, operator_in, own_ranges
from dashboard.timeline.rows import Row
from dashboard.units import duration
from dashboard.view import Spot, View
from tracer.analysis.calls import SYNC
from tracer.analysis.causality.dag import NEVER
from tracer.analysis.whatif.prediction import Prediction
from tracer.errors import IntertokenError, printable
from tracer.model.trace import Trace
from tracer.text import percent

_MOST_EVENTS: Final = 500_000  # in recordings whose paths are found within seconds
_WAITED: Final = "Computing the {} …"


def costs_of(store: RunStore, view: View, run: Run, spot: Spot) -> tuple[list[Any], bool]:
    """An event's call site, slack, row and gain in words, and whether results are pending."""
    if run.trace is None:
        return [], False
    row = run.rows[spot.row]
    site, awaits = _site(store, run, row, spot.event)
    made = [html.Li(line) for line in made_at(run.trace, row, spot.event)] + site
    costs, pending = _costs(store, view, run, row, spot.event) if run.syncs is not None else ([], False)
    return [*([html.Ul(made)] if made else []), *costs], awaits or pending


def made_at(trace: Trace, row: Row, event: int) -> list[str]:
    """NVTX ranges and operator of an event's call, or those around a range; only those that are recorded."""
    if row.role == "nvtx":
        start, end = int(row.start[event]), int(row.end[event])
        around = open_ranges(trace, row.process, row.thread, start)
        return _path(around[around["end"] > end])
    call = launch_of(trace, row, event)
    if call is None:
        return []
    ranges = open_ranges(trace, int(call["process"]), int(call["thread"]), int(call["start"]))
    operator = operator_in(ranges)
    return _path(ranges) + ([f"operator: {plain(operator, 120)}"] if operator else [])


def _path(ranges: pd.DataFrame) -> list[str]:
    path = own_ranges(ranges)
    return [f"NVTX: {plain(' › '.join(path), 300)}"] if path else []


def _site(store: RunStore, run: Run, row: Row, event: int) -> tuple[list[html.Li], bool]:
    """The call site of an event's call, and whether it is still being looked up."""
    call = None if run.trace is None else launch_of(run.trace, row, event)
    if run.trace is None or call is None:
        return [], False
    answer = site_of(store, run, run.trace["api"].loc[[call.name]])
    if not answer.done():
        return [], True
    if answer.exception() is not None or not answer.result()[0]:
        return [], False
    site, way = answer.result()
    said = [f"call site: {brief_site(site, 200)}", *([f"through {brief_site(way)}"] if way else [])]
    return [html.Li(", ".join(said), title=plain(site, 300))], False


def _costs(store: RunStore, view: View, run: Run, row: Row, event: int) -> tuple[list[Any], bool]:
    assert run.syncs is not None
    assert run.trace is not None
    if row.role == "stream":
        long = len(run.trace) > _MOST_EVENTS
        said_of, more = ("", False) if long else _slack(activities_of(store, run), _activity(row, event))
        return ([html.P(said_of)] if said_of else []), more
    calls = run.syncs.calls
    place = _place(calls, _call(row, event)) if row.role == "api" else None
    if place is None:
        return [], False
    of_run = View(runs=(run.key,), theme=view.theme, rates=run.rates).query()
    said: list[Any] = []
    sync = None
    if place["letter"] == SYNC:
        same = calls[(calls["step"] == place["step"]) & (calls["letter"] == SYNC)].sort_values("start", kind="stable")
        sync = int((same["start"] <= place["start"]).sum())
        said = [html.A(f"Row {sync} of the syncs", href=link("syncs/", "") + of_run, className="to-sync"), " · "]
        try_it = what_if_of(run, view.theme, "", without=(str(sync),))
        said += [html.A("Predict the run without it", href=try_it, className="to-what-if")]
    if len(run.trace) > _MOST_EVENTS:
        return ([html.P([*said, " (slack and gain)"])] if said else []), False
    slack, pending = _slack(calls_of(store, run), _call(row, event))
    gain, more = _gain(store, run, sync) if sync is not None else ("", False)
    parts = [part for part in (slack, gain) if part]
    return [html.P([*said, *([" · "] if said and parts else []), " · ".join(parts)])], pending or more


def _call(row: Row, event: int) -> dict[str, int]:
    return {"start": int(row.start[event]), "process": row.process, "thread": row.thread}


def _activity(row: Row, event: int) -> dict[str, int]:
    number = int(row.events["correlation"].iloc[event])
    of_row = {"process": row.process, "device": row.device, "stream": row.stream}
    return of_row | {"start": int(row.start[event]), "end": int(row.end[event]), "correlation": number}


def _place(table: pd.DataFrame, wanted: dict[str, int]) -> pd.Series | None:
    """The first row with these values."""
    mine = table[table["start"] == wanted["start"]]
    for column, value in wanted.items():
        mine = mine[mine[column] == value]
    return None if mine.empty else mine.iloc[0]


def _slack(answer: Future[pd.DataFrame], wanted: dict[str, int]) -> tuple[str, bool]:
    """How much later a call or an activity could end, and whether that is still being computed."""
    if not answer.done():
        return _WAITED.format("slack"), True
    if (problem := answer.exception()) is not None:
        return _why(problem), False
    found = _place(answer.result(), wanted)
    if found is None:
        return "", False
    slack, on_path = int(found["slack_ns"]), int(found["on_path_ns"])
    later = "nothing waits for it" if slack >= NEVER // 2 else f"slack {duration(slack)}"
    return f"{later}, {duration(on_path)} of the critical path", False


def _gain(store: RunStore, run: Run, position: int) -> tuple[str, bool]:
    """The gain per token without the sync at this position of every step, and whether it is still being computed."""
    answer = gain_without(store, run, (position,))
    if not answer.done():
        return _WAITED.format("gain"), True
    if (problem := answer.exception()) is not None:
        return _why(problem), False
    found: Prediction = answer.result()
    if found.of_engine is None:
        return "the gain without it is unknown: enter the engine's own rate", False
    bounds = found.of_engine.bounds
    margin = f" [{percent(bounds[0] - 1, 2)}, {percent(bounds[1] - 1, 2)}]" if bounds else ""
    return f"without it {percent(found.of_engine.estimate - 1, 2)} tokens/s{margin}, predicted", False


def _why(problem: BaseException) -> str:
    return plain(printable(str(problem)), 300) if isinstance(problem, IntertokenError) else "cannot be computed"
