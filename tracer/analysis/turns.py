"""What one host launches between two results that it fetches: the *turns* that make up steps.

Stages:
1. threads that work for one another form one host: each thread that fetches results, together with those
   that only launch on its streams; a thread that only fetches belongs to the only host of its process;
2. a result is fetched where the host copies from the device; copies without a launch between them are one result. The
   turn ends with the wait that follows, if it comes before most of the next turn is launched, else with the copy. If a
   trace has no copies to the host, every wait ends a turn;
3. a turn that launches the same CUDA graphs, or one whole pass of kernels, repeatedly becomes one turn for each: the
   host runs ahead and reads later. What it launches before them is another turn if it is a pass as well (a prompt).
   Drafts share their turn with the larger graph that verifies them, and the turn is one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import Calls
from tracer.model.calls import BEGIN_CAPTURE, BLOCKING_COPY, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC
from tracer.model.columns import Columns, among, grouped, ranks
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import GraphLaunches, Kernels
from tracer.model.trace import Trace

SEVERAL: Final = 3
"""Fewer repetitions are not a loop, not layers, and not a layer of different kernels (product, norm, activation)."""
LONGER: Final = 1.5
"""Work that takes at least this many times as long counts as a different kind."""
MOST_DRAFTS: Final = 16
"""llama.cpp drafts up to 16 tokens by default (common/common.h), vLLM and SGLang fewer."""
LONGEST_PASS: Final = 1 << 13  # kernels
_MOST_BYTES: Final = 1 << 40
"""More than any copy has; a file may say anything."""
_MOST_UNITS: Final = 8
"""The number of kernels and graphs, the rarest first, that are tried as the one that occurs once per pass."""


@dataclass(frozen=True, eq=False)
class WorkCalls(Calls):
    """Calls with the device work that each issued.

    Attributes:
        code: numbers the kernel or graph that it launched first, per device; MISSING if unknown.
        lane: numbers its stream; MISSING if unknown.
        busy: ns, of everything it launched.
        fetched: bytes copied to the host.
    """

    code: Ints
    lane: Ints
    busy: Ints
    fetched: Ints


@dataclass(frozen=True, eq=False)
class Launches(Columns):
    """The launches of a host.

    Attributes:
        call: its position in `Host.calls`.
        code: numbers the kernel or graph, per device.
        graph: whether it replays one.
        busy: ns that the device works for it.
        fetched: bytes, before the next launch.
        inputs, waits, captures: since the previous launch: copies to the device, waits (except those for inputs), and
            captures of graphs, begun in its process.
        behind: the position in `Host.calls` after the result that is fetched next, or of the next launch.
    """

    call: Ints
    code: Ints
    graph: Bools
    busy: Ints
    fetched: Ints
    inputs: Ints
    waits: Ints
    captures: Ints
    behind: Ints


@dataclass(frozen=True)
class Host:
    """The calls of one host, ordered by start, and its turns.

    Attributes:
        calls: of its threads.
        process, thread: of the thread with the most launches.
        launches: among the calls.
        turns: the first launch of each turn.
        fetches: whether the trace shows results being fetched; otherwise turns end with waits.
    """

    calls: WorkCalls
    process: int
    thread: int
    launches: Launches
    turns: Ints
    fetches: bool


def hosts(trace: Trace, calls: Calls) -> Iterator[Host]:
    """The hosts that launch."""
    api = trace.api
    captures = api.letter == BEGIN_CAPTURE
    every = _with_work(trace, calls)
    for (process,), rows in grouped(every.process):
        of_process = every[rows]
        began = np.sort(api.start[captures & (api.process == process)])
        for leader, threads in _together(of_process).items():
            of_host = of_process[among(of_process.thread, threads)]
            yield _host(of_host[np.argsort(of_host.start, kind="stable")], leader, began)


def _with_work(trace: Trace, calls: Calls) -> WorkCalls:
    """The calls with the device work that each issued."""
    busy, issues = np.zeros(len(calls)), np.zeros(len(calls), bool)
    device, stream, graph, name = (np.full(len(calls), MISSING) for _ in range(4))
    tables: tuple[Kernels | GraphLaunches, ...] = (trace.kernels, trace.graph_launches)
    for table in tables:
        call = calls.of(table)
        rows = np.flatnonzero(call >= 0)
        busy += np.bincount(call[rows], (table.end - table.start)[rows], minlength=len(calls))
        rows = rows[~issues[call[rows]]][::-1]  # of several assignments the last stays: of the first row
        of = call[rows]
        device[of], stream[of], graph[of] = table.device[rows], table.stream[rows], table.graph[rows]
        if isinstance(table, Kernels):
            name[of] = table.name.codes[rows]
        issues[of] = True
    name[graph >= 0] = MISSING
    code, lane = np.full(len(calls), MISSING), np.full(len(calls), MISSING)
    if issues.any():
        code[issues] = ranks(graph[issues], name[issues], device[issues])
        lane[issues] = ranks(device[issues], stream[issues])
    code[(graph < 0) & (name < 0)] = MISSING
    to_host = trace.memcpys[trace.memcpys.kind.rows("DtoH")]
    call, size = calls.of(to_host), to_host.bytes.clip(0, _MOST_BYTES)
    fetched = np.bincount(call[call >= 0], size[call >= 0], minlength=len(calls))
    ns, size = busy.astype(np.int64), fetched.astype(np.int64)
    return WorkCalls.from_table(calls, code=code, lane=lane, busy=ns, fetched=size)


def _together(calls: WorkCalls) -> dict[int, list[int]]:
    """Stage 1: the leading thread of each host of a process -> the host's threads."""
    launches = among(calls.letter, LAUNCHES)
    found = sorted(grouped(calls.thread[launches]), key=itemgetter(0))
    lanes = {thread: set(calls.lane[launches][rows].tolist()) for (thread,), rows in found}
    fetching = set(calls.thread[copied_out(calls) | (calls.letter == SYNC)].tolist())
    most_often = max(found, key=lambda each: len(each[1]), default=None)
    leaders = [one for one in lanes if one in fetching] or ([] if most_often is None else [most_often[0][0]])
    threads = {leader: [leader] for leader in leaders}
    for one in set(calls.thread.tolist()).difference(leaders) if leaders else ():
        shared = {leader: len(lanes[leader] & lanes.get(one, set())) for leader in leaders}
        most = max(leaders, key=lambda leader: shared[leader])
        if len(leaders) == 1 or shared[most]:
            threads[most].append(one)
    return threads


