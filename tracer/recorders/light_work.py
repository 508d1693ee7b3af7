"""The device's work according to its own stamps: whole graphs and runs of eager launches, in host time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_names import EVENT, GRAPH_LAUNCH, LAUNCH, LETTERS, SYNC, WAIT, plain
from tracer.recorders.light_clock import Alignment, Bounds, align
from tracer.recorders.light_kernels import Cost, Kernels, run_kernels
from tracer.recorders.light_ring import INSIDE_GRAPH, Ring, graph_of, number_of
from tracer.schema import MISSING

_COLUMNS: Final = ["start", "end", "context", "stream", "record", "graph", "launches", "number", "head"]
_LEGACY, _OWN = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD; 0 is the former
_DONE: Final = {"cuStreamQuery", "cuEventQuery"}  # 0 means that the work has ended
_EVERY_STREAM: Final = {"cuCtxSynchronize"}


@dataclass(frozen=True)
class Work:
    """The stamped work.

    Attributes:
        table: one row per graph launch or run of launches: start end (host ns), context (as numbered in records),
            stream (as in `stream_keys`), record (position of the launch, or of a run's first launch), graph (id;
            MISSING for a run), launches (number of kernels in a run; 0 for a graph), number (of the run, or of the
            graph's launch), head (host ns of the stamp before it, MISSING without one).
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


def _context_keys(context: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """A key for all streams of a context."""
    return -2 - (1 << 50) - context.astype(np.int64)


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


def stamped_work(ring: Ring) -> Work:
    """Match the stamps with the launches."""
    launches = _launches(ring)
    frames, alignments, costs, unmatched = [], [], list[Cost | None](), 0
    for context, (stamps, chain) in enumerate(zip(ring.stamps, ring.chains, strict=True)):
        cost = _cost(chain)
        costs.append(cost)
        own = cost.stamp if cost else 0
        pairs, single = _pairs(stamps)
        unmatched += single
        joined = pairs.merge(launches, on=["graph", "number"], how="inner")
        unmatched += 2 * (len(pairs) - len(joined))
        clock = align(*_bounds(ring, context, joined))
        alignments.append(clock)
        if clock is None:
            continue
        start = clock.to_host(joined["head"].to_numpy())
        end = clock.to_host(joined["tail"].to_numpy()) + own
        head = np.where(joined["head"] == MISSING, MISSING, start)
        found = joined.assign(start=start, end=end, context=context, head=head).replace({"graph": {0: MISSING}})
        frames.append(_begun(found)[_COLUMNS])
    none = pd.DataFrame({column: np.array([], np.int64) for column in _COLUMNS})
    table = pd.concat(frames or [none], ignore_index=True)
    table = table.sort_values("start", kind="stable", ignore_index=True)
    kernels = run_kernels(ring, letters(ring), table[table["graph"] == MISSING], alignments, costs)
    return Work(table, kernels, alignments, costs, unmatched, len(launches) - len(table))


def _begun(work: pd.DataFrame) -> pd.DataFrame:
    """The rows with corrected starts of runs. A run without a head starts at its launch or at the end of the previous
    work on its stream.

    The head of a run is launched before its first kernel and may execute before that launch; the run starts later.
    """
    work = work.sort_values("record", ignore_index=True)
    before = work.groupby("stream", sort=False)["end"].transform(lambda end: end.cummax().shift(fill_value=0))
    known = np.where(work["head"] == MISSING, before, work["start"])
    of_run = np.minimum(np.maximum(known, work["begin"]), work["end"])
    return work.assign(start=np.where(work["graph"] == MISSING, of_run, work["start"]))


def _launches(ring: Ring) -> pd.DataFrame:
    """One row per graph launch and per run: graph, number, stream, record, begin, end, launches."""
    records, letter = ring.records, letters(ring)
    is_graph = (letter == GRAPH_LAUNCH) & (records["graph"] > 0) & (records["result"] == 0)
    in_run = (letter == LAUNCH) & (records["number"] > 0) & (records["result"] == 0)
    rows = np.flatnonzero(is_graph | in_run)
    found = pd.DataFrame({
        "graph": records["graph"][rows].astype(np.int64), "number": number_of(records["number"][rows]),
        "stream": stream_keys(records[rows]), "record": rows, "begin": records["begin"][rows],
        "end": records["end"][rows], "launches": in_run[rows].astype(np.int64),
    })  # fmt: skip
    groups = found.groupby(["graph", "number"], sort=False)
    return groups.agg(
        stream=("stream", "first"), record=("record", "first"), begin=("begin", "min"), end=("end", "max"),
        launches=("launches", "sum"),
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
    """The cost of a stamp, from alternating heads, which record the time of their end, and tails, of their start."""
    time, is_tail = chain["time"].astype(np.int64), (chain["word"] & 1).astype(bool)
    if len(chain) < 4 or (is_tail[1:] == is_tail[:-1]).all():
        return None
    apart = np.diff(time)
    step = float(np.median(apart[~is_tail[:-1]]))
    both = float(np.median(apart[is_tail[:-1]]))
    return Cost(max(round((both - step) / 2), 0), round(step))


def _bounds(ring: Ring, context: int, joined: pd.DataFrame) -> tuple[Bounds, Bounds]:
    """The lower and upper bounds of the clocks' difference, from launches and waits."""
    head, tail = joined["head"].to_numpy(), joined["tail"].to_numpy()
    of_graph = joined["graph"].to_numpy() > 0
    after = np.where(of_graph, head, tail)  # a run's head is launched before its first call, its tail after its last
    lower = Bounds(after, np.where(of_graph, joined["begin"], joined["end"]) - after)  # also of those without a head
    ended = np.full(len(joined), np.iinfo(np.int64).max)
    stream, of_context = joined["stream"].to_numpy(np.int64), _context_keys(np.array(context))
    for key, facts in _waits(ring).groupby("stream", sort=False):
        rows = np.ones(len(joined), bool) if key == of_context else stream == key
        at = np.searchsorted(facts["since"], joined["end"].to_numpy()[rows])
        until = np.append(facts["end"].to_numpy(), np.iinfo(np.int64).max)[at]
        ended[rows] = np.minimum(ended[rows], until)
    known = ended < np.iinfo(np.int64).max
    return lower, Bounds(tail[known], ended[known] - tail[known])


def _waits(ring: Ring) -> pd.DataFrame:
    """Completion facts: all work enqueued on `stream` (or in that context) before `since` had ended by `end`."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls])[records["call"]]
    done = ((letter == SYNC) | np.isin(names, sorted(_DONE))) & (records["result"] == 0)
    rows = np.flatnonzero(done)
    since, stream = records["begin"].copy(), stream_keys(records)
    of_context = np.isin(names, sorted(_EVERY_STREAM))
    stream[of_context] = _context_keys(records["context"][of_context])
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
