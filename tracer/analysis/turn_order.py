"""The order of a host's turns: which are alike, and which of them together are one step.

Passes:
1. describe each turn: what it launches how often, how long the device computes;
2. number the kinds of turns: alike in what they launch and in how long that takes;
3. tell which kinds pass through a model as a whole;
4. join the turns of one step: those that are no pass are parts of one (a stop condition, a sequence that is sampled),
   drafts are parts of the pass that verifies them, and where the graphs of a pass, or kernels that are none by
   themselves, come in a constant order (a routing in each layer), what lies between two returns is a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from tracer.analysis.calls import COPIES, GRAPH_LAUNCH, among
from tracer.analysis.turns import Bools, Host, Ints, has_layers
from tracer.schema import MISSING

ALIKE: Final = 0.5
"""Turns are of a kind if they share this much of what they launch, and neither takes `LONGER` times the other's."""
LONGER: Final = 2.0
MIN_STEPS: Final = 3
"""Fewer are no loop."""
MOST_DRAFTS: Final = 16
"""llama.cpp drafts up to 16 tokens by default (common/common.h), vLLM and SGLang fewer."""
CONSTANT: Final = 0.9
"""An order is constant if at least this share of its turns keep to it."""
_LEAST: Final = 0.25
"""Passes that take less of the device's time than this are not what the loop is for."""
_MOST_KINDS: Final = 100
GUESSED: Final = 0.8
"""How sure an order is that has another reading, or waits of which it is not seen what for."""


@dataclass(frozen=True)
class Described:
    """Pass 1, one entry per turn: graphs (how many it launches), busy (ns), inputs (copies to the device), work
    (numbers equal work), captures (graphs captured), graph (numbers the graph that it launches last). Row w of `uses`
    is how often work w launches what."""

    graphs: Ints
    busy: Ints
    inputs: Ints
    work: Ints
    captures: Ints
    graph: Ints
    uses: csr_array


def described(host: Host) -> Described:
    """Pass 1: what the turns of a host do."""
    calls, launches, first = host.calls, host.launches, host.first
    letters = calls["letter"].to_numpy(dtype="U1")
    graph = letters[launches] == GRAPH_LAUNCH
    turn = np.repeat(np.arange(len(first)), host.last - first)
    copies = np.flatnonzero(among(letters, COPIES))
    out = (calls["kind"] == "DtoH").to_numpy()[copies]
    nearest = np.searchsorted(launches, copies)
    into = np.append(turn, len(first))[nearest[~out]]
    code = np.where(graph, -2, calls["code"].to_numpy()[launches])  # how long it takes tells graphs apart well enough
    names, number = np.unique(code, return_inverse=True)
    keys = np.random.default_rng(0).integers(1, 2**62, len(names))
    work, _ = pd.factorize(np.add.reduceat(keys[number], first))  # in the order in which it comes
    example = np.unique(work, return_index=True)[1]
    sizes = (host.last - first)[example]
    launched = calls["start"].to_numpy()[launches[host.last - 1]]
    chosen = np.concatenate([np.arange(host.first[i], host.last[i]) for i in example])
    at = (np.repeat(np.arange(len(example)), sizes), number[chosen])
    return Described(
        graphs=np.bincount(turn, graph, minlength=len(first)).astype(np.int64),
        busy=np.bincount(turn, calls["busy"].to_numpy()[launches], minlength=len(first)).astype(np.int64),
        inputs=np.bincount(into, minlength=len(first) + 1)[: len(first)],
        work=work,
        captures=np.bincount(np.searchsorted(launched, host.captures), minlength=len(first) + 1)[: len(first)],
        graph=_last_graph(calls, launches, graph, turn, len(first)),
        uses=csr_array((np.ones(len(chosen)), at), shape=(len(example), len(names))),
    )


def _last_graph(calls: pd.DataFrame, launches: Ints, graph: Bools, turn: Ints, count: int) -> Ints:
    last = np.full(count, MISSING)
    last[turn[graph]] = calls["code"].to_numpy()[launches[graph]]
    return last


