"""Turns: what one host launches between two results that it fetches; the raw material of the steps of an engine
without marks, which `tracer.analysis.passes` makes of them.

Passes over the calls of a trace:
1. **What a launch runs.** A graph is known by its id, or (where a recorder gives none) by the names of its kernels. A
   graph whose kernels are recorded and show no layers is a *part*: of a pass through a model, which it is not itself.
   Example: 32 graphs of seven kernels with one attention each are parts; a graph with 32 attentions is not.
2. **Who works together.** Threads that work for one another form one host: each thread that fetches results, together
   with those that only launch on its streams; a thread that only fetches belongs to the only host of its process.
   Example: thread 1 launches on stream 7, thread 2 copies from it to the host: one host.
3. **Where a result is fetched.** That is where the host copies from the device; copies without a launch between them
   are one result. The turn ends with the wait that follows, if it comes before most of the next turn is launched, else
   with the copy. If a trace has no copies to the host, every wait ends a turn.
   Example: the calls g f s g f s (graph, copy to the host, sync) are two turns. With 97 graphs, a sync behind each, and
   a copy behind the last, all 97 are one turn.
4. **Hosts that run ahead.** A turn that launches the same CUDA graphs, or one whole pass of kernels, repeatedly becomes
   one turn for each: the host reads later. What it launches before them is another turn if it is a pass as well (a
   prompt). Graphs that are parts, or that the host waits for one by one, are not split; drafts share their turn with
   the larger graph that verifies them.
   Example: the calls g g g g f, where g is a whole pass, are four turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import Calls, copied_out
from tracer.analysis.evidence import is_of_any
from tracer.engines import engines
from tracer.model.calls import BEGIN_CAPTURE, BLOCKING_COPY, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC
from tracer.model.columns import NEVER, Columns, Texts, among, grouped, ranks, spread
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import GraphLaunches, Kernels
from tracer.model.trace import Trace

SEVERAL: Final = 3
"""Fewer repetitions are not a loop, not layers, and not a layer of different kernels (product, norm, activation)."""
LONGER: Final = 1.5
"""Work that takes at least this many times as long counts as a different kind."""
CONSTANT: Final = 0.9
"""An order is constant if at least this share follows it."""
MOST_DRAFTS: Final = 16
"""llama.cpp drafts up to 16 tokens by default (common/common.h), vLLM and SGLang fewer."""
LONGEST_PASS: Final = 1 << 13  # kernels
_MOST_BYTES: Final = 1 << 40
"""More than any copy has; a file may say anything."""
_MOST_UNITS: Final = 8
"""The number of kernels and graphs, the rarest first, that are tried as those that occur a few times per pass."""
_AT_MOST: Final = 4
"""An embedding occurs twice in a training step, forward and backward."""

_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, of evenly mixed bits: 2^64 over the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""

_ATTENTION: Final = re.compile(r"(?i)attention|attn|fmha|\bmmha|flash_fwd|splitkv|mla_(?:decode|prefill)|soft_max_f")
"""Kernels of which each layer with attention has one (or one of each, or two with a router): names from ggml,
FlashAttention, FlashInfer, vLLM, TensorRT-LLM and PyTorch."""


# --- what a launch runs ---


class WorkCalls(Calls):
    """Calls with the device work that each issued.

    Attributes:
        code: numbers the kernel or graph that it launched first, per device; MISSING if unknown.
        kernel: numbers the kernel that it launched outside graphs, by its name without what is in brackets; MISSING if
            unknown or none.
        lane: numbers its stream; MISSING if unknown.
        busy: ns, of everything it launched.
        fetched, sent: bytes copied to the host and from it.
    """

    code: Ints
    kernel: Ints
    lane: Ints
    busy: Ints
    fetched: Ints
    sent: Ints


@dataclass(frozen=True)
class Contents:
    """What is inside launches, as far as it is recorded.

    Attributes:
        attends: for the number of each kernel's name, whether it is attention.
        parts: the code of each graph that is a part -> the numbers of its kernels' names, in order.
        passes: the codes of graphs whose recorded kernels show a whole pass.
    """

    attends: Bools
    parts: dict[int, Ints]
    passes: frozenset[int]

    def kernels(self, launches: Launches) -> Ints:
        """The kernels that launches run, in order, as numbers of their names; a graph that is no part is one, of a
        number of its own, and so is a kernel whose name is unknown."""
        none = len(self.attends)
        named = np.where(launches.kernel == MISSING, none + launches.code + 1, launches.kernel)
        inside = {at: self.parts[code] for at, code in enumerate(launches.code.tolist()) if code in self.parts}
        if not inside:
            return named
        pieces = np.split(named, np.unique([edge for at in inside for edge in (at, at + 1)]))
        begins = np.cumsum([0, *map(len, pieces[:-1])]).tolist()
        return np.concatenate([inside.get(at, piece) for at, piece in zip(begins, pieces, strict=True) if len(piece)])

    def is_pass(self, launches: Launches) -> bool:
        """Whether these replay a graph that is no part, or launch layers."""
        return bool((launches.graph & ~launches.part).any()) or self.has_layers(self.kernels(launches))

    def shows_pass(self, launches: Launches) -> bool:
        """Whether their recorded kernels show one; unlike `is_pass`, not if they only may be one."""
        return not self.passes.isdisjoint(launches.code.tolist()) or self.has_layers(self.kernels(launches))

    def has_layers(self, kernels: Ints) -> bool:
        """Whether most of a run of kernels is the layers of a model. If it has attention, that must be in more than one
        place, since a layer may repeat the same products for each of its experts."""
        kernels = kernels[:LONGEST_PASS]
        attention = kernels[self.attends[np.minimum(kernels, len(self.attends) - 1)] & (kernels < len(self.attends))]
        if len(attention):
            return int(np.unique(attention, return_counts=True)[1].max()) > 1
        return repeats(kernels)


def repeats(kernels: Ints) -> bool:
    """Whether most of a run of kernels is sequences of several that repeat at least three times: the layers of a model
    (or of several, or forward and backward)."""
    inside = np.zeros(len(kernels), bool)
    for length in range(SEVERAL, len(kernels) // 4 + 1):
        for begin, end in _runs(kernels[length:] == kernels[:-length], 2 * length).tolist():
            if len(np.unique(kernels[begin : begin + length])) >= SEVERAL:
                inside[begin : end + length] = True
        if 2 * inside.sum() >= len(kernels):
            return True
    return False


def lengths(codes: Ints, least: int) -> list[int]:
    """The maximum lengths of patterns that occur at least that often: the distances between their rarest parts, which
    may occur up to `_AT_MOST` times in one. Several repetitions of a shorter pattern, as of layers, are none.

    Example:
        >>> lengths(np.array([5, 1, 2, 5, 5, 1, 2, 5, 5, 1, 2, 5]), 3)
        [4, 2]
    """
    _, number, count = np.unique(codes, return_inverse=True, return_counts=True)
    rare = np.argsort(count, kind="stable")
    at = [np.flatnonzero(number == one) for one in rare[count[rare] >= least][:_MOST_UNITS]]
    apart = [(each, times) for times in range(1, _AT_MOST + 1) for each in at if len(each) >= times * least]
    units = dict.fromkeys(int(np.median(each[times:] - each[:-times])) for each, times in apart)
    alike = {unit: np.mean(codes[unit:] == codes[:-unit]) for unit in units}
    return [
        unit for unit in units
        if not any(unit > short and unit % short == 0 and alike[short] >= alike[unit] for short in units)
    ]  # fmt: skip


def _runs(flags: Bools, least: int = 1) -> Ints:
    """The start and end of each run of at least this many true values."""
    padded = np.zeros(len(flags) + 2, bool)
    padded[1:-1] = flags
    edges = np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)
    return edges[edges[:, 1] - edges[:, 0] >= least]


def _with_work(trace: Trace, calls: Calls) -> tuple[WorkCalls, Contents]:
    """Pass 1: the calls with the device work that each issued, and what is inside the graphs."""
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
    replays = _replays_of(trace.kernels, calls)
    outside = (graph < 0) & (calls.letter != GRAPH_LAUNCH)
    base = _bases(trace.kernels.name.words)
    kernel = np.where(outside, spread(base, name, MISSING), MISSING)
    name[graph >= 0] = MISSING
    unnamed = graph[replays.call] < 0
    name[replays.call[unnamed]] = len(trace.kernels.name.words) + replays.alike[unnamed]
    code, lane = np.full(len(calls), MISSING), np.full(len(calls), MISSING)
    if issues.any():
        code[issues] = ranks(graph[issues], name[issues], device[issues])
        lane[issues] = ranks(device[issues], stream[issues])
    code[(graph < 0) & (name < 0)] = MISSING
    fetched, sent = (_copied(trace, calls, kind) for kind in ("DtoH", "HtoD"))
    made = WorkCalls.from_table(
        calls, code=code, kernel=kernel, lane=lane, busy=busy.astype(np.int64), fetched=fetched, sent=sent
    )
    return made, _contents(trace.kernels, replays, code[replays.call], base)


def _bases(names: Texts) -> Ints:
    """Number the names of kernels without their template arguments and parameters, which say where, not what they are.

    Example:
        >>> _bases(np.array(["rope<float>(float*)", "norm(blk.0)", "norm(blk.1)"], dtype=object)).tolist()
        [1, 0, 0]
    """
    bare = [re.split(r"[(<]", str(name), maxsplit=1)[0] or str(name) for name in names]
    return np.unique(bare, return_inverse=True)[1].astype(np.int64) if bare else np.zeros(0, np.int64)


def _copied(trace: Trace, calls: Calls, kind: str) -> Ints:
    """The bytes of each call's copies of one kind."""
    copies = trace.memcpys[trace.memcpys.kind.rows(kind)]
    call, size = calls.of(copies), copies.bytes.clip(0, _MOST_BYTES)
    return np.bincount(call[call >= 0], size[call >= 0], minlength=len(calls)).astype(np.int64)


