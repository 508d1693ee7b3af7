"""Steps of engines that mark none: a step ends with the result that the host fetches before, or while, it launches the
next.

Passes, for each host (`tracer.analysis.turns` finds hosts and turns):
1. describe each turn: what it launches how often, how long the device computes, what it fetches;
2. number the kinds of turns: alike in what they launch and in how long that takes;
3. join the turns of one step: of turns in a constant order, those that do not pass through the model are parts (a
   routing, a stop condition), and drafts are parts of the pass that verifies them;
4. keep the steps: the commonest kind, and what computes as much beside it (prompts, other batches). Of what leads up
   to them (loading, tuning, warm-up, capture) only what follows its last wait may be one;
5. begin each step where its inputs begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from tracer.analysis.calls import BLOCKING_COPY, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC, among
from tracer.analysis.turns import Bools, Host, Ints, begun_captures, has_layers, hosts, with_work
from tracer.schema import MISSING
from tracer.trace import Trace

ALIKE: Final = 0.5
"""Turns are of a kind if they share this much of what they launch, and neither takes `LONGER` times the other's."""
LONGER: Final = 2.0
MIN_STEPS: Final = 3
"""Fewer are no loop."""
MOST_DRAFTS: Final = 16
"""llama.cpp drafts up to 16 tokens by default (common/common.h), vLLM and SGLang fewer."""
CONSTANT: Final = 0.9
"""An order is constant if at least this share of its turns keep to it."""
TABLE: Final = ["start", "end", "process", "thread", "group", "kind", "busy"]
_MOST_KINDS: Final = 100
_GUESSED: Final = 0.8
"""How sure an order is that has another reading, or waits of which it is not seen what for."""


@dataclass(frozen=True)
class Fetched:
    """Steps found by the results that the host fetches.

    Attributes:
        table: columns start end (ns) process thread group kind busy (ns); `kind` numbers what is alike.
        detail: how they were found, for a reader.
        speculative: whether a step is drafts with what verifies them.
        confidence: 0..1.
    """

    table: pd.DataFrame
    detail: str
    speculative: bool
    confidence: float


def steps_of_fetches(trace: Trace, calls: pd.DataFrame) -> Fetched | None:
    """The steps of all hosts together, or None where none does anything alike `MIN_STEPS` times.

    The confidence is the share of the device's time that the steps explain, times how like each other they are, times
    how sure the order of their turns is.

    Args:
        trace: the recording.
        calls: as `calls.host_calls` gives them, or some of them.
    """
    calls, captures = with_work(trace, calls.reset_index(drop=True)), begun_captures(trace)
    found = [steps for host in hosts(calls, captures) if (steps := _steps_of(host)) is not None]
    if not found:
        return None
    most = max(len(steps.table) for steps in found)
    found = [steps for steps in found if 4 * len(steps.table) >= most]
    tables = [steps.table.assign(host=number) for number, steps in enumerate(found)]
    table = pd.concat(tables).sort_values("start", kind="stable", ignore_index=True)
    table["group"] = pd.factorize(pd.MultiIndex.from_frame(table[["host", "group"]]))[0]
    during = (calls["start"] >= table["start"].min()) & (calls["start"] < table["end"].max())
    spent = int(calls["busy"][during].sum())
    explained = min(int(table["busy"].sum()) / spent, 1.0) if spent else 1.0
    return Fetched(
        table.drop(columns="host"),
        "; ".join(dict.fromkeys(steps.detail for steps in found)),
        any(steps.speculative for steps in found),
        explained * min(steps.confidence for steps in found),
    )


def _steps_of(host: Host) -> Fetched | None:
    turns = _described(host)
    kind = _kinds(turns)
    order = _order(host, turns, kind)
    steps = _kept(host, turns, kind, order)
    if len(steps) < MIN_STEPS:
        return None
    detail = f"{'results fetched' if host.fetches else 'waits'} by thread {host.thread}{order.words}"
    return Fetched(_between_calls(host, steps), detail, order.speculative, order.sure if host.fetches else _GUESSED)


