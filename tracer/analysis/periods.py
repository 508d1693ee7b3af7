"""Token steps of engines that mark none: the repeating sequence of calls and kernels of each thread that launches.

Passes, for each thread:
1. number what its launches launch (`tracer.analysis.launches`);
2. find the cycle of these numbers (`tracer.analysis.cycles`), and the launches that make one turn;
3. turn the cycle until a step begins with the launch before which the host fetched and waited for a result;
4. keep the turns that are alike; warm-up, capture and autotuning are not;
5. what was launched before them with inputs of its own may be a prefill; `tracer.analysis.phases` judges it;
6. begin each step where its inputs begin: the logits of the step before are read in that step.

Several threads have steps where each computes most on a device of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, among, host_calls, text_of
from tracer.analysis.cycles import LIKE, MIN_TURNS, Cycle, find_cycle, turn_differences
from tracer.analysis.launches import Launches, launches_by_thread
from tracer.analysis.phases import PREFILL, phases_of_work
from tracer.intervals import union
from tracer.trace import Trace

_ENOUGH: Final = 8
_LONG_SLOT: Final = 8
_FINER: Final = 0.05
"""What is launched tells launches apart, unless slots alone explain this much more of the sequence."""


def repeating_steps(trace: Trace, window: pd.DataFrame | None = None) -> tuple[pd.DataFrame, str, float] | None:
    """Find steps from the repeating call sequence.

    Args:
        trace: the recording; it needs the api table.
        window: NVTX rows; only calls inside them are looked at.

    Returns:
        (table as in `Steps`, description, confidence), or None where nothing repeats at least `MIN_TURNS` times. The
        confidence is the share of the device's compute time that the steps launched, times their regularity: one
        minus the mean share by which a decode step's calls and launches differ from the median step's.
    """
    calls = host_calls(trace)
    if window is not None:
        calls = calls[within_any(calls, window)]
    found: list[tuple[Launches, pd.DataFrame]] = []
    devices: set[int] = set()
    busy = 0
    for launches in launches_by_thread(trace, calls):
        busy += int(launches.busy.sum())
        if launches.main_device in devices:
            continue
        steps = _steps_of_thread(trace, launches)
        if steps is not None and 2 * len(steps) >= max((len(other) for _, other in found), default=0):
            found.append((launches, steps))
            devices.add(launches.main_device)
    if not found:
        return None
    confidence = _share(found, busy) * float(np.mean([_regularity(*thread) for thread in found]))
    for offset, (_, steps) in zip(np.cumsum([0] + [len(s) for _, s in found]), found, strict=False):
        steps["group"] += offset
    table = pd.concat([steps for _, steps in found], ignore_index=True).sort_values("start", ignore_index=True)
    table["group"] = pd.factorize(table["group"])[0]
    table["step"] = np.arange(len(table))
    return table, _description(found), confidence


def _description(found: list[tuple[Launches, pd.DataFrame]]) -> str:
    per_step = int(np.median(np.concatenate([(s["last_call"] - s["first_call"]).to_numpy() for _, s in found])))
    threads = [str(steps["thread"].iloc[0]) for _, steps in found]
    on = f"thread {threads[0]}" if len(threads) == 1 else f"threads {', '.join(threads)}"
    return f"a sequence of {per_step} calls that repeats on {on}"


def _share(found: list[tuple[Launches, pd.DataFrame]], busy: int) -> float:
    explained = sum(
        int(np.sum(np.add.reduceat(np.append(launches.busy, 0), steps[["first", "last"]].to_numpy().ravel())[::2]))
        for launches, steps in found
    )
    return explained / busy if busy else 0.0


def _regularity(launches: Launches, steps: pd.DataFrame) -> float:
    """1 - the mean share by which the steps that decode differ from their median in calls and in what they launch."""
    decode = steps[steps["phase"] != PREFILL]
    letters = launches.calls["letter"].to_numpy(dtype="U1")
    symbols = np.unique(letters, return_inverse=True)[1]
    symbols[launches.rows] = len(np.unique(letters)) + launches.coarse
    sizes = (decode["last_call"] - decode["first_call"]).to_numpy()
    starts = np.cumsum(np.append(0, sizes))
    rows = np.repeat(decode["first_call"].to_numpy() - starts[:-1], sizes) + np.arange(starts[-1])
    differences, usual = turn_differences(symbols[rows], starts)
    return 1 - float(np.minimum(differences / max(usual, 1), 1).mean())


def within_any(rows: pd.DataFrame, windows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows lie, from start to end, inside the union of the windows."""
    starts, ends = union(windows["start"], windows["end"])
    at = np.searchsorted(starts, rows["start"], side="right") - 1
    return np.asarray((at >= 0) & (rows["end"] <= ends[at]))