@dataclass(frozen=True)
class _Replays:
    """The replays whose kernels are recorded.

    Attributes:
        call: (n,) their positions in the calls.
        alike: (n,) equal for replays of kernels with the same names, and of about as many.
        first: (n + 1,) where the kernels of each begin in `rows`, and the end of the last one's.
        rows: their kernels in `trace.kernels`, each replay's by start.
    """

    call: Ints
    alike: Ints
    first: Ints
    rows: Ints


def _replays_of(kernels: Kernels, calls: Calls) -> _Replays:
    call = calls.of(kernels)
    rows = np.flatnonzero(call >= 0)
    rows = rows[calls.letter[call[rows]] == GRAPH_LAUNCH]
    rows = rows[np.lexsort((kernels.start[rows], call[rows]))]
    first = np.flatnonzero(np.diff(call[rows], prepend=-1))
    count = np.diff(first, append=len(rows))
    of = np.repeat(np.arange(len(first)), count)
    _, number = np.unique(of * max(len(kernels.name.words), 1) + kernels.name.codes[rows], return_index=True)
    mixed = (kernels.name.codes[rows[number]].astype(np.uint64) + np.uint64(1)) * _MIXER
    mixed ^= mixed >> np.uint64(29)  # or sums of different sets of names would be equal
    begins = np.searchsorted(of[number], np.arange(len(first)))
    names = np.add.reduceat(mixed * _MIXER, begins) if len(first) else np.zeros(0, np.uint64)
    same, number = np.unique(names, return_inverse=True)
    most = np.zeros(len(same), np.int64)
    np.maximum.at(most, number, count)
    smaller = (np.log(most[number] / count.clip(1)) / np.log(LONGER)).round().astype(np.int64)
    return _Replays(call[rows[first]], ranks(number, smaller), np.append(first, len(rows)), rows)


