"""The device's work according to its own stamps: whole graphs and runs of eager launches, in host time.

Not every run has stamps, because launching them costs time. A run without them began after its first launch and after
the earlier work on its stream; it ended before the next stamped work on its stream began, and before a wait for it
returned. When work had ended at the latest is known from the waits of the program, and so is when a stamp at the end of
a run of launches came too late to tell.

The kernels in runs of launches (`run_kernels`): every launch time is recorded, and durations are sampled. The preloaded
library chooses runs at random, which get a stamp at both ends, and parts of runs, in which the device writes its time
after each launch (`native/runs.c`). There a gate holds the device back until the part is launched, so that no stamp is
late. The time between two stamps around a launch, minus that around an empty kernel, is how much longer the launch
takes than the empty kernel. The same launches recur, for example in every step, so the medians of the samples give the
duration of each. The kernels of a stream run in launch order, and none begins before its launch has arrived, so launch
times and durations determine when each ran, also in runs without stamps. The stamps at the ends of runs verify this: a
run that contradicts them, or runs whose launches are the same and most of which do, get no kernels. Where the host
paused before the call that ended the run, the stamp is that much later than the last kernel: the tail is launched right
before that call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import (
    BLOCKING_COPY,
    COPY,
    EVENT,
    GRAPH_LAUNCH,
    HOST_FUNCTION,
    LAUNCH,
    LETTERS,
    SYNC,
    WAIT,
    plain,
)
from tracer.model.columns import numbered
from tracer.model.fits import Fits, fits_of
from tracer.model.intervals import Ints
from tracer.model.schema import MEMCPY_KINDS, MISSING
from tracer.recorders.light_clock import Alignment, ClockBounds, align
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, Ring, graph_of, number_of

_COLUMNS: Final = [
    "start", "end", "context", "stream", "record", "graph", "launches", "number", "head", "begin", "is_stamped"
]  # fmt: skip

NEVER: Final = np.iinfo(np.int64).max
_PAUSED_NS, _ARRIVED_NS = 10_000, 20_000
"""The least pause of a host that makes a difference, and the most that a launch takes to an idle device, with the error
of the clocks."""
_LEGACY, _OWN = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD; 0 is the former
_DONE: Final = {"cuStreamQuery", "cuEventQuery"}  # 0 means that the work has ended
_EVERY_STREAM: Final = {"cuCtxSynchronize"}
_VALUES: Final = ("cuStreamWriteValue32", "cuStreamWriteValue64", "cuStreamBatchMemOp")


@dataclass(frozen=True)
class StampedWork:
    """The stamped work, and the other runs of launches.

    Attributes:
        table: one row per graph launch or run of launches: start end (host ns; for a run without stamps or kernels, the
            earliest and the latest possible time), context (as numbered in records), stream (as in `stream_keys`),
            record (position of the launch, or of a run's first launch), graph (id; MISSING for a run), launches (number
            of kernels in a run; 0 for a graph), number (of the run, or of the graph's launch), head (host ns of the
            stamp before it, MISSING without one), begin (host ns of its first call), is_stamped.
        kernels: the kernels of runs, as far as known; `run` is the row of `table`.
        alignments: per context; None without stamps.
        costs: per context, the time that a stamp adds; None if unknown.
        unmatched: stamps without their launch or their other half: overwritten, or not written yet.
        untimed: graph launches and runs without a row.
    """

    table: pd.DataFrame
    kernels: Kernels
    alignments: list[Alignment | None]
    costs: list[Cost | None]
    unmatched: int
    untimed: int


def covered(ring: Ring) -> Ring:
    """The ring without the calls that precede the oldest remaining stamps, if older stamps were overwritten."""
    launches = _launches(ring)
    since = 0
    for stamps, chain in zip(ring.stamps, ring.chains, strict=True):
        if len(stamps) + len(chain) > ring.places:  # the chain's were numbered first, and are stored elsewhere
            left = _pairs(stamps)[0].merge(launches, on=["graph", "number"], how="inner")
            since = max(since, int(left["record"].min()) if len(left) else 0)
    if not since:
        return ring
    records = ring.records[since:]
    return replace(ring, records=records, ranges=ring.ranges[ring.ranges["begin"] >= records["begin"].min()])


def stamped_work(ring: Ring) -> StampedWork:
    """Match the stamps with the launches, and place the runs without stamps between them."""
    launches, waits = _launches(ring), waits_of(ring)
    frames, alignments, costs, unmatched = [], [], list[Cost | None](), 0
    for context, (stamps, chain) in enumerate(zip(ring.stamps, ring.chains, strict=True)):
        cost = _cost(chain)
        costs.append(cost)
        own = cost.stamp if cost else 0
        pairs, single = _pairs(stamps)
        unmatched += single
        joined = pairs.merge(launches, on=["graph", "number"], how="inner").assign(context=context)
        unmatched += 2 * (len(pairs) - len(joined))
        clock = align(*_bounds(joined, waits), ring.brackets[context] if ring.brackets else None)
        alignments.append(clock)
        if clock is None:
            continue
        start = clock.to_host(joined["head"].to_numpy())
        end = clock.to_host(joined["tail"].to_numpy()) + own
        head = np.where(joined["head"] == MISSING, MISSING, start)
        frames.append(joined.assign(start=start, end=end, head=head, is_stamped=True)[_COLUMNS])
    none = pd.DataFrame({column: np.array([], np.int64) for column in _COLUMNS}).astype({"is_stamped": bool})
    stamped = pd.concat(frames or [none], ignore_index=True)
    left = _without_stamps(launches, stamped, waits, [clock is not None for clock in alignments])
    table = _begun(pd.concat([stamped, left], ignore_index=True)).replace({"graph": {0: MISSING}})
    kernels = run_kernels(ring, letters(ring), _runs(ring, table), alignments, costs)
    untimed = len(launches) - len(table)
    table = without_late_ends(ring, table, table.index.isin(kernels.table["run"]), launches, waits)
    return StampedWork(_placed(table, kernels), kernels, alignments, costs, unmatched, untimed)


def _without_stamps(
    launches: pd.DataFrame, stamped: pd.DataFrame, waits: pd.DataFrame, is_timed: list[bool]
) -> pd.DataFrame:
    """Rows for the runs without stamps in contexts with a clock, from their first launch to their latest end."""
    timed = np.flatnonzero(is_timed)
    of_run = (launches["graph"] == 0) & launches["context"].isin(timed)
    left = launches[of_run & ~launches["number"].isin(stamped.loc[stamped["graph"] == 0, "number"])]
    left = left.assign(start=left["begin"], head=MISSING, is_stamped=False)
    latest = until(left, stamped, waits)
    return left.assign(end=np.where(latest < NEVER, np.maximum(latest, left["begin"]), left["end"]))[_COLUMNS]


def _begun(work: pd.DataFrame) -> pd.DataFrame:
    """The rows, sorted by their corrected starts. A run without a head starts at its launch or at the end of the
    previous work on its stream.

    The head of a run is launched before its first kernel and may execute before that launch; the run starts later.
    """
    work = work.sort_values("record", ignore_index=True)
    before = work.groupby("stream", sort=False)["end"].transform(lambda end: end.cummax().shift(fill_value=0))
    known = np.where(work["head"] == MISSING, before, work["start"])
    of_run = np.minimum(np.maximum(known, work["begin"]), work["end"])
    started = work.assign(start=np.where(work["graph"] == 0, of_run, work["start"]))
    return started.sort_values("start", kind="stable", ignore_index=True)


def _runs(ring: Ring, table: pd.DataFrame) -> pd.DataFrame:
    """The runs of the table, by stream, with `follows`: whether only a run without stamps shows when this one began.
    Runs that follow work without known times, such as a graph without stamps, are left out."""
    letter, records = letters(ring), ring.records
    is_unknown = (letter == GRAPH_LAUNCH) & (records["graph"] == 0) | (letter == LAUNCH) & (records["number"] == 0)
    rows = np.flatnonzero(is_unknown & (records["result"] == 0))
    unknown = pd.DataFrame({"record": rows, "stream": stream_keys(records[rows]), "is_stamped": False, "graph": 0})
    order = pd.concat([table, unknown]).sort_values(["stream", "record"], kind="stable")
    is_run = order["graph"].eq(MISSING)
    stamped, hidden = (
        order["record"].where(which).groupby(order["stream"]).ffill().fillna(-1)
        for which in (order["is_stamped"], order["graph"].eq(0))
    )
    left = is_run & ~order["is_stamped"]
    same = order["stream"].eq(order["stream"].shift())
    order["follows"] = left & left.shift(fill_value=False) & same
    return order[is_run & (hidden <= stamped)]


def _placed(table: pd.DataFrame, kernels: Kernels) -> pd.DataFrame:
    """The table, with runs without stamps from the start of their first to the end of their last kernel; other runs
    without stamps follow the work before them, which may have ended earlier than it could have."""
    found = kernels.table.groupby("run").agg(start=("start", "min"), end=("end", "max"))
    is_stamped = table["is_stamped"].astype(bool)
    found = found[~is_stamped[found.index]]
    table.loc[found.index, ["start", "end"]] = found
    order = table.sort_values("record")
    before = order.groupby("stream", sort=False)["end"].transform(lambda end: end.cummax().shift(fill_value=0))
    bounded = ~is_stamped & ~table.index.isin(found.index)
    start = before.clip(lower=order["begin"]).clip(upper=order["end"])
    return table.assign(start=table["start"].where(~bounded, start))


def _launches(ring: Ring) -> pd.DataFrame:
    """One row per launch of a stamped graph and per run: graph, number, stream, context, record, begin, end, launches,
    last (the record of the last launch)."""
    records, letter = ring.records, letters(ring)
    is_graph = (letter == GRAPH_LAUNCH) & (records["graph"] > 0) & (records["result"] == 0)
    in_run = (letter == LAUNCH) & (records["number"] > 0) & (records["result"] == 0)
    rows = np.flatnonzero(is_graph | in_run)
    found = pd.DataFrame({
        "graph": records["graph"][rows].astype(np.int64), "number": number_of(records["number"][rows]),
        "stream": stream_keys(records[rows]), "context": records["context"][rows].astype(np.int64), "record": rows,
        "begin": records["begin"][rows], "end": records["end"][rows], "launches": in_run[rows].astype(np.int64),
        "last": rows,
    })  # fmt: skip
    groups = found.groupby(["graph", "number"], sort=False)
    return groups.agg(
        stream=("stream", "first"), context=("context", "first"), record=("record", "first"), begin=("begin", "min"),
        end=("end", "max"), launches=("launches", "sum"), last=("last", "max"),
    ).reset_index()  # fmt: skip


def _pairs(stamps: NDArray[Any]) -> tuple[pd.DataFrame, int]:
    """Matching heads and tails: graph, number, head, tail (device ns); and the number of stamps without a match.

    A run may have no head (MISSING) if it follows stamped work on its stream.
    """
    stamps = stamps[graph_of(stamps["word"]) != INSIDE_GRAPH]
    word = stamps["word"]
    every = pd.DataFrame({
        "graph": graph_of(word), "number": number_of(word >> np.uint64(16)),
        "time": stamps["time"].astype(np.int64), "is_tail": (word & 1).astype(bool),
    }).drop_duplicates(["graph", "number", "is_tail"], keep="last")  # fmt: skip
    heads, tails = every[~every["is_tail"]], every[every["is_tail"]]
    key = ["graph", "number"]
    pairs = tails[[*key, "time"]].merge(heads[[*key, "time"]], on=key, how="left", suffixes=("_tail", "_head"))
    pairs = pairs.rename(columns={"time_head": "head", "time_tail": "tail"}).fillna({"head": MISSING})
    pairs["head"] = pairs["head"].astype(np.int64)
    alone = pairs["head"] == MISSING
    pairs = pairs[np.where(alone, pairs["graph"] == 0, pairs["tail"] >= pairs["head"])]
    return pairs, len(every) - 2 * len(pairs) + int((pairs["head"] == MISSING).sum())


def _cost(chain: NDArray[Any]) -> Cost | None:
    """The cost of a stamp, from alternating heads, which record the time of their end, and tails, which record the time
    of their start."""
    time, is_tail = chain["time"].astype(np.int64), (chain["word"] & 1).astype(bool)
    if len(chain) < 4 or (is_tail[1:] == is_tail[:-1]).all():
        return None
    apart = np.diff(time)
    step = float(np.median(apart[~is_tail[:-1]]))
    both = float(np.median(apart[is_tail[:-1]]))
    return Cost(max(round((both - step) / 2), 0), round(step))


def _bounds(joined: pd.DataFrame, waits: pd.DataFrame) -> tuple[ClockBounds, ClockBounds]:
    """The lower and upper bounds of the clocks' difference, from launches and waits."""
    head, tail = joined["head"].to_numpy(), joined["tail"].to_numpy()
    of_graph = joined["graph"].to_numpy() > 0
    after = np.where(of_graph, head, tail)  # a run's head is launched before its first call, its tail after its last
    lower = ClockBounds(after, np.where(of_graph, joined["begin"], joined["end"]) - after)
    latest = ended(joined, waits)
    known = latest < NEVER
    return lower, ClockBounds(tail[known], latest[known] - tail[known])


