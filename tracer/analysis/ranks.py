"""Ranks: how long each computes, communicates and idles, and which one the others wait for.

A rank is a device together with the host (process and thread) whose steps compute on it, so two engines on one device
are two ranks. A collective ends on all ranks at the same time, and a rank that enters early waits in it. The rank with
the shortest time in a collective came last, and the extra time of the others is waiting. Only durations are needed, so
this also holds for ranks whose clocks are not aligned. In one recording, kernels of one name that do not run at the
same time on all ranks are not one collective: they belong to groups of ranks, or to exchanges of two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.step_work import activity_steps, wall_rates
from tracer.analysis.tokens import Steps
from tracer.model.intervals import covered, total
from tracer.model.schema import COMPUTE_TABLES, MISSING
from tracer.model.trace import Trace
from tracer.text import json_rows

HOST: Final = ["process", "thread", "device"]
TIMES: Final = ["window_us", "compute_us", "communication_us", "others_us", "idle_us"]

_LEAST_SHARE: Final = 0.6
"""The share of all waiting that a rank must cause to be named; among many ranks, twice its equal share is enough."""

_LEAST_MET: Final = 0.9
"""The share of the kernels of one name that must run at the same time on all ranks."""

Durations = Mapping[str, Sequence[int]]
"""Name of a collective -> the rank's time in each occurrence, in order, ns."""


@dataclass(frozen=True)
class Waiting:
    """How ranks wait for one another in collectives.

    Attributes:
        table: one row per rank, in the order given: collectives (entered by all ranks), waiting (ns), last (the number
            in which it arrived last), caused (ns that the others waited in those).
        left_out: names of collectives that some ranks entered more often than others, so that occurrences cannot be
            matched.
        rank: position of the rank that the others wait for; None if no single rank stands out.
    """

    table: pd.DataFrame
    left_out: tuple[str, ...]
    rank: int | None

    @property
    def share(self) -> float:
        """The share of all waiting that is for `rank`; 0 if no rank stands out."""
        caused = self.table["caused"]
        return 0.0 if self.rank is None else float(caused.iloc[self.rank] / caused.sum())


def waiting(ranks: Sequence[Durations]) -> Waiting:
    """Compute the time that ranks wait for one another.

    Args:
        ranks: the collectives of each rank.

    Example:
        >>> found = waiting([{"AllReduce": [900, 800]}, {"AllReduce": [100, 100]}])
        >>> found.rank, found.table["waiting"].tolist()
        (1, [1500, 0])
    """
    names = sorted({name for rank in ranks for name in rank})
    matched = [name for name in names if len({len(rank.get(name, ())) for rank in ranks}) == 1]
    took = [np.array([rank[name] for rank in ranks], np.int64).reshape(len(ranks), -1) for name in matched]
    times = np.concatenate([np.zeros((len(ranks), 0), np.int64), *took], axis=1)
    waited = times - times.min(axis=0, initial=np.iinfo(np.int64).max)
    came_last = times.argmin(axis=0) if len(ranks) else np.zeros(0, np.int64)
    longer = waited.sum(axis=0)  # 0 if all came at the same time
    caused = np.bincount(came_last, weights=longer, minlength=len(ranks))
    table = pd.DataFrame({
        "collectives": np.full(len(ranks), times.shape[1]), "waiting": waited.sum(axis=1),
        "last": np.bincount(came_last[longer > 0], minlength=len(ranks)), "caused": caused.astype(np.int64),
    })  # fmt: skip
    left_out = tuple(name for name in names if name not in matched)
    return Waiting(table, left_out, in_particular(caused))


def in_particular(caused: NDArray[np.number[Any]]) -> int | None:
    """Position of the rank that the others wait for, judged by what each caused; None if none stands out."""
    if len(caused) < 2 or not caused.sum():
        return None
    share = caused / caused.sum()
    most = int(share.argmax())
    return most if share[most] >= min(_LEAST_SHARE, 2 / len(caused)) else None