def _contents(kernels: Kernels, replays: _Replays, code: Ints, base: Ints) -> Contents:
    """What is inside the graphs, judged by the replay of each with the most kernels."""
    attends = np.zeros(int(base.max(initial=0)) + 1, bool)
    attends[base[[bool(_ATTENTION.search(str(name))) for name in kernels.name.words]]] = True
    known = Contents(attends, {}, frozenset())
    size = np.diff(replays.first)
    order = np.lexsort((size, code))
    examples = order[np.append(code[order][1:] != code[order][:-1], True)] if len(order) else order
    parts, passes = {}, set()
    for at in examples.tolist():
        rows = replays.rows[replays.first[at] : replays.first[at + 1]]
        names = base[kernels.name.codes[rows]]
        by_stream = names[np.argsort(kernels.stream[rows], kind="stable")]
        if known.has_layers(names) or known.has_layers(by_stream):
            passes.add(int(code[at]))
        else:
            parts[int(code[at])] = names
    return Contents(attends, parts, frozenset(passes))


# --- hosts ---


class Launches(Columns):
    """The launches of a host.

    Attributes:
        call: its position in `Host.calls`.
        code, kernel: as in `WorkCalls`.
        graph: whether it replays one.
        part: whether that is a part of a pass.
        busy: ns that the device works for it.
        fetched: bytes, before the next launch.
        inputs, sent, waits, captures: since the previous launch: copies to the device, their bytes, waits (except those
            for inputs), and captures of graphs, begun in its process.
        behind: the position in `Host.calls` after the result that is fetched next, or of the next launch.
    """

    call: Ints
    code: Ints
    kernel: Ints
    graph: Bools
    part: Bools
    busy: Ints
    fetched: Ints
    inputs: Ints
    sent: Ints
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
        contents: of the launches.
    """

    calls: WorkCalls
    process: int
    thread: int
    launches: Launches
    turns: Ints
    fetches: bool
    contents: Contents


def hosts(trace: Trace, calls: Calls) -> Iterator[Host]:
    """The hosts that launch."""
    api = trace.api
    captures = api.letter == BEGIN_CAPTURE
    every, contents = _with_work(trace, calls)
    captures_first = is_of_any(trace, [engine for engine in engines() if engine.captures_first])
    for (process,), rows in grouped(every.process):
        of_process = every[rows]
        began = np.sort(api.start[captures & (api.process == process)])
        if captures_first:
            of_process, began = _serving(of_process, began)
        for leader, threads in _together(of_process).items():
            of_host = of_process[among(of_process.thread, threads)]
            yield _host(of_host[np.argsort(of_host.start, kind="stable")], leader, began, contents)


def _serving(calls: WorkCalls, captures: Ints) -> tuple[WorkCalls, Ints]:
    """The calls of a process, and its captures, since the last capture before it first replays a graph.

    Example: the turns W C C CP T T T, where the third capture is followed by a prompt in its turn, become P T T T.
    """
    replays = calls.start[calls.letter == GRAPH_LAUNCH]
    ready = captures[captures < replays.min(initial=NEVER)].max(initial=-NEVER) if len(replays) else -NEVER
    return calls[calls.start > ready], captures[captures > ready]


def _together(calls: WorkCalls) -> dict[int, list[int]]:
    """Pass 2: the leading thread of each host of a process -> the host's threads."""
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


