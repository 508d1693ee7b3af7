"""Which turns of a host are one step: one pass through a model.

Passes:
1. number the kinds of turns: the graph that one replays, else what it launches most often, and for how long that runs;
2. tell which kinds are passes by themselves: they replay a graph, or kernels that repeat layer by layer;
3. join the turns of one step: what is no pass is part of one (a stop condition, a sequence that is sampled), runs of a
   short pass that each end with a long one are drafts and what verifies them; and where no turn is a pass, or each
   replays another graph of it, turns in a constant order are a step (a routing in each layer);
4. ask of the steps that this gives whether something speaks against one pass each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import COPIES, GRAPH_LAUNCH, among
from tracer.analysis.turns import LONGEST_PASS, Bools, Host, Ints, has_layers
from tracer.schema import MISSING

LONGER: Final = 2.0
"""What takes so many times as long is of another kind."""
MOST: Final = 0.5
"""What holds of this share holds of all."""
CONSTANT: Final = 0.9
"""An order is constant if at least this share keeps to it."""
MIN_STEPS: Final = 3
"""Fewer are no loop."""
GUESSED: Final = 0.8
"""How sure steps are that have another reading, or waits of which it is not seen what for."""
NO_PASS: Final = "which show no whole pass through a model"
_MOST_DRAFTS: Final = 16
"""llama.cpp drafts up to 16 tokens by default (common/common.h), vLLM and SGLang fewer."""
_MOST_KINDS: Final = 100
_EXAMPLES: Final = 64
"""Steps, evenly spread, that are looked at."""


@dataclass(frozen=True)
class Joined:
    """The first turn of each step; per turn whether it is a pass by itself; the turns of each step where they come in a
    constant order, else 0; whether a step is drafts and what verifies them."""

    first: Ints
    whole: Bools
    length: int = 0
    speculative: bool = False


def turns_of(host: Host) -> pd.DataFrame:
    """Pass 1: per turn graphs (how many it launches), busy (ns), inputs (copies to the device) and kind (a number)."""
    calls, launches = host.calls, host.launches
    letters = calls["letter"].to_numpy(dtype="U1")
    graph = letters[launches] == GRAPH_LAUNCH
    code = calls["code"].to_numpy()[launches]
    turn = np.repeat(np.arange(len(host.first)), host.last - host.first)
    into = np.flatnonzero(among(letters, COPIES) & (calls["kind"] != "DtoH").to_numpy())
    fed = np.append(turn, len(host.first))[np.searchsorted(launches, into)]
    launched = pd.DataFrame({"turn": turn, "graph": graph & (code >= 0), "code": code})
    often = launched.value_counts(sort=False).reset_index()
    often["turns"] = often.groupby("code")["turn"].transform("size")  # of the graphs of a step one may be its own
    what = often.sort_values(["turn", "graph", "count", "turns", "code"]).drop_duplicates("turn", keep="last")
    turns = pd.DataFrame({
        "graphs": np.bincount(turn, graph).astype(np.int64),
        "busy": np.bincount(turn, calls["busy"].to_numpy()[launches]).astype(np.int64),
        "inputs": np.bincount(fed, minlength=len(host.first) + 1)[: len(host.first)],
    })  # fmt: skip
    return turns.assign(kind=_kinds(what["code"].to_numpy(), what["graph"].to_numpy(), turns["busy"].to_numpy()))


def _kinds(what: Ints, known: Bools, busy: Ints) -> Ints:
    """A number per turn, MISSING where more kinds would be needed; the commonest of what is left leads."""
    kind = np.full(len(what), MISSING)
    _, what = np.unique(what, return_inverse=True)
    for number in range(_MOST_KINDS):
        left = np.flatnonzero(kind == MISSING)
        if not len(left):
            break
        mine = left[what[left] == np.bincount(what[left]).argmax()]
        usual = np.median(busy[mine])
        near = known[mine] | ((busy[mine] <= LONGER * usual) & (LONGER * busy[mine] >= usual))
        kind[mine[near]] = number
    return kind


def joined(host: Host, turns: pd.DataFrame) -> Joined:
    """Pass 2 and 3: which turns are one step."""
    kind, busy = turns["kind"].to_numpy(), turns["busy"].to_numpy()
    _, example, number = np.unique(kind, return_index=True, return_inverse=True)
    whole = np.array([_shows_pass(host, turn, turn + 1) for turn in example.tolist()])[number]
    if whole.any() and (heads := _behind_drafts(host, turns, np.flatnonzero(whole))) is not None:
        return Joined(heads, whole, speculative=True)
    inputs = turns["inputs"].to_numpy()
    for marks, length in _cycles(2 * number + (inputs > 0)):
        fed = [float(np.median(inputs[marks[marks >= back] - back])) for back in range(length)]
        in_turn = length >= MIN_STEPS and CONSTANT * np.bincount(number).max() <= len(marks) and min(fed) < max(fed)
        if (in_turn or not whole.any()) and _shows_pass(host, int(marks[0]), int(marks[0]) + length):
            # what is given most inputs begins a step, else what stands behind the mark
            begin = marks - (int(np.argmax(fed)) if min(fed) < max(fed) else length - 1)
            first = np.unique(np.concatenate(([0], begin, begin + length)))
            return Joined(first[(first >= 0) & (first < len(kind))], whole, length)
    if not whole.any():
        return Joined(np.arange(len(kind)), whole)
    usual = np.median(busy[kind == np.bincount(kind[whole] + 1).argmax() - 1])
    parts = ~whole & (LONGER * busy < usual)
    leads = parts.any() and inputs[parts].mean() > inputs[whole].mean()  # else they are of the pass before
    begins = ~np.append(False, parts[:-1]) if leads else ~parts
    begins[0] = True
    return Joined(np.flatnonzero(begins), whole)


def _shows_pass(host: Host, first: int, behind: int) -> bool:
    """Whether these turns together replay a graph, or launch layers."""
    launches = host.launches[host.first[first] : host.last[min(behind, len(host.last)) - 1]]
    calls = host.calls.iloc[launches]
    return bool((calls["letter"] == GRAPH_LAUNCH).any()) or has_layers(calls["code"].to_numpy())


def _behind_drafts(host: Host, turns: pd.DataFrame, passes: Ints) -> Ints | None:
    """The turns that begin a step where runs of a short pass, no longer than drafts are, each end with a long one of
    another graph, or, eager, of more launches; None where they do not."""
    kind = turns["kind"].to_numpy()[passes]
    _, example, count = np.unique(kind, return_index=True, return_counts=True)
    two = passes[example[np.argsort(-count, kind="stable")[:2]]]
    graphs = turns["graphs"].to_numpy()[two] > 0
    size = (turns["busy"].to_numpy() if graphs.all() else host.last - host.first)[two]
    if graphs.any() != graphs.all() or len(two) < 2 or size.max() <= LONGER * size.min():
        return None
    long, short = (kind == turns["kind"].to_numpy()[two[at]] for at in (size.argmax(), size.argmin()))
    verifies = np.flatnonzero(long)
    drafts = np.diff(np.cumsum(short)[verifies])
    few = len(verifies) < MIN_STEPS or np.mean(drafts > 0) < MOST or drafts.max() > _MOST_DRAFTS
    if few or np.mean(long | short) < CONSTANT:
        return None
    ends = passes[verifies] + 1
    return np.append(0, ends[ends < len(turns)])


def _cycles(symbols: Ints) -> Iterator[tuple[Ints, int]]:
    """(where a symbol other than the commonest stands, how far apart), if it stands in a constant distance over most of
    where the commonest does; the rarest first."""
    count = np.bincount(symbols)
    span = np.ptp(np.flatnonzero(symbols == count.argmax()))
    for value in np.argsort(count, kind="stable")[:-1].tolist():
        marks = np.flatnonzero(symbols == value)
        distance = np.diff(marks)
        if count[value] < MIN_STEPS or np.ptp(marks) < MOST * span:
            continue
        length = int(np.median(distance))
        if length > 1 and np.mean(distance % length == 0) >= CONSTANT:
            yield marks, length


def doubt_of(host: Host, steps: pd.DataFrame) -> str:
    """Pass 4: why these steps may be parts of passes, or several; "" where all that is asked speaks for one pass each.

    Args:
        host: whose steps they are.
        steps: columns first and last (its launches, half open) and kind.
    """
    launches = host.calls.iloc[host.launches]
    code = np.where((launches["device"] >= 0).to_numpy(), launches["code"].to_numpy(), MISSING)
    graph = (launches["letter"] == GRAPH_LAUNCH).to_numpy()
    some = steps.iloc[np.unique(np.linspace(0, len(steps) - 1, _EXAMPLES).astype(int))]
    spans = [slice(*span) for span in zip(some["first"].tolist(), some["last"].tolist(), strict=True)]
    count = np.array([_passes(code[span], graph[span]) for span in spans])
    if np.mean(count == 0) > 1 - CONSTANT:
        return NO_PASS
    if np.mean(count > 1) > 1 - CONSTANT:
        return "which may be several passes each"
    replays = np.logical_or.reduceat(graph, steps["first"].to_numpy())
    if replays.any() == replays.all() and _take_turns(steps["kind"].to_numpy()):
        return "of two kinds in turn: drafts, prompts, two models, or parts of a step"
    return ""


def _passes(code: Ints, graph: Bools) -> int:
    """How many passes through a model a step seems to be: 0, 1, or 2 for more."""
    code, graph = code[: 2 * LONGEST_PASS], graph[: 2 * LONGEST_PASS]
    graphs = code[graph]
    if len(graphs):
        return 2 if len(np.unique(graphs)) < len(graphs) or (len(graphs) > 1 and (graphs == MISSING).any()) else 1
    if not has_layers(code):
        return 0
    names, first, count = np.unique(code, return_index=True, return_counts=True)
    for name in names[(count >= 2) & (first < len(code) // 2)].tolist():
        unit = int(np.median(np.diff(np.flatnonzero(code == name))))
        if len(code) >= 2 * unit and np.mean(code[unit:] == code[:-unit]) >= CONSTANT and has_layers(code[:unit]):
            return 2
    return 1


def _take_turns(kind: Ints) -> bool:
    """Whether several kinds come back after no more steps than there are drafts."""
    kind = kind[kind != MISSING]
    edges = np.flatnonzero(np.diff(kind, prepend=MISSING - 1, append=MISSING - 1))
    back = len(edges) > 2 * max(MIN_STEPS, len(np.unique(kind)))
    return bool(back and np.median(np.diff(edges)) <= _MOST_DRAFTS)
