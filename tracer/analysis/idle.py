"""Idle time of a step on a device: the time in its period in which nothing computes there.

The period of a step lasts from its first compute to that of the step behind it. Its holes are the gap to that step and
the bubbles inside it. Collectives, and what others compute on the device meanwhile, are neither compute of the step nor
idle: they are taken out of the holes. So period = busy + communication + others + idle, exactly, and idle is the sum of
its four places:

- between steps: the gap;
- before the graph: holes that end before the step's first CUDA graph begins on the device;
- after the graph: holes that begin behind the end of its last one;
- between kernels: the others, in graphs whose nodes were traced and in steps without a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import GRAPH_LAUNCH, letters_of, match_rows
from tracer.analysis.distortion import stretch_ns
from tracer.analysis.step_work import activity_steps, step_spans
from tracer.analysis.tokens import Steps
from tracer.intervals import covered
from tracer.trace import Trace

PLACES: Final = {
    "between_steps": "between steps (the gap)",
    "before_graph": "before the graph",
    "between_kernels": "between kernels",
    "after_graph": "after the graph",
}
"""Where in its period a step's device idles."""

_PERIOD: Final = ["device", "step"]
_BEHIND: Final = ["process", "next"]
_HOLES: Final = ["step", "device", "start", "end", "idle", "communication", "others", "place", "next"]
_GRAPHS: Final = ["graph_kernels", "graph_busy"]
_STEPS: Final = [*_PERIOD, "period", "busy", "communication", "others", "idle", *PLACES, *_GRAPHS]
_MOST_HOLES: Final = 200  # kinds of holes that are kept
_NONE: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class IdleReport:
    """The idle time of a trace.

    Attributes:
        steps: one row per device and step that another one follows, ns: device step period busy communication others
            idle, the idle time in each of `PLACES`, and of CUDA graphs whose nodes were traced graph_kernels (how many)
            and graph_busy (their durations' sum).
        holes: by place and by what computes behind them, the largest idle time first: place next (a name) count
            idle_us (both a step).
    """

    steps: pd.DataFrame
    holes: pd.DataFrame

    @property
    def idle_us(self) -> dict[str, float]:
        """p50, p90 and mean of a step, and the mean of each of `PLACES`, which add up to the mean, µs; nothing where no
        step has a period."""
        if not len(self.steps):
            return {}
        us = self.steps["idle"].to_numpy() / 1e3
        figures = {"p50": np.median(us), "p90": np.percentile(us, 90), "mean": us.mean()}
        return {name: float(value) for name, value in figures.items()} | {
            place: float(self.steps[place].mean() / 1e3) for place in PLACES
        }

    @property
    def busy_us(self) -> float | None:
        """How long the device computes for a step, the union of all that it runs for it: median, µs."""
        return float(self.steps["busy"].median() / 1e3) if len(self.steps) else None

    @property
    def share(self) -> float:
        """Idle time as a share of all periods."""
        return float(self.steps["idle"].sum() / max(self.steps["period"].sum(), 1))

    def untraced_ns(self, steps_per_s: float, sign: int = 0) -> NDArray[np.int64]:
        """What each step idles at a rate that was measured without a profiler: 1 / rate - busy, ns; 0 or less where the
        device is busy for longer.

        Tracing whole graphs leaves the device's own work as long as it is; tracing their nodes stretches the graphs
        (`distortion.stretch_ns`), between their kernels first, and what is more than the time there is not work.
        Communication, and what others compute, stay as recorded.

        Args:
            steps_per_s: the rate.
            sign: -1 and 1 for the least and the most that nodes' tracing may have added.
        """
        ours = self.steps[["busy", "communication", "others"]].sum(axis=1).to_numpy()
        beyond = np.maximum(self._stretch(sign) - self.steps["between_kernels"].to_numpy(), 0)
        beyond = np.minimum(beyond, self.steps["busy"].to_numpy())
        return np.asarray(round(1e9 / steps_per_s) - ours + beyond, dtype=np.int64)

    def _stretch(self, sign: int) -> NDArray[np.int64]:
        """What node-level tracing added to the CUDA graphs of each step, ns."""
        return stretch_ns(self.steps["graph_kernels"].to_numpy(), self.steps["graph_busy"].to_numpy(), sign)

    def untraced_us(self, steps_per_s: float) -> dict[str, float]:
        """p50 and mean of `untraced_ns`, µs."""
        us = np.maximum(self.untraced_ns(steps_per_s), 0) / 1e3
        return {"p50": float(np.median(us)), "mean": float(us.mean())}

    def untraced_gaps(self, gaps: pd.DataFrame, steps_per_s: float, sign: int = 0) -> NDArray[np.int64]:
        """The gaps at that rate, ns, in the order of `gaps` (`gaps.GapReport.table`).

        Their idle part has the recorded share of the idle time, all of it where a step idles nowhere else; of graphs
        whose nodes were traced, the share of what idles outside, since inside tracing adds what is known.
        Communication in them, and what others compute, stay as recorded.
        """
        idle, between, inside = (self.steps[name].to_numpy() for name in ("idle", "between_steps", "between_kernels"))
        apart = np.where(self.steps["graph_kernels"] > 0, inside, 0)
        outside = idle - apart
        left = np.maximum(self.untraced_ns(steps_per_s, sign), 0)
        left = np.maximum(left - np.maximum(apart - self._stretch(sign), 0), 0)
        kept = np.where(outside == between, left, np.round(left * (between / np.maximum(outside, 1))))
        index = pd.MultiIndex.from_frame(self.steps[_PERIOD])
        at = index.get_indexer(pd.MultiIndex.from_frame(gaps[_PERIOD]))
        change = np.append(kept - between, 0)[at]  # none where a step has no period
        return np.asarray(gaps["gap"].to_numpy() + change, dtype=np.int64)


