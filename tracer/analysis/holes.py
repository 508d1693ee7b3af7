"""Holes in the periods of the steps: times in which a device computes nothing for a host, and the part that is idle.

A step's period lasts from its first compute to that of the following step. Collectives, and compute of others on the
device, are subtracted from the holes; the remaining pieces are idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.step_work import of_steps, step_spans
from tracer.analysis.tokens import Steps
from tracer.model.calls import GRAPH_LAUNCH, letters_of
from tracer.model.collectives import collectives
from tracer.model.intervals import Ints, covered, uncovered
from tracer.model.rows import grouped, groups_of, match_rows, positions, ranks_of, runs_of, taken
from tracer.model.trace import Trace

PLACES: Final = {
    "between_steps": "between steps (the gap)",
    "before_graph": "before the graph",
    "between_kernels": "between kernels",
    "after_graph": "after the graph",
}
"""The places in a step's period where its device can idle."""

PERIOD: Final = ["device", "step"]
GRAPHS: Final = ["graph_kernels", "graph_busy", "graph_union"]

_BEHIND: Final = ["process", "correlation", "at", "next"]
_HOLES: Final = ["step", "device", "start", "end", "idle", "communication", "others", "place", *_BEHIND]
_PIECES: Final = ["start", "end", "hole"]
_TIMES: Final = ["start", "end", "device", "process"]
_NONE: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Holes:
    """The holes of a trace.

    Attributes:
        table: one row per hole, ns: step device start end idle communication others place (one of `PLACES`), and for
            the compute after it: process correlation at (position of its step) next (its name).
        pieces: the idle parts of the holes: start end (ns) and hole (position in `table`), in the order of `table`.
        periods: one row per device and step that is followed by another: device step begin until, ns, and `GRAPHS`: for
            CUDA graphs whose nodes were traced, the number of kernels, the sum of their durations and their union, ns.
    """

    table: pd.DataFrame
    pieces: pd.DataFrame
    periods: pd.DataFrame


def holes_of(trace: Trace, steps: Steps, gaps: pd.DataFrame, every: pd.DataFrame) -> Holes:
    """Find all holes in the periods of the steps.

    Args:
        trace: the recording.
        steps: its steps.
        gaps: their `gaps.GapReport.table`.
        every: their `all_compute`.
    """
    compute, hosts = of_steps(every), ranks_of(steps.table, ["process", "thread"])
    compute = compute.assign(host=hosts[compute["at"]])
    periods = _periods(step_spans(trace, steps, compute), steps, hosts, gaps)
    if not len(periods):
        table, pieces = (pd.DataFrame(columns=columns, dtype=np.int64) for columns in (_HOLES, _PIECES))
        return Holes(table, pieces, periods.assign(**dict.fromkeys(GRAPHS, 0)))
    graphs = _graphs(trace, compute)
    of_period = positions(periods, graphs, ["device", "at"])
    missing = {"first": -_NONE, "last": _NONE, **dict.fromkeys(GRAPHS, 0)}
    periods = periods.assign(**{name: np.append(graphs[name], none)[of_period] for name, none in missing.items()})
    holes = _in_periods(_holes(compute), periods)
    holes["place"] = _places(holes)
    communication = taken(trace["kernels"], collectives(trace["kernels"]), _TIMES)
    rest = taken(every, (every["at"] < 0).to_numpy(), _TIMES)
    holes["communication"], holes["others"], pieces = _not_idle(communication, rest, compute, holes)
    holes["idle"] = holes["end"] - holes["start"] - holes["communication"] - holes["others"]
    return Holes(holes[_HOLES], pieces, periods)


