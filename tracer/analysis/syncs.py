"""Sync inventory: which host synchronisations, copies and launches each token step makes, and what they wait for.

How far the host runs ahead follows from its fetches: the step whose result it reads while it launches another one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.calls import Calls, between_devices, host_calls
from tracer.analysis.tokens import Steps
from tracer.analysis.waits import UNKNOWN, Targets, last_awaited, poll_loops, targets
from tracer.analysis.waits_elsewhere import WaitsElsewhere, waits_elsewhere
from tracer.errors import EmptyTraceError
from tracer.model.calls import BLOCKING_COPY, COPIES, COPY, GRAPH_LAUNCH, LAUNCH, LAUNCHES, POLL, SYNC
from tracer.model.columns import (
    Columns,
    Letters,
    Texts,
    among,
    grouped,
    joined,
    last_at,
    last_before,
    medians,
    modes,
    ranks,
    runs,
    spread,
    within,
)
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.run_json import WaitOrder, wait_orders, was_traced
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import Trace, names_of

if TYPE_CHECKING:
    import pandas as pd

WAITS: Final = {SYNC: "sync", BLOCKING_COPY: "blocking copy", POLL: "polling loop"}
"""The letters of the calls in which a host waits -> their name."""

MIXED: Final = "mixed"
NONE: Final = "none"
WITHOUT_COPIES: Final = ("ggg", NONE)
"""Classes of steps without input copies."""
MIN_SHARE: Final = 0.6
"""Below this share of copies that follow it, a class is called mixed."""

_COUNTED: Final = {
    "syncs": (SYNC,), "copies": COPIES, "launches": LAUNCHES, "blocking_copies": (BLOCKING_COPY,), "polls": (POLL,)
}  # fmt: skip
_FEW: Final = 0.05  # of the steps: what only so many do is not what a step does

_TOKEN: Final = re.compile(f"{LAUNCH}+|.")
_GROUP: Final = re.compile(r"\(([^()]*)\)×(\d+)")
_LAUNCH: Final = re.compile(f"[{LAUNCH}{GRAPH_LAUNCH}]")
_LONGEST_UNIT = 24


class SyncCalls(Calls):
    """The calls of steps.

    Attributes:
        queries: of a polling loop, else 0.
        shown: its letter in the signature, "" if it has none.
        waited_for: name of the last activity that it waited for, "" if that had already ended or it does not wait,
            `UNKNOWN` if the trace does not say what it waits for.
        waited_until: end of that activity, ns; else MISSING.
        step: that makes it; `at` is that step's position.
    """

    queries: Ints
    shown: Letters
    waited_for: Texts
    waited_until: Ints
    step: Ints
    at: Ints

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, without `at`."""
        return super().frame().drop(columns="at").assign(kind=self.kind.texts)


class StepCounts(Columns):
    """A row per step: step, start (ns), and its number of syncs, copies, launches, blocking copies and polls."""

    step: Ints
    start: Ints
    syncs: Ints
    copies: Ints
    launches: Ints
    blocking_copies: Ints
    polls: Ints


class Inventory(Columns):
    """The waits of a step: its syncs in order, then its blocking copies and its polling loops.

    Attributes:
        what: of `WAITS`.
        position: 1, 2, ... among its kind.
        name, stream: the most common ones.
        steps: that have it.
        median_us, max_us: how long it takes.
        waiting_share: the share of the steps in which the device was still busy; NaN if unknown for all.
        queries: of a polling loop, median.
        waits_for: the activity it most often waited for; "" for none.
        order: whether it is needed or redundant, as far as the run tells what it orders; else "".
        between: the two nearest accesses that it orders; "" if none clash.
        instead: what else orders these; "" for nothing.
    """

    what: Texts
    position: Ints
    name: Texts
    stream: Ints
    steps: Ints
    median_us: Floats
    max_us: Floats
    waiting_share: Floats
    queries: Floats
    waits_for: Texts
    order: Texts
    between: Texts
    instead: Texts