def _steps_of_thread(trace: Trace, launches: Launches) -> pd.DataFrame | None:
    """The steps of one thread, or None: columns first, last (launches, half open), first_call, last_call (calls, half
    open), start, end, process, thread, group (a chain of steps that follow each other) and phase."""
    found = _cycle_of(launches)
    if found is None:
        return None
    at, symbols, cycle = found
    heads = _turned(launches, at, symbols, cycle)
    finer = _divided(launches, at, heads)
    if finer is not None:
        heads, symbols = finer, launches.coarse[at]
    if len(heads) < MIN_TURNS:
        return None
    turns = _alike(at, symbols, heads, len(launches))
    if len(turns) < MIN_TURNS:
        return None
    turns = _with_leading(launches, turns)
    turns["phase"] = phases_of_work(trace, launches, turns)
    turns = _chained(launches, turns)
    return _between_calls(launches, turns)


def _cycle_of(launches: Launches) -> tuple[NDArray[np.int64], NDArray[np.int64], Cycle] | None:
    """Pass 2: (positions of the launches looked at, their symbols, the cycle); the finest symbols that repeat."""
    weights = _weights(launches)
    computes, graph_launches = np.flatnonzero(launches.begins), np.flatnonzero(launches.graph)
    best: tuple[NDArray[np.int64], NDArray[np.int64], Cycle] | None = None
    for at, symbol in (
        (np.arange(len(launches)), launches.symbol),
        (computes, launches.coarse),
        (graph_launches, launches.device - min(launches.device, default=0)),
    ):
        symbols = np.unique(symbol[at], return_inverse=True)[1]
        sums = np.add.reduceat(weights, at) if len(at) else weights[:0]
        cycle = find_cycle(symbols, sums) if len(at) >= MIN_TURNS else None
        if cycle is not None and (best is None or cycle.cost < best[2].cost - _FINER):
            best = at, symbols, cycle
    return best


def _weights(launches: Launches) -> NDArray[np.int64]:
    """What a cycle is to reach over: graph launches; if few, results fetched, else waits of the host, else compute
    time. Prompts and autotuning compute for long and wait often, but seldom launch graphs or fetch."""
    for counted in (launches.graph, launches.wait == 2, launches.wait >= 1):
        if np.count_nonzero(counted) >= _ENOUGH:
            return counted.astype(np.int64)
    return launches.busy if launches.busy.any() else np.ones(len(launches), dtype=np.int64)


def _turned(launches: Launches, at: NDArray[np.int64], symbols: NDArray[np.int64], cycle: Cycle) -> NDArray[np.int64]:
    """Pass 3: where in `at` each step begins.

    In every turn the launch is looked for before which the host waits most clearly for a result (and then, of several,
    the one with most inputs, the first one); what most of these launch is what steps begin with.
    """
    turn = int(np.median(np.diff(cycle.marks)))
    outside = np.array([max(0, int(cycle.marks[0]) - turn), min(len(at), int(cycle.marks[-1]) + turn)])
    edges = np.unique(np.concatenate((cycle.marks, outside)))
    score = launches.wait[at] * 64 + np.minimum(launches.inputs[at], 63)

    def first_highest(values: NDArray[np.int64]) -> NDArray[np.int64]:
        inside = values[edges[0] : edges[-1]]
        highest = np.repeat(np.maximum.reduceat(inside, edges[:-1] - edges[0]), np.diff(edges))
        hits = np.flatnonzero((inside == highest) & (inside >= 0)) + edges[0]
        of_turn = np.searchsorted(edges, hits, side="right")
        return np.asarray(hits[np.unique(of_turn, return_index=True)[1]])

    leader = int(np.bincount(symbols[first_highest(score)]).argmax())
    if np.count_nonzero(symbols[cycle.marks[0] : cycle.marks[-1]] == leader) < len(cycle.marks):
        return np.flatnonzero(symbols == leader)  # once in every turn, so also where the marker is not
    heads = first_highest(np.where(symbols == leader, score, -1))
    return heads[score[heads] >= np.median(score[heads]) - 63]