def _periods(spans: pd.DataFrame, steps: Steps, hosts: Ints, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per device and step that is followed by another, sorted by device, host and begin: device step at host
    begin until over (the end of the step's own compute), ns.
    """
    spans = spans.iloc[runs_of(spans, ["device", "group", "step"])[0]]
    chain, _ = groups_of(spans, ["device", "group"])
    begin, at = spans["start"].to_numpy(), positions(spans, steps.table, ["step"])
    until = np.append(np.where(chain[1:] == chain[:-1], begin[1:], begin[:-1]), begin[-1:])  # without a next: nothing
    followed = (until > begin) & (positions(spans, gaps, PERIOD) >= 0)
    found = {"at": at, "host": hosts[at], "begin": begin, "over": spans["end"].to_numpy(), "until": until}
    rows = spans[PERIOD].assign(**found)[followed]
    return rows.iloc[runs_of(rows, ["device", "host", "begin"])[0]].reset_index(drop=True)


def _holes(compute: pd.DataFrame) -> pd.DataFrame:
    """The times between two computes of a host on a device: start end device host, and `_BEHIND` of the second one."""
    start, reach = compute["start"].to_numpy(), _reach(compute)
    behind = np.flatnonzero((start > reach) & (reach != -_NONE))
    second = {name: compute[name].array[behind] for name in ("device", "host", "process", "correlation", "at")}
    return pd.DataFrame({"start": reach[behind], "end": start[behind], **second, "next": compute["name"].array[behind]})


def _reach(compute: pd.DataFrame) -> Ints:
    """The latest end of what a host computed on a device before each compute, ns; -`_NONE` for the first."""
    reach = np.full(len(compute), -_NONE)
    of, count = groups_of(compute, ["device", "host"])
    for rows in (np.flatnonzero(of == number) for number in range(count)):
        reach[rows[1:]] = np.maximum.accumulate(compute["end"].to_numpy()[rows])[:-1]
    return reach


def _in_periods(holes: pd.DataFrame, periods: pd.DataFrame) -> pd.DataFrame:
    """The holes inside a period, with its step, over, first and last."""
    kept, at = [], []
    places = dict(grouped(holes, ["device", "host"]))
    for key, rows in grouped(periods, ["device", "host"]):
        positions = places.get(key, np.zeros(0, np.int64))
        start = holes["start"].to_numpy()[positions]
        period = np.searchsorted(periods["begin"].to_numpy()[rows], start, side="right") - 1
        inside = (period >= 0) & (start < periods["until"].to_numpy()[rows[period]])
        kept.append(positions[inside])
        at.append(rows[period[inside]])
    chosen, of = np.concatenate(kept), np.concatenate(at)
    found = holes.iloc[chosen].reset_index(drop=True)
    return found.assign(**{name: periods[name].to_numpy()[of] for name in ("step", "over", "first", "last")})


def _graphs(trace: Trace, compute: pd.DataFrame) -> pd.DataFrame:
    """The CUDA graphs of each step on each device: device at, first start and last end (ns), and `GRAPHS`."""
    api = trace["api"]
    launching = taken(api, letters_of(api["name"]) == GRAPH_LAUNCH, ["process", "correlation"])
    of_graph = (compute["table"] == "graph_launches").to_numpy() | (match_rows(launching, compute) >= 0)
    rows = taken(compute, of_graph, ["start", "end", "device", "host", "at"])
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    nodes = (compute["table"] == "kernels").to_numpy()[of_graph]
    busy = np.where(nodes, end - start, 0)
    union = np.minimum(np.maximum(end - np.maximum(start, _reach(rows)), 0), busy)
    order, first = runs_of(rows, ["device", "at"])
    values = {"graph_kernels": nodes.astype(np.int64), "graph_busy": busy, "graph_union": union}
    found = {name: np.add.reduceat(column[order], first) for name, column in values.items()} if len(first) else values
    found["last"] = np.maximum.reduceat(end[order], first) if len(first) else end
    found |= {name: rows[name].to_numpy()[order[first]] for name in ("device", "at")}
    return pd.DataFrame({"first": start[order[first]], **found})


def _places(holes: pd.DataFrame) -> pd.Series:
    """The place of each hole in its period."""
    start, end = holes["start"].to_numpy(), holes["end"].to_numpy()
    conditions = [
        start >= holes["over"].to_numpy(),
        end <= holes["first"].to_numpy(),
        start >= holes["last"].to_numpy(),
    ]
    names = list(PLACES)
    chosen = [names.index(name) for name in ("between_steps", "before_graph", "after_graph")]
    codes = np.select(conditions, chosen, names.index("between_kernels"))
    return pd.Series(pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(names)), holes.index)


def _not_idle(
    communication: pd.DataFrame, rest: pd.DataFrame, compute: pd.DataFrame, holes: pd.DataFrame
) -> tuple[Ints, Ints, pd.DataFrame]:
    """The communication of its own process and the compute of others on the device in each hole, ns; and
    `Holes.pieces`, the rest.

    Args:
        communication: all collectives.
        rest: compute that belongs to no step.
        compute: the steps' compute, with `host`.
        holes: from `_in_periods`.
    """
    within, both = np.zeros(len(holes), np.int64), np.zeros(len(holes), np.int64)
    several = (compute["host"] != compute["host"].iloc[0]).any()
    idle = [(within[:0], within[:0], within[:0])]
    for (device, process, host), rows in grouped(holes, ["device", "process", "host"]):
        start, end = holes["start"].to_numpy()[rows], holes["end"].to_numpy()[rows]
        of_process = _on(device, communication, communication["process"] == process)
        removed = [of_process, _on(device, rest)]
        if several:
            removed.append(_on(device, compute, compute["host"] != host))
        starts, ends = (np.concatenate(side) for side in zip(*removed, strict=True))
        within[rows], both[rows] = covered(*of_process, start, end), covered(starts, ends, start, end)
        begin, until, of = uncovered(starts, ends, start, end)
        idle.append((begin, until, rows[of]))
    pieces = pd.DataFrame(dict(zip(_PIECES, (np.concatenate(each) for each in zip(*idle, strict=True)), strict=True)))
    return within, both - within, pieces.sort_values("hole", kind="stable", ignore_index=True)


def _on(device: int, frame: pd.DataFrame, chosen: pd.Series | bool = True) -> tuple[Ints, Ints]:
    """The start and end of the chosen rows on a device, ns."""
    rows = ((frame["device"] == device) & chosen).to_numpy()
    return frame["start"].to_numpy()[rows], frame["end"].to_numpy()[rows]
