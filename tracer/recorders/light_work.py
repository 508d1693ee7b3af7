"""The device's work according to its own stamps: whole graphs and runs of eager launches, in host time.

Not every run has stamps, because launching them costs time. A run without them began after its first launch and after
the earlier work on its stream; it ended before the next stamped work on its stream began, and before a wait for it
returned. When work had ended at the latest is known from the waits of the program, and so is when a stamp at the end of
a run of launches came too late to tell.

The kernels in runs of launches are reconstructed in `light_kernels.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, HOST_FUNCTION, LAUNCH, WAIT, plain
from tracer.model.schema import MEMCPY_KINDS, MISSING
from tracer.recorders.light_clock import Alignment, ClockBounds, align
from tracer.recorders.light_kernels import Cost, Kernels, run_kernels
from tracer.recorders.light_ring import INSIDE_GRAPH, Ring, graph_of, number_of
from tracer.recorders.light_waits import EVERY_STREAM, NEVER, ended, letters, stream_keys, until, waits_of

_COLUMNS: Final = [
    "start", "end", "latest", "context", "stream", "record", "graph", "launches", "number", "head", "begin",
    "is_stamped",
]  # fmt: skip

_PAUSED_NS, _ARRIVED_NS = 10_000, 20_000
"""The least pause of a host that makes a difference, and the most that a launch takes to an idle device, with the error
of the clocks."""
_VALUES: Final = ("cuStreamWriteValue32", "cuStreamWriteValue64", "cuStreamBatchMemOp")


@dataclass(frozen=True)
class StampedWork:
    """The stamped work, and the other runs of launches.

    Attributes:
        table: one row per graph launch or run of launches: start end (host ns; for a run without stamps or kernels, the
            earliest and the latest possible time), latest (when a run without stamps must have ended; NEVER if nothing
            tells), context (as numbered in records), stream (as in `stream_keys`),
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
        frames.append(joined.assign(start=start, end=end, latest=NEVER, head=head, is_stamped=True)[_COLUMNS])
    none = pd.DataFrame({column: np.array([], np.int64) for column in _COLUMNS}).astype({"is_stamped": bool})
    stamped = pd.concat(frames or [none], ignore_index=True)
    left = _without_stamps(launches, stamped, waits, [clock is not None for clock in alignments])
    table = _begun(pd.concat([stamped, left], ignore_index=True)).replace({"graph": {0: MISSING}})
    kernels = run_kernels(ring, letters(ring), table, alignments, costs)
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
    latest = np.maximum(latest, left["begin"])
    return left.assign(end=np.where(latest < NEVER, latest, left["end"]), latest=latest)[_COLUMNS]


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


def _placed(table: pd.DataFrame, kernels: Kernels) -> pd.DataFrame:
    """The table, with runs without stamps from the start of their first to the end of their last kernel; other runs
    without stamps follow the work before them, which may have ended earlier than it could have."""
    spans = kernels.table.groupby("run").agg(start=("start", "min"), end=("end", "max"))
    is_stamped = table["is_stamped"].astype(bool)
    spans = spans[~is_stamped[spans.index]]
    table.loc[spans.index, ["start", "end"]] = spans
    order = table.sort_values("record")
    before = order.groupby("stream", sort=False)["end"].transform(lambda end: end.cummax().shift(fill_value=0))
    bounded = ~is_stamped & ~table.index.isin(spans.index)
    start = before.clip(lower=order["begin"]).clip(upper=order["end"])
    return table.assign(start=table["start"].where(~bounded, start))


def _launches(ring: Ring) -> pd.DataFrame:
    """One row per launch of a stamped graph and per run: graph, number, stream, context, record, begin, end, launches,
    last (the record of the last launch)."""
    records, letter = ring.records, letters(ring)
    is_graph = (letter == GRAPH_LAUNCH) & (records["graph"] > 0) & (records["result"] == 0)
    in_run = (letter == LAUNCH) & (records["number"] > 0) & (records["result"] == 0)
    rows = np.flatnonzero(is_graph | in_run)
    launches = pd.DataFrame({
        "graph": records["graph"][rows].astype(np.int64), "number": number_of(records["number"][rows]),
        "stream": stream_keys(records[rows]), "context": records["context"][rows].astype(np.int64), "record": rows,
        "begin": records["begin"][rows], "end": records["end"][rows], "launches": in_run[rows].astype(np.int64),
        "last": rows,
    })  # fmt: skip
    groups = launches.groupby(["graph", "number"], sort=False)
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
    next wait or query for its stream, event, wait for one, graph, host function, write of a value or copy to the host
    there, or wait for everything; NEVER without one, and 0 for a query, behind which there is a stamp only if it found
    the device at work."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls] or [""])[records["call"]]
    fetches = np.isin(letter, [COPY, BLOCKING_COPY]) & (records["copy_kind"] == MEMCPY_KINDS["DtoH"])
    there = np.isin(letter, [EVENT, WAIT, GRAPH_LAUNCH, HOST_FUNCTION]) | fetches
    there |= np.isin(names, ["cuStreamSynchronize", "cuStreamQuery", *_VALUES])
    everywhere = np.isin(names, sorted(EVERY_STREAM))
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