def kinds_of(turns: Described) -> Ints:
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
class Order:
    """Pass 4: the first turn of each step; the turns of each (0 for any number); which kinds of turns are whole passes;
    whether a step is drafts and what verifies them; how sure that is, 0..1; the same in words; whether of several turns
    one brings the inputs."""

    first: Ints
    length: int
    whole: Bools
    speculative: bool = False
    sure: float = 1.0
    words: str = ""
    fed: bool = False


def order_of(host: Host, turns: Described, kind: Ints) -> Order:
    """Pass 4: which turns are one step."""
    often = np.bincount(kind + 1)[1:]
    whole, main, known = _whole_kinds(host, turns, kind, often)
    if known and (heads := _drafted(host, turns, kind, whole)) is not None:
        words = ", drafts and what verifies them each (or prompts that have few tokens each)"
        return Order(heads, 0, whole, True, GUESSED, words)
    if (cycle := _rotation(turns)) is not None and (order := _joined(turns, *cycle, whole)).fed:
        return order
    if known:
        return Order(_with_parts(host, turns, kind, whole, main), 0, whole)
    works = turns.work[kind == main]
    found = [(cycle, 1.0) for cycle in _cycles(kind, main)]
    found += [(cycle, GUESSED) for cycle in _cycles(turns.work, int(np.bincount(works).argmax()))]
    found += [(cycle, GUESSED) for cycle in _cycles(np.minimum(turns.inputs, 1), 0)]
    if not found:
        return Order(np.arange(len(kind)), 1, whole)
    cycle, sure = next((one for one in found if _is_pass(host, one[0][0][0], one[0][1])), found[0])
    return _joined(turns, *cycle, whole, sure)


def _joined(turns: Described, marks: Ints, length: int, whole: Bools, sure: float = 1.0) -> Order:
    """The order of steps of so many turns each; the one with most inputs begins them, else that behind the mark."""
    fed = [float(np.median(turns.inputs[marks[marks >= back] - back])) for back in range(length)]
    is_fed = min(fed) < max(fed)
    back = int(np.argmax(fed)) if is_fed else length - 1
    first = np.unique(np.concatenate(([0], marks - back, marks - back + length)))
    first = first[(first >= 0) & (first < len(turns.work))]
    return Order(first, length, whole, sure=sure, words=f", {length} each", fed=is_fed)


def _is_pass(host: Host, first: int, length: int) -> bool:
    """Whether so many turns launch a graph, or layers."""
    launches = slice(host.first[first], host.last[min(first + length, len(host.last)) - 1])
    calls = host.calls.iloc[host.launches[launches]]
    return bool((calls["letter"] == GRAPH_LAUNCH).any()) or has_layers(calls["code"].to_numpy())


def _whole_kinds(host: Host, turns: Described, kind: Ints, often: Ints) -> tuple[Bools, int, bool]:
    """Which kinds of turns are whole passes, the commonest of these, and whether that is known.

    They replay a graph, or launch layers, for a good part of the time. Where the commonest does so without a graph,
    others without one have its kernels; where none does, the commonest of all is taken for one, and what is alike.
    """
    code = host.calls["code"].to_numpy()[host.launches]
    leads = np.array([np.argmax(kind == number) for number in range(len(often))])
    graph = turns.graphs[leads] > 0
    whole = graph | np.array([has_layers(code[host.first[i] : host.last[i]]) for i in leads])
    spent = np.bincount(kind + 1, turns.busy)[1:]
    known = bool(whole.any() and spent[whole].sum() >= _LEAST * spent.sum())
    whole |= not known
    main = int(np.where(whole, often, 0).argmax())
    if not graph[main]:
        uses = turns.uses[turns.work[leads]].toarray() > 0
        whole &= graph | ((uses & uses[main]).sum(axis=1) >= ALIKE * uses[main].sum())
    return whole, main, known