@dataclass(frozen=True)
class SyncReport:
    """What the token steps of a trace do between host and device.

    Attributes:
        strategy: class of the steps (sccc, saaas, aaas, aaag, mixed; without input copies ggg if the host waits for
            nothing, else none); `share` of the input copies follow it, or of the steps if there are none.
        signature: the calls of the most common kind of step, compressed; `signature_share` of the steps have it.
        syncs_per_token, copies_per_token, launches_per_token: host calls of each kind, median over the steps (the mean
            if that is 0 and more than 5 % of the steps have some). The sync after the asynchronous part of a blocking
            copy counts, because it is a separate call.
        blocking_copies_per_token: the copies that wait by themselves, without a sync.
        polls_per_token: loops of queries, see `poll_loops`.
        fetch_lag: which step's result the host reads; None if unknown.
        waits_elsewhere: how the host waits for it without a sync; None if it waits by calls, or for nothing.
        per_step: how many calls of each kind the steps make.
        orders: what the waits order, if the run tells.
        rows: the calls.
    """

    strategy: str
    share: float
    signature: str
    signature_share: float
    steps: int
    syncs_per_token: float
    copies_per_token: float
    launches_per_token: float
    blocking_copies_per_token: float
    polls_per_token: float
    fetch_lag: FetchLag | None
    waits_elsewhere: WaitsElsewhere | None
    per_step: StepCounts
    orders: Sequence[WaitOrder]
    rows: SyncCalls

    @cached_property
    def counts(self) -> pd.DataFrame:
        """`per_step` as a DataFrame."""
        return self.per_step.frame()

    @cached_property
    def calls(self) -> pd.DataFrame:
        """`rows` as a DataFrame."""
        return self.rows.frame()

    def inventory(self) -> Inventory:
        """The waits of a step."""
        order = np.argmax(self.rows.letter[:, None] == [*WAITS], axis=1)
        chosen = among(self.rows.letter, WAITS)
        waits, order = self.rows[chosen], order[chosen]
        position, us = within(waits.step, order) + 1, (waits.end - waits.start) / 1e3
        number, (by_place, first) = ranks(order, position), runs(order, position)
        count, row = len(first), by_place[first]
        is_known, is_busy = waits.waited_for != UNKNOWN, waits.waited_for != ""
        known, busy, waiting = (
            np.bincount(number[each], minlength=count) for each in (is_known, is_busy, is_known & is_busy)
        )
        longest = np.zeros(count)
        np.maximum.at(longest, number, us)
        what = np.array([*WAITS.values()], dtype=object)[order[row]]
        told = self._told(what.tolist(), position[row].tolist())
        return Inventory(
            what=what,
            position=position[row],
            name=waits.name.words[modes(waits.name.codes, number, count)],
            stream=modes(waits.stream, number, count),
            steps=np.bincount(number, minlength=count),
            median_us=medians(us, number, count),
            max_us=longest,
            waiting_share=np.where(known > 0, waiting / known.clip(1), np.nan),
            queries=medians(waits.queries, number, count),
            waits_for=np.where(busy > 0, modes(waits.waited_for[is_busy], number[is_busy], count), ""),
            order=np.array([each.order if each else "" for each in told], dtype=object),
            between=np.array([" and ".join(each.between) if each else "" for each in told], dtype=object),
            instead=np.array([each.instead if each else "" for each in told], dtype=object),
        )

    def _told(self, what: Sequence[str], position: Sequence[int]) -> Sequence[WaitOrder | None]:
        """What the run tells of each wait of the inventory; nothing if it tells of more or fewer than a step has."""
        told = {(each.what, each.position): each for each in self.orders}
        usual = [*told] == [(WAITS[SYNC], number + 1) for number in range(int(self.syncs_per_token))]
        return [told.get(wait) if usual else None for wait in zip(what, position, strict=True)]