@dataclass(frozen=True)
class RankReport:
    """The ranks of a trace.

    Attributes:
        table: one row per rank: process thread device steps steps_per_s, and per step in µs: window_us (from the first
            compute to the end of the last, over the steps) and its parts: compute_us, communication_us (while nothing
            computes), others_us (the device works only for other hosts), idle_us; collectives_us (all communication,
            including during compute), collectives (their number), waiting_us (the part of collectives_us spent waiting,
            from the mean over collectives; None if unknown).
        durations: the collectives of each row, over the whole trace.
        waiting: None if fewer than two ranks have collectives.
        apart: names of collectives that do not run at the same time on all ranks, and are left out of `waiting`.
        hidden: whether ranks that may communicate replay CUDA graphs that were traced whole.
    """

    table: pd.DataFrame
    durations: tuple[Durations, ...]
    waiting: Waiting | None
    apart: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def waited_for(self) -> dict[str, int] | None:
        """Process, thread and device of the rank that the others wait for."""
        if self.waiting is None or self.waiting.rank is None:
            return None
        row = self._communicating.iloc[self.waiting.rank]
        return {column: int(row[column]) for column in HOST}

    @property
    def _communicating(self) -> pd.DataFrame:
        return self.table[[bool(each) for each in self.durations]]

    def records(self, gaps: pd.DataFrame | None = None) -> dict[str, Any]:
        """JSON-able: ranks (with gap_p50_us if `gaps_of` is given), waited_for."""
        table = self.table if gaps is None else self.table.merge(gaps, on=HOST, how="left")
        share = {} if self.waited_for is None or self.waiting is None else {"share": self.waiting.share}
        return {"ranks": json_rows(table), "waited_for": self.waited_for and {**self.waited_for, **share}}

    @property
    def notes(self) -> list[str]:
        """The caveats for figures over several ranks: which share a device, and which is waited for."""
        notes = []
        for device, hosts in self.table.groupby("device"):
            if len(hosts) > 1:
                named = _joined([_host(row) for _, row in hosts.iterrows()])
                notes.append(f"{named} share device {device}; each has its own figures, see streams")
        if self.hidden:
            notes.append("CUDA graphs were traced whole: collectives in them, with their waits for other ranks, count "
                         "as compute")  # fmt: skip
        if (last := self.waited_for) is not None and self.waiting is not None:
            notes.append(f"the other ranks wait for the one on device {last['device']} ({_host(last)}): "
                         f"{self.waiting.share:.0%} of their waiting time in collectives is due to it")  # fmt: skip
        if self.waiting is not None and self.waiting.left_out:
            names = ", ".join(self.waiting.left_out[:3])
            notes.append(
                f"some ranks entered {names} more often than others, so the waits between ranks in it are unknown"
            )
        if self.apart:
            names = ", ".join(self.apart[:3])
            notes.append(
                f"{names} does not run at the same time on all ranks, but in groups or pairs of them, so the waits "
                "between ranks in it are unknown"
            )
        return notes


def has_ranks(trace: Trace, steps: Steps) -> bool:
    """Whether the steps are of several hosts or devices, or communicate; otherwise there is only one rank."""
    if not steps.rows.is_of_one_thread or trace.kernels.collective.any():
        return True
    return len({int(d) for name in COMPUTE_TABLES for d in pd.unique(trace[name]["device"])}) > 1