def _with_parts(host: Host, turns: Described, kind: Ints, whole: Bools, main: int) -> Ints:
    """The turns that begin a step where some pass through the model as a whole and others are parts: of the step
    before, unless they bring the inputs.

    Parts are shorter than half a pass, or come with each; a run of them that is a pass together is a step.
    """
    passes, mains = np.append(whole, False)[kind], np.flatnonzero(kind == main)
    usual = np.median(turns.busy[mains])
    between = [len(np.unique(np.searchsorted(mains, np.flatnonzero(kind == number)))) for number in range(len(whole))]
    regular = ~whole & (np.array(between) >= CONSTANT * max(len(mains) - 1, 1))
    parts = ~passes & ((LONGER * turns.busy < usual) | np.append(regular, False)[kind])
    edges = np.flatnonzero(np.diff(parts, prepend=False, append=False))
    joined = [
        first for first, last in edges.reshape(-1, 2).tolist()
        if last - first >= MIN_STEPS and turns.busy[first:last].sum() >= usual
        and _is_pass(host, first, last - first)
    ]  # fmt: skip
    if len(joined) > ALIKE * len(mains):  # they come with each pass
        joined = []
    leads = parts.any() and turns.inputs[parts].mean() > turns.inputs[passes].mean()
    begins = ~np.append(False, parts[:-1]) if leads else ~parts
    begins[[0, *joined]] = True
    return np.flatnonzero(begins)


def _drafted(host: Host, turns: Described, kind: Ints, whole: Bools) -> Ints | None:
    """The turns that begin a step where runs of a short pass, no longer than drafts are, each end with a long one of
    another graph, or, eager, of more launches."""
    passes = np.flatnonzero(np.append(whole, False)[kind])
    names, count = np.unique(kind[passes], return_counts=True)
    two = names[np.argsort(-count, kind="stable")[:2]]
    if len(two) < 2 or np.isin(kind[passes], two).mean() < CONSTANT:
        return None
    passes = passes[np.isin(kind[passes], two)]
    examples = np.array([np.argmax(kind == number) for number in two])
    by_graph = turns.graphs[examples] > 0
    size = turns.busy if by_graph.all() else host.last - host.first
    long = two[np.argmax(size[examples])]
    if by_graph.any() != by_graph.all() or size[examples].max() <= LONGER * size[examples].min():
        return None
    verifies = np.flatnonzero(kind[passes] == long)
    runs = np.diff(verifies) - 1
    if len(verifies) < MIN_STEPS or np.mean(runs > 0) < ALIKE or runs.max() > MOST_DRAFTS:
        return None
    if by_graph.all() and len(np.unique(turns.graph[passes[verifies]])) > 1:
        return None
    ends = passes[verifies] + 1
    return np.append(0, ends[ends < len(kind)])


def _rotation(turns: Described) -> tuple[Ints, int] | None:
    """The cycle of the graphs of a pass that is divided into `MIN_STEPS` or more, of which a turn replays one each."""
    usual = int(np.bincount(turns.graph + 1)[1:].argmax()) if (turns.graph >= 0).any() else MISSING
    cycle = None if usual == MISSING else next(_cycles(turns.graph, usual), None)
    if cycle is None or cycle[1] < MIN_STEPS or CONSTANT * (turns.graph == usual).sum() > len(cycle[0]):
        return None
    return cycle


def _cycles(symbols: Ints, main: int) -> Iterator[tuple[Ints, int]]:
    """(where a symbol other than the main one stands, how far apart), if it stands in a constant distance over most of
    where the main one does; the rarest first."""
    values, count = np.unique(symbols, return_counts=True)
    span = np.flatnonzero(symbols == main)
    for value in values[np.argsort(count, kind="stable")]:
        marks = np.flatnonzero(symbols == value)
        if value in (main, MISSING) or len(marks) < MIN_STEPS:
            continue
        gaps = np.diff(marks)
        length = int(np.median(gaps))
        covers = not len(span) or marks[-1] - marks[0] >= ALIKE * (span[-1] - span[0])
        if length > 1 and np.mean(gaps % length == 0) >= CONSTANT and covers:
            yield marks, length