def copied_out(calls: Calls) -> Bools:
    """Which calls copy to the host."""
    return among(calls.letter, COPIES) & calls.kind.rows("DtoH")


def brings_drafts(low: Any, high: Any) -> Any:
    """Whether so many bytes are the results of several drafts, if the fewer are those of fewer: not as many more as the
    blocks of a cache have."""
    return (low > 0) & (high >= LONGER * low) & (high <= (MOST_DRAFTS + 1) * low)


def _host(calls: WorkCalls, thread: int, captures: Ints) -> Host:
    letters, fetches = calls.letter, copied_out(calls)
    inputs = among(letters, COPIES) & ~fetches
    waits = among(letters, [SYNC, BLOCKING_COPY])
    of_results = waits & ~((letters == SYNC) & np.append(False, inputs[:-1]))  # otherwise for the copy directly before
    at = np.flatnonzero(among(letters, LAUNCHES))
    cuts = _behind_fetches(np.flatnonzero(waits), at, np.flatnonzero(fetches), len(calls))
    begun = np.searchsorted(captures, calls.start[at])
    until = np.append(cuts, len(calls))[np.searchsorted(cuts, at + 1)]
    launches = Launches(
        call=at, code=calls.code[at], graph=letters[at] == GRAPH_LAUNCH, busy=calls.busy[at],
        fetched=np.diff(np.append(0, np.cumsum(calls.fetched))[np.append(at, len(calls))]),
        inputs=np.diff(np.cumsum(inputs)[at], prepend=0), waits=np.diff(np.cumsum(of_results)[at], prepend=0),
        captures=np.diff(begun, prepend=0), behind=np.minimum(np.append(at[1:], len(calls)), until),
    )  # fmt: skip
    first = np.unique(np.append(0, np.searchsorted(at, cuts)))
    turns = _replays(launches, first[first < len(at)])
    return Host(calls, int(calls.process[0]), thread, launches, turns, bool(fetches.any()))