def letters(ring: Ring) -> NDArray[np.str_]:
    """What each record's call does, as a letter of a sync signature; "" for other calls."""
    return np.asarray(np.array([LETTERS.get(plain(name), "") for name in ring.calls] or [""])[ring.records["call"]])


def stream_keys(records: NDArray[Any]) -> NDArray[np.int64]:
    """A unique key for each stream of a process: the handle, or a number < -1 for default streams.

    Each context has a legacy default stream and one per thread.
    """
    handle, context = records["stream"].astype(np.int64), records["context"].astype(np.int64)
    own = np.where(handle == _OWN, 1 + records["thread"].astype(np.int64), 0)
    return np.where(handle <= _OWN, -2 - (context << 33) - own, handle)


def context_keys(context: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """A key for all streams of a context."""
    return -2 - (1 << 50) - context.astype(np.int64)


def ended(work: pd.DataFrame, waits: pd.DataFrame) -> NDArray[np.int64]:
    """When the first wait for each row's work returned, host ns; NEVER if nothing waited for it."""
    found = np.full(len(work), NEVER)
    stream, end = work["stream"].to_numpy(np.int64), work["end"].to_numpy(np.int64)
    of_context = context_keys(work["context"].to_numpy(np.int64))
    for key, facts in waits.groupby("stream", sort=False):
        rows = (stream == key) | (of_context == key)
        at = np.searchsorted(facts["since"], end[rows])
        earliest = np.minimum.accumulate(facts["end"].to_numpy()[::-1])[::-1]  # any later wait may be first
        found[rows] = np.minimum(found[rows], np.append(earliest, NEVER)[at])
    return found


def waits_of(ring: Ring) -> pd.DataFrame:
    """Completion facts: all work enqueued on `stream` (or in that context) before `since` had ended by `end`."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls])[records["call"]]
    done = ((letter == SYNC) | np.isin(names, sorted(_DONE))) & (records["result"] == 0)
    rows = np.flatnonzero(done)
    since, stream = records["begin"].copy(), stream_keys(records)
    of_context = np.isin(names, sorted(_EVERY_STREAM))
    stream[of_context] = context_keys(records["context"][of_context])
    of_event = np.isin(names, ["cuEventSynchronize", "cuEventQuery"])
    recorded = pd.DataFrame({"event": records["object"], "begin": records["begin"], "stream": stream})[letter == EVENT]
    queried = pd.DataFrame({"event": records["object"], "begin": records["begin"], "row": np.arange(len(records))})
    queried = queried[done & of_event]
    last = pd.merge_asof(
        queried.sort_values("begin"), recorded.sort_values("begin").assign(since=recorded["begin"].sort_values()),
        on="begin", by="event",
    ).dropna()  # fmt: skip
    since[last["row"]], stream[last["row"]] = last["since"], last["stream"]
    rows = rows[~of_event[rows] | np.isin(rows, last["row"])]
    found = pd.DataFrame({"stream": stream[rows], "since": since[rows], "end": records["end"][rows]})
    found = found.sort_values("since", kind="stable")
    return pd.concat([found, _implied(found, recorded, records[letter == WAIT])]).sort_values("since", kind="stable")


def _implied(waits: pd.DataFrame, recorded: pd.DataFrame, ordered: NDArray[Any]) -> pd.DataFrame:
    """What the same waits imply for other streams, whose events the awaited stream had been made to wait for."""
    if not len(ordered) or not len(recorded):
        return waits[:0]
    order = pd.DataFrame({
        "event": ordered["object"], "begin": ordered["begin"], "awaited": stream_keys(ordered),
    }).sort_values("begin")  # fmt: skip
    marks = recorded.sort_values("begin").assign(since=lambda frame: frame["begin"])
    links = pd.merge_asof(order, marks, on="begin", by="event").dropna()
    links = links.astype({"stream": np.int64, "since": np.int64}).rename(columns={"since": "marked", "begin": "since"})
    known = waits.rename(columns={"stream": "awaited"})
    found = pd.merge_asof(known, links[["since", "awaited", "stream", "marked"]], on="since", by="awaited").dropna()
    return found.assign(since=found["marked"])[["stream", "since", "end"]].astype(np.int64)


def until(left: pd.DataFrame, stamped: pd.DataFrame, waits: pd.DataFrame) -> NDArray[np.int64]:
    """The latest end of runs without a stamp there: a wait for it, or the next stamped work of the stream; NEVER if
    there is neither."""
    order = pd.concat([stamped.assign(is_left=False), left.assign(is_left=True)], ignore_index=True)
    order = order.sort_values("record", kind="stable")
    heads = order["head"].where((order["head"] != MISSING) & ~order["is_left"]).groupby(order["stream"]).bfill()
    next_head = heads[order["is_left"]].sort_index().fillna(MISSING).to_numpy(np.int64)
    return np.minimum(ended(left, waits), np.where(next_head == MISSING, NEVER, next_head))


def without_late_ends(
    ring: Ring, table: pd.DataFrame, is_resolved: NDArray[np.bool_], launches: pd.DataFrame, waits: pd.DataFrame
) -> pd.DataFrame:
    """The table, in which runs whose kernels are unknown lose a stamp at their end that says nothing: the host paused
    before the call that ended the run, and the stamp, launched right before that call, found the device idle."""
    runs = table[(table["graph"] == MISSING) & table["is_stamped"].astype(bool) & ~is_resolved]
    last = runs[["number"]].merge(launches[launches["graph"] == 0], on="number", how="left")
    called = _ending_call(ring, last["last"].to_numpy(np.int64), runs["stream"].to_numpy(np.int64))
    is_late = (runs["end"] <= called + _ARRIVED_NS) & (called - last["end"].to_numpy() > _PAUSED_NS)
    late = runs[is_late.to_numpy()]
    if not len(late):
        return table
    latest = until(late.assign(end=last["end"].to_numpy()[is_late]), table[table["is_stamped"].astype(bool)], waits)
    table.loc[late.index, "end"] = np.where(latest < NEVER, np.maximum(latest, late["end"]), late["end"])
    table.loc[late.index, "is_stamped"] = False
    return table


def _ending_call(ring: Ring, last: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the call began that ended a run at the latest, of the thread that launched its last kernel (`last`): the
    next wait or query for its stream, event, graph, host function, write of a value or copy to the host there, or wait
    for everything; NEVER without one, and 0 for a query, behind which there is a stamp only if it found the device at
    work."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls] or [""])[records["call"]]
    fetches = np.isin(letter, [COPY, BLOCKING_COPY]) & (records["copy_kind"] == MEMCPY_KINDS["DtoH"])
    there = np.isin(letter, [EVENT, GRAPH_LAUNCH, HOST_FUNCTION]) | fetches
    there |= np.isin(names, ["cuStreamSynchronize", "cuStreamQuery", *_VALUES])
    everywhere = np.isin(names, sorted(_EVERY_STREAM))
    thread, first = records["thread"].astype(np.int64), np.full(len(last), len(records))
    for ends, of_call, of_run in (
        (there, stream_keys(records), stream),
        (everywhere, np.zeros(len(records), np.int64), np.zeros(len(last), np.int64)),
    ):
        rows = np.flatnonzero(ends)
        calls = pd.DataFrame({"row": rows, "thread": thread[rows], "key": of_call[rows], "call": rows})
        runs = pd.DataFrame({"row": last, "thread": thread[last], "key": of_run, "run": np.arange(len(last))})
        runs = runs.sort_values("row", kind="stable")
        after = pd.merge_asof(runs, calls, on="row", by=["thread", "key"], direction="forward").sort_values("run")
        first = np.minimum(first, after["call"].fillna(len(records)).to_numpy(np.int64))
    begin = np.where(names == "cuStreamQuery", 0, records["begin"].astype(np.int64))
    return np.asarray(np.append(begin, NEVER)[first])


_FEWEST: Final = 3  # timed samples per kind of launch, if any of its kinds has as many
_APART_NS: Final = 20_000  # between the predicted and the stamped end of a run
_APART: Final = 0.1  # the same, relative to the run's length
_MOST: Final = 0.9  # of the runs with the same launches whose end must be predicted
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
    """

    table: pd.DataFrame
    timed: int
    apart_ns: int


def run_kernels(
    ring: Ring, letter: NDArray[np.str_], runs: pd.DataFrame, clocks: list[Alignment | None], costs: list[Cost | None]
) -> Kernels:
    """Reconstruct the kernels of those runs in which the duration of every launch is known.

    Args:
        letter: what each record's call does.
        runs: a row per run, by stream and time: number, start and end (host ns; without stamps the earliest and the
            latest possible), head (host ns, MISSING without one), is_stamped, follows (whether only the run in the
            previous row shows when the stream reached it); its index is kept.
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


def _predicted(launches: pd.DataFrame, runs: pd.DataFrame, cost: Cost) -> pd.DataFrame:
    """The predicted execution of each launch: start, end (host ns), record, run, same, beyond. A kernel starts when its
    launch has arrived and a step after the end of the previous one, so its end is the latest that any earlier launch
    implies. None starts before its call, which the error of the clocks could suggest. Without stamps none ends after
    the latest end of its run; `beyond` is the excess over that end."""
    arrived = np.maximum(launches["arrived"], launches["called"])
    is_first = (launches["place"] == 0) & ~runs["follows"].to_numpy(bool)[launches["run"]]
    head, start = (runs[name].to_numpy()[launches["run"]] for name in ("head", "start"))
    reached = np.where(head == MISSING, start, head + cost.stamp) + cost.step  # the run, by its stream
    begin = np.where(is_first, np.maximum(reached, arrived), arrived)
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
    these are not tested if others can be. `tails`: when a tail launched before each call that may end a run arrived,
    host ns, sorted. A tail that arrived after the predicted end of the last kernel started then, on an idle device."""
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
    kept = predicted.loc[predicted["run"].isin(good), _KERNEL_COLUMNS].astype(np.int64).reset_index(drop=True)
    right = apart[proves & last.index.isin(good)]
    return kept, int(np.median(right)) if len(right) else 0


def _nearest(times: Ints, to: Ints) -> Ints:
    """The distance from each of `to` to the nearest of the sorted times."""
    if not len(times):
        return np.full(len(to), np.iinfo(np.int64).max)
    at = np.searchsorted(times, to).clip(1, max(len(times) - 1, 1))
    near = np.minimum(np.abs(to - times[at - 1]), np.abs(to - times[at.clip(max=len(times) - 1)]))
    return np.asarray(near, np.int64)
