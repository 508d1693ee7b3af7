"""Steps of engines that mark none: a step ends with the result that the host fetches before, or while, it launches the
next.

Passes:
1. what one host launches between two results is a turn (`tracer.analysis.turns`);
2. several turns may be one step (`tracer.analysis.turn_order`);
3. keep the steps: the commonest kind, and what computes as much beside it (prompts, other batches). Of what leads up
   to them (loading, tuning, warm-up, capture) only what follows its last wait may be one;
4. begin each step where its inputs begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import BLOCKING_COPY, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC, among
from tracer.analysis.one_pass import NO_PASS, doubt_of
from tracer.analysis.turn_order import (
    ALIKE,
    GUESSED,
    LONGER,
    MIN_STEPS,
    Described,
    Order,
    described,
    kinds_of,
    order_of,
)
from tracer.analysis.turns import Bools, Host, Ints, begun_captures, has_layers, hosts, with_work
from tracer.schema import MISSING
from tracer.trace import Trace

_MOST_EXAMPLES: Final = 8  # of steps, by how many launches they have
TABLE: Final = ["start", "end", "process", "thread", "group", "kind", "busy"]


@dataclass(frozen=True)
class Fetched:
    """Steps found by the results that the host fetches.

    Attributes:
        table: columns start end (ns) process thread group kind busy (ns); `kind` numbers what is alike.
        detail: how they were found, for a reader.
        speculative: whether a step is drafts with what verifies them.
        passes: whether the steps of each host show passes through a model.
        confidence: 0..1.
    """

    table: pd.DataFrame
    detail: str
    speculative: bool
    confidence: float
    passes: bool = True


def steps_of_fetches(trace: Trace, calls: pd.DataFrame) -> Fetched | None:
    """The steps of all hosts together, or None where none does anything alike `MIN_STEPS` times.

    The confidence is the share of the device's time between them that the steps explain, times how sure the order of
    their turns is.

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
        all(steps.passes for steps in found),
    )


def _steps_of(host: Host) -> Fetched | None:
    turns = described(host)
    kind = kinds_of(turns)
    order = order_of(host, turns, kind)
    steps = _kept(host, turns, kind, order)
    if len(steps) < MIN_STEPS:
        return None
    detail = f"{'results fetched' if host.fetches else 'waits'} by thread {host.thread}{order.words}"
    sure = order.sure if host.fetches else GUESSED
    if doubt := doubt_of(host, steps):
        detail, sure = f"{detail}, {doubt}", GUESSED
    return Fetched(_between_calls(host, steps), detail, order.speculative, sure, doubt != NO_PASS)


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


def _kept(host: Host, turns: Described, kind: Ints, order: Order) -> pd.DataFrame:
    """Pass 3: columns first and last (launches, half open), behind (calls), busy (ns), kind, and group: a chain of
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
    keep = main | (LONGER * steps["busy"] >= usual)
    if order.length <= 1:
        keep |= np.append(order.whole, False)[kind[longest]]
    eager = np.add.reduceat(turns.graphs, order.first) == 0
    captured = np.add.reduceat(turns.captures, order.first) > 0
    if captured[main].mean() > ALIKE:  # the graphs of a loop to come
        return steps.iloc[:0]
    keep &= main | ~captured
    launched = float((steps["last"] - steps["first"])[main].median())
    leads = keep & ~keep.shift(fill_value=False) & ~(main & (steps["last"] - steps["first"] <= launched))
    sizes = (steps["last"] - steps["first"])[main & ~leads].drop_duplicates()
    examples = sizes.index[:_MOST_EXAMPLES].tolist() or [0]
    steps = _without_lead(host, steps, leads, main.to_numpy(), examples, host.last[order.first])
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
    """Per step its kind, or, where it replays graphs, a number of the one that usually takes longest."""
    calls = host.calls.iloc[host.launches]
    graph = (calls["letter"] == GRAPH_LAUNCH).to_numpy()
    code, number = np.unique(calls["code"].to_numpy(), return_inverse=True)
    usual = (np.bincount(number, calls["busy"].to_numpy()) / np.bincount(number))[number]
    longest = _largest(np.where(graph, usual, -1), steps["first"].to_numpy())
    code = code[number[longest]]
    return np.where(graph[longest], code, steps["kind"].to_numpy())


def _without_lead(
    host: Host, steps: pd.DataFrame, leads: pd.Series, main: Bools, examples: list[int], turn: Ints
) -> pd.DataFrame:
    """The steps, of those that lead a chain only their end: as many launches as one of the examples has, where these
    are the same and take as long; else what is launched behind the last wait in their first turn, which ends with
    launch `turn` (a sync directly behind a copy to the device waits for that copy, and no result)."""
    letters = host.calls["letter"].to_numpy(dtype="U1")
    of_inputs = (letters == SYNC) & np.append(False, _to_device(host.calls)[:-1])
    waits = np.flatnonzero(among(letters, [SYNC, BLOCKING_COPY]) & ~of_inputs)
    code, busy = (host.calls[name].to_numpy()[host.launches] for name in ("code", "busy"))
    spans = [slice(steps["first"].iloc[i], steps["last"].iloc[i]) for i in examples]
    size = spans[0].stop - spans[0].start
    first, spent = steps["first"].to_numpy(copy=True), steps["busy"].to_numpy(copy=True)
    for i in np.flatnonzero(leads):
        last = int(steps["last"].iloc[i])
        before = waits[: np.searchsorted(waits, host.launches[turn[i] - 1])]
        behind = int(np.searchsorted(host.launches, before[-1])) if len(before) else 0
        tails = [(max(last - (like.stop - like.start), 0), like) for like in spans]
        alike = [
            tail for tail, like in tails
            if np.array_equal(code[tail:last], code[like]) and busy[tail:last].sum() <= LONGER * busy[like].sum()
        ]  # fmt: skip
        if alike:
            behind = alike[0]
        elif main[i] and last - behind < size:  # the wait is one of its own
            continue
        first[i] = max(first[i], behind)
        spent[i] = busy[first[i] : last].sum()
    return steps.assign(first=first, busy=spent)


def _between_calls(host: Host, steps: pd.DataFrame) -> pd.DataFrame:
    """Pass 4: the steps with the times of their first and last calls."""
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