def _divided(launches: Launches, at: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """More heads, where most of each turn is equal rounds that fetch a result and take as many inputs as its head: a
    graph for each of several input buffers in turn, or prompts with equally many tokens behind. None where it is not.
    """
    if len(heads) < MIN_TURNS:
        return None
    inputs, device = launches.inputs[at], launches.device[at]
    like_head = (inputs == np.median(inputs[heads])) & (device == np.median(device[heads])) & (launches.wait[at] == 2)
    kinds = launches.coarse[at[like_head]]
    if not len(kinds):
        return None
    rounds = np.flatnonzero(like_head & (launches.coarse[at] == np.bincount(kinds).argmax()))
    sizes = np.diff(rounds[(rounds >= heads[0]) & (rounds <= heads[-1])])
    if np.median(np.diff(np.searchsorted(rounds, heads))) < 2 or np.mean(sizes == np.median(sizes)) <= 1 - LIKE:
        return None
    return rounds


def _alike(at: NDArray[np.int64], symbols: NDArray[np.int64], heads: NDArray[np.int64], launches: int) -> pd.DataFrame:
    """Pass 4: the turns that differ from the median turn by at most `LIKE`: columns first and last, launches.

    A turn with something behind it (the next prompt, the shutdown) is cut to the median turn's length.
    """
    usual_length = int(np.median(np.diff(heads)))
    ends = np.append(heads[1:], len(at))
    edges = np.append(at, launches)
    first = np.empty(0, dtype=np.int64)
    last = first
    for stop in (ends, np.minimum(heads + usual_length, ends)):
        # pairs of edges: every second "turn" is the turn itself, the others are what lies between
        sizes = stop - heads
        starts = np.cumsum(np.append(0, sizes))
        rows = np.repeat(heads - starts[:-1], sizes) + np.arange(starts[-1])
        differences, usual = turn_differences(symbols[rows], starts)
        good = (differences <= LIKE * usual) & ~np.isin(edges[heads], first)
        first, last = np.concatenate((first, edges[heads[good]])), np.concatenate((last, edges[stop[good]]))
    return pd.DataFrame({"first": first, "last": last}).sort_values("first", ignore_index=True)


def _with_leading(launches: Launches, turns: pd.DataFrame) -> pd.DataFrame:
    """Pass 5: the turns (`regular`) and, before each chain of them, what begins with as many inputs as they do."""
    usual = int(np.median(launches.inputs[turns["first"]]))
    fed = launches.inputs >= usual if usual else launches.wait >= 1
    device = int(np.median(launches.device[turns["first"]]))
    leads = np.flatnonzero(launches.begins & fed & (launches.device == device))
    begin = np.append(0, turns["last"].to_numpy()[:-1])
    parts = [turns.assign(regular=True)]
    for start, stop in zip(begin, turns["first"], strict=True):
        if start < stop:
            inside = leads[np.searchsorted(leads, start) : np.searchsorted(leads, stop)]
            parts.append(pd.DataFrame({"first": inside, "last": np.append(inside[1:], stop)[: len(inside)]}))
            parts[-1]["regular"] = False
    table = pd.concat(parts, ignore_index=True).sort_values("first", ignore_index=True)
    return table.astype({"first": "int64", "last": "int64", "regular": bool})


def _chained(launches: Launches, turns: pd.DataFrame) -> pd.DataFrame:
    """The steps: regular turns, and the prefills that lead up to one without anything between. `group` counts chains.

    A prefill behind a decode step begins a new chain; so does a step before which the host made far more calls than a
    step makes.
    """
    keep = turns["regular"].to_numpy(copy=True)
    prefill = (turns["phase"] == PREFILL).to_numpy()
    touches = np.append(turns["last"].to_numpy()[:-1] == turns["first"].to_numpy()[1:], False)
    for i in np.flatnonzero(~keep & prefill)[::-1]:
        keep[i] = touches[i] and keep[i + 1]
    steps = turns[keep].reset_index(drop=True)
    first, last = steps["first"].to_numpy(), steps["last"].to_numpy()
    decodes = (steps["phase"] != PREFILL).to_numpy()
    between = launches.rows[first[1:]] - launches.rows[first[1:] - 1] - 1
    busy_host = between > max(_LONG_SLOT, 2 * float(np.median(np.diff(launches.rows[first]))))
    new = np.append(True, (first[1:] != last[:-1]) | (decodes[:-1] & ~decodes[1:]) | busy_host)
    return steps.assign(group=np.cumsum(new) - 1)


def _between_calls(launches: Launches, steps: pd.DataFrame) -> pd.DataFrame:
    """Pass 6: the calls of each step, and with them its times."""
    calls, at = launches.calls, launches.rows
    first, last = steps["first"].to_numpy(), steps["last"].to_numpy()
    behind = np.where(first > 0, at[first - 1] + 1, 0)
    letters = calls["letter"].to_numpy(dtype="U1")
    begin = first_inputs(calls, behind)
    leads = np.append(True, np.diff(steps["group"]) != 0)
    if np.mean(letters[begin[~leads]] == SYNC) > 0.5:  # the first step of a chain begins like the others
        begin -= leads & (begin > behind) & (letters[begin] != SYNC) & (letters[begin - 1] == SYNC)
    fetched = at[last - 1] + 1  # the first call behind the last launch
    follows = np.append(np.diff(steps["group"]) == 0, False)
    end = np.append(begin[1:], len(calls))
    usual = _usual_fetch(letters, fetched[follows], end[follows])
    for i in np.flatnonzero(~follows):  # such a step reads its logits as the others do, as far as the calls go
        limit = min(len(calls), int(begin[i + 1]) if i + 1 < len(steps) else len(calls))
        length = 0
        while length < min(len(usual), limit - int(fetched[i])) and letters[fetched[i] + length] == usual[length]:
            length += 1
        end[i] = fetched[i] + length
    starts = calls["start"].to_numpy()[begin]
    owner = {name: calls[name].iloc[0] for name in ("process", "thread")}
    ends = np.where(follows, np.append(starts[1:], 0), calls["end"].to_numpy()[end - 1])
    return steps.assign(first_call=begin, last_call=end, start=starts, end=ends, **owner)


def _usual_fetch(letters: NDArray[np.str_], begin: NDArray[np.int64], end: NDArray[np.int64]) -> str:
    """The letters behind a step's last launch that most often still belong to it."""
    text = text_of(letters)
    words = Counter(text[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True))
    return max(words, key=lambda word: (words[word], word), default="")


def first_inputs(calls: pd.DataFrame, behind: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position behind a step's last launch, the first call that belongs to the next step.

    The inputs begin with the first copy to the device (or, without copies, the launch). Of two or more syncs directly
    before it the last one guards the write and belongs to the inputs; a single one waits for the logits.
    """
    letters = calls["letter"].to_numpy(dtype="U1")
    copies = among(letters, [COPY, BLOCKING_COPY]) & (calls["kind"].to_numpy() != "DtoH")
    inputs = np.flatnonzero(copies | among(letters, [LAUNCH, GRAPH_LAUNCH]))
    begin = inputs[np.searchsorted(inputs, behind)]
    index = np.arange(len(letters))
    last_other = np.maximum.accumulate(np.where(letters == SYNC, -1, index))
    syncs = np.minimum(np.append(0, index - last_other)[begin], begin - behind)  # that end directly before it
    return np.asarray(np.where((syncs >= 2) & copies[begin], begin - 1, begin))