def passes(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Single passes through a model: the turns, of too few to be a loop, whose kernels repeat layer by layer.

    Returns:
        As `Fetched.table`, possibly empty.
    """
    parts = [_passes_of(host) for host in hosts(with_work(trace, calls.reset_index(drop=True)), begun_captures(trace))]
    return pd.concat([pd.DataFrame(columns=TABLE, dtype=np.int64), *parts]).sort_values("start", ignore_index=True)


def _passes_of(host: Host) -> pd.DataFrame:
    code = host.calls["code"].to_numpy()[host.launches]
    layered = [has_layers(code[a:b]) for a, b in zip(host.first.tolist(), host.last.tolist(), strict=True)]
    steps = pd.DataFrame({"first": host.first, "last": host.last, "behind": host.behind, "group": 0, "kind": 0})
    busy = np.add.reduceat(host.calls["busy"].to_numpy()[host.launches], host.first)
    return _between_calls(host, steps.assign(busy=busy)[layered].reset_index(drop=True))


@dataclass(frozen=True)
class _Turns:
    """Pass 1, one entry per turn: launches (how many), graphs (of them), busy (ns), fetched (bytes), inputs (copies to
    the device), work (numbers equal work), captures (graphs captured). Row w of `uses` is how often work w launches
    what."""

    launches: Ints
    graphs: Ints
    busy: Ints
    fetched: Ints
    inputs: Ints
    work: Ints
    captures: Ints
    uses: csr_array


def _described(host: Host) -> _Turns:
    calls, launches, first = host.calls, host.launches, host.first
    letters = calls["letter"].to_numpy(dtype="U1")
    graph = letters[launches] == GRAPH_LAUNCH
    turn = np.repeat(np.arange(len(first)), host.last - first)
    copies = np.flatnonzero(among(letters, COPIES))
    out = (calls["kind"] == "DtoH").to_numpy()[copies]
    nearest = np.searchsorted(launches, copies)
    into = np.append(turn, len(first))[nearest[~out]]
    of_result, size = turn[np.maximum(nearest[out] - 1, 0)], calls["bytes"].to_numpy()[copies[out]]
    code = np.where(graph, -2, calls["code"].to_numpy()[launches])  # how long it takes tells graphs apart well enough
    names, number = np.unique(code, return_inverse=True)
    keys = np.random.default_rng(0).integers(1, 2**62, len(names))
    _, example, work = np.unique(np.add.reduceat(keys[number], first), return_index=True, return_inverse=True)
    sizes = (host.last - first)[example]
    launched = calls["start"].to_numpy()[launches[host.last - 1]]
    chosen = np.concatenate([np.arange(host.first[i], host.last[i]) for i in example])
    at = (np.repeat(np.arange(len(example)), sizes), number[chosen])
    return _Turns(
        launches=host.last - first,
        graphs=np.bincount(turn, graph, minlength=len(first)).astype(np.int64),
        busy=np.bincount(turn, calls["busy"].to_numpy()[launches], minlength=len(first)).astype(np.int64),
        fetched=np.bincount(of_result, size, minlength=len(first)).astype(np.int64),
        inputs=np.bincount(into, minlength=len(first) + 1)[: len(first)],
        work=work,
        captures=np.bincount(np.searchsorted(launched, host.captures), minlength=len(first) + 1)[: len(first)],
        uses=csr_array((np.ones(len(chosen)), at), shape=(len(example), len(names))),
    )


def _kinds(turns: _Turns) -> Ints:
    """Pass 2: a number per turn, MISSING where more kinds would be needed; the commonest of what is left leads."""
    sizes, count = turns.uses.sum(axis=1), np.bincount(turns.work)
    alike = np.full(len(count), MISSING)
    for number in range(_MOST_KINDS):
        left = np.flatnonzero(alike == MISSING)
        if not len(left):
            break
        leader = left[count[left].argmax()]
        shared = turns.uses[left].minimum(turns.uses[np.full(len(left), leader)]).sum(axis=1)
        alike[left[shared >= ALIKE * np.maximum(sizes[left], sizes[leader])]] = number
    kind = np.full(len(turns.work), MISSING)
    for number in range(_MOST_KINDS):
        left = np.flatnonzero(kind == MISSING)
        if not len(left):
            break
        of = alike[turns.work[left]]
        mine = left[of == np.bincount(of + 1).argmax() - 1]
        usual = np.median(turns.busy[mine])
        kind[mine[(turns.busy[mine] <= LONGER * usual) & (LONGER * turns.busy[mine] >= usual)]] = number
    return kind


@dataclass(frozen=True)
class _Order:
    """Pass 3: the first turn of each step; the turns of each (0 for any number); whether these are drafts and what
    verifies them; how sure that is, 0..1; the same in words."""

    first: Ints
    length: int = 1
    speculative: bool = False
    sure: float = 1.0
    words: str = ""


def _order(host: Host, turns: _Turns, kind: Ints) -> _Order:
    main = int(np.bincount(kind + 1)[1:].argmax())
    example = int(np.flatnonzero(kind == main)[0])
    cycle = _cycle(kind, main)
    if cycle is None and not host.fetches:
        cycle = _cycle(turns.work, int(np.bincount(turns.work[kind == main]).argmax()))
        if cycle is not None:  # turns that only wait: the one with most inputs begins the step
            marks, length = cycle
            fed = [int(turns.inputs[marks[marks >= back] - back].sum()) for back in range(length)]
            return _Order(_heads(marks - int(np.argmax(fed)), kind), length, sure=_GUESSED, words=f", {length} each")
    if cycle is None:
        short = np.flatnonzero((kind != main) & (LONGER * turns.busy < turns.busy[example]))
        parts = [i for i in short.tolist() if i and not _is_whole(turns, i, example)]
        return _Order(np.delete(np.arange(len(kind)), parts), 0)
    marks, length = cycle
    other = int(marks[0])
    heads = _heads(marks - length + 1, kind)
    if not _is_whole(turns, other, example):
        return _Order(heads, length, words=f", {length} each")
    both = turns.graphs[example] and turns.graphs[other] and turns.busy[other] > LONGER * turns.busy[example]
    if both and length <= MOST_DRAFTS + 1 and _one_graph(host, marks):
        words = f", {length - 1} drafts and what verifies them each (or prompts that all are of one size)"
        return _Order(heads, length, True, _GUESSED, words)
    return _Order(np.arange(len(kind)))


def _cycle(symbols: Ints, main: int) -> tuple[Ints, int] | None:
    """(where a symbol other than the main one stands, how far apart), if it stands in a constant distance over most of
    where the main one does; of several the rarest."""
    values, count = np.unique(symbols, return_counts=True)
    span = np.flatnonzero(symbols == main)
    for value in values[np.argsort(count, kind="stable")]:
        marks = np.flatnonzero(symbols == value)
        if value in (main, MISSING) or len(marks) < MIN_STEPS:
            continue
        gaps = np.diff(marks)
        length = int(np.median(gaps))
        covers = marks[-1] - marks[0] >= ALIKE * (span[-1] - span[0])
        if length > 1 and np.mean(gaps % length == 0) >= CONSTANT and covers:
            return marks, length
    return None


def _heads(heads: Ints, kind: Ints) -> Ints:
    """The first turns of the steps: these, the one behind the last of them, and what stands before."""
    length = int(np.median(np.diff(heads)))
    every = np.unique(np.concatenate(([0], heads, heads + length)))
    return every[(every >= 0) & (every < len(kind))]


def _is_whole(turns: _Turns, one: int, main: int) -> bool:
    """Whether a turn passes through a model as the main one does: with a graph as that does, or, eager, for as long;
    with its kernels where the main one is eager."""
    if turns.graphs[main]:
        return bool(turns.graphs[one] or turns.busy[one] >= turns.busy[main])
    ours, usual = (turns.uses[[turns.work[i]]].toarray()[0] > 0 for i in (one, main))
    return bool((ours & usual).sum() >= ALIKE * usual.sum())


def _one_graph(host: Host, turns: Ints) -> bool:
    """Whether all these turns launch the same graph."""
    calls = host.calls.iloc[host.launches[host.last[turns] - 1]]
    code = calls["code"].to_numpy()
    return bool((code == code[0]).all())


def _kept(host: Host, turns: _Turns, kind: Ints, order: _Order) -> pd.DataFrame:
    """Pass 4: columns first and last (launches, half open), behind (calls), busy (ns), kind, and group: a chain of
    steps without anything between."""
    edges = np.append(order.first, len(kind))
    longest = _largest(turns.busy, order.first)
    steps = pd.DataFrame({
        "first": host.first[order.first], "last": host.last[edges[1:] - 1], "behind": host.behind[edges[1:] - 1],
        "busy": np.add.reduceat(turns.busy, order.first), "kind": kind[longest],
    })  # fmt: skip
    if order.length > 1:
        steps.loc[np.diff(edges) != order.length, "kind"] = MISSING
    known = steps["kind"][steps["kind"] >= 0]
    if not len(known) or known.value_counts().max() < MIN_STEPS:
        return steps.iloc[:0]
    main = steps["kind"] == known.mode()[0]
    usual = float(steps["busy"][main].median())
    example = int(longest[main.to_numpy().argmax()])
    keep = main | (LONGER * steps["busy"] >= usual)
    if order.length <= 1:
        others = np.flatnonzero(~keep)
        keep.iloc[others[[_is_whole(turns, int(longest[i]), example) for i in others]]] = True
    eager = np.add.reduceat(turns.graphs, order.first) == 0
    captured = np.add.reduceat(turns.captures, order.first) > 0
    if captured[main].mean() > ALIKE:  # the graphs of a loop to come
        return steps.iloc[:0]
    keep &= main | ~captured
    launched = float((steps["last"] - steps["first"])[main].median())
    leads = keep & ~keep.shift(fill_value=False) & ~(main & (steps["last"] - steps["first"] <= launched))
    steps = _without_lead(host, steps, leads, main.to_numpy(), int((main & ~leads).to_numpy().argmax()))
    more = (steps["last"] - steps["first"]) / launched
    keep &= ~leads | (LONGER * steps["busy"] >= usual) & (eager | (more <= LONGER))  # else what warmed the graph up
    steps["kind"] = _variants(host, steps)
    steps["group"] = (keep & ~keep.shift(fill_value=False)).cumsum()
    return pd.DataFrame(steps[keep].reset_index(drop=True))


def _largest(values: Ints, first: Ints) -> Ints:
    """Where the first of the largest values is, of those from each `first` up to the next."""
    part = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(values))))
    most = np.flatnonzero(values[first[0] :] == np.maximum.reduceat(values, first)[part])
    return np.asarray(first[0] + most[np.unique(part[most], return_index=True)[1]])


def _variants(host: Host, steps: pd.DataFrame) -> Ints:
    """Per step its kind, or, where it replays graphs, a number of the graph that takes longest."""
    calls = host.calls.iloc[host.launches]
    graph = (calls["letter"] == GRAPH_LAUNCH).to_numpy()
    longest = _largest(np.where(graph, calls["busy"].to_numpy(), -1), steps["first"].to_numpy())
    code = calls["code"].to_numpy()[longest]
    return np.where(graph[longest], code, steps["kind"].to_numpy())


def _without_lead(host: Host, steps: pd.DataFrame, leads: pd.Series, main: Bools, example: int) -> pd.DataFrame:
    """The steps, of those that lead a chain only the graphs that the example launches, if it ends with the same ones,
    else what is launched behind their last wait."""
    letters = host.calls["letter"].to_numpy(dtype="U1")
    code = host.calls["code"].to_numpy()[host.launches]
    within = slice(steps["first"].iloc[example], steps["last"].iloc[example])
    usual, graphs = code[within], (letters[host.launches[within]] == GRAPH_LAUNCH).sum()
    waits = np.flatnonzero(among(letters, [SYNC, BLOCKING_COPY]))
    busy = host.calls["busy"].to_numpy()[host.launches]
    first, spent = steps["first"].to_numpy(copy=True), steps["busy"].to_numpy(copy=True)
    for i in np.flatnonzero(leads):
        last = int(steps["last"].iloc[i])
        before = waits[: np.searchsorted(waits, host.launches[last - 1])]
        behind = int(np.searchsorted(host.launches, before[-1])) if len(before) else 0
        same = bool(graphs) and np.array_equal(code[max(last - len(usual), 0) : last], usual)
        if same:
            behind = last - len(usual)
        elif main[i] and last - behind < len(usual):  # the wait is one of its own
            continue
        first[i] = max(first[i], behind)
        spent[i] = busy[first[i] : last].sum()
    return steps.assign(first=first, busy=spent)


def _between_calls(host: Host, steps: pd.DataFrame) -> pd.DataFrame:
    """Pass 5: the steps with the times of their first and last calls."""
    calls, launches = host.calls, host.launches
    if not len(steps):
        return pd.DataFrame(columns=TABLE, dtype=np.int64)
    first = steps["first"].to_numpy()
    leads = (~steps["group"].duplicated()).to_numpy()
    begin = first_inputs(calls, np.where(first > 0, launches[first - 1] + 1, 0))
    letters = calls["letter"].to_numpy(dtype="U1")
    copies = np.flatnonzero(_to_device(calls))
    fed = np.searchsorted(copies, launches[first])  # copies to the device before each step's first launch
    usual = int(np.median((fed - np.searchsorted(copies, begin))[~leads])) if (~leads).any() else 0
    for i in np.flatnonzero(leads & (fed - np.searchsorted(copies, begin) > usual)):  # what comes before is loading
        begin[i] = copies[fed[i] - usual] if usual else launches[first[i]]
    guarded = np.mean(letters[begin[~leads]] == SYNC) > ALIKE if (~leads).any() else False
    if guarded:  # who leads a chain begins like the others
        begin -= leads & (begin > 0) & (letters[begin] != SYNC) & (letters[begin - 1] == SYNC)
    follows = np.append(~leads[1:], False)
    behind = steps["behind"].to_numpy(copy=True)
    idle = int(np.median((np.append(begin[1:], 0) - behind)[follows])) if follows.any() else 0
    for i in np.flatnonzero(~follows):  # who ends a chain waits for what is idle as often as the others
        while behind[i] < min(len(letters), steps["behind"].iloc[i] + idle) and letters[behind[i]] == SYNC:
            behind[i] += 1
    starts, ends = calls["start"].to_numpy()[begin], calls["end"].to_numpy()[behind - 1]
    ends = np.where(follows, np.append(starts[1:], 0), ends)
    table = steps[["group", "kind", "busy"]].assign(start=starts, end=ends, process=host.process, thread=host.thread)
    return table[table["end"] > table["start"]]


def _to_device(calls: pd.DataFrame) -> Bools:
    """Which calls are copies that may bring inputs."""
    letters = calls["letter"].to_numpy(dtype="U1")
    return among(letters, COPIES) & (calls["kind"] != "DtoH").to_numpy()


def first_inputs(calls: pd.DataFrame, behind: Ints) -> Ints:
    """For each position behind a step's last launch, the first call that belongs to the next step.

    The inputs begin with the first copy to the device (or, without copies, the launch). Of two or more syncs directly
    before it the last one guards the write and belongs to the inputs; a single one waits for the result.
    """
    letters = calls["letter"].to_numpy(dtype="U1")
    copies = _to_device(calls)
    inputs = np.flatnonzero(copies | among(letters, LAUNCHES))
    begin = inputs[np.searchsorted(inputs, behind)]
    index = np.arange(len(letters))
    last_other = np.maximum.accumulate(np.where(letters == SYNC, -1, index))
    syncs = np.minimum(np.append(0, index - last_other)[begin], begin - behind)  # that end directly before it
    return np.asarray(np.where((syncs >= 2) & copies[begin], begin - 1, begin))