def _behind_fetches(waits: Ints, launches: Ints, fetches: Ints, end: int) -> Ints:
    """Stage 2: positions after each fetch with its wait; all are positions in the calls, including the position after
    the last one."""
    if not len(fetches):
        return waits + 1
    before = np.searchsorted(launches, fetches)  # launches before each copy
    last = np.append(before[1:] != before[:-1], True)  # copy of each run
    at, before = fetches[last], before[last]
    following = np.append(before[1:], len(launches))
    wait = np.append(waits, end)[np.searchsorted(waits, at)]
    until = np.searchsorted(launches, wait)  # launches before that wait
    return np.asarray(np.where(until - before <= following - until, wait, at) + 1)


def _replays(launches: Launches, first: Ints) -> Ints:
    """Stage 3: the first launch of each turn; turns that repeat themselves are split."""
    code, graph, busy = launches.code, launches.graph, launches.busy
    last = np.append(first[1:], len(code))
    graphs = np.add.reduceat(graph.astype(np.int64), first)
    seen: dict[bytes, Ints] = {}
    found = [first]
    for i in np.flatnonzero((last - first >= SEVERAL) & (graphs != 1)):
        turn = slice(first[i], last[i])
        key = code[turn].tobytes()
        if key not in seen:
            seen[key] = _heads(code[turn], graph[turn], busy[turn])
        found.append(first[i] + seen[key])
    return np.unique(np.concatenate(found))


def _heads(turn: Ints, graph: Bools, busy: Ints) -> Ints:
    """Where the equal passes of a turn begin after a leading part that is a pass as well; none if there is only one.

    Two passes followed by something else may be one step (with and without a prompt, in diffusion). A host that runs
    ahead repeats whole steps, so a few passes are drafts if the other graphs of the turn compute more than each.
    """
    for unit in lengths(turn, SEVERAL) if (turn != MISSING).all() else []:
        begin, end = max(_runs(turn[unit:] == turn[:-unit]).tolist(), key=lambda run: run[1] - run[0], default=(0, 0))
        end += unit
        passes = (end - begin) // unit
        if passes >= SEVERAL and 2 * (end - begin) >= len(turn):
            begin = end - passes * unit if begin else 0
            one = slice(begin, begin + unit)
            whole = graph[one].any() or has_layers(turn[one])
            if whole and passes <= MOST_DRAFTS and _others(turn, graph, busy, one) > LONGER * busy[one].sum():
                return np.zeros(0, np.int64)
            if whole and (not begin or has_layers(turn[:begin])):
                return np.arange(begin, end, unit)
    return np.zeros(0, np.int64)


def _others(turn: Ints, graph: Bools, busy: Ints, one: slice) -> int:
    """How long the device works for the graphs of a turn that one of its passes does not have, each counted once."""
    codes, first = np.unique(np.where(graph, turn, MISSING), return_index=True)
    return int(busy[first[(codes != MISSING) & ~np.isin(codes, turn[one])]].sum())


def lengths(codes: Ints, least: int) -> list[int]:
    """The maximum length of a pattern that occurs at least that often: the distance between its rarest parts."""
    _, number, count = np.unique(codes, return_inverse=True, return_counts=True)
    rare = np.argsort(count, kind="stable")
    rare = rare[count[rare] >= least][:_MOST_UNITS]
    return list(dict.fromkeys(int(np.median(np.diff(np.flatnonzero(number == one)))) for one in rare))


def _runs(flags: Bools, least: int = 1) -> Ints:
    """The start and end of each run of at least this many true values."""
    padded = np.zeros(len(flags) + 2, bool)
    padded[1:-1] = flags
    edges = np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)
    return edges[edges[:, 1] - edges[:, 0] >= least]


def has_layers(kernels: Ints) -> bool:
    """Whether most of a run of kernels is sequences of several that repeat at least three times: the layers of a model
    (or of several, or forward and backward). In a longer run the first `LONGEST_PASS` kernels decide."""
    kernels = kernels[:LONGEST_PASS]
    inside = np.zeros(len(kernels), bool)
    for length in range(SEVERAL, len(kernels) // 4 + 1):
        for begin, end in _runs(kernels[length:] == kernels[:-length], 2 * length).tolist():
            if len(np.unique(kernels[begin : begin + length])) >= SEVERAL:
                inside[begin : end + length] = True
        if 2 * inside.sum() >= len(kernels):
            return True
    return False
