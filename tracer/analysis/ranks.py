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
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.gaps import Gaps
from tracer.analysis.owners import LEAST_MET
from tracer.analysis.step_work import activity_steps, wall_rates
from tracer.analysis.tokens import Steps
from tracer.model.columns import Columns, Names, grouped, medians, positions, ranks, runs, several, spread
from tracer.model.intervals import Floats, Ints, covered, total
from tracer.model.schema import MISSING
from tracer.model.tables import Activities
from tracer.model.trace import Trace
from tracer.notes import NAME, fitting
from tracer.text import json_rows, plain

_RANK: Final = ("process", "thread", "device")
_LEAST_SHARE: Final = 0.6
"""The share of all waiting that a rank must cause to be named; among many ranks, twice its equal share is enough."""

Durations = Mapping[str, Sequence[int]]
"""Name of a collective -> the rank's time in each occurrence, in order, ns."""


class WaitTimes(Columns):
    """How long ranks wait: collectives (entered by all ranks), waiting (ns), last (the number in which it arrived
    last), caused (ns that the others waited in those)."""

    collectives: Ints
    waiting: Ints
    last: Ints
    caused: Ints


@dataclass(frozen=True)
class Waiting:
    """How ranks wait for one another in collectives.

    Attributes:
        table: one row per rank, in the order given.
        left_out: names of collectives that some ranks entered more often than others, so that occurrences cannot be
            matched.
        rank: position of the rank that the others wait for; None if no single rank stands out.
    """

    table: WaitTimes
    left_out: tuple[str, ...]
    rank: int | None

    @property
    def share(self) -> float:
        """The share of all waiting that is for `rank`; 0 if no rank stands out."""
        caused = self.table.caused
        return 0.0 if self.rank is None else float(caused[self.rank] / caused.sum())