def gaps_of(gaps: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """The median gap of each rank (`HOST` and gap_p50_us), from `GapReport.table`."""
    hosts = steps.table[["step", "process", "thread"]]
    found = gaps[["step", "device", "gap"]].merge(hosts, on="step").groupby(HOST)["gap"].median() / 1e3
    return found.rename("gap_p50_us").reset_index()


def rank_report(trace: Trace, steps: Steps) -> RankReport:
    """The figures of each rank; empty if no step computes."""
    activities = trace.activities()
    at = activity_steps(trace, steps, activities)
    work = activities.frame().assign(computes=activities.computes, at=at)
    work["host"] = np.append(steps.table.groupby(["process", "thread"]).ngroup().to_numpy(), MISSING)[work["at"]]
    work = work[work["computes"] | work["collective"]]
    rates = wall_rates(trace, steps)
    rows: list[dict[str, Any]] = []
    exchanges: list[pd.DataFrame] = []
    for rank in cast("list[tuple[int, int]]", list(work.groupby(["device", "host"]).groups)):
        device, host = rank
        on_device = work[work["device"] == device]
        own = on_device[on_device["host"] == host]
        if host == MISSING or not own["computes"].any():
            continue
        first = steps.table.iloc[own["at"].iloc[0]]
        process, thread = int(first["process"]), int(first["thread"])
        rows.append({"process": process, "thread": thread, "device": int(device)})
        rows[-1] |= _figures(own, on_device, steps) | {"steps_per_s": rates.get((process, thread))}
        alone = set(on_device["host"]) <= {host, MISSING}
        communication = on_device[on_device["process"] == first["process"]] if alone else own
        exchanges.append(communication[communication["collective"]])
    table = pd.DataFrame(rows, columns=[*HOST, "steps", "steps_per_s", *TIMES, "collectives_us", "collectives"])
    durations = [durations_of(each) for each in exchanges]
    having = [i for i, each in enumerate(durations) if each]
    apart = _apart([exchanges[i] for i in having]) if len(having) > 1 else ()
    matched = [{name: took for name, took in durations[i].items() if name not in apart} for i in having]
    found = waiting(matched) if len(having) > 1 else None
    table["waiting_us"] = np.nan
    if found is not None and found.table["collectives"].any():
        each = (found.table["waiting"] / found.table["collectives"] / 1e3).to_numpy()
        table.loc[having, "waiting_us"] = each * table["collectives"].to_numpy()[having]
    whole = ((work["table"] == "graph_launches") & (work["at"] >= 0)).any()
    processes_apart = min(table["process"].nunique(), table["device"].nunique()) > 1
    hidden = bool(whole and (processes_apart or work["collective"].any()))
    return RankReport(table, tuple(durations), found, apart, hidden)


def _figures(own: pd.DataFrame, on_device: pd.DataFrame, steps: Steps) -> dict[str, float]:
    """For a rank's steps: their number, and per step `TIMES`, collectives_us and collectives (their number)."""
    count = len(pd.unique(own["at"]))
    computing, collective = own[own["computes"]], own[own["collective"]]
    groups = computing.groupby(steps.table["group"].to_numpy()[computing["at"]])
    windows = groups["start"].min().to_numpy(), groups["end"].max().to_numpy()
    window = int((windows[1] - windows[0]).sum())
    compute, busy, any_work = (
        int(covered(frame["start"], frame["end"], *windows).sum()) for frame in (computing, own, on_device)
    )
    times = [window, compute, busy - compute, any_work - busy, window - any_work]
    found = dict(zip(TIMES, times, strict=True)) | {"collectives_us": total(collective["start"], collective["end"])}
    per_step = {name: ns / 1e3 / count for name, ns in found.items()}
    return {"steps": count} | per_step | {"collectives": len(collective) / count}


def durations_of(communication: pd.DataFrame) -> dict[str, list[int]]:
    """The collectives of a rank by name (without parameters), in order."""
    took = communication["end"] - communication["start"]
    return {str(name): part.tolist() for name, part in took.groupby(_short(communication))}


def _short(communication: pd.DataFrame) -> pd.Series:
    return communication["name"].astype("str").str.split("(").str[0]


def _apart(ranks: Sequence[pd.DataFrame]) -> tuple[str, ...]:
    """The names of the kernels that all of these ranks run equally often, but mostly not at the same time."""
    spans = [{str(name): part for name, part in rank.groupby(_short(rank))[["start", "end"]]} for rank in ranks]
    found = []
    for name, first in spans[0].items():
        of_name = [rank[name] for rank in spans if len(rank.get(name, ())) == len(first)]
        if len(of_name) == len(ranks):
            entered, left = (np.array([part[column] for part in of_name]) for column in ("start", "end"))
            if np.mean(entered.max(axis=0) < left.min(axis=0)) < _LEAST_MET:
                found.append(name)
    return tuple(found)


def _host(row: Mapping[str, int] | pd.Series[Any]) -> str:
    thread = "" if row["thread"] == MISSING else f" thread {int(row['thread'])}"
    return f"process {int(row['process'])}{thread}"


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