def sync_report(trace: Trace, steps: Steps, calls: Calls | None = None) -> SyncReport:
    """Count, classify and describe the host calls of every step. `calls`: the `host_calls` of the trace, if available.

    Raises:
        EmptyTraceError: the trace has no API calls inside the steps.
    """
    calls = host_calls(trace) if calls is None else calls
    made, queries = _with_polls(trace, calls)
    at = steps.of(made.start, made.process, made.thread)
    waiting = among(made.letter, WAITS)
    waits = made[waiting]
    asked = targets(trace, waits)
    lag, elsewhere = fetch_lag(trace, made, at, waits, asked), waits_elsewhere(trace, steps, made, at)
    if elsewhere is not None:
        lag = FetchLag(elsewhere.lag, elsewhere.share, elsewhere.steps)
    name, until = np.full(len(made), "", dtype=object), np.full(len(made), MISSING)
    name[waiting], until[waiting] = _waited_for(trace, waits, asked)
    step = spread(steps.rows.step, at, MISSING)
    every = SyncCalls.from_table(
        made, queries=queries, shown=blocking_pairs(made), waited_for=name, waited_until=until, step=step, at=at
    )
    rows = every if (at >= 0).all() else every[at >= 0]
    if not len(rows):
        raise EmptyTraceError(f"no CUDA API call is inside a token step; {was_traced('the API', trace)}")
    words = letters_by_step(rows, len(steps), _input_letters(trace, rows, steps))
    strategy, share = _class(Counter(word + SYNC * (elsewhere is not None) for word in words))
    word, times = Counter(letters_by_step(rows, len(steps), rows.shown)).most_common(1)[0]
    per_step = {
        kind: np.bincount(rows.at[among(rows.letter, kinds)], minlength=len(steps)) for kind, kinds in _COUNTED.items()
    }
    return SyncReport(
        strategy=strategy,
        share=share,
        signature=compress(word),
        signature_share=times / len(steps),
        steps=len(steps),
        fetch_lag=lag,
        waits_elsewhere=elsewhere,
        per_step=StepCounts(steps.rows.step, steps.rows.start, **per_step),
        orders=wait_orders(trace),
        rows=rows,
        **{f"{kind}_per_token": _usual(counts) for kind, counts in per_step.items()},
    )


def _usual(counts: Ints) -> float:
    """The median number of calls of a step; the mean if most steps have none, but not only a few of them some, as where
    one fetch serves four steps."""
    middle, some = float(np.median(counts)), float((counts > 0).mean())
    return round(float(counts.mean()), 2) if middle == 0 and some > _FEW else middle


def _with_polls(trace: Trace, calls: Calls) -> tuple[Calls, Ints]:
    """The host calls and polling loops as one table, and the number of queries of each."""
    loops = poll_loops(trace)
    if len(loops):
        loops = loops[np.isin(loops.thread, calls.thread[among(calls.letter, LAUNCHES)])]  # excludes watchdogs
    if not len(loops):
        return calls, np.zeros(len(calls), np.int64)
    every, queries = joined([calls, Calls.from_table(loops)]), np.append(np.zeros(len(calls), np.int64), loops.queries)
    order = np.lexsort((every.start, every.thread, every.process))
    return every[order], queries[order]


def _class(words: Counter[str]) -> tuple[str, float]:
    copies: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for word, times in words.items():
        followed = strategies_followed(word)
        copies.update({name: count * times for name, count in followed.items()})
        kinds["" if followed else without_copies(word)] += times
    return classify(copies, kinds)


def blocking_pairs(calls: Calls) -> Letters:
    """The letters as the signature shows them.

    An asynchronous copy that is alone between syncs and directly followed by its own stream's sync blocks: the pair is
    shown as one `c`, and the sync's own letter becomes empty.
    """
    letters, stream = calls.letter, calls.stream
    shown = letters.copy()
    if len(shown) == 0:
        return shown
    same_thread = (calls.thread[1:] == calls.thread[:-1]) & (calls.process[1:] == calls.process[:-1])
    follows_sync = np.append(True, ~same_thread | (letters[:-1] == SYNC))
    own_sync_next = np.append(
        same_thread & (letters[1:] == SYNC) & ((stream[1:] == stream[:-1]) | (stream[1:] < 0) | (stream[:-1] < 0)),
        False,
    )
    blocks = (letters == COPY) & follows_sync & own_sync_next
    shown[blocks] = BLOCKING_COPY
    shown[1:][blocks[:-1]] = ""
    return shown