def waiting(ranks: Sequence[Durations]) -> Waiting:
    """Compute the time that ranks wait for one another.


    Example:
        >>> told = waiting([{"AllReduce": [900, 800]}, {"AllReduce": [100, 100]}])
        >>> told.rank, told.table.waiting.tolist()
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
    table = WaitTimes(
        collectives=np.full(len(ranks), times.shape[1]),
        waiting=waited.sum(axis=1),
        last=np.bincount(came_last[longer > 0], minlength=len(ranks)),
        caused=caused.astype(np.int64),
    )
    left_out = tuple(name for name in names if name not in matched)
    return Waiting(table, left_out, in_particular(caused))


def in_particular(caused: NDArray[np.number[Any]]) -> int | None:
    """Position of the rank that the others wait for, judged by what each caused; None if none stands out."""
    if len(caused) < 2 or not caused.sum():
        return None
    share = caused / caused.sum()
    most = int(share.argmax())
    return most if share[most] >= min(_LEAST_SHARE, 2 / len(caused)) else None


class Ranks(Columns):
    """Ranks.

    Attributes:
        steps, steps_per_s: NaN if it has no rate.
        window_us: per step, from the first compute to the end of the last, over the steps. Its parts are compute_us,
            communication_us (while nothing computes), others_us (the device works only for other hosts) and idle_us.
        collectives_us, collectives: per step, all communication, including during compute; and their number.
        waiting_us: the part of collectives_us spent waiting, from the mean over collectives; NaN if unknown.
    """

    process: Ints
    thread: Ints
    device: Ints
    steps: Ints
    steps_per_s: Floats
    window_us: Floats
    compute_us: Floats
    communication_us: Floats
    others_us: Floats
    idle_us: Floats
    collectives_us: Floats
    collectives: Floats
    waiting_us: Floats


@dataclass(frozen=True)
class RankReport:
    """The ranks of a trace.

    Attributes:
        table: one row per rank.
        durations: the collectives of each row, over the whole trace.
        waiting: None if fewer than two ranks have collectives.
        apart: names of collectives that do not run at the same time on all ranks, and are left out of `waiting`.
        hidden: whether ranks that may communicate replay CUDA graphs that were traced whole.
    """

    table: Ranks
    durations: tuple[Durations, ...]
    waiting: Waiting | None
    apart: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def waited_for(self) -> dict[str, int] | None:
        """Process, thread and device of the rank that the others wait for."""
        if self.waiting is None or self.waiting.rank is None:
            return None
        row = [at for at, each in enumerate(self.durations) if each][self.waiting.rank]
        return {column: int(getattr(self.table, column)[row]) for column in _RANK}

    def records(self, gap_us: Floats | None = None) -> dict[str, Any]:
        """JSON-able: ranks (with gap_p50_us if `gaps_of` is given), waited_for."""
        table = self.table.frame() if gap_us is None else self.table.frame().assign(gap_p50_us=gap_us)
        share = {} if self.waited_for is None or self.waiting is None else {"share": self.waiting.share}
        return {"ranks": json_rows(table), "waited_for": self.waited_for and {**self.waited_for, **share}}

    @property
    def notes(self) -> list[str]:
        """The caveats for figures over several ranks: which share a device, and which is waited for."""
        notes = []
        for (device,), rows in sorted(grouped(self.table.device), key=itemgetter(0)):
            if len(rows) > 1:
                *others, final = map(_host, self.table[rows].records())
                named = f"{', '.join(others)} and {final}"
                own = f"share device {device}; each has its own figures, see streams"
                notes.append(fitting(f"{named} {own}", f"{len(rows)} hosts {own}"))
        if self.hidden:
            notes.append("CUDA graphs were traced whole: collectives in them, with their waits for other ranks, count "
                         "as compute")  # fmt: skip
        if (last := self.waited_for) is not None and self.waiting is not None:
            notes.append(f"the other ranks wait for the one on device {last['device']} ({_host(last)}): "
                         f"{self.waiting.share:.0%} of their waiting time in collectives is due to it")  # fmt: skip
        if self.waiting is not None and self.waiting.left_out:
            often = "more often than others: the waits between ranks in it are unknown"
            notes.append(f"some ranks entered {_named(self.waiting.left_out)} {often}")
        if self.apart:
            together = "does not run on all ranks at the same time: the waits between ranks in it are unknown"
            notes.append(f"{_named(self.apart)} {together}\nit runs in groups or pairs of them")
        return notes


def has_ranks(trace: Trace, steps: Steps) -> bool:
    """Whether the steps are of several hosts or devices, or communicate; otherwise there is only one rank."""
    if not steps.rows.is_of_one_thread or trace.kernels.collective.any():
        return True
    return several(np.append(trace.kernels.device, trace.graph_launches.device))


def gaps_of(table: Ranks, gaps: Gaps, steps: Steps) -> Floats:
    """The median gap of each rank, µs; NaN if it has none."""
    rows, at = steps.rows, positions([gaps.step], [steps.rows.step])
    of = positions([rows.process[at], rows.thread[at], gaps.device], [table.process, table.thread, table.device])
    return medians(gaps.gap[of >= 0], of[of >= 0], len(table)) / 1e3


def rank_report(trace: Trace, steps: Steps) -> RankReport:
    """The figures of each rank; empty if no step computes."""
    work, at = trace.activities(), activity_steps(trace, steps, trace.activities())
    chosen = work.computes | work.collective
    work, at = work[chosen], at[chosen]
    host = spread(ranks(steps.rows.process, steps.rows.thread), at, MISSING)
    rates = wall_rates(trace, steps)
    figures: list[tuple[float, ...]] = []
    exchanges: list[Activities] = []
    for (device, mine), rows in sorted(grouped(work.device, host), key=itemgetter(0)):
        own, on_device = work[rows], work.device == device
        if mine == MISSING or not own.computes.any():
            continue
        process, thread = (int(column[at[rows[0]]]) for column in (steps.rows.process, steps.rows.thread))
        rate = rates.get((process, thread), np.nan)
        count, *times = _figures(own, steps.rows.group[at[rows]], work[on_device])
        number = len(np.unique(at[rows]))
        per_step = [ns / 1e3 / number for ns in times]
        figures.append((process, thread, device, number, rate, *per_step, count / number, np.nan))
        alone = set(host[on_device].tolist()) <= {mine, MISSING}
        shared = on_device & (work.process == process if alone else host == mine)
        exchanges.append(work[shared & work.collective])
    table = Ranks.of_rows(figures)
    durations = [durations_of(each) for each in exchanges]
    having = [i for i, each in enumerate(durations) if each]
    apart = _apart([exchanges[i] for i in having]) if len(having) > 1 else ()
    matched = [{name: took for name, took in durations[i].items() if name not in apart} for i in having]
    told = waiting(matched) if len(having) > 1 else None
    if told is not None and told.table.collectives.any():
        table.waiting_us[having] = told.table.waiting / told.table.collectives / 1e3 * table.collectives[having]
    processes_apart = len(set(table.process.tolist())) > 1 and len(set(table.device.tolist())) > 1
    hidden = bool((work.is_graph & (at >= 0)).any() and (processes_apart or work.collective.any()))
    return RankReport(table, tuple(durations), told, apart, hidden)


def _figures(own: Activities, group: Ints, on_device: Activities) -> tuple[int, ...]:
    """The number of collectives of a rank, and ns of its steps in all: their span, its parts, and the collectives;
    `group` is that of the step of each activity of its own."""
    computing, collective = own[own.computes], own[own.collective]
    order, first = runs(group[own.computes])
    spans = np.minimum.reduceat(computing.start[order], first), np.maximum.reduceat(computing.end[order], first)
    span = int((spans[1] - spans[0]).sum())
    compute, busy, any_work = (int(covered(each.start, each.end, *spans).sum()) for each in (computing, own, on_device))
    times = span, compute, busy - compute, any_work - busy, span - any_work
    return len(collective), *times, total(collective.start, collective.end)


def durations_of(communication: Activities) -> dict[str, list[int]]:
    """The collectives of a rank by name (without parameters), in order."""
    took = communication.end - communication.start
    return {name: took[rows].tolist() for name, rows in _by_name(communication).items()}


def _by_name(communication: Activities) -> dict[str, Ints]:
    """The positions of the kernels of each name, without parameters."""
    names = communication.name
    short = Names.at_codes(names.codes.astype(np.int64), [str(word).partition("(")[0] for word in names.words])
    return {short.at(int(rows[0])): rows for _, rows in sorted(grouped(short.in_order.codes), key=itemgetter(0))}


def _apart(ranks: Sequence[Activities]) -> tuple[str, ...]:
    """The names of the kernels that all of these ranks run equally often, but mostly not at the same time."""
    places = [_by_name(rank) for rank in ranks]
    apart = []
    for name, first in places[0].items():
        if all(len(each.get(name, ())) == len(first) for each in places):
            mine = [rank[each[name]] for rank, each in zip(ranks, places, strict=True)]
            entered, left = np.array([each.start for each in mine]), np.array([each.end for each in mine])
            if np.mean(entered.max(axis=0) < left.min(axis=0)) < LEAST_MET:
                apart.append(name)
    return tuple(apart)


def _named(collectives: Sequence[str]) -> str:
    """The first of some collectives, and how many more there are."""
    more = len(collectives) - 1
    return plain(collectives[0], NAME) + (f" (and {more} more)" if more else "")


def _host(row: Mapping[str, int]) -> str:
    thread = "" if row["thread"] == MISSING else f" thread {row['thread']}"
    return f"process {row['process']}{thread}"
