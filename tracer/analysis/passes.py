"""Steps of engines without marks: a step ends with the result that the host fetches before or while it launches the
next, and is one pass through a model.

Evidence of a turn (`tracer.analysis.turns`, which also makes them):
- its *kind*: the graph it replays, or else what it launches most often, and for how long that runs, if it is known;
- its *content*: whether its kernels show the layers of a model. A graph whose kernels are not recorded may be a pass;
- its *order*: whether the kinds come in turn;
- its *inputs* and *results*: how much is copied to the device for it, and to the host after it.

Passes over the turns of a host:
1. **Kinds** (`work_of`). Example: ten tokens replay graph 7 and one prompt replays graph 3: two kinds.
2. **Steps of several turns** (`first_turns`). Turns are joined where they are drafts and their verification; where they
   come in a constant order of any length and none shows a whole pass (layers, splits, routing between them), or where
   each replays a graph of its own and inputs or results show which begins the step; and where a turn is no pass and
   short (a stop condition, a sequence that is sampled).
   Example: 33 turns in constant order, of which 32 replay graphs with one attention each, and only the last fetches
   logits, are one step, which begins behind that last one.
3. **The loop** (`_kept`). The most common kind of step stays, and other kinds that compute as much (prompts, other
   batches). Before them (loading, tuning, warm-up) only turns after a wait can be steps, and turns that capture graphs
   are none; of an engine that captures its graphs before it serves, nothing up to the last capture is.
   Example: of W C T T P T T, where W warms up, C captures and P takes three times as long as T, five are steps.
4. **Begin and end** (`_between_calls`). A step begins where its inputs begin.
   Example: the calls s s c g a s s c g a are two steps that begin with the second of each two syncs.
5. **Doubt** (`_doubt_of`). Whether something contradicts that each of these steps is one pass.
   Example: steps of five kernels each, which do not repeat, show no pass, so they may be parts of one.
6. **All hosts** (`steps_of_fetches`). The confidence is the share of the device's time that their steps explain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracer.analysis.calls import Calls, copied_out
from tracer.analysis.steps import StepRows, Steps, as_steps
from tracer.analysis.turns import (
    CONSTANT,
    LONGER,
    LONGEST_PASS,
    MOST_DRAFTS,
    SEVERAL,
    Host,
    Launches,
    brings_drafts,
    hosts,
    lengths,
)
from tracer.engines.engine import FORWARD, ITERATION, SPECULATIVE
from tracer.model.calls import COPIES, LAUNCHES, SYNC
from tracer.model.columns import Columns, Names, among, firsts, joined, medians, modes, numbers, runs, within
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

MOST: Final = 0.5
"""If this share of the steps has a property, all are taken to have it."""
GUESSED: Final = 0.8
"""The confidence in steps that can be interpreted differently, or whose waits have an unknown target."""
_EXAMPLES: Final = 64
"""The number of steps to examine, evenly spread."""
_DRAFTS: Final = "drafts and their verification (or prompts of few tokens) in each"
_NO_PASS: Final = "which do not show a complete pass through a model each, and may be parts of one"
_OR_STEPS: Final = "or each a step of its own, of batches in turn"


class Work(Columns):
    """What is launched from some launches of a host to the next.

    Attributes:
        first, last: launches, half open.
        graph: how many are of graphs.
        busy, fetched: ns and bytes.
        inputs, sent, waits, captures: as in `Launches`.
        kind: a number.
        whole: whether that kind is a pass by itself, or may be.
        shown: whether its kernels show that it is.
        group: equal in a chain of steps without anything between them.
    """

    first: Ints
    last: Ints
    graph: Ints
    busy: Ints
    fetched: Ints
    inputs: Ints
    sent: Ints
    waits: Ints
    captures: Ints
    kind: Ints
    whole: Bools
    shown: Bools
    group: Ints


@dataclass(frozen=True)
class _HostSteps:
    """The steps of one host: rows, how long the device is busy for each (ns), and what `Steps` says of them."""

    rows: StepRows
    busy: Ints
    detail: str
    confidence: float


def steps_of_fetches(trace: Trace, calls: Calls, wanted: Collection[tuple[int, int]] = ()) -> Steps | None:
    """Pass 6: the steps of all hosts together, without those that have far fewer than others and are not `wanted`
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
        turns, inside = work_of(host, host.turns), host.contents
        bounds = zip(turns.first.tolist(), turns.last.tolist(), strict=True)
        launched = [inside.kernels(host.launches[first:last]) for first, last in bounds]
        layered = np.array([inside.has_layers(kernels) for kernels in launched], bool)
        if layered.any():
            turns = turns[layered]
            none = np.zeros(len(turns), np.int64)
            passes.append(_between_calls(host, turns.changed(group=none + number, kind=none), FORWARD)[0])
    return as_steps(joined(passes), "calls", "kernels that repeat layer by layer", GUESSED) if passes else None