def _input_letters(trace: Trace, calls: SyncCalls, steps: Steps) -> Letters:
    """The shown letters that determine the class.

    Copies that are not inputs (to the host, or within the device) do not count, but one that blocks still synchronises.
    A copy made by a graph launch provides input without a wait. Calls of other threads than the step's own do not delay
    a launch; of a thread that works for the same steps (`_reads_results`) the asynchronous copies are inputs.
    """
    letters = calls.shown.astype("U2")
    no_input = calls.kind.rows("DtoH", "DtoD")
    letters[no_input & (letters == COPY)] = ""
    letters[no_input & (letters == BLOCKING_COPY)] = SYNC
    to_device = trace.memcpys.kind.rows("HtoD")
    if to_device.any():
        inside = among(calls.letter, LAUNCHES) & (trace.memcpys[to_device].of(calls) >= 0)
        letters[inside] = [COPY + letter for letter in letters[inside]]
    apart = calls.thread != _launching(calls, steps)[calls.at]
    letters[apart & ~((letters == COPY) & _reads_results(calls, len(steps)))] = ""
    return letters


def _reads_results(calls: SyncCalls, steps: int) -> Bools:
    """Which calls are of threads that in most steps wait for work of the device: a scheduler that reads the results of
    steps which another thread launches (SGLang), not one that only prefetches."""
    waits = (calls.letter == SYNC) & (calls.waited_for != "") & (calls.waited_for != UNKNOWN)
    reads = np.zeros(len(calls), bool)
    for _, rows in grouped(calls.process, calls.thread):
        reads[rows] = 2 * len(np.unique(calls.at[rows[waits[rows]]])) > steps
    return reads


def _launching(calls: SyncCalls, steps: Steps) -> Ints:
    """The thread that launches each step: its own, or of threads that take turns, the one whose turn it is."""
    launches = calls[among(calls.letter, LAUNCHES)]
    thread = steps.rows.thread.copy()
    own = np.bincount(launches.at[launches.thread == thread[launches.at]], minlength=len(thread)) > 0
    others = launches[~own[launches.at]]
    thread[others.at[::-1]] = others.thread[::-1]  # of several the first stays
    return thread


def letters_by_step(calls: SyncCalls, steps: int, letters: Letters) -> list[str]:
    """The letters of each step, of its calls in the order of their starts."""
    order = np.lexsort((calls.start, calls.at))
    ordered, bounds = letters[order].tolist(), np.searchsorted(calls.at[order], np.arange(steps + 1)).tolist()
    return ["".join(ordered[a:b]) for a, b in pairwise(bounds)]


def _waited_for(trace: Trace, waits: Calls, asked: Targets) -> tuple[Texts, Ints]:
    """Per wait (name, end) of the last activity it waited for; ("", MISSING) for none, `UNKNOWN` if the trace does not
    say.

    A blocking copy waits for the preceding work of its stream.
    """
    is_copy, end = waits.letter == BLOCKING_COPY, waits.end
    if is_copy.any():
        own = trace.memcpys.of(waits)
        end = np.where(is_copy & (own >= 0), spread(trace.memcpys.start, own, MISSING), end)
    last = last_awaited(trace, waits, asked, end)
    names = np.where(asked.known, "", UNKNOWN).astype(object)
    for number, table in enumerate(DEVICE_TABLES):
        of_table = last.table == number
        if of_table.any():
            names[of_table] = names_of(table, trace.table(table))[last.row[of_table]].texts
    return names, np.where(last.table >= 0, last.end, MISSING)


@dataclass(frozen=True)
class FetchLag:
    """Which step's result a fetch reads.

    Attributes:
        median: 0 if it reads the result of the step launched last, 1 if that of the previous step: the host launches a
            step before it has the result of the previous one (asynchronous scheduling).
        share: the share of fetches that do exactly this.
        fetches: their number.
    """

    median: float
    share: float
    fetches: int


class _Fetches(Columns):
    """Copies to the host.

    Attributes:
        process, thread: of the call.
        issued: when the call began, ns.
        end: of the first wait for it, ns.
    """

    process: Ints
    thread: Ints
    issued: Ints
    end: Ints