def _host(calls: WorkCalls, thread: int, captures: Ints, contents: Contents) -> Host:
    letters, fetches = calls.letter, copied_out(calls)
    inputs = among(letters, COPIES) & ~fetches
    waits = among(letters, [SYNC, BLOCKING_COPY])
    of_results = waits & ~((letters == SYNC) & np.append(False, inputs[:-1]))  # otherwise for the copy directly before
    at = np.flatnonzero(among(letters, LAUNCHES))
    cuts = _behind_fetches(np.flatnonzero(waits), at, np.flatnonzero(fetches), len(calls))
    begun = np.searchsorted(captures, calls.start[at])
    until = np.append(cuts, len(calls))[np.searchsorted(cuts, at + 1)]
    code, graph, from_host = calls.code[at], letters[at] == GRAPH_LAUNCH, np.where(inputs, calls.sent, 0)
    launches = Launches(
        call=at, code=code, kernel=calls.kernel[at], graph=graph, part=graph & among(code, [*contents.parts]),
        busy=calls.busy[at],
        fetched=np.diff(np.append(0, np.cumsum(calls.fetched))[np.append(at, len(calls))]),
        inputs=np.diff(np.cumsum(inputs)[at], prepend=0), sent=np.diff(np.cumsum(from_host)[at], prepend=0),
        waits=np.diff(np.cumsum(of_results)[at], prepend=0),
        captures=np.diff(begun, prepend=0), behind=np.minimum(np.append(at[1:], len(calls)), until),
    )  # fmt: skip
    first = np.unique(np.append(0, np.searchsorted(at, cuts)))
    turns = _split(launches, first[first < len(at)], contents)
    return Host(calls, int(calls.process[0]), thread, launches, turns, bool(fetches.any()), contents)


