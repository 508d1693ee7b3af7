"""What one host launches between two results that it fetches: the *turns* of which steps are made.

Passes:
1. threads that work for one another are one host: each that fetches results of its own, with those that only launch
   on its streams; a thread that only fetches belongs to the one host of its process;
2. a result is fetched where the host copies from the device: copies without a launch between them are one. The turn
   ends with the wait behind it, if that comes before the most of the next turn is launched, else with the copy. Where
   a trace shows no copies to the host, every wait ends a turn;
3. a turn that launches the same CUDA graphs, or one whole pass of kernels, again and again is one turn for each: the
   host runs ahead and reads later. What it launches before them is one more, if that is a pass, too (a prompt).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_names import BEGIN_CAPTURE
from tracer.analysis.calls import (
    BLOCKING_COPY,
    COPIES,
    GRAPH_LAUNCH,
    LAUNCHES,
    SYNC,
    among,
    by_thread,
    letters_of,
    match_rows,
)
from tracer.schema import COMPUTE_TABLES, MISSING
from tracer.trace import Trace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_LEAST_IN_LAYER: Final = 3
"""Kernels of different names: a product, a norm, an activation."""
_MANY: Final = 3
"""Two passes with something behind them may be one step (with and without a prompt, of a diffusion)."""
_MOST_UNITS: Final = 8
"""Kernels and graphs, the rarest first, that may come once a pass."""
LONGEST_PASS: Final = 1 << 13  # kernels


@dataclass(frozen=True)
class Host:
    """The calls of one host, in the order of their start, and the turns they make.

    Attributes:
        calls: rows of `calls.host_calls` with `with_work`'s columns.
        process, thread: of the thread that launches most.
        first, last: of each turn, its launches: positions in `launches`, half open.
        launches: positions in `calls` of the launches.
        behind: of each turn, the position in `calls` behind it and the wait for its result.
        captures: when it, or a thread of its process, began to capture a graph, ns.
        fetches: whether results are seen to be fetched; else turns end with waits.
    """

    calls: pd.DataFrame
    process: int
    thread: int
    launches: Ints
    first: Ints
    last: Ints
    behind: Ints
    captures: Ints
    fetches: bool


def _with_work(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """The calls with what each made the device do.

    Adds the columns code (numbers the kernel or graph that it launched first), device and on (where; the stream of
    it), MISSING if unknown, and busy (ns, of all that it launched).
    """
    names = trace["kernels"]["name"].cat
    columns = ["process", "correlation", "device", "stream", "start", "end", "graph"]
    done = pd.concat([trace[table][columns] for table in COMPUTE_TABLES], ignore_index=True)
    kernel = np.append(names.codes, np.full(len(done) - len(names.codes), MISSING))
    done["code"] = np.where(done["graph"] >= 0, len(names.categories) + 1 + done["graph"], kernel)
    done["call"] = match_rows(calls, done)
    done = done[done["call"] >= 0].rename(columns={"stream": "on"})
    first = done.drop_duplicates("call").set_index("call")[["code", "device", "on"]]
    busy = np.bincount(done["call"], done["end"] - done["start"], minlength=len(calls))
    known = first.reindex(np.arange(len(calls)), fill_value=MISSING).assign(busy=busy.astype(np.int64))
    return pd.concat([calls.reset_index(drop=True), known], axis=1)


def hosts(trace: Trace, calls: pd.DataFrame) -> Iterator[Host]:
    """The hosts that launch, the one that launches most first.

    Args:
        trace: the recording.
        calls: as `calls.host_calls` gives them, or some of them.
    """
    calls, api = _with_work(trace, calls), trace["api"]
    captures = api[letters_of(api["name"]) == BEGIN_CAPTURE].sort_values("start")
    for rows, thread in _together(calls):
        mine = calls.iloc[rows].reset_index(drop=True)
        letters = mine["letter"].to_numpy(dtype="U1")
        launches = np.flatnonzero(among(letters, LAUNCHES))
        fetches = among(letters, COPIES) & (mine["kind"] == "DtoH").to_numpy()
        cuts = _behind_fetches(letters, launches, fetches) if fetches.any() else _behind_waits(letters)
        edges = np.unique(np.concatenate(([0], np.searchsorted(launches, cuts), [len(launches)])))
        first, last = _replays(mine, launches, edges)
        behind = np.append(launches, len(mine))[last]  # where the next turn's first launch is, if no result is fetched
        ends = np.append(cuts, len(mine))[np.searchsorted(cuts, launches[last - 1] + 1)]
        process = int(mine["process"].iloc[0])
        begun = captures["start"].to_numpy()[(captures["process"] == process).to_numpy()]
        yield Host(mine, process, thread, launches, first, last, np.minimum(behind, ends), begun, bool(fetches.any()))


def _together(calls: pd.DataFrame) -> list[tuple[Ints, int]]:
    """Pass 1: (rows of a host's calls by start, its main thread), the one with most launches first."""
    letters = calls["letter"].to_numpy(dtype="U1")
    launching = among(letters, LAUNCHES)
    fetching = (among(letters, COPIES) & (calls["kind"] == "DtoH").to_numpy()) | (letters == SYNC)
    start, stream = calls["start"].to_numpy(), calls.groupby(["device", "on"]).ngroup().to_numpy()
    result = []
    for _, of_process in calls.groupby("process", sort=False):
        threads = {thread: of_process.index.to_numpy()[at] for _, thread, at in by_thread(of_process)}
        count = {thread: int(launching[rows].sum()) for thread, rows in threads.items()}
        streams = {thread: set(np.unique(stream[rows[launching[rows]]])) for thread, rows in threads.items()}
        leaders = [thread for thread, rows in threads.items() if count[thread] and fetching[rows].any()]
        leaders = leaders or [max(count, key=lambda thread: count[thread])]
        parts: dict[int, list[Ints]] = {leader: [] for leader in leaders}
        for thread, rows in threads.items():  # on whose streams it launches, or the only one
            shared = {leader: len(streams[leader] & streams[thread]) for leader in leaders}
            owner = thread if thread in parts else max(leaders, key=lambda leader: shared[leader])
            if thread in parts or len(leaders) == 1 or shared[owner]:
                parts[owner].append(rows)
        for leader, found in parts.items():
            rows = np.concatenate(found)
            if launching[rows].any():
                result.append((rows[np.argsort(start[rows], kind="stable")], leader))
    return sorted(result, key=lambda host: -int(launching[host[0]].sum()))


def _behind_waits(letters: NDArray[np.str_]) -> Ints:
    return np.flatnonzero(among(letters, [SYNC, BLOCKING_COPY])) + 1


def _behind_fetches(letters: NDArray[np.str_], launches: Ints, fetches: Bools) -> Ints:
    """Pass 2: positions in the calls behind each fetch, with its wait."""
    at = np.flatnonzero(fetches)
    before = np.searchsorted(launches, at)  # launches before each copy
    at = at[np.append(before[1:] != before[:-1], True)]  # the last copy of each run
    before = np.searchsorted(launches, at)
    following = np.append(before[1:], len(launches))
    waits = np.flatnonzero(among(letters, [SYNC, BLOCKING_COPY]))
    wait = np.append(waits, len(letters))[np.searchsorted(waits, at)]
    until = np.searchsorted(launches, wait)  # launches before that wait
    return np.asarray(np.where(until - before <= following - until, wait, at) + 1)


def _replays(calls: pd.DataFrame, launches: Ints, edges: Ints) -> tuple[Ints, Ints]:
    """Pass 3: first and last launch of each turn, those that replay themselves divided."""
    code, device = (calls[name].to_numpy()[launches] for name in ("code", "device"))
    alone = np.where(code >= 0, code * (device.max() + 2) + device + 1, MISSING)
    graph = calls["letter"].to_numpy(dtype="U1")[launches] == GRAPH_LAUNCH
    first, last = edges[:-1], edges[1:]
    graphs = np.add.reduceat(np.append(graph, False), first) if len(first) else first
    seen: dict[bytes, Ints] = {}
    more = []
    for i in np.flatnonzero((last - first >= _MANY) & (graphs != 1)):
        turn = slice(first[i], last[i])
        key = alone[turn].tobytes()
        if key not in seen:
            seen[key] = _heads(alone[turn], graph[turn])
        more.append(first[i] + seen[key])
    starts = np.unique(np.concatenate([first, *more]))
    return starts, np.append(starts[1:], edges[-1])


def _heads(turn: Ints, graph: Bools) -> Ints:
    """Where the equal passes of a turn begin, and what leads to them if it is a pass, too; only its start where it is
    one pass."""
    _, number, count = np.unique(turn, return_inverse=True, return_counts=True)
    rare = np.argsort(count, kind="stable")
    again = [] if (turn == MISSING).any() else rare[count[rare] >= _MANY][:_MOST_UNITS].tolist()
    for unit in dict.fromkeys(int(np.median(np.diff(np.flatnonzero(number == one)))) for one in again):
        begin, length = _longest(turn[unit:] == turn[:-unit])
        end = begin + length + unit
        if length < (_MANY - 1) * unit or 2 * (end - begin) < len(turn):
            continue
        begin = end - (end - begin) // unit * unit if begin else 0
        passes = graph[begin : begin + unit].any() or has_layers(turn[begin : begin + unit])
        if passes and (not begin or has_layers(turn[:begin])):
            return np.unique(np.append(0, np.arange(begin, end, unit)))
    return np.zeros(1, np.int64)


def _longest(same: Bools) -> tuple[int, int]:
    """Where the longest run begins, and its length."""
    breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))
    runs = np.diff(breaks) - 1
    return int(breaks[runs.argmax()]), int(runs.max())


def has_layers(kernels: Ints) -> bool:
    """Whether most of a run of kernels is sequences of several that repeat at least three times: the layers of a model
    (or of several, or forward and backward). Of a longer run the first `LONGEST_PASS` kernels decide."""
    kernels = kernels[:LONGEST_PASS]
    inside = np.zeros(len(kernels), bool)
    for length in range(_LEAST_IN_LAYER, len(kernels) // 4 + 1):
        same = kernels[length:] == kernels[:-length]
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False)).reshape(-1, 2)
        for begin, end in edges[edges[:, 1] - edges[:, 0] >= 2 * length].tolist():
            if len(np.unique(kernels[begin : begin + length])) >= _LEAST_IN_LAYER:
                inside[begin : end + length] = True
        if 2 * inside.sum() >= len(kernels):
            return True
    return False