def fetch_lag(trace: Trace, calls: Calls, at: Ints, waits: Calls, asked: Targets) -> FetchLag | None:
    """How far fetches lag behind launches; None if the trace shows for too few steps what waits for their copies.

    A fetch is the first wait for a copy to the host, and for those before it on its stream. Its result is that of the
    step with the last launch before the copy was issued. It is read during the step with the last launch before the
    wait returned.
    Both launches are of the thread that issues the copy; another one may wait for it.

    Args:
        calls: its host calls; `at` are the positions of their steps, MISSING outside of all.
        waits: syncs, blocking copies and polling loops.
    """
    launching = np.flatnonzero(among(calls.letter, LAUNCHES))
    launching = launching[np.argsort(calls.start[launching])]
    launched, step = calls[launching], np.append(at[launching], MISSING)
    copies, stream = _copies_to_host(trace)
    fetches = _of_launching_threads(_awaited_copies(copies, stream, waits, asked), launched)
    inside = _of_launching_threads(copies, launched)
    read, result = (step[_last_launch(fetches, times, launched)] for times in (fetches.end, fetches.issued))
    known = (result != MISSING) & (read >= result)
    lag, copied = (read - result)[known], step[_last_launch(inside, inside.issued, launched)]
    if 2 * len(np.unique(result[known])) < max(len(np.unique(copied[copied != MISSING])), 1):
        return None
    return FetchLag(float(np.median(lag)), float((lag == np.median(lag)).mean()), len(lag))


def _last_launch(fetches: _Fetches, times: Ints, launched: Calls) -> Ints:
    """The last launch of the thread of each at these times, or -1."""
    return last_before([fetches.process, fetches.thread], times, [launched.process, launched.thread], launched.start)


def _copies_to_host(trace: Trace) -> tuple[_Fetches, Ints]:
    """The copies that end at the host, by the time of their call, not yet awaited; and their streams."""
    to_host = trace.memcpys[trace.memcpys.kind.rows("DtoH")]
    call = trace.api.of(to_host)
    calls, stream = trace.api[call[call >= 0]], to_host.stream[call >= 0]
    kept = ~between_devices(trace, calls)
    order = np.argsort(calls.start[kept])
    calls, stream = calls[kept][order], stream[kept][order]
    return _Fetches(calls.process, calls.thread, calls.start, calls.start), stream


def _awaited_copies(copies: _Fetches, stream: Ints, waits: Calls, asked: Targets) -> _Fetches:
    """The copies that something waits for, with the end of the first such wait."""
    process, issued = np.tile(copies.process, 2), np.tile(copies.issued, 2)
    anywhere = np.full(len(copies), MISSING)  # some wait for every stream
    copy = last_at([waits.process, asked.stream], asked.until, [process, np.append(stream, anywhere)], issued)
    awaited = np.flatnonzero(asked.known & (copy >= 0))
    awaited = awaited[np.argsort(waits.end[awaited])]
    copy = copy[awaited] % max(len(copies), 1)
    first = np.sort(np.unique(copy, return_index=True)[1])  # wait for each
    waited = awaited[first]
    copies = copies[copy[first]]
    return copies.changed(end=waits.end[waited])


def _of_launching_threads(fetches: _Fetches, launched: Calls) -> _Fetches:
    """The fetches; those of a thread that launches nothing are attributed to the busiest launcher of its process."""
    count = {key: len(rows) for key, rows in grouped(launched.process, launched.thread)}
    busiest: dict[int, int] = {}
    for process, thread in sorted(count, key=lambda key: (-count[key], key)):
        busiest.setdefault(process, thread)
    threads = fetches.thread.copy()
    for (process, thread), rows in grouped(fetches.process, fetches.thread):
        if (process, thread) not in count:
            threads[rows] = busiest.get(process, MISSING)
    return fetches.changed(thread=threads)