def _behind_fetches(waits: Ints, launches: Ints, fetches: Ints, end: int) -> Ints:
    """Pass 3: positions after each fetch with its wait; all are positions in the calls, including the position after
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


def _split(launches: Launches, first: Ints, contents: Contents) -> Ints:
    """Pass 4: the first launch of each turn; turns that repeat themselves are split."""
    last = np.append(first[1:], len(launches))
    graphs = np.add.reduceat(launches.graph.astype(np.int64), first)
    seen: dict[tuple[bytes, bytes], Ints] = {}
    heads = [first]
    for i in np.flatnonzero((last - first >= SEVERAL) & (graphs != 1)):
        turn = launches[first[i] : last[i]]
        key = turn.code.tobytes(), (turn.waits > 0).tobytes()
        if key not in seen:
            seen[key] = _heads(turn, contents, is_all=len(first) == 1)
        heads.append(first[i] + seen[key])
    return np.unique(np.concatenate(heads))


def _heads(turn: Launches, contents: Contents, is_all: bool) -> Ints:
    """Where the equal passes of a turn begin after a leading part that is a pass as well; none if there is only one.

    Two passes followed by something else may be one step (with and without a prompt, in diffusion). A host that runs
    ahead repeats whole steps, so a few passes are drafts if the other graphs of the turn compute more than each, and
    graphs that it waits for one by one are parts, unless their kernels show a pass. Where the turn is all that there is
    (`is_all`), what repeats with a graph is an iteration, a pass or not.
    """
    code = turn.code
    for unit in lengths(code, SEVERAL) if (code != MISSING).all() else []:
        begin, end = max(_runs(code[unit:] == code[:-unit]).tolist(), key=lambda run: run[1] - run[0], default=(0, 0))
        end += unit
        passes = (end - begin) // unit
        if passes >= SEVERAL and 2 * (end - begin) >= len(turn):
            begin = end - passes * unit if begin else 0
            one = turn[begin : begin + unit]
            is_pass = contents.is_pass(one) or (is_all and bool(one.graph.any()))
            if is_pass and passes <= MOST_DRAFTS and _others(turn, one) > LONGER * one.busy.sum():
                return np.zeros(0, np.int64)
            is_waited_for = (turn.waits[begin + unit : end : unit] > 0).mean() >= CONSTANT
            if is_pass and is_waited_for and not contents.shows_pass(one):
                return np.zeros(0, np.int64)
            if is_pass and (not begin or contents.has_layers(contents.kernels(turn[:begin]))):
                return np.arange(begin, end, unit)
    return np.zeros(0, np.int64)


def _others(turn: Launches, one: Launches) -> int:
    """How long the device works for the graphs of a turn that one of its passes does not have, each counted once."""
    codes, first = np.unique(np.where(turn.graph, turn.code, MISSING), return_index=True)
    return int(turn.busy[first[(codes != MISSING) & ~np.isin(codes, one.code)]].sum())
