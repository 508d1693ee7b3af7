"""What the device did, by its own stamps: whole graphs and runs of eager launches, in the host's time."""

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
_DONE: Final = {"cuStreamQuery", "cuEventQuery"}  # which say, by 0, that the work has ended
_EVERY_STREAM: Final = {"cuCtxSynchronize"}


@dataclass(frozen=True)
class Work:
    """What was stamped.

    Attributes:
        table: one row per graph launch or run of launches: start end (host ns), context (as records number them),
            stream (as `stream_keys` has it), record (position of its launch, of a run of its first), graph (its id;
            MISSING for a run), launches (how many kernels a run has; 0 for a graph), number (of the run, or which
            launch of the graph), head (host ns of the stamp before it, MISSING without one).
        kernels: of the runs of which they are known; `run` is the row of `table`.
        alignments: of each context, None where it has no stamps.
        costs: of each context, how long a stamp takes and the next node after it; None where there are none.
        unmatched: stamps whose launch, or whose other half, is not there: overwritten, or not come yet.
        untimed: graph launches and runs without a row.
    """

    table: pd.DataFrame
    kernels: Kernels
    alignments: list[Alignment | None]
    costs: list[Cost | None]
    unmatched: int
    untimed: int


def letters(ring: Ring) -> NDArray[np.str_]:
    """What each record does, as a letter of a sync signature; "" for anything else."""
    return np.asarray(np.array([LETTERS.get(plain(name), "") for name in ring.calls] or [""])[ring.records["call"]])


def stream_keys(records: NDArray[Any]) -> NDArray[np.int64]:
    """What tells the streams of a process apart: the handle, or of a default stream a number < -1 of its own.

    Each context has a legacy default stream, and one for each thread.
    """
    handle, context = records["stream"].astype(np.int64), records["context"].astype(np.int64)
    own = np.where(handle == _OWN, 1 + records["thread"].astype(np.int64), 0)
    return np.where(handle <= _OWN, -2 - (context << 33) - own, handle)


def _context_keys(context: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Likewise, of all streams of a context."""
    return -2 - (1 << 50) - context.astype(np.int64)


def covered(ring: Ring) -> Ring:
    """The ring without the calls before the stamps that are left, where older ones were overwritten."""
    launches = _launches(ring)
    since = 0
    for stamps, chain in zip(ring.stamps, ring.chains, strict=True):
        if len(stamps) + len(chain) > ring.places:  # those of the chain were counted first, and lie elsewhere
            left = _pairs(stamps)[0].merge(launches, on=["graph", "number"], how="inner")
            since = max(since, int(left["record"].min()) if len(left) else 0)
    if not since:
        return ring
    records = ring.records[since:]
    return replace(ring, records=records, ranges=ring.ranges[ring.ranges["begin"] >= records["begin"].min()])


def stamped_work(ring: Ring) -> Work:
    """Lay the stamps to the launches."""
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
    """The rows, where a run without a head begins with the end of the work before it on its stream, or its launch.

    The head of a run is put before its first launch, so it may run before that begins; the run does not.
    """
    work = work.sort_values("record", ignore_index=True)
    before = work.groupby("stream", sort=False)["end"].transform(lambda end: end.cummax().shift(fill_value=0))
    known = np.where(work["head"] == MISSING, before, work["start"])
    of_run = np.minimum(np.maximum(known, work["begin"]), work["end"])
    return work.assign(start=np.where(work["graph"] == MISSING, of_run, work["start"]))


def _launches(ring: Ring) -> pd.DataFrame:
    """Per graph launch and per run: graph, number, stream, record, begin, end, launches."""
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
    """Heads and tails that belong together: graph, number, head, tail (device ns); how many have no other half.

    The head of a run may be missing (MISSING): then it follows stamped work on its stream.
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
    """From heads, whose time is that of their end, and tails, whose time is that of their begin, in turn."""
    time, is_tail = chain["time"].astype(np.int64), (chain["word"] & 1).astype(bool)
    if len(chain) < 4 or (is_tail[1:] == is_tail[:-1]).all():
        return None
    apart = np.diff(time)
    step = float(np.median(apart[~is_tail[:-1]]))
    both = float(np.median(apart[is_tail[:-1]]))
    return Cost(max(round((both - step) / 2), 0), round(step))


def _bounds(ring: Ring, context: int, joined: pd.DataFrame) -> tuple[Bounds, Bounds]:
    """What launches and waits say of the clocks' difference."""
    head, tail = joined["head"].to_numpy(), joined["tail"].to_numpy()
    of_graph = joined["graph"].to_numpy() > 0
    after = np.where(of_graph, head, tail)  # a run's head is put before its first call, its tail behind its last
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
    """What says that work has ended: all that was put on `stream`, or in that context, before `since` had, at `end`."""
    records, letter = ring.records, letters(ring)
    names = np.array([plain(name) for name in ring.calls])[records["call"]]
    done = ((letter == SYNC) | np.isin(names, sorted(_DONE))) & (records["result"] == 0)
    rows = np.flatnonzero(done)
    since, stream = records["begin"].copy(), stream_keys(records)
    of_context = np.isin(names, sorted(_EVERY_STREAM))
    stream[of_context] = _context_keys(records["context"][of_context])
    of_event = np.isin(names, ["cuEventSynchronize", "cuEventQuery"])
    recorded = pd.DataFrame({"event": records["object"], "begin": records["begin"], "stream": stream})[letter == EVENT]
    asked = pd.DataFrame({"event": records["object"], "begin": records["begin"], "row": np.arange(len(records))})
    asked = asked[done & of_event]
    last = pd.merge_asof(
        asked.sort_values("begin"), recorded.sort_values("begin").assign(since=recorded["begin"].sort_values()),
        on="begin", by="event",
    ).dropna()  # fmt: skip
    since[last["row"]], stream[last["row"]] = last["since"], last["stream"]
    rows = rows[~of_event[rows] | np.isin(rows, last["row"])]
    found = pd.DataFrame({"stream": stream[rows], "since": since[rows], "end": records["end"][rows]})
    found = found.sort_values("since", kind="stable")
    return pd.concat([found, _behind(found, recorded, records[letter == WAIT])]).sort_values("since", kind="stable")


def _behind(waits: pd.DataFrame, recorded: pd.DataFrame, ordered: NDArray[Any]) -> pd.DataFrame:
    """What the same waits say of another stream, whose event the awaited stream had been made to wait for."""
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