def idle_report(trace: Trace, steps: Steps, gaps: pd.DataFrame) -> IdleReport:
    """Find the idle time in the periods of the steps; nothing where they begin to compute all at once.

    Args:
        trace: the recording.
        steps: its steps.
        gaps: `gaps.GapReport.table` of them.
    """
    holes, periods = holes_of(trace, steps, gaps)
    per_step = _per_step(periods, holes)
    return IdleReport(per_step, _by_next(holes, max(len(per_step), 1)))


def holes_of(trace: Trace, steps: Steps, gaps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All holes in the periods of the steps, and the periods.

    Args:
        trace, steps, gaps: as of `idle_report`.

    Returns:
        One row per hole, ns: step device start end idle (without communication and others' compute) communication
        others place (of `PLACES`), and next, the name of what computes behind it; and one row per device and step that
        another one follows: device step begin until, ns.
    """
    every = trace.compute()
    at = activity_steps(trace, steps, every)
    compute = every.assign(at=at)[at >= 0].reset_index(drop=True)
    compute["host"] = _hosts(steps)[compute["at"]]
    periods = _periods(step_spans(trace, steps, compute), steps, gaps)
    if not len(periods):
        return pd.DataFrame(columns=_HOLES, dtype=np.int64), periods.assign(**dict.fromkeys(_GRAPHS, 0))
    periods = periods.merge(_graphs(trace, compute), on=["device", "at"], how="left")
    missing = {"first": -_NONE, "last": _NONE, **dict.fromkeys(_GRAPHS, 0)}
    periods = periods.fillna(missing).astype(dict.fromkeys(missing, "int64"))
    holes = _in_periods(_holes(compute), periods)
    holes["place"] = _places(holes)
    holes["communication"], holes["others"] = _not_idle(trace.communication(), every[at < 0], compute, holes)
    holes["idle"] = holes["end"] - holes["start"] - holes["communication"] - holes["others"]
    return holes[_HOLES], periods


def _by_next(holes: pd.DataFrame, steps: int) -> pd.DataFrame:
    """See `IdleReport.holes`."""
    groups = holes[holes["idle"] > 0].groupby(["place", "next"], observed=True)["idle"]
    found = groups.agg(["size", "sum"]).reset_index()
    table = pd.DataFrame({
        "place": found["place"].astype(str), "next": found["next"].astype(str), "count": found["size"] / steps,
        "idle_us": found["sum"] / steps / 1e3,
    })  # fmt: skip
    return table.sort_values("idle_us", ascending=False, kind="stable", ignore_index=True).head(_MOST_HOLES)


def _periods(spans: pd.DataFrame, steps: Steps, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per device and step that another one follows, by device, host and begin: device step at host begin until
    over (when the step's own compute has ended), ns."""
    spans = spans.sort_values(["device", "group", "step"], kind="stable")
    following = spans.groupby(["device", "group"])["start"].shift(-1, fill_value=_NONE)
    rows = spans.rename(columns={"start": "begin", "end": "over"}).assign(until=following)
    rows["at"] = rows["step"].map(pd.Series(np.arange(len(steps)), steps.table["step"])).astype("int64")
    rows["host"] = _hosts(steps)[rows["at"]]
    rows = rows.merge(gaps[_PERIOD], on=_PERIOD)
    rows = rows[(rows["until"] != _NONE) & (rows["until"] > rows["begin"])]
    kept = [*_PERIOD, "at", "host", "begin", "over", "until"]
    return rows[kept].sort_values(["device", "host", "begin"], kind="stable", ignore_index=True)


def _hosts(steps: Steps) -> NDArray[np.int64]:
    """A number per step for the host whose it is."""
    return np.asarray(steps.table.groupby(["process", "thread"]).ngroup(), dtype=np.int64)


def _holes(compute: pd.DataFrame) -> pd.DataFrame:
    """Where a host computes nothing on a device between two of its computes: start end device host, and of what is
    behind it: process next (its name)."""
    rows = compute.rename(columns={"name": "next"})
    rows = rows.sort_values(["device", "host", "start"], kind="stable", ignore_index=True)
    reach = rows.groupby(["device", "host"])["end"].cummax().groupby([rows["device"], rows["host"]])
    rows["reach"] = reach.shift(fill_value=-_NONE)
    found = rows[(rows["start"] > rows["reach"]) & (rows["reach"] != -_NONE)]
    return pd.DataFrame({
        "start": found["reach"], "end": found["start"], **{name: found[name] for name in ("device", "host", *_BEHIND)},
    })  # fmt: skip


def _in_periods(holes: pd.DataFrame, periods: pd.DataFrame) -> pd.DataFrame:
    """The holes inside a period, with its step, over, first and last."""
    kept, at = [], []
    places = holes.groupby(["device", "host"], sort=False).indices
    for key, rows in periods.groupby(["device", "host"], sort=False).indices.items():
        mine = np.asarray(places.get(key, np.zeros(0, np.int64)))
        start = holes["start"].to_numpy()[mine]
        period = np.searchsorted(periods["begin"].to_numpy()[rows], start, side="right") - 1
        inside = (period >= 0) & (start < periods["until"].to_numpy()[rows[period]])
        kept.append(mine[inside])
        at.append(rows[period[inside]])
    chosen, of = np.concatenate(kept), np.concatenate(at)
    found = holes.iloc[chosen].reset_index(drop=True)
    return found.assign(**{name: periods[name].to_numpy()[of] for name in ("step", "over", "first", "last")})


def _graphs(trace: Trace, compute: pd.DataFrame) -> pd.DataFrame:
    """Of the CUDA graphs of each step on each device: device at, first begin and last end, and of those whose nodes
    were traced how many kernels and their durations' sum (ns)."""
    api = trace["api"]
    launching = api[letters_of(api["name"]) == GRAPH_LAUNCH]
    of_graph = (compute["table"] == "graph_launches").to_numpy() | (match_rows(launching, compute) >= 0)
    nodes = (compute["table"] == "kernels").to_numpy()
    rows = compute.assign(graph_kernels=nodes, graph_busy=np.where(nodes, compute["end"] - compute["start"], 0))
    found = rows[of_graph].groupby(["device", "at"]).agg(
        first=("start", "min"), last=("end", "max"), graph_kernels=("graph_kernels", "sum"),
        graph_busy=("graph_busy", "sum"),
    )  # fmt: skip
    return found.astype("Int64").reset_index()  # so that joins keep every ns


def _places(holes: pd.DataFrame) -> pd.Series:
    """For each hole its place in the period."""
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
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How much of each hole is communication of its process, and how much else others compute on the device, ns.

    Args:
        communication: all collectives.
        rest: compute that is no step's.
        compute: that of the steps, with `host`.
        holes: to be filled.
    """
    within, both = np.zeros(len(holes), np.int64), np.zeros(len(holes), np.int64)
    several = len(compute["host"].unique()) > 1
    for key, rows in holes.groupby(["device", "process", "host"], sort=False).indices.items():
        device, process, host = cast("tuple[int, int, int]", key)
        start, end = holes["start"].to_numpy()[rows], holes["end"].to_numpy()[rows]
        mine = communication[(communication["device"] == device) & (communication["process"] == process)]
        theirs = [mine, rest[rest["device"] == device]]
        if several:
            theirs.append(compute[(compute["device"] == device) & (compute["host"] != host)])
        within[rows] = covered(mine["start"], mine["end"], start, end)
        starts, ends = (np.concatenate([frame[side].to_numpy() for frame in theirs]) for side in ("start", "end"))
        both[rows] = covered(starts, ends, start, end)
    return within, both - within


def _per_step(periods: pd.DataFrame, holes: pd.DataFrame) -> pd.DataFrame:
    index = pd.MultiIndex.from_frame(periods[_PERIOD])
    sums = holes.groupby(_PERIOD)[["idle", "communication", "others"]].sum().reindex(index, fill_value=0)
    places = holes.pivot_table(
        index=_PERIOD, columns="place", values="idle", aggfunc="sum", fill_value=0, observed=True
    )
    places = places.reindex(index, fill_value=0).reindex(columns=list(PLACES), fill_value=0)
    period = (periods["until"] - periods["begin"]).to_numpy()
    found = pd.concat([sums, places], axis=1).assign(
        period=period, **{name: periods[name].to_numpy() for name in _GRAPHS}
    )
    found["busy"] = found["period"] - found["idle"] - found["communication"] - found["others"]
    return found.reset_index()[_STEPS].astype("int64")
