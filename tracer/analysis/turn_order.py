"""The order of a host's turns: which are alike, and which of them together are one step.

Passes:
1. describe each turn: what it launches how often, how long the device computes;
2. number the kinds of turns: alike in what they launch and in how long that takes;
3. join the turns of one step: of turns in a constant order, those that do not pass through the model are parts (a
   routing, a stop condition), and drafts are parts of the pass that verifies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from tracer.analysis.calls import COPIES, GRAPH_LAUNCH, among
from tracer.analysis.turns import Host, Ints
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
_MOST_KINDS: Final = 100
GUESSED: Final = 0.8
"""How sure an order is that has another reading, or waits of which it is not seen what for."""


@dataclass(frozen=True)
class Described:
    """Pass 1, one entry per turn: graphs (how many it launches), busy (ns), inputs (copies to the device), work
    (numbers equal work), captures (graphs captured). Row w of `uses` is how often work w launches what."""

    graphs: Ints
    busy: Ints
    inputs: Ints
    work: Ints
    captures: Ints
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
        uses=csr_array((np.ones(len(chosen)), at), shape=(len(example), len(names))),
    )


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
    """Pass 3: the first turn of each step; the turns of each (0 for any number); whether these are drafts and what
    verifies them; how sure that is, 0..1; the same in words."""

    first: Ints
    length: int = 1
    speculative: bool = False
    sure: float = 1.0
    words: str = ""


def order_of(host: Host, turns: Described, kind: Ints) -> Order:
    """Pass 3: which turns are one step."""
    main = int(np.bincount(kind + 1)[1:].argmax())
    example = int(np.flatnonzero(kind == main)[0])
    cycle = _cycle(kind, main)
    if cycle is None and not host.fetches:
        cycle = _cycle(turns.work, int(np.bincount(turns.work[kind == main]).argmax()))
        if cycle is not None:  # turns that only wait: the one with most inputs begins the step
            marks, length = cycle
            fed = [int(turns.inputs[marks[marks >= back] - back].sum()) for back in range(length)]
            return Order(_heads(marks - int(np.argmax(fed)), kind), length, sure=GUESSED, words=f", {length} each")
    if cycle is None:
        short = np.flatnonzero((kind != main) & (LONGER * turns.busy < turns.busy[example]))
        parts = [i for i in short.tolist() if i and not is_whole(turns, i, example)]
        return Order(np.delete(np.arange(len(kind)), parts), 0)
    marks, length = cycle
    other = int(marks[0])
    heads = _heads(marks - length + 1, kind)
    if not is_whole(turns, other, example):
        return Order(heads, length, words=f", {length} each")
    both = turns.graphs[example] and turns.graphs[other] and turns.busy[other] > LONGER * turns.busy[example]
    if both and length <= MOST_DRAFTS + 1 and _one_graph(host, marks):
        words = f", {length - 1} drafts and what verifies them each (or prompts that all are of one size)"
        return Order(heads, length, True, GUESSED, words)
    return Order(np.arange(len(kind)))


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


def is_whole(turns: Described, one: int, main: int) -> bool:
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
