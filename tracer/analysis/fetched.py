"""Steps of engines that mark none: a step ends with the result that the host fetches before, or while, it launches the
next.

Passes over the turns of each host (`tracer.analysis.turns`), joined to steps (`tracer.analysis.passes`):
1. keep the commonest kind of step, and what computes as much beside it (prompts, other batches); of what leads up to
   them (loading, tuning, warm-up) only what follows a wait may be one, and what captures graphs is none;
2. begin each step where its inputs begin;
3. take the hosts together: the confidence is the share of the device's time that their steps explain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import BLOCKING_COPY, COPIES, LAUNCHES, SYNC, among
from tracer.analysis.passes import GUESSED, LONGER, MIN_STEPS, NO_PASS, Joined, doubt_of, joined, turns_of
from tracer.analysis.steps import Steps, as_steps
from tracer.analysis.turns import Bools, Host, Ints, has_layers, hosts
from tracer.engines.engine import FORWARD, SPECULATIVE
from tracer.schema import MISSING
from tracer.trace import Trace

_TABLE: Final = ["start", "end", "process", "thread", "group", "kind", "busy"]
_LAYERED: Final = 0.85
"""How sure it is that a run of kernels that repeats layer by layer is one pass through a model."""


def steps_of_fetches(trace: Trace, calls: pd.DataFrame) -> Steps | None:
    """Pass 3: the steps of all hosts together, or None where none does anything alike `MIN_STEPS` times.

    The confidence is the share of the device's time between them that the steps explain, times how sure the order of
    their turns is.

    Args:
        trace: the recording.
        calls: as `calls.host_calls` gives them, or some of them.
    """
    every = list(hosts(trace, calls))
    found = [steps for host in every if (steps := _steps_of(host)) is not None]
    if not found:
        return None
    most = max(len(steps) for steps in found)
    found = [steps for steps in found if 4 * len(steps) >= most]
    table = pd.concat([steps.table.assign(host=number) for number, steps in enumerate(found)])
    table["group"] = pd.factorize(pd.MultiIndex.from_frame(table[["host", "group"]]))[0]
    during = [host.calls["start"].between(table["start"].min(), table["end"].max(), inclusive="left") for host in every]
    spent = sum(int(host.calls["busy"][inside].sum()) for host, inside in zip(every, during, strict=True))
    explained = min(int(table["busy"].sum()) / spent, 1.0) if spent else 1.0
    detail = "; ".join(dict.fromkeys(steps.detail for steps in found))
    steps = as_steps(table, "calls", detail, explained * min(steps.confidence for steps in found))
    return replace(steps, passes=all(steps.passes for steps in found))


def _steps_of(host: Host) -> Steps | None:
    turns = turns_of(host)
    order = joined(host, turns)
    steps = _kept(host, turns, order)
    if len(steps) < MIN_STEPS:
        return None
    found = "results fetched" if host.fetches else "waits"
    drafts = "drafts and what verifies them each (or prompts that have few tokens each)" if order.speculative else ""
    doubt = doubt_of(host, steps)
    words = (f"{found} by thread {host.thread}", f"{order.length} each" if order.length else "", drafts, doubt)
    sure = 1.0 if host.fetches and not drafts and not doubt else GUESSED
    table = _between_calls(host, steps).assign(phase=SPECULATIVE if drafts else "")
    return Steps(table, "calls", ", ".join(filter(None, words)), sure, passes=doubt != NO_PASS)


def single_passes(trace: Trace, calls: pd.DataFrame) -> Steps | None:
    """Single passes through a model: the turns, of too few to be a loop, whose kernels repeat layer by layer; None
    where there are none."""
    tables = []
    for host in hosts(trace, calls):
        code, busy = (host.calls[name].to_numpy()[host.launches] for name in ("code", "busy"))
        layered = [has_layers(code[a:b]) for a, b in zip(host.first.tolist(), host.last.tolist(), strict=True)]
        turns = pd.DataFrame({"first": host.first, "last": host.last, "behind": host.behind, "group": 0, "kind": 0})
        turns = turns.assign(busy=np.add.reduceat(busy, host.first))[layered].reset_index(drop=True)
        tables.append(_between_calls(host, turns).assign(phase=FORWARD))
    if not sum(map(len, tables)):
        return None
    return as_steps(pd.concat(tables), "calls", "kernels that repeat layer by layer", _LAYERED)


def _kept(host: Host, turns: pd.DataFrame, order: Joined) -> pd.DataFrame:
    """Pass 1: columns first and last (launches, half open), behind (calls), busy (ns), kind (of the turn that takes
    longest), and group: a chain of steps without anything between."""
    edges = np.append(order.first, len(turns))
    number = np.repeat(np.arange(len(order.first)), np.diff(edges))
    longest = turns["busy"].groupby(number).idxmax().to_numpy()
    steps = pd.DataFrame({
        "first": host.first[order.first], "last": host.last[edges[1:] - 1], "behind": host.behind[edges[1:] - 1],
        "busy": turns["busy"].groupby(number).sum().to_numpy(), "kind": turns["kind"].to_numpy()[longest],
    })  # fmt: skip
    if order.length:  # of equal parts any may take longest
        steps["kind"] = np.where(np.diff(edges) == order.length, 0, MISSING)
    graphs = turns["graphs"].groupby(number).sum() > 0
    until = host.calls["start"].to_numpy()[host.launches[steps["last"] - 1]]
    captures = np.diff(np.searchsorted(host.captures, until), prepend=0) > 0
    main = steps["kind"] == steps["kind"][steps["kind"] != MISSING].mode().max()
    usual = steps[main & ~captures].iloc[1:]  # the first may have a warm-up before it
    if len(usual) < MIN_STEPS - 1:
        return steps.iloc[:0]
    launched, busy = usual["last"] - usual["first"], usual["busy"].median()
    keep = main | (~captures & (order.whole[longest] | (LONGER * steps["busy"] >= busy)))
    leads = keep & ~keep.shift(fill_value=False)
    steps = _behind_waits(host, steps, leads & (steps["last"] - steps["first"] > launched.max()), int(launched.min()))
    warms_up = graphs & (steps["last"] - steps["first"] > LONGER * launched.max())
    keep &= ~leads | (LONGER * steps["busy"] >= busy) & ~warms_up
    steps["group"] = (keep & ~keep.shift(fill_value=False)).cumsum()
    return pd.DataFrame(steps[keep].reset_index(drop=True))


def _behind_waits(host: Host, steps: pd.DataFrame, leads: pd.Series, fewest: int) -> pd.DataFrame:
    """The steps, of those that lead a chain only what is launched behind a wait, the last that leaves so much of it (a
    sync directly behind a copy to the device waits for that copy)."""
    letters = host.calls["letter"].to_numpy(dtype="U1")
    of_inputs = (letters == SYNC) & np.append(False, _to_device(host.calls)[:-1])
    waits = np.flatnonzero(among(letters, [SYNC, BLOCKING_COPY]) & ~of_inputs)
    before = np.searchsorted(host.launches, waits)  # launches before each wait
    busy = np.append(0, np.cumsum(host.calls["busy"].to_numpy()[host.launches]))
    first, last = steps["first"], steps["last"]
    behind = np.append(0, before)[np.searchsorted(before, last - fewest, side="right")]
    first = first.where(~leads, np.maximum(first, behind))
    return steps.assign(first=first, busy=busy[last] - busy[first])


def _between_calls(host: Host, steps: pd.DataFrame) -> pd.DataFrame:
    """Pass 2: the steps with the times of their first and last calls; who leads a chain begins no earlier before its
    first launch than those that follow it, who ends one waits for what is idle as often as those before it."""
    if not len(steps):
        return pd.DataFrame(columns=_TABLE, dtype=np.int64)
    first, behind = steps["first"].to_numpy(), steps["behind"].to_numpy()
    launch, before = host.launches[first], np.where(first > 0, host.launches[first - 1] + 1, 0)
    leads, sync = (~steps["group"].duplicated()).to_numpy(), (host.calls["letter"] == SYNC).to_numpy()
    follows = np.append(~leads[1:], False)
    begin = _first_inputs(host.calls, before)
    if follows.any():
        usual = int(np.median((launch - begin)[~leads]))
        begin[leads] = np.maximum(begin - ((begin > before) & sync[begin - 1]), launch - usual)[leads]
        idle = max(int(np.median((np.append(begin[1:], 0) - behind)[follows])), 0)
        others = np.append(np.flatnonzero(~sync), len(sync))
        waited = np.minimum(others[np.searchsorted(others, behind)], behind + idle)
        behind = np.where(follows, behind, waited)
    starts, ends = host.calls["start"].to_numpy()[begin], host.calls["end"].to_numpy()[behind - 1]
    ends = np.where(follows, np.append(starts[1:], 0), ends)
    table = steps[["group", "kind", "busy"]].assign(start=starts, end=ends, process=host.process, thread=host.thread)
    return table[table["end"] > table["start"]]


def _to_device(calls: pd.DataFrame) -> Bools:
    """Which calls are copies that may bring inputs."""
    letters = calls["letter"].to_numpy(dtype="U1")
    return among(letters, COPIES) & (calls["kind"] != "DtoH").to_numpy()


def _first_inputs(calls: pd.DataFrame, behind: Ints) -> Ints:
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
