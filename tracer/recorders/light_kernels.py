"""The kernels in runs of eager launches, from the times of their calls and from samples of their durations.

Every launch time is recorded, and durations are sampled. The preloaded library chooses runs, which get a stamp at both
ends, and parts of runs, in which the device writes its time after each launch (`native/runs.c`). There a gate holds
the device back until the part is launched, so that no stamp is late. The time between two stamps around a launch,
minus that around an empty kernel, is how much longer the launch takes than the empty kernel. The same launches recur,
for example in every step, so the medians of the samples give the duration of each.

1. The stamps inside runs are laid between the launches, which gives the samples.
2. What was put on each stream is worked off in turn: its kernels run in launch order, and none begins before its
   launch has arrived and the events have come for which the stream waits. So launch times and durations determine when
   each ran, also in runs without stamps.
3. Where the stamps at the ends of runs show that their launches together take another time than their samples, or some
   have no sample, durations are corrected from every other such run.
4. The other stamps at the ends of runs verify the result: a run that contradicts them, or runs whose launches are the
   same and most of which do, get no kernels. Where the host paused before the call that ended the run, the stamp is
   that much later than the last kernel: the tail is launched right before that call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.compiled import compiled
from tracer.model.calls import EVENT, GRAPH_LAUNCH, LAUNCH, WAIT
from tracer.model.columns import numbered
from tracer.model.fits import Fits, fits_of
from tracer.model.intervals import Ints
from tracer.model.schema import MISSING
from tracer.recorders.light_clock import Alignment
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, Ring, graph_of, number_of
from tracer.recorders.light_waits import NEVER, stream_keys

_FEWEST: Final = 3  # timed samples per kind of launch, if any of its kinds has as many
_OFF_NS: Final = 2_000  # of what is not corrected, between the predicted and the stamped end
_APART_NS: Final = 20_000  # between the predicted and the stamped end of a run
_APART: Final = 0.1  # the same, relative to the run's length
_MOST: Final = 0.9  # of the runs with the same launches whose end must be predicted
_MOST_NEW: Final = 0.5  # of the launches of a run, without samples, whose duration the ends of runs tell
_FOUND_IDLE: Final = 0.02  # of the heads, at least: that many of the earliest, within the same time as an end
_KERNEL_COLUMNS: Final = ["start", "end", "record", "run"]
_NONE: Final = pd.DataFrame({column: np.array([], np.int64) for column in _KERNEL_COLUMNS})


@dataclass(frozen=True)
class Cost:
    """The time that a stamp adds to the device's work, ns, from a chain of stamps: its duration, and the `step` from
    its end to the start of the following work."""

    stamp: int
    step: int


@dataclass(frozen=True)
class Kernels:
    """The kernels in the runs of a ring.

    Attributes:
        table: a row per kernel: start end (host ns), record (position of its launch), run (row of the runs' table).
        timed: the number of launches whose duration was measured with stamps.
        apart_ns: the median difference between predicted and stamped ends; 0 without runs.
        unsampled: the positions of launches whose duration is unknown.
    """

    table: pd.DataFrame
    timed: int
    apart_ns: int
    unsampled: Ints = field(default_factory=lambda: np.array([], np.int64))


def run_kernels(
    ring: Ring, letter: NDArray[np.str_], table: pd.DataFrame, clocks: list[Alignment | None], costs: list[Cost | None]
) -> Kernels:
    """Reconstruct the kernels of those runs in which the duration of every launch is known.

    Args:
        letter: what each record's call does.
        table: as `StampedWork.table`; a run without stamps is from its earliest to its latest possible time.
        costs: of a stamp, per context.
    """
    runs = table[table["graph"] == MISSING].sort_values(["stream", "record"], kind="stable")
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
    arrival = min(_arrival(launches, runs, _behind_waits(ring, letter)), error + _APART_NS)
    launches["arrived"] = launches["returned"] + arrival
    launches["same"], *kinds = _kinds(ring, launches)
    beyond = launches["until"] - launches["since"] - (apart.nothing if apart else 0)
    took = (beyond + empty_ns).clip(lower=0)
    launches["length"] = _lengths(took, kinds)
    queue = _queue(ring, letter, table, launches, runs, cost)
    tails = np.sort(ring.records["begin"][letter != LAUNCH]) + arrival  # a call that ends a run has its tail before it
    is_gated = items.groupby("run")["is_before"].any()
    called = replace(queue, arrived=np.maximum(queue.arrived, queue.called))
    learned = _learn(launches, (queue, called), runs, is_gated, cost, tails)
    predicted = _predicted(launches, replace(called, delay=_delay(queue, launches["length"])), runs)
    kept, missed = _verified(predicted, runs, is_gated, cost, tails, learned)
    unsampled = launches.loc[launches["length"].isna(), "record"].to_numpy(np.int64)
    return Kernels(kept.assign(run=rows[kept["run"]]), int(took.notna().sum()), missed, unsampled)


def fits_of_ring(ring: Ring) -> Fits:
    """The constants for the devices of a ring."""
    return fits_of(", ".join(sorted({context.name for context in ring.contexts})))


def _items(ring: Ring, letter: NDArray[np.str_], runs: pd.DataFrame) -> pd.DataFrame:
    """The records in runs, in order: record, run, called, returned (host ns), is_launch, number, is_before and
    is_behind (whether stamps come before or after it)."""
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
    item can be the one before the next. Returns the times between the three stamps after each gate; None without gates.
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


def _behind_waits(ring: Ring, letter: NDArray[np.str_]) -> Ints:
    """The records that come right behind a wait of their stream for an event."""
    rows = np.flatnonzero(np.isin(letter, [LAUNCH, GRAPH_LAUNCH, WAIT]) & (ring.records["result"] == 0))
    rows = rows[np.argsort(stream_keys(ring.records[rows]), kind="stable")]
    stream, waits = stream_keys(ring.records[rows]), letter[rows] == WAIT
    return rows[1:][waits[:-1] & (stream[1:] == stream[:-1])]


def _arrival(launches: pd.DataFrame, runs: pd.DataFrame, behind_waits: Ints) -> int:
    """The time from the return of a launch to its start on an idle device, ns. It is that of heads, which are launched
    right before the first launch of their run, unless a gate comes between. Both contain the error of the clocks. Where
    the host is ahead, few heads find the device idle: they are the earliest that are close to each other. A stream that
    waits for another one is not idle, though it may not wait for long; such heads count if there are no others."""
    first = launches[(launches["place"] == 0) & ~launches["is_before"]]
    first = first[~first["record"].isin(behind_waits)] if not first["record"].isin(behind_waits).all() else first
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


_MOST_DELAY: Final = 10_000  # ns
_FAR: Final = NEVER // 2  # a sum of it and durations does not overflow
_RUN, _WORK, _MARKS, _WAITS = range(1, 5)  # what is done in turn


@dataclass(frozen=True)
class _Queue:
    """What was put on the streams, in order, a row each.

    Attributes:
        kind: a launch of a run, other work, an event, or a wait for one.
        stream, event: numbers of both.
        called: when its call began.
        launch: the row of the launches, of a launch of a run.
        arrived: when it reached the device, host ns; by the error of the clocks it may be before its call.
        head: of the first launch of a run: when the stream reached it, host ns; 0 if stamps do not tell.
        inside: when a launch ended, host ns, by a stamp behind it; 0 without.
        end: when the work of the stream ended behind it, host ns; 0 if stamps do not tell, MISSING if nothing does.
        latest: of a launch: when its run had ended at the latest, host ns.
        cost: of a stamp; its step is from the end of any work to the start of the next.
        delay: of a stream that waited for an event, behind what it waited for, ns.
    """

    kind: Ints
    stream: Ints
    event: Ints
    called: Ints
    launch: Ints
    arrived: Ints
    head: Ints
    inside: Ints
    end: Ints
    latest: Ints
    cost: Cost
    delay: int = 0


def _queue(
    ring: Ring, letter: NDArray[np.str_], table: pd.DataFrame, launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost
) -> _Queue:
    records = ring.records
    kind, end = np.zeros(len(records), np.int64), np.zeros(len(records), np.int64)
    arrived, head, inside, latest, launch = (np.zeros(len(records), np.int64) for _ in range(5))
    done = records["result"] == 0
    kind[(letter == EVENT) & done], kind[(letter == WAIT) & done] = _MARKS, _WAITS
    kind[np.isin(letter, [GRAPH_LAUNCH, LAUNCH]) & done] = _WORK
    end[kind == _WORK] = MISSING  # unless it is known
    graphs = table[table["graph"] != MISSING]
    end[graphs["record"]] = graphs["end"]
    rows, run = launches["record"].to_numpy(np.int64), launches["run"].to_numpy(np.int64)
    kind[rows], launch[rows], arrived[rows], end[rows] = _RUN, np.arange(len(rows)), launches["arrived"], 0
    latest[rows] = runs["latest"].clip(upper=_FAR).to_numpy(np.int64)[run]
    is_first, is_last = (~launches["run"].duplicated(keep=keep).to_numpy(bool) for keep in ("first", "last"))
    heads, ends = runs["head"].to_numpy(np.int64), runs["end"].to_numpy(np.int64)
    has_head = is_first & (heads[run] != MISSING)
    head[rows[has_head]] = heads[run[has_head]] + cost.stamp
    has_stamp = launches["until"].notna().to_numpy()
    behind = launches["until"].to_numpy()[has_stamp].astype(np.int64)
    inside[rows[has_stamp]] = behind - cost.step
    is_told = is_last & runs["is_stamped"].to_numpy(bool)[run]
    end[rows[is_told]] = ends[run[is_told]]
    put = np.flatnonzero(kind)
    put = put[np.argsort(records["begin"][put], kind="stable")]
    stream, event = (pd.factorize(each)[0].astype(np.int64) for each in (stream_keys(records), records["object"]))
    called = records["begin"].astype(np.int64)
    return _Queue(
        kind[put], stream[put], event[put], called[put], launch[put], arrived[put], head[put], inside[put], end[put],
        latest[put], cost,
    )  # fmt: skip


@compiled
def _done(
    kind: Ints,
    stream: Ints,
    event: Ints,
    called: Ints,
    launch: Ints,
    arrived: Ints,
    head: Ints,
    inside: Ints,
    end: Ints,
    latest: Ints,
    length: Ints,
    step: int,
    own: int,
    delay: int,
) -> tuple[Ints, Ints, Ints]:  # pragma: no cover
    """When each launch ends, MISSING if that is unknown; the number of launches since the device waited for one; and
    how much later than predicted a head came behind an event that held its stream up, NEVER for other launches."""
    ends, since, behind = np.full(len(length), MISSING), np.zeros(len(length), np.int64), np.full(len(length), NEVER)
    free, of_event = np.zeros(len(kind), np.int64), np.zeros(len(kind), np.int64)  # as far as known
    late, late_event = free.copy(), free.copy()  # the latest end of what is not known; 0 if all is
    busy, held = free.copy(), free.copy()
    for row in range(len(kind)):
        on = stream[row]
        if kind[row] == _MARKS:
            of_event[event[row]], late_event[event[row]] = free[on], late[on]
            continue
        if kind[row] == _WAITS:
            if of_event[event[row]] + delay > free[on]:
                free[on], busy[on], held[on] = of_event[event[row]] + delay, 0, 1
            late[on] = max(late[on], late_event[event[row]])
            continue
        if kind[row] == _RUN:
            at = launch[row]
            if head[row] and held[on] and not late[on] and free[on] + step > arrived[row]:
                behind[at] = head[row] - own - step - free[on]
            held[on] = 0
            if head[row]:
                free[on], late[on], busy[on] = head[row], 0, 0
            elif late[on] <= called[row]:  # the host had waited for it
                late[on] = 0
            begin, most = max(free[on] + step, arrived[row]), max(late[on] + step, arrived[row])
            busy[on] = 1 if arrived[row] > free[on] + step else busy[on] + 1
            if length[at] == MISSING:
                free[on], late[on] = begin, latest[row]
            else:
                free[on] = max(begin + length[at], inside[row])
                if most <= begin:
                    ends[at], since[at], late[on] = free[on], busy[on], 0
                else:
                    late[on] = min(most + length[at], latest[row])
            if inside[row]:
                free[on], late[on], busy[on] = max(free[on], inside[row]) + step + own, 0, 0
        if end[row] == MISSING:
            late[on] = _FAR
        elif end[row]:
            free[on], late[on], busy[on] = end[row], 0, 0
    return ends, since, behind


def _ended(queue: _Queue, length: pd.Series) -> tuple[Ints, Ints, Ints]:
    """What `_done` tells of launches of these durations (ns; NaN: unknown). A kernel starts when its launch has arrived
    and a step after the end of what its stream did or waited for before."""
    ns = length.fillna(MISSING).to_numpy().round().astype(np.int64)
    return _done(
        queue.kind, queue.stream, queue.event, queue.called, queue.launch, queue.arrived, queue.head, queue.inside,
        queue.end, queue.latest, ns, queue.cost.step, queue.cost.stamp,
        queue.delay,
    )  # fmt: skip


def _delay(queue: _Queue, length: pd.Series) -> int:
    """How long after the end of what it waits for a stream goes on, ns, by the heads of runs that began then."""
    _, _, behind = _ended(queue, length)
    behind = behind[behind < NEVER]
    return min(max(int(np.median(behind)), 0), _MOST_DELAY) if len(behind) >= _FEWEST else 0


def _predicted(launches: pd.DataFrame, queue: _Queue, runs: pd.DataFrame) -> pd.DataFrame:
    """The predicted execution of the launches of runs in which that of each is known: start, end (host ns), record,
    run, same, beyond. None starts before its call. None ends after the latest end of its run; `beyond` is the excess
    over that end."""
    end, _, _ = _ended(queue, launches["length"])
    most = runs["latest"].to_numpy(np.int64)[launches["run"]]
    predicted = launches[["record", "run", "same"]].assign(
        start=np.minimum(end - launches["length"].fillna(0), most).astype(np.int64), end=np.minimum(end, most),
        beyond=np.maximum(end - most, 0),
    )  # fmt: skip
    return predicted[pd.Series(end != MISSING).groupby(launches["run"]).transform("all")].reset_index(drop=True)


def _learn(
    launches: pd.DataFrame, queues: tuple[_Queue, _Queue], runs: pd.DataFrame, is_gated: pd.Series, cost: Cost,
    tails: Ints,
) -> Ints:  # fmt: skip
    """Correct the launches' `length` by what the stamps at the ends of runs tell, and return the runs from which that
    was learned: every other one.

    A launch that was never sampled lasts as long as its run does beyond the others, if most of these were. Samples are
    taken one stream at a time; where the launches of a run together take longer or shorter than their samples, each
    gets its part of that, if the error of the clocks cannot explain it: in the second queue no launch arrives before
    its call.
    """
    is_new = launches["length"].isna()
    is_new &= is_new.groupby(launches["run"]).transform("mean") <= _MOST_NEW
    tried = launches["length"].where(~is_new, 0)
    (ends, since, _), (others, _, _) = (_ended(queue, tried) for queue in queues)
    last = launches.groupby("run").tail(1)
    run, at = last["run"].to_numpy(np.int64), last.index.to_numpy()
    is_plain = runs["is_stamped"].to_numpy(bool)[run] & ~is_gated[run].to_numpy(bool) & (ends[at] != MISSING)
    told = runs["end"].to_numpy(np.int64)[run] - cost.stamp - cost.step
    more = _least(told - ends[at], told - others[at])
    is_late = (more > _OFF_NS) & (_nearest(tails - cost.step, told) <= _OFF_NS)
    learns = np.flatnonzero(is_plain & ~is_late)
    learns = learns[np.argsort(last["same"].to_numpy()[learns], kind="stable")]
    order = pd.Series(last["same"].to_numpy()[learns]).groupby(last["same"].to_numpy()[learns]).cumcount()
    learns = learns[order.to_numpy() % 2 == 0]
    over = pd.Series(more[learns], run[learns])
    from_last = launches.groupby("run").cumcount(ascending=False)
    back = pd.Series(since[at], run)[launches["run"]].to_numpy()
    shares = (from_last.to_numpy() < back) & launches["run"].isin(over.index).to_numpy()
    new_there = (is_new & shares).groupby(launches["run"]).transform("any")
    shares &= (is_new | ~new_there).to_numpy()
    each = launches["run"].map(over) / pd.Series(shares).groupby(launches["run"]).transform("sum")
    by = [launches["same"], launches["place"]]
    amount = each.where(shares).groupby(by).transform("median")
    amount = amount.where(each.where(shares).groupby(by).transform("count") >= _FEWEST)
    whole = launches["run"].map(over).groupby(launches["same"]).transform("median").abs()
    wrong = amount.notna() & (is_new | (whole > _OFF_NS))
    launches["length"] = launches["length"].where(~wrong, (tried + amount).clip(lower=0).round())
    return run[learns[np.isin(run[learns], launches.loc[wrong, "run"].unique())]]


def _verified(
    predicted: pd.DataFrame, runs: pd.DataFrame, is_gated: pd.Series, cost: Cost, tails: Ints, learned: Ints
) -> tuple[pd.DataFrame, int]:
    """The kernels of runs whose predicted end matches their stamps, and the median error. Nearly all runs with the
    same launches must match (of those without any that has stamps, nearly all runs). Gates delay the end of their
    runs, so these are not tested if others can be; nor are those from which durations were learned. `tails`: when
    a tail launched before each call that may end a run arrived, host ns, sorted. A tail that arrived after the
    predicted end of the last kernel started then, on an idle device."""
    last = predicted.groupby("run").agg(end=("end", "last"), same=("same", "last"), beyond=("beyond", "last"))
    start, end, stamped = (runs[name].to_numpy()[last.index] for name in ("start", "end", "is_stamped"))
    end = end - cost.stamp - cost.step
    late = end - last["end"].to_numpy()
    apart = np.where(late > 0, np.minimum(late, _nearest(tails - cost.step, end)), -late)
    apart = np.where(stamped, apart, last["beyond"])
    is_right = apart <= np.where(stamped, np.maximum(_APART_NS, _APART * (end - start)), _APART_NS)
    plain = pd.Series(stamped & ~is_gated[last.index].to_numpy(bool) & ~last.index.isin(learned), last.index)
    proves = plain.to_numpy() | stamped & ~plain.groupby(last["same"]).transform("any").to_numpy(bool)
    proven = pd.Series(np.where(proves, is_right, np.nan), last.index)
    share = proven.groupby(last["same"]).transform("mean").fillna(proven.mean())
    good = last.index[(is_right | stamped & ~proves) & (share >= _MOST)]
    kept = predicted.loc[predicted["run"].isin(good), _KERNEL_COLUMNS].astype(np.int64).reset_index(drop=True)
    right = apart[proves & last.index.isin(good)]
    return kept, int(np.median(right)) if len(right) else 0


def _least(one: Ints, other: Ints) -> Ints:
    """The one that is closer to zero, or zero between them."""
    return np.where(one > 0, np.minimum(one, other).clip(0), np.maximum(one, other).clip(max=0))


def _nearest(times: Ints, to: Ints) -> Ints:
    """The distance from each of `to` to the nearest of the sorted times."""
    if not len(times):
        return np.full(len(to), np.iinfo(np.int64).max)
    at = np.searchsorted(times, to).clip(1, max(len(times) - 1, 1))
    near = np.minimum(np.abs(to - times[at - 1]), np.abs(to - times[at.clip(max=len(times) - 1)]))
    return np.asarray(near, np.int64)
