"""The kernels of runs of launches: when each was launched is recorded, how long it takes is known from some.

With INTERTOKEN_LIGHT_INSIDE=N the device writes its time behind the launches of some parts of runs, which the preloaded
library chooses by chance, one in N µs; a gate holds the device back until the part is launched, so that no stamp is
late (`native/runs.c`). From stamp to stamp it takes so much longer than around a kernel that does nothing as a launch
takes longer than that kernel. Where the same launches come again and again, as those of a step do, the medians of what
these tell are how long each of them takes. The kernels of a stream follow one another in the order of their launches,
none begins before its launch has arrived, so launches and durations tell when each ran. The stamps at the ends of the
run tell whether that is so: a run that they contradict stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_names import LAUNCH
from tracer.recorders.light_clock import Alignment
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, Ring, graph_of, number_of
from tracer.rows import numbered
from tracer.schema import MISSING

Ints = NDArray[np.int64]

EMPTY_NS: Final = 544
"""What CUPTI gives as the length of a kernel that does nothing (H200, driver 580.159), so that lengths mean what they
mean in recordings."""

_FEWEST: Final = 3  # of a launch that are timed
_APART_NS: Final = 20_000  # of the ends of a run that are told and stamped
_APART: Final = 0.1  # of its length
_MOST: Final = 0.9  # of the runs with the same launches that are told so
_ARRIVES: Final = 0.1  # quantile of how long heads take to arrive: those that found the device idle
_COLUMNS: Final = ["start", "end", "record", "run"]
_NONE: Final = pd.DataFrame({column: np.array([], np.int64) for column in _COLUMNS})


@dataclass(frozen=True)
class Cost:
    """What a stamp adds to the device's work, ns, from a chain of stamps.

    Attributes:
        stamp: how long it takes itself.
        step: from its end to the begin of what follows it.
    """

    stamp: int
    step: int


@dataclass(frozen=True)
class Kernels:
    """What became of the runs of a ring.

    Attributes:
        table: a row per kernel: start end (host ns), record (position of its launch), run (row of the runs' table).
        timed: how many launches have a stamp behind them that tells how long they took.
        apart_ns: by how much the ends that are told and those that are stamped differ, the median; 0 of none.
    """

    table: pd.DataFrame
    timed: int
    apart_ns: int


def run_kernels(
    ring: Ring,
    letter: NDArray[np.str_],
    runs: pd.DataFrame,
    clocks: list[Alignment | None],
    costs: list[Cost | None],
) -> Kernels:
    """The kernels of the runs of which all is known.

    Args:
        ring: what was recorded.
        letter: of each record, what its call does.
        runs: a row per run: number start end (host ns) head (likewise, MISSING without one); its index is kept.
        clocks: of each context.
        costs: of a stamp, likewise.
    """
    rows, runs = runs.index.to_numpy(), runs.reset_index(drop=True)
    items = _items(ring, letter, runs)
    cost = next((each for each in costs if each is not None), Cost(0, 0))
    apart = _lay_stamps(items, _stamps_inside(ring, clocks))
    if apart:
        step = max(apart.nothing - apart.alone - EMPTY_NS, 0)
        cost = Cost(max(apart.alone - step, 0), step)
    launches = items[items["is_launch"]].reset_index(drop=True)
    if not len(launches):
        return Kernels(_NONE, 0, 0)
    launches["place"] = launches.groupby("run").cumcount()
    launches["arrived"] = launches["returned"] + _arrival(launches, runs)
    launches["same"], alike = _same(ring, launches)
    beyond = launches["until"] - launches["since"] - (apart.nothing if apart else 0)
    took = (beyond + EMPTY_NS).clip(lower=0)
    kinds = took.groupby(alike)
    is_told = (kinds.transform("count") >= _FEWEST).groupby(launches["run"]).transform("all").to_numpy()
    length = kinds.transform("median")[is_told].astype(np.int64)
    told = _told(launches[is_told].assign(length=length), runs, cost)
    kept, missed = _kept(told, runs, items.groupby("run")["is_before"].any(), cost)
    return Kernels(kept.assign(run=rows[kept["run"]]), int(took.notna().sum()), missed)


def _items(ring: Ring, letter: NDArray[np.str_], runs: pd.DataFrame) -> pd.DataFrame:
    """What lies in runs, in order: record, run, called, returned (host ns), is_launch, is_before, is_behind (whether a
    stamp is)."""
    records = ring.records
    number = number_of(records["number"])
    run = pd.Index(runs["number"]).get_indexer(pd.Index(number))
    rows = np.flatnonzero((run >= 0) & (number > 0) & (records["graph"] == 0))
    rows = rows[np.lexsort((records["begin"][rows], run[rows]))]
    marks = records["number"][rows]
    return pd.DataFrame({
        "record": rows, "run": run[rows], "called": records["begin"][rows], "returned": records["end"][rows],
        "is_launch": (letter[rows] == LAUNCH) & (records["result"][rows] == 0), "number": number[rows],
        "is_before": marks & np.uint32(BEFORE) > 0, "is_behind": marks & np.uint32(BEHIND) > 0,
    })  # fmt: skip


def _stamps_inside(ring: Ring, clocks: list[Alignment | None]) -> pd.DataFrame:
    """Stamps inside runs, in order: number (of the run), time (host ns)."""
    frames = [pd.DataFrame({"number": np.array([], np.int64), "time": np.array([], np.int64)})]
    for stamps, clock in zip(ring.stamps, clocks, strict=True):
        inside = stamps[graph_of(stamps["word"]) == INSIDE_GRAPH]
        if clock is not None and len(inside):
            times = clock.to_host(inside["time"].astype(np.int64))
            frames.append(pd.DataFrame({"number": number_of(inside["word"] >> np.uint64(16)), "time": times}))
    return pd.concat(frames, ignore_index=True).sort_values(["number", "time"], kind="stable", ignore_index=True)


@dataclass(frozen=True)
class _Apart:
    """From stamp to stamp on a stream, ns: with nothing between them, and with a kernel that does nothing."""

    alone: int
    nothing: int


def _lay_stamps(items: pd.DataFrame, stamps: pd.DataFrame) -> _Apart | None:
    """Give the items `since` and `until`, the stamps before and behind them, NaN where there is none: all of a run, or
    none where one is missing, or too many, which says that they are late. That before one may be that behind another.

    Returns:
        What the three stamps behind the gates say, None of none.
    """
    marks = 3 * items["is_before"].astype(np.int64) + items["is_behind"]
    wanted, first = marks.groupby(items["number"]).sum(), stamps["number"].to_numpy()
    begin, end = (np.searchsorted(first, wanted.index, side=side) for side in ("left", "right"))
    is_whole = items["number"].map(pd.Series(end - begin == wanted, wanted.index)).to_numpy(bool)
    first_of_run = items["number"].map(pd.Series(begin, wanted.index))
    in_run = marks.groupby(items["number"]).cumsum() - marks
    at = np.where(is_whole, first_of_run + in_run, len(stamps)).astype(np.int64)
    time = np.append(stamps["time"].to_numpy(np.float64), [np.nan] * 4)
    before = (items["is_before"] & is_whole).to_numpy()
    behind = (items["is_behind"] & is_whole).to_numpy()
    same_run = items["run"].eq(items["run"].shift()).to_numpy()
    items["until"] = np.where(behind, time[at + 3 * items["is_before"]], np.nan)
    items["since"] = np.where(before, time[at + 2], np.where(same_run, items["until"].shift(), np.nan))
    if not before.any():
        return None
    first, second, third = (time[at[before] + each] for each in range(3))
    return _Apart(int(np.median(second - first)), int(np.median(third - second)))


def _arrival(launches: pd.DataFrame, runs: pd.DataFrame) -> int:
    """From the return of a launch to its begin on an idle device, ns: that of heads, which are launched right before
    the first launch of their run. The error of the clocks is in both."""
    first = launches[launches["place"] == 0]
    head = runs["head"].to_numpy()[first["run"]]
    lag = (head - first["called"].to_numpy())[head != MISSING]
    return int(np.quantile(lag, _ARRIVES)) if len(lag) else 0


def _same(ring: Ring, launches: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each launch two numbers: one that runs have in common that launch the same kernels on the same stream; one
    that launches have of the same kernel and size, between the same others (two before, one behind)."""
    records = ring.records[launches["record"].to_numpy()]
    what = records["object"] * np.uint64(0x9E3779B97F4A7C15) ^ records["bytes"]
    what = (what ^ what >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) ^ records["stream"]
    mixed = what * (2 * launches["place"].to_numpy().astype(np.uint64) + np.uint64(1))
    sums = pd.Series(mixed.view(np.int64)).groupby(launches["run"]).transform("sum")  # wraps around, as it may
    length = launches.groupby("run")["place"].transform("size")
    kernel = pd.Series(what.view(np.int64))
    around = [kernel.groupby(launches["run"]).shift(by, fill_value=0) for by in (2, 1, 0, -1)]
    keys = (numbered(*each)[0] for each in ([sums, length], around))
    return next(keys), next(keys)


def _begun(launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost) -> NDArray[np.int64]:
    """When the stream came to the run of each launch: behind its head, or behind what was stamped before it."""
    head, start = (runs[name].to_numpy()[launches["run"]] for name in ("head", "start"))
    return np.asarray(np.where(head == MISSING, start, head + cost.stamp + cost.step))


def _told(launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost) -> pd.DataFrame:
    """When each of them ran: start, end (host ns), record, run, same. Each begins when it has arrived, and a step after
    the end of the one before it; so an end is the latest of what all before it make it. None begins before its call,
    which it may seem to by the error of the clocks."""
    arrived = np.maximum(launches["arrived"], launches["called"])
    begin = np.where(launches["place"] == 0, np.maximum(_begun(launches, runs, cost), arrived), arrived)
    each = launches["length"] + cost.step
    whole = each.groupby(launches["run"]).cumsum()
    latest = pd.Series(begin - (whole - each), launches.index).groupby(launches["run"]).cummax()
    end = latest + whole - cost.step
    return launches[["record", "run", "same"]].assign(start=end - launches["length"], end=end)


def _kept(told: pd.DataFrame, runs: pd.DataFrame, is_gated: pd.Series, cost: Cost) -> tuple[pd.DataFrame, int]:
    """The kernels of runs that end when their stamps say, and by how much they miss that; all of the runs with the same
    launches but a few have to. Gates delay the end of theirs, which proves nothing then, if there are others."""
    last = told.groupby("run").agg(end=("end", "last"), same=("same", "last"))
    start, end = (runs[name].to_numpy()[last.index] for name in ("start", "end"))
    end = end - cost.stamp - cost.step
    apart = np.abs(last["end"].to_numpy() - end)
    is_right = apart <= np.maximum(_APART_NS, _APART * (end - start))
    plain = pd.Series(~is_gated[last.index].to_numpy(bool), last.index)
    proves = plain.to_numpy() | ~plain.groupby(last["same"]).transform("any").to_numpy(bool)
    share = pd.Series(np.where(proves, is_right, np.nan), last.index).groupby(last["same"]).transform("mean")
    good = last.index[(is_right | ~proves) & (share >= _MOST)]
    kept = told.loc[told["run"].isin(good), _COLUMNS].astype(np.int64).reset_index(drop=True)
    right = apart[proves & last.index.isin(good)]
    return kept, int(np.median(right)) if len(right) else 0
