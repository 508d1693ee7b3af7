"""The kernels in runs of launches: every launch time is recorded, and durations are sampled.

The preloaded library chooses runs at random, which get a stamp at both ends, and parts of runs, in which the device
writes its time after each launch (`native/runs.c`). There a gate holds the device back until the part is launched, so
that no stamp is late. The time between two stamps around a launch, minus that around an empty kernel, is how much
longer the launch takes than the empty kernel. The same launches recur, for example in every step, so the medians of the
samples give the duration of each. The kernels of a stream run in launch order, and none begins before its launch has
arrived, so launch times and durations determine when each ran, also in runs without stamps. The stamps at the ends of
runs verify this: a run that contradicts them, or runs whose launches are the same and most of which do, get no kernels.
Where the host paused before the call that ended the run, the stamp is that much later than the last kernel: the tail is
launched right before that call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import LAUNCH
from tracer.model.fits import Fits, fits_of
from tracer.model.intervals import Ints
from tracer.model.rows import numbered
from tracer.model.schema import MISSING
from tracer.recorders.light_clock import Alignment
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, Ring, graph_of, number_of

_FEWEST: Final = 3  # timed samples per kind of launch, if any of its kinds has as many
_APART_NS: Final = 20_000  # between the predicted and the stamped end of a run
_APART: Final = 0.1  # the same, relative to the run's length
_MOST: Final = 0.9  # of the runs with the same launches whose end must be predicted
_FOUND_IDLE: Final = 0.02  # of the heads, at least: that many of the earliest, within the same time as an end
_COLUMNS: Final = ["start", "end", "record", "run"]
_NONE: Final = pd.DataFrame({column: np.array([], np.int64) for column in _COLUMNS})


@dataclass(frozen=True)
class Cost:
    """The time that a stamp adds to the device's work, ns, from a chain of stamps.

    Attributes:
        stamp: the duration of the stamp.
        step: from its end to the start of the following work.
    """

    stamp: int
    step: int


@dataclass(frozen=True)
class Kernels:
    """The kernels in the runs of a ring.

    Attributes:
        table: a row per kernel: start end (host ns), record (position of its launch), run (row of the runs' table).
        timed: the number of launches whose duration was measured with stamps.
        apart_ns: the median difference between predicted and stamped ends; 0 without runs.
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
    """Reconstruct the kernels of those runs in which the duration of every launch is known.

    Args:
        ring: the recording.
        letter: what each record's call does.
        runs: a row per run, by stream and time: number, start and end (host ns; without stamps the earliest and the
            latest possible), head (host ns, MISSING without one), is_stamped, follows (whether only the run in the
            previous row shows when the stream reached it); its index is kept.
        clocks: per context.
        costs: of a stamp, per context.
    """
    rows, runs = runs.index.to_numpy(), runs.reset_index(drop=True)
    empty_ns = fits_of_ring(ring).light.empty_ns
    items = _items(ring, letter, runs)
    cost = next((each for each in costs if each is not None), Cost(0, 0))
    apart = _lay_stamps(items, _stamps_inside(ring, clocks))
    if apart:
        step = max(apart.nothing - apart.alone - empty_ns, 0)
        cost = Cost(max(apart.alone - step, 0), step)
    launches = items[items["is_launch"]].reset_index(drop=True)
    if not len(launches):
        return Kernels(_NONE, 0, 0)
    launches["place"] = launches.groupby("run").cumcount()
    error = max((clock.error_ns or 0 for clock in clocks if clock is not None), default=0)
    arrival = min(_arrival(launches, runs), error + _APART_NS)
    launches["arrived"] = launches["returned"] + arrival
    launches["same"], *kinds = _kinds(ring, launches)
    launches["segment"] = (~runs["follows"].to_numpy(bool)).cumsum()[launches["run"]]
    beyond = launches["until"] - launches["since"] - (apart.nothing if apart else 0)
    took = (beyond + empty_ns).clip(lower=0)
    length = _lengths(took, kinds)
    known = length.notna().groupby(launches["run"]).transform("all").groupby(launches["segment"]).cummin()
    timed = launches[known].assign(length=length[known].astype(np.int64))
    predicted = _predicted(timed, runs, cost)
    tails = np.sort(ring.records["begin"][letter != LAUNCH]) + arrival  # a call that ends a run has its tail before it
    kept, missed = _verified(predicted, runs, items.groupby("run")["is_before"].any(), cost, tails)
    return Kernels(kept.assign(run=rows[kept["run"]]), int(took.notna().sum()), missed)


def fits_of_ring(ring: Ring) -> Fits:
    """The constants for the devices of a ring."""
    return fits_of(", ".join(sorted({context.name for context in ring.contexts})))


def _items(ring: Ring, letter: NDArray[np.str_], runs: pd.DataFrame) -> pd.DataFrame:
    """The records in runs, in order: record, run, called, returned (host ns), is_launch, is_before and is_behind
    (whether stamps come before or after it)."""
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
    """The stamps inside runs, sorted: number (of the run), time (host ns)."""
    frames = [pd.DataFrame({"number": np.array([], np.int64), "time": np.array([], np.int64)})]
    for stamps, clock in zip(ring.stamps, clocks, strict=True):
        inside = stamps[graph_of(stamps["word"]) == INSIDE_GRAPH]
        if clock is not None and len(inside):
            times = clock.to_host(inside["time"].astype(np.int64))
            frames.append(pd.DataFrame({"number": number_of(inside["word"] >> np.uint64(16)), "time": times}))
    return pd.concat(frames, ignore_index=True).sort_values(["number", "time"], kind="stable", ignore_index=True)


@dataclass(frozen=True)
class _Apart:
    """The time between two stamps on a stream, ns: with nothing between them, and with an empty kernel."""

    alone: int
    nothing: int


def _lay_stamps(items: pd.DataFrame, stamps: pd.DataFrame) -> _Apart | None:
    """Add `since` and `until` to the items: the times of the stamps before and after them, NaN without one. If a run
    has too few or too many stamps (an extra one marks them as late), none of its items get times. The stamp after an
    item can be the one before the next.

    Returns:
        The times between the three stamps after each gate; None without gates.
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
    """The time from the return of a launch to its start on an idle device, ns. It is that of heads, which are launched
    right before the first launch of their run, unless a gate comes between. Both contain the error of the clocks. Where
    the host is ahead, few heads find the device idle: they are the earliest that are close to each other."""
    first = launches[(launches["place"] == 0) & ~launches["is_before"]]
    head = runs["head"].to_numpy()[first["run"]]
    lag = np.sort((head - first["called"].to_numpy())[head != MISSING])
    if not len(lag):
        return 0
    close = np.searchsorted(lag, lag + _APART_NS, side="right") - np.arange(len(lag))
    edge = int(np.argmax(close >= max(_FEWEST, _FOUND_IDLE * len(lag))))
    return int(np.median(lag[edge : edge + close[edge]]))


def _kinds(ring: Ring, launches: pd.DataFrame) -> list[NDArray[np.int64]]:
    """Numbers per launch: one shared by all runs that launch the same kernels on the same stream, one by launches of
    the same kernel and size between the same neighbours (two before, one after), one by those of the same kernel and
    size, and one by those of the same kernel."""
    records = ring.records[launches["record"].to_numpy()]
    what = records["object"] * np.uint64(0x9E3779B97F4A7C15) ^ records["bytes"]
    what = (what ^ what >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) ^ records["stream"]
    mixed = what * (2 * launches["place"].to_numpy().astype(np.uint64) + np.uint64(1))
    sums = pd.Series(mixed.view(np.int64)).groupby(launches["run"]).transform("sum")  # may wrap around
    length = launches.groupby("run")["place"].transform("size")
    kernel = pd.Series(what.view(np.int64))
    around = [kernel.groupby(launches["run"]).shift(by, fill_value=0) for by in (2, 1, 0, -1)]
    return [numbered(*each)[0] for each in ([sums, length], around, [kernel], [records["object"]])]


def _lengths(took: pd.Series, kinds: list[NDArray[np.int64]]) -> pd.Series:
    """The duration of each launch, ns: the median of the samples of its kind, by the most specific kind that has
    enough, else by the most specific one that has any; NaN without."""
    length = pd.Series(np.nan, took.index)
    every = [took.groupby(kind) for kind in kinds]
    for fewest in (_FEWEST, 1):  # what is rarely launched is rarely sampled; the ends of runs verify its duration too
        for samples in every:
            length = length.fillna(samples.transform("median").where(samples.transform("count") >= fewest))
    return length


def _begun(launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost) -> NDArray[np.int64]:
    """When the stream reached the run of each launch: after its head, or after the stamped work before it."""
    head, start = (runs[name].to_numpy()[launches["run"]] for name in ("head", "start"))
    return np.asarray(np.where(head == MISSING, start, head + cost.stamp) + cost.step)


def _predicted(launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost) -> pd.DataFrame:
    """The predicted execution of each launch: start, end (host ns), record, run, same, beyond. A kernel starts when its
    launch has arrived and a step after the end of the previous one, so its end is the latest that any earlier launch
    implies. None starts before its call, which the error of the clocks could suggest. Without stamps none ends after
    the latest end of its run; `beyond` is the excess over that end."""
    arrived = np.maximum(launches["arrived"], launches["called"])
    is_first = (launches["place"] == 0) & ~runs["follows"].to_numpy(bool)[launches["run"]]
    begin = np.where(is_first, np.maximum(_begun(launches, runs, cost), arrived), arrived)
    each = launches["length"] + cost.step
    whole = each.groupby(launches["segment"]).cumsum()
    latest = pd.Series(begin - (whole - each), launches.index).groupby(launches["segment"]).cummax()
    end = latest + whole - cost.step
    most = np.where(runs["is_stamped"], np.iinfo(np.int64).max, runs["end"])[launches["run"]]
    return launches[["record", "run", "same"]].assign(
        start=np.minimum(end - launches["length"], most), end=np.minimum(end, most), beyond=np.maximum(end - most, 0)
    )


def _verified(
    predicted: pd.DataFrame, runs: pd.DataFrame, is_gated: pd.Series, cost: Cost, tails: Ints
) -> tuple[pd.DataFrame, int]:
    """The kernels of runs whose predicted end matches their stamps, and the median error. Nearly all runs with the same
    launches must match (of those without any that has stamps, nearly all runs). Gates delay the end of their runs, so
    these are not tested if others can be.

    Args:
        tails: when a tail launched before each call that may end a run arrived, host ns, sorted. A tail that arrived
            after the predicted end of the last kernel started then, on an idle device.
    """
    last = predicted.groupby("run").agg(end=("end", "last"), same=("same", "last"), beyond=("beyond", "last"))
    start, end, stamped = (runs[name].to_numpy()[last.index] for name in ("start", "end", "is_stamped"))
    end = end - cost.stamp - cost.step
    late = end - last["end"].to_numpy()
    apart = np.where(late > 0, np.minimum(late, _nearest(tails - cost.step, end)), -late)
    apart = np.where(stamped, apart, last["beyond"])
    is_right = apart <= np.where(stamped, np.maximum(_APART_NS, _APART * (end - start)), _APART_NS)
    plain = pd.Series(stamped & ~is_gated[last.index].to_numpy(bool), last.index)
    proves = plain.to_numpy() | stamped & ~plain.groupby(last["same"]).transform("any").to_numpy(bool)
    proven = pd.Series(np.where(proves, is_right, np.nan), last.index)
    share = proven.groupby(last["same"]).transform("mean").fillna(proven.mean())
    good = last.index[(is_right | stamped & ~proves) & (share >= _MOST)]
    kept = predicted.loc[predicted["run"].isin(good), _COLUMNS].astype(np.int64).reset_index(drop=True)
    right = apart[proves & last.index.isin(good)]
    return kept, int(np.median(right)) if len(right) else 0


def _nearest(times: Ints, to: Ints) -> Ints:
    """The distance from each of `to` to the nearest of the sorted times."""
    if not len(times):
        return np.full(len(to), np.iinfo(np.int64).max)
    at = np.searchsorted(times, to).clip(1, max(len(times) - 1, 1))
    near = np.minimum(np.abs(to - times[at - 1]), np.abs(to - times[at.clip(max=len(times) - 1)]))
    return np.asarray(near, np.int64)