def compress(letters: str) -> str:
    """Compress letters: repeats become `s×3` or `(sc)×6`, everything else is separated by spaces; a run of kernel
    launches is never split.

    Example:
        >>> compress("scscscscscscgass"), compress("akkakkakkk")
        ('(sc)×6 g a s×2', '(a k×2)×2 a k×3')
    """
    tokens = _TOKEN.findall(letters)
    words: list[str] = []
    i = 0
    while i < len(tokens):
        length, times = _best_repeat(tokens, i)
        unit = [_run(token) for token in tokens[i : i + length]]
        if times > 1:
            apart = " " if any(len(part) > 1 for part in unit) else ""
            words.append(f"{unit[0]}×{times}" if length == 1 else f"({apart.join(unit)})×{times}")
        else:
            words += unit
        i += length * times
    return " ".join(words)


def expand(signature: str) -> str:
    """The letters of a signature that was written by `compress`.

    Example:
        >>> expand("(sc)×3 g a k×2")
        'scscscgakk'
    """
    while _GROUP.search(signature):
        signature = _GROUP.sub(lambda group: expand(group[1]) * int(group[2]), signature)
    return "".join(letter * int(times or 1) for letter, times in re.findall(r"([^\s×()])(?:×(\d+))?", signature))


def _run(token: str) -> str:
    return token if len(token) == 1 else f"{token[0]}×{len(token)}"


def _best_repeat(tokens: Sequence[str], i: int) -> tuple[int, int]:
    """(length, times) of the repeat at `i` that covers most letters; the shortest unit wins ties; (1, 1) if none."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_UNIT, (len(tokens) - i) // 2) + 1):
        unit = tokens[i : i + length]
        times = 1
        while tokens[i + length * times : i + length * (times + 1)] == unit:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def strategies_followed(letters: str) -> dict[str, int]:
    """Count how many of a step's input copies follow each strategy.

    Only copies before a launch count, since the logits are read after it. A blocking copy is sccc. An asynchronous copy
    before the launch is saaas if a sync follows the last copy (aaas if nothing synchronised before the first
    asynchronous one), else aaag. A blocking copy also synchronises, as does a polling loop. Steps without such copies
    are ggg or none.

    Example:
        >>> strategies_followed("scaaaaasgas")
        {'sccc': 1, 'saaas': 5}
    """
    counts: dict[str, int] = {}
    *before, _after_last = _LAUNCH.split(letters.replace(POLL, SYNC))
    for part in before:
        blocking = part.count(BLOCKING_COPY)
        if blocking:
            counts["sccc"] = counts.get("sccc", 0) + blocking
        asynchronous = part.count(COPY)
        if asynchronous:
            name = _asynchronous_strategy(part)
            counts[name] = counts.get(name, 0) + asynchronous
    return counts


def _asynchronous_strategy(part: str) -> str:
    last_copy = max(part.rfind(COPY), part.rfind(BLOCKING_COPY))
    if SYNC not in part[last_copy:]:
        return "aaag"
    before_first = part[: part.find(COPY)]
    return "saaas" if SYNC in before_first or BLOCKING_COPY in before_first else "aaas"


def without_copies(letters: str) -> str:
    """The class of a step without input copies: ggg if the host waits for nothing in it, else none.

    Example:
        >>> without_copies("ggg"), without_copies("gs")
        ('ggg', 'none')
    """
    return NONE if set(letters) & {SYNC, POLL, BLOCKING_COPY} else "ggg"


def classify(copies: Mapping[str, int], steps: Mapping[str, int]) -> tuple[str, float]:
    """The class, and the share that follows it: of the copies, or of the steps if most have no input copies.

    Args:
        copies: `strategies_followed`, summed over the steps.
        steps: the number of steps without input copies, by `without_copies`; under "" the number with some.
    """
    bare = {name: count for name, count in steps.items() if name}
    most_are_bare = sum(bare.values()) >= MIN_SHARE * sum(steps.values())
    counts = bare if most_are_bare or not copies else copies
    name = max(counts, key=lambda n: counts[n])
    share = counts[name] / (sum(steps.values()) if counts is bare else sum(copies.values()))
    return (name if share >= MIN_SHARE else MIXED), share