def work_of(host: Host, first: Ints) -> Work:
    """Pass 1: the work launched from each of these launches to the next.

    Example: ten tokens replay graph 7 and one prompt replays graph 3. These are two kinds, both whole; a prompt with
    twice the work of another of its graph is a third.
    """
    launches, last = host.launches, np.append(first[1:], len(host.launches))
    graphs, busy, fetched, inputs, sent, waits, captures = (
        np.add.reduceat(each.astype(np.int64), first) if len(first) else first
        for each in (
            launches.graph, launches.busy, launches.fetched, launches.inputs, launches.sent, launches.waits,
            launches.captures,
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
    work = [launches[first[one] : last[one]] for one in examples]
    whole = np.array([host.contents.is_pass(each) for each in work], bool)
    shown = np.array([host.contents.shows_pass(each) for each in work], bool)
    group = np.zeros(len(first), np.int64)
    return Work(
        first, last, graphs, busy, fetched, inputs, sent, waits, captures, kind, whole[kind], shown[kind], group
    )


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


def first_turns(host: Host, turns: Work) -> tuple[Ints, str]:
    """Pass 2: the turns that begin a step, and a description of a step in words.

    Example: each token fetches a logit, then a stop flag that a small kernel computes. The second turn is no pass, so
    a step is both turns and begins at 0, 2, 4, ...
    """
    whole, drafting = turns.whole, np.flatnonzero(turns.whole | (turns.graph > 0))
    drafts = _behind_drafts(turns[drafting], drafting)
    if drafts is not None:
        return drafts[drafts < len(turns)], _DRAFTS
    for marks, length in _cycles(turns):
        back, is_sure = _joined(host, turns, marks, length)
        if back is not None:
            begins = np.union1d(0, _every(marks, length) - back)
            inside = begins[(begins >= 0) & (begins < len(turns))]
            return inside, f"{length} each{'' if is_sure else f', {_OR_STEPS}'}"
    parts = ~whole & (LONGER * turns.busy < (np.median(turns.busy[whole]) if whole.any() else 0))
    leads = parts.any() and turns.inputs[parts].mean() > turns.inputs[whole].mean()  # else of the pass before
    begins = np.flatnonzero(~np.append(False, parts[:-1]) if leads else ~parts)
    return np.union1d(0, begins), ""


def _joined(host: Host, turns: Work, marks: Ints, length: int) -> tuple[int | None, bool]:
    """How many turns before each mark a step of `length` turns begins, None if they are no step together; and whether
    that is certain.

    Example: the turns a b c d a b c d, with the mark d, each replay a graph of its own. Only a has an input of few
    bytes, so they are steps, and begin three turns before each mark.
    """
    cycle = np.arange(max(marks[0] - length + 1, 0), marks[-1] + 1)
    if turns.shown[cycle].mean() > MOST:
        return None, False
    inputs, sent, results = (
        np.array([np.median(each[marks[marks >= back] - back]) for back in range(length)])
        for each in (turns.inputs, turns.sent, turns.fetched)
    )
    may_be_passes = bool(turns.whole.any())
    inputs_differ = inputs.min() < inputs.max()
    two = length == 2 and inputs_differ and inputs.min() == 0  # else two models, or batches, may take turns
    in_turn = (length >= SEVERAL or two) and CONSTANT * np.bincount(turns.kind).max() <= len(marks)
    first, last = _only(sent, length), _only(results, length)
    is_told = inputs_differ or first is not None or last is not None
    if may_be_passes and not (in_turn and (is_told or length > MOST_DRAFTS)):
        return None, False
    whole = host.launches[turns.first[marks[0]] : turns.last[marks[0] : marks[0] + length][-1]]
    if not host.contents.is_pass(whole):
        return None, False
    if inputs_differ:
        begin = int(np.argmax(inputs))
    elif last is not None:
        begin = (last - 1) % length
    else:
        begin = length - 1 if first is None else first
    every_input = may_be_passes and inputs.min() > 0  # requests may also join every few steps
    return begin, not (two or (in_turn and every_input)) or length > MOST_DRAFTS


def _every(marks: Ints, length: int) -> Ints:
    """The marks, those that are missing between two of them, and the next one.

    Example:
        >>> _every(np.array([2, 4, 8, 11]), 2).tolist()
        [2, 4, 6, 8, 10, 11, 13]
    """
    apart = np.diff(marks)
    count = np.append(np.where(apart % length == 0, apart // length, np.minimum(apart // length + 1, 2)), 2)
    at = np.repeat(marks, count) + length * within(np.repeat(np.arange(len(marks)), count))
    return np.unique(at)


def _only(values: Floats, length: int) -> int | None:
    """The position of the only one of several values that differs from all others, which are alike."""
    usual = np.median(values)
    other = np.flatnonzero(values != usual)
    return int(other[0]) if len(other) == 1 and length > SEVERAL else None


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
    if not passes.whole[example[size.argmax()]]:  # layers, and what follows them
        return None
    if unlike and not brings_drafts(*medians(passes.fetched, number, count)[[small, large]]):
        return None
    long, short = number == large, number == small
    drafts = np.diff(np.cumsum(short)[long])
    least = CONSTANT if unlike else MOST  # without drafts, the long pass would be one of a single token, too
    few = long.sum() < SEVERAL or np.mean(drafts > 0) < least or drafts.max() > MOST_DRAFTS
    if few or np.mean(long | short) < CONSTANT:
        return None
    return np.append(0, positions[long] + 1)


def _cycles(turns: Work) -> Iterator[tuple[Ints, int]]:
    """(positions of turns that differ from the most common ones, their distance), if they occur at a constant distance
    over most of the range of those; the rarest first, but of one distance those that occur most often. Turns of unlike
    kinds differ, and if none may be a pass, also those of unlike length, inputs or results."""
    unlike = [2 * turns.kind + (turns.inputs > 0)]
    if not turns.whole.any():
        unlike += [numbers(each)[0] for each in (turns.last - turns.first, turns.fetched, turns.sent)]
    for symbols in unlike:
        found: dict[int, Ints] = {}
        count = np.bincount(symbols)
        span = np.ptp(np.flatnonzero(symbols == count.argmax()))
        order = np.argsort(count, kind="stable")[:-1]
        for value in order[count[order] >= SEVERAL].tolist():
            marks = np.flatnonzero(symbols == value)
            distance = np.diff(marks)
            length = int(np.median(distance))
            is_constant = length > 1 and np.mean(distance % length == 0) >= CONSTANT
            if is_constant and np.ptp(marks) >= MOST * span and len(marks) > len(found.get(length, ())):
                found[length] = marks
        for length, marks in found.items():
            yield marks, length


def _kept(host: Host, steps: Work) -> Work:
    """Pass 3: the steps of the loop, in groups.

    Example: two warm-up passes that capture graphs, then W T T T, where W launches twice what T does: the steps are
    the three T, and the part of W behind its last wait if that is as long as a T.
    """
    first, last, busy, kinds = steps.first, steps.last, steps.busy, np.bincount(steps.kind)
    main = steps.kind == np.flatnonzero(kinds == kinds.max(initial=0)).max(initial=-1)
    captures = (steps.captures > 0) & ~_again(steps, main)
    usual = np.flatnonzero(main & ~captures)[1:]  # the first may be preceded by a warm-up
    if len(usual) < SEVERAL - 1:
        return steps[:0]
    launched, least = (last - first)[usual], np.median(busy[usual])
    waits = np.flatnonzero(host.launches.waits)  # the last one that leaves a usual step behind it begins the lead
    behind = np.append(0, waits)[np.searchsorted(waits, last - launched.min(), side="right")]
    captured = np.flatnonzero(host.launches.captures)
    captures &= behind <= np.append(-1, captured)[np.searchsorted(captured, last)]  # else what is behind it has none
    keep = main | (~captures & (steps.whole | (LONGER * busy >= least)))
    ready = np.flatnonzero(captures[: usual[0]]).max(initial=-1)  # until then it warms up
    keep[: ready + 1] = False
    leads = _begins(keep)
    first = np.where(leads & (last - first > launched.max()) & (behind > first), behind, first)
    total, graphs = (np.append(0, np.cumsum(each)) for each in (host.launches.busy, host.launches.graph))
    busy = total[last] - total[first]
    warms_up = (graphs[last] > graphs[first]) & (last - first > LONGER * launched.max())
    keep &= ~leads | (busy >= MOST * least) & ~warms_up
    return steps.changed(first=first, busy=busy, group=np.cumsum(_begins(keep)))[keep]


def _again(steps: Work, main: Bools) -> Bools:
    """The steps that capture while the loop runs, as a server does for another batch, or when memory moved: they replay
    what they captured, or launch as much, behind `SEVERAL` of the main kind without captures, or before one that is
    equal to them in what it replays and fetches.

    Example: of C P D T T T E T, where the graphs of C and T are others, and D and E capture that of T, all but C do.
    """
    kind, captures, fetched = steps.kind, steps.captures > 0, steps.fetched
    usual = main & ~captures
    behind = np.cumsum(usual) - usual >= SEVERAL
    before = np.append((kind[1:] == kind[:-1]) & ~captures[1:] & (fetched[1:] == fetched[:-1]), False) & (fetched > 0)
    return steps.whole & (behind | before)


def _begins(keep: Bools) -> Bools:
    """The first of each run of steps to keep."""
    return keep & ~np.append(False, keep[:-1])


def _between_calls(host: Host, steps: Work, phase: str) -> tuple[StepRows, Bools]:
    """Pass 4: the steps with the times of their first and last calls, and which of those given these are.

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
    """Pass 5: why these steps may be parts of passes, or several; "" if every check is consistent with one each.

    Example: steps that each launch five kernels which do not repeat show no pass, so they may be parts of one.
    """
    some = steps[np.unique(np.linspace(0, len(steps) - 1, _EXAMPLES).astype(int))]
    seen: dict[bytes, int] = {}  # most steps launch the same work
    count = np.zeros(len(some), np.int64)
    for at, (first, last) in enumerate(zip(some.first.tolist(), some.last.tolist(), strict=True)):
        launched = host.launches[first : min(last, first + 2 * LONGEST_PASS)]
        key = launched.code.tobytes()
        if key not in seen:
            seen[key] = _passes(host, launched)
        count[at] = seen[key]
    if np.mean(count == 0) > 1 - CONSTANT:
        return _NO_PASS
    if np.mean(count > 1) > 1 - CONSTANT:
        return "which may be several passes each"
    kind, replays = steps.kind, steps.graph > 0
    common = np.isin(kind, np.argsort(-np.bincount(kind), kind="stable")[:2])
    in_turn = all(_take_turns(each) for each in (kind, kind[common]))
    if in_turn and replays[common].any() == replays[common].all():
        return "of two alternating kinds: drafts, prompts, two models, or parts of a step"
    between = np.diff(np.flatnonzero(~replays), prepend=-1)[1:] - 1  # two passes without a graph
    if len(between) >= 2 * SEVERAL and np.mean(between > 0) >= CONSTANT and np.median(between) <= MOST_DRAFTS:
        return "with a pass without a graph behind every few graphs: a prompt, or what verifies drafts"
    return ""


def _take_turns(kind: Ints) -> bool:
    """Whether steps of these kinds take turns, a few of each."""
    of_kind = np.diff(np.flatnonzero(kind[1:] != kind[:-1]), prepend=-1, append=len(kind) - 1)
    return bool(len(of_kind) >= 2 * max(SEVERAL, len(np.unique(kind))) and np.median(of_kind) <= MOST_DRAFTS)


def _passes(host: Host, launches: Launches) -> int:
    """How many passes through a model a step appears to contain, judged by its launches: 0, 1, or 2 for more."""
    contents, graph = host.contents, launches.graph & ~launches.part
    if graph.any():
        alike = launches.code[graph]
        return 2 if len(np.unique(alike)) < len(alike) or (len(alike) > 1 and (alike == MISSING).any()) else 1
    code = contents.kernels(launches)[: 2 * LONGEST_PASS]
    if not contents.has_layers(code):
        return 0
    units = [unit for unit in lengths(code, 2) if len(code) >= 2 * unit and contents.has_layers(code[:unit])]
    return 2 if any(np.mean(code[unit:] == code[:-unit]) >= CONSTANT for unit in units) else 1
