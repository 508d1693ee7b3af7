"""Steps of engines without marks: a step ends with the result that the host fetches before or while it launches the
next, and is one pass through a model.

*Turns* are what one host launches between two results that it fetches. Stages:
1. threads that work for one another form one host: each thread that fetches results, together with those
   that only launch on its streams; a thread that only fetches belongs to the only host of its process;
2. a result is fetched where the host copies from the device; copies without a launch between them are one result. The
   turn ends with the wait that follows, if it comes before most of the next turn is launched, else with the copy. If a
   trace has no copies to the host, every wait ends a turn;
3. a turn that launches the same CUDA graphs, or one whole pass of kernels, repeatedly becomes one turn for each: the
   host runs ahead and reads later. What it launches before them is another turn if it is a pass as well (a prompt).
   Drafts share their turn with the larger graph that verifies them, and the turn is one step;
4. number the kinds of turns: the graph that a turn replays, or else what it launches most often, and for how long that
   runs, if that is known; a kind is a pass by itself if it replays a graph, or kernels that repeat layer by layer;
5. join the turns of one step: what is not a pass is part of one (a stop condition, a sequence that is sampled); runs of
   a short pass that each end with a long one are drafts and their verification; and if no turn is a pass, or each
   replays a different graph of a pass, turns in a constant order form a step (routing in each layer);
6. keep the most common kind of step, and other kinds that compute as much (prompts, other batches); before them
   (loading, tuning, warm-up) only turns after a wait can be steps, and turns that capture graphs are not steps; of an
   engine that captures its graphs before it serves, nothing up to the last capture is (`_serving`);
7. begin each step where its inputs begin;
8. check whether something contradicts that each of these steps is one pass;
9. combine the hosts: the confidence is the share of the device's time that their steps explain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import Calls, copied_out
from tracer.analysis.evidence import is_of_any
from tracer.analysis.steps import StepRows, Steps, as_steps
from tracer.engines import engines
from tracer.engines.engine import FORWARD, ITERATION, SPECULATIVE
from tracer.model.calls import BEGIN_CAPTURE, BLOCKING_COPY, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC
from tracer.model.columns import (
    NEVER,
    Columns,
    Names,
    among,
    firsts,
    grouped,
    joined,
    medians,
    modes,
    numbers,
    ranks,
    runs,
    within,
)
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
MOST: Final = 0.5
"""If this share of the steps has a property, all are taken to have it."""
CONSTANT: Final = 0.9
"""An order is constant if at least this share follows it."""
GUESSED: Final = 0.8
"""The confidence in steps that can be interpreted differently, or whose waits have an unknown target."""
_EXAMPLES: Final = 64
"""The number of steps to examine, evenly spread."""
_DRAFTS: Final = "drafts and their verification (or prompts of few tokens) in each"
_NO_PASS: Final = "which do not show a complete pass through a model each, and may be parts of one"
_OR_STEPS: Final = "or each a step of its own, of batches in turn"


# --- turns ---


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
    captures_first = is_of_any(trace, [engine for engine in engines() if engine.captures_first])
    for (process,), rows in grouped(every.process):
        of_process = every[rows]
        began = np.sort(api.start[captures & (api.process == process)])
        if captures_first:
            of_process, began = _serving(of_process, began)
        for leader, threads in _together(of_process).items():
            of_host = of_process[among(of_process.thread, threads)]
            yield _host(of_host[np.argsort(of_host.start, kind="stable")], leader, began)


def _serving(calls: WorkCalls, captures: Ints) -> tuple[WorkCalls, Ints]:
    """The calls of a process, and its captures, since the last capture before it first replays a graph.

    Example: the turns W C C CP T T T, where the third capture is followed by a prompt in its turn, become P T T T.
    """
    replays = calls.start[calls.letter == GRAPH_LAUNCH]
    ready = captures[captures < replays.min(initial=NEVER)].max(initial=-NEVER) if len(replays) else -NEVER
    return calls[calls.start > ready], captures[captures > ready]


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
    by_thread = sorted(grouped(calls.thread[launches]), key=itemgetter(0))
    lanes = {thread: set(calls.lane[launches][rows].tolist()) for (thread,), rows in by_thread}
    fetching = set(calls.thread[copied_out(calls) | (calls.letter == SYNC)].tolist())
    most_often = max(by_thread, key=lambda each: len(each[1]), default=None)
    leaders = [one for one in lanes if one in fetching] or ([] if most_often is None else [most_often[0][0]])
    threads = {leader: [leader] for leader in leaders}
    for one in set(calls.thread.tolist()).difference(leaders) if leaders else ():
        shared = {leader: len(lanes[leader] & lanes.get(one, set())) for leader in leaders}
        most = max(leaders, key=lambda leader: shared[leader])
        if len(leaders) == 1 or shared[most]:
            threads[most].append(one)
    return threads


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
    heads = [first]
    for i in np.flatnonzero((last - first >= SEVERAL) & (graphs != 1)):
        turn = slice(first[i], last[i])
        key = code[turn].tobytes()
        if key not in seen:
            seen[key] = _heads(code[turn], graph[turn], busy[turn])
        heads.append(first[i] + seen[key])
    return np.unique(np.concatenate(heads))


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


# --- steps ---


class Work(Columns):
    """What is launched from some launches of a host to the next.

    Attributes:
        first, last: launches, half open.
        graph: how many are of graphs.
        busy, fetched: ns and bytes.
        inputs, waits, captures: as in `Launches`.
        kind: a number.
        whole: whether that kind is a pass by itself.
        group: equal in a chain of steps without anything between them.
    """

    first: Ints
    last: Ints
    graph: Ints
    busy: Ints
    fetched: Ints
    inputs: Ints
    waits: Ints
    captures: Ints
    kind: Ints
    whole: Bools
    group: Ints


@dataclass(frozen=True)
class _HostSteps:
    """The steps of one host: rows, how long the device is busy for each (ns), and what `Steps` says of them."""

    rows: StepRows
    busy: Ints
    detail: str
    confidence: float


def steps_of_fetches(trace: Trace, calls: Calls, wanted: Collection[tuple[int, int]] = ()) -> Steps | None:
    """Stage 9: the steps of all hosts together, without those that have far fewer than others and are not `wanted`
    (process and thread); None if no host does anything similar `SEVERAL` times.

    The confidence is the share of the device's time between them that the steps explain, times the certainty of the
    order of their turns.
    """
    every = sorted(hosts(trace, calls), key=lambda host: -len(host.launches))
    by_host = [steps for host in every if (steps := _steps_of(host)) is not None]
    if not by_host:
        return None
    most = max(len(steps.rows) for steps in by_host)
    by_host = [steps for steps in by_host if 4 * len(steps.rows) >= most or _host_of(steps.rows) in wanted]
    rows = joined([steps.rows for steps in by_host])
    of_host = np.repeat(np.arange(len(by_host)), [len(steps.rows) for steps in by_host])
    rows = rows.changed(group=numbers(of_host, rows.group)[0])
    begin, end = int(rows.start.min()), int(rows.end.max())
    spent = sum(_busy(host, begin, end) for host in every)
    explained = min(sum(int(steps.busy.sum()) for steps in by_host) / spent, 1.0) if spent else 1.0
    detail = "; ".join(dict.fromkeys(steps.detail for steps in by_host))
    made = as_steps(rows, "calls", detail, explained * min(steps.confidence for steps in by_host))
    return replace(made, unexplained=1 - explained)


def _host_of(rows: StepRows) -> tuple[int, int]:
    return int(rows.process[0]), int(rows.thread[0])


def _busy(host: Host, begin: int, end: int) -> int:
    """How long the device works for what the host calls from `begin` on and before `end`, ns."""
    return int(host.calls.busy[(host.calls.start >= begin) & (host.calls.start < end)].sum())


def _steps_of(host: Host) -> _HostSteps | None:
    turns = work_of(host, host.turns)
    begins, order = first_turns(host, turns)
    steps = _kept(host, turns if len(begins) == len(turns) else work_of(host, host.turns[begins]))
    if len(steps) < SEVERAL:
        return None
    doubt = _doubt_of(host, steps)
    words = (f"{'results fetched' if host.fetches else 'waits'} by thread {host.thread}", order, doubt)
    sure = 1.0 if host.fetches and order != _DRAFTS and not order.endswith(_OR_STEPS) and not doubt else GUESSED
    phase = {_NO_PASS: ITERATION}.get(doubt, SPECULATIVE if order == _DRAFTS else "")
    rows, lasts = _between_calls(host, steps, phase)
    return _HostSteps(rows, steps.busy[lasts], ", ".join(filter(None, words)), sure)


def single_passes(trace: Trace, calls: Calls) -> Steps | None:
    """Single passes through a model: the turns, too few for a loop, whose kernels repeat layer by layer; None if there
    are none."""
    passes = []
    for number, host in enumerate(hosts(trace, calls)):
        turns, code = work_of(host, host.turns), host.launches.code
        bounds = zip(turns.first.tolist(), turns.last.tolist(), strict=True)
        layered = np.array([has_layers(code[first:last]) for first, last in bounds], bool)
        if layered.any():
            turns = turns[layered]
            none = np.zeros(len(turns), np.int64)
            passes.append(_between_calls(host, turns.changed(group=none + number, kind=none), FORWARD)[0])
    return as_steps(joined(passes), "calls", "kernels that repeat layer by layer", GUESSED) if passes else None


def work_of(host: Host, first: Ints) -> Work:
    """Stage 4: the work launched from each of these launches to the next.

    Example: ten tokens replay graph 7 and one prompt replays graph 3. These are two kinds, both whole; a prompt with
    twice the work of another of its graph is a third.
    """
    launches, last = host.launches, np.append(first[1:], len(host.launches))
    graphs, busy, fetched, inputs, waits, captures = (
        np.add.reduceat(each.astype(np.int64), first) if len(first) else first
        for each in (
            launches.graph, launches.busy, launches.fetched, launches.inputs, launches.waits, launches.captures
        )
    )  # fmt: skip
    graph, code = _most_often(launches, np.repeat(np.arange(len(first)), last - first))
    unknown = ~graph & (code == MISSING)
    if unknown.any():
        code = _of_equal_length(code, unknown, last - first)
    number, count = numbers(code)
    usual = medians(busy, number, count)[number].clip(1)
    size = np.where(graph | unknown, 0, (np.log2(busy.clip(1) / usual) / (2 * np.log2(LONGER))).round())
    kind, kinds = numbers(code, size)
    order = np.argsort(unknown, kind="stable")
    examples = order[firsts(kind[order], kinds)].tolist()
    whole = np.array([_shows_pass(launches[first[one] : last[one]]) for one in examples], bool)
    group = np.zeros(len(first), np.int64)
    return Work(first, last, graphs, busy, fetched, inputs, waits, captures, kind, whole[kind], group)


def _of_equal_length(code: Ints, unknown: Bools, length: Ints) -> Ints:
    """The codes of turns; if it is unknown what a turn launches, that of most turns of as many launches, or else a
    number of its own for each length. A light recording does not tell what all eager launches ran, nor for how long.

    Example: of the turns 7 7 ? ? with 30 launches each, except for 31 of the last, the third is another 7.
    """
    of_length, count = numbers(length)
    usual = np.full(count, MISSING)
    known = np.flatnonzero(~unknown)
    if len(known):
        usual[of_length[known]] = modes(code[known], of_length[known], count)[of_length[known]]
    own = code.max(initial=0) + 1 + of_length
    return np.where(unknown, np.where(usual[of_length] == MISSING, own, usual[of_length]), code)


def _most_often(launches: Launches, turn: Ints) -> tuple[Bools, Ints]:
    """What each turn launches most often, given the turn of every launch: whether it is a known graph, and its code."""
    graph = launches.graph & (launches.code >= 0)
    order, first = runs(turn, graph, launches.code)
    count, rows = np.diff(first, append=len(order)), order[first]
    turn, known, code = turn[rows], graph[rows], launches.code[rows]
    _, number, turns = np.unique(code, return_inverse=True, return_counts=True)
    order = np.lexsort((code, turns[number], count, known, turn))  # each of a step's graphs may be its own
    most = order[np.append(turn[1:] != turn[:-1], True)]
    return known[most], code[most]


def _shows_pass(launches: Launches) -> bool:
    """Whether these replay a graph or launch layers."""
    return bool(launches.graph.any()) or has_layers(launches.code)


def first_turns(host: Host, turns: Work) -> tuple[Ints, str]:
    """Stage 5: the turns that begin a step, and a description of a step in words.

    Example: each token fetches a logit, then a stop flag that a small kernel computes. The second turn is no pass, so
    a step is both turns and begins at 0, 2, 4, ...
    """
    kind, busy, inputs, whole = turns.kind, turns.busy, turns.inputs, turns.whole
    drafts = _behind_drafts(turns[whole], np.flatnonzero(whole))
    if drafts is not None:
        return drafts[drafts < len(turns)], _DRAFTS
    for marks, length in _cycles(2 * kind + (inputs > 0)):
        fed = [float(np.median(inputs[marks[marks >= back] - back])) for back in range(length)]
        inputs_differ = min(fed) < max(fed)  # the turn with the most inputs begins a step, else the one after the mark
        in_turn = length >= SEVERAL and CONSTANT * np.bincount(kind).max() <= len(marks) and inputs_differ
        cycle = host.launches[turns.first[marks[0]] : turns.last[marks[0] : marks[0] + length][-1]]
        if (in_turn or not whole.any()) and _shows_pass(cycle):
            begin = marks - (int(np.argmax(fed)) if inputs_differ else length - 1)
            begins = np.unique(np.concatenate(([0], begin, begin + length)))
            alone = in_turn and whole.any() and min(fed) > 0  # each has inputs: requests may also join every few steps
            return begins[(begins >= 0) & (begins < len(turns))], f"{length} each{f', {_OR_STEPS}' if alone else ''}"
    parts = ~whole & (LONGER * busy < (np.median(busy[whole]) if whole.any() else 0))
    leads = parts.any() and inputs[parts].mean() > inputs[whole].mean()  # otherwise they belong to the previous pass
    begins = np.flatnonzero(~np.append(False, parts[:-1]) if leads else ~parts)
    return np.union1d(0, begins), ""


def _behind_drafts(passes: Work, positions: Ints) -> Ints | None:
    """The turns that begin a step if runs of a short pass, no longer than drafts, each end with a long one of
    another graph, or (eager) of more launches; None otherwise. `positions` are those of the passes among the turns.

    One may replay a graph and the other none, or a pass in pieces, as tokens and prompts do, too. But a prompt brings a
    sequence no more than a token, whereas a result is fetched for each draft.

    Example: dddV dddV ddV, where d and V replay different graphs, is three steps that begin at 0, 4 and 8.
    """
    number, count = numbers(passes.kind)
    if count < 2:
        return None
    two = np.argsort(-np.bincount(number), kind="stable")[:2]
    graphs = medians(passes.graph, number, count)[two]
    unlike = graphs.max() > LONGER * graphs.min()
    example = np.array([int((number == one).argmax()) for one in two])
    by_time = (passes.graph[example] > 0) | unlike
    size = np.where(by_time, passes.busy[example], (passes.last - passes.first)[example])
    if size.max() <= LONGER * size.min():
        return None
    small, large = two[size.argmin()], two[size.argmax()]
    if unlike and not brings_drafts(*medians(passes.fetched, number, count)[[small, large]]):
        return None
    long, short = number == large, number == small
    drafts = np.diff(np.cumsum(short)[long])
    least = CONSTANT if unlike else MOST  # without drafts, the long pass would be one of a single token, too
    few = long.sum() < SEVERAL or np.mean(drafts > 0) < least or drafts.max() > MOST_DRAFTS
    if few or np.mean(long | short) < CONSTANT:
        return None
    return np.append(0, positions[long] + 1)


def _cycles(symbols: Ints) -> Iterator[tuple[Ints, int]]:
    """(positions of a symbol other than the most common one, their distance), if it occurs at a constant distance over
    most of the range of the most common one; the rarest first."""
    count = np.bincount(symbols)
    span = np.ptp(np.flatnonzero(symbols == count.argmax()))
    order = np.argsort(count, kind="stable")[:-1]
    for value in order[count[order] >= SEVERAL].tolist():
        marks = np.flatnonzero(symbols == value)
        distance = np.diff(marks)
        length = int(np.median(distance))
        if length > 1 and np.ptp(marks) >= MOST * span and np.mean(distance % length == 0) >= CONSTANT:
            yield marks, length


def _kept(host: Host, steps: Work) -> Work:
    """Stage 6: the steps of the loop, in groups.

    Example: two warm-up passes that capture graphs, then W T T T, where W launches twice what T does: the steps are
    the three T, and the part of W behind its last wait if that is as long as a T.
    """
    first, last, busy, kinds = steps.first, steps.last, steps.busy, np.bincount(steps.kind)
    main, captures = steps.kind == np.flatnonzero(kinds == kinds.max(initial=0)).max(initial=-1), steps.captures > 0
    usual = np.flatnonzero(main & ~captures)[1:]  # the first may be preceded by a warm-up
    if len(usual) < SEVERAL - 1:
        return steps[:0]
    launched, least = (last - first)[usual], np.median(busy[usual])
    keep = main | (~captures & (steps.whole | (LONGER * busy >= least)))
    leads = _begins(keep)
    waits = np.flatnonzero(host.launches.waits)  # the last one that leaves a usual step behind it begins the lead
    behind = np.append(0, waits)[np.searchsorted(waits, last - launched.min(), side="right")]
    first = np.where(leads & (last - first > launched.max()) & (behind > first), behind, first)
    total = np.append(0, np.cumsum(host.launches.busy))
    busy = total[last] - total[first]
    warms_up = (steps.graph > 0) & (last - first > LONGER * launched.max())
    keep &= ~leads | (busy >= MOST * least) & ~warms_up
    return steps.changed(first=first, busy=busy, group=np.cumsum(_begins(keep)))[keep]


def _begins(keep: Bools) -> Bools:
    """The first of each run of steps to keep."""
    return keep & ~np.append(False, keep[:-1])


def _between_calls(host: Host, steps: Work, phase: str) -> tuple[StepRows, Bools]:
    """Stage 7: the steps with the times of their first and last calls, and which of those given these are.

    The inputs begin with the first copy to the device (or, without copies, the launch). Of two or more syncs directly
    before it, the last one guards the write and belongs to the inputs; a single one waits for the result of the
    previous step, if there is one. The first step of a chain begins no earlier before its first launch than those that
    follow it; the last one waits for idle work as often as those before it.

    Example: the calls s s c g a s s c g a are two steps that begin with the second of each two syncs.
    """
    calls, first, letters = host.calls, steps.first, host.calls.letter
    sync, copies = letters == SYNC, among(letters, COPIES) & ~copied_out(calls)
    launch, before = host.launches.call[first], np.append(-1, host.launches.call)[first] + 1
    behind = host.launches.behind[steps.last - 1]
    leads = within(steps.group) == 0
    follows = np.append(~leads[1:], False)
    inputs = np.flatnonzero(copies | among(letters, LAUNCHES))
    begin = inputs[np.searchsorted(inputs, before)]
    alone = leads & follows.any()  # without a loop nothing leads
    guarded = (begin > before) & sync[begin - 1] & (alone | ((begin > before + 1) & sync[begin - 2] & copies[begin]))
    begin = begin - guarded
    if follows.any():
        begin = np.where(leads, np.maximum(begin, launch - int(np.median((launch - begin)[~leads]))), begin)
        idle = max(int(np.median((np.append(begin[1:], 0) - behind)[follows])), 0)
        others = np.append(np.flatnonzero(~sync), len(sync))
        behind = np.where(follows, behind, np.minimum(others[np.searchsorted(others, behind)], behind + idle))
    starts, ends = calls.start[begin], calls.end[behind - 1]
    ends = np.where(follows, np.append(starts[1:], 0), ends)
    lasts = ends > starts
    none = np.zeros(int(lasts.sum()), np.int64)
    rows = StepRows(
        none, starts[lasts], ends[lasts], none + host.process, none + host.thread, steps.group[lasts],
        Names(none, np.array([phase], dtype=object)), none + MISSING, none + MISSING, steps.kind[lasts], none + MISSING,
    )  # fmt: skip
    return rows, lasts


def _doubt_of(host: Host, steps: Work) -> str:
    """Stage 8: why these steps may be parts of passes, or several; "" if every check is consistent with one each.

    Example: steps that each launch five kernels which do not repeat show no pass, so they may be parts of one.
    """
    some = steps[np.unique(np.linspace(0, len(steps) - 1, _EXAMPLES).astype(int))]
    codes, graphs = host.launches.code, host.launches.graph
    seen: dict[tuple[bytes, bytes], int] = {}  # most steps launch the same work
    count = np.zeros(len(some), np.int64)
    for at, (first, last) in enumerate(zip(some.first.tolist(), some.last.tolist(), strict=True)):
        launched = slice(first, min(last, first + 2 * LONGEST_PASS))
        code, graph = codes[launched], graphs[launched]
        key = code.tobytes(), graph.tobytes()
        if key not in seen:
            seen[key] = _passes(code, graph)
        count[at] = seen[key]
    if np.mean(count == 0) > 1 - CONSTANT:
        return _NO_PASS
    if np.mean(count > 1) > 1 - CONSTANT:
        return "which may be several passes each"
    kind, replays = steps.kind, steps.graph > 0
    of_kind = np.diff(np.flatnonzero(kind[1:] != kind[:-1]), prepend=-1, append=len(kind) - 1)
    again = len(of_kind) >= 2 * max(SEVERAL, len(np.unique(kind))) and np.median(of_kind) <= MOST_DRAFTS
    if again and replays.any() == replays.all():
        return "of two alternating kinds: drafts, prompts, two models, or parts of a step"
    between = np.diff(np.flatnonzero(~replays), prepend=-1)[1:] - 1  # two passes without a graph
    if len(between) >= 2 * SEVERAL and np.mean(between > 0) >= CONSTANT and np.median(between) <= MOST_DRAFTS:
        return "with a pass without a graph behind every few graphs: a prompt, or what verifies drafts"
    return ""


def _passes(code: Ints, graph: Bools) -> int:
    """How many passes through a model a step appears to contain, judged by its launches: 0, 1, or 2 for more."""
    if graph.any():
        alike = code[graph]
        return 2 if len(np.unique(alike)) < len(alike) or (len(alike) > 1 and (alike == MISSING).any()) else 1
    if not has_layers(code):
        return 0
    units = [unit for unit in lengths(code, 2) if len(code) >= 2 * unit and has_layers(code[:unit])]
    return 2 if any(np.mean(code[unit:] == code[:-unit]) >= CONSTANT for unit in units) else 1
