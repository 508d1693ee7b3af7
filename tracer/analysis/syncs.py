"""Sync inventory: which host synchronisations, copies and launches each token step makes, and what they wait for.

How far the host runs ahead follows from its fetches: the step whose result it reads while it launches another one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import between_devices, host_calls
from tracer.analysis.tokens import Steps
from tracer.analysis.waits import UNKNOWN, Targets, last_awaited, poll_loops, targets
from tracer.errors import EmptyTraceError
from tracer.model.calls import BLOCKING_COPY, COPIES, COPY, GRAPH_LAUNCH, LAUNCH, LAUNCHES, POLL, SYNC
from tracer.model.rows import THREAD, among, grouped, last_at, last_before, match_rows, taken
from tracer.model.run_json import was_traced
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import Trace, names_of

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
        counts: one row per step: step start (ns) and its number of syncs, copies, launches, blocking_copies and polls.
        calls: one row per call inside a step: step start end process thread correlation name letter stream kind,
            queries (of a polling loop, else 0), shown (its letter in the signature, "" if it has none),
            and for those that wait waited_for (name of the last activity it waited for, "" if that had already ended,
            `UNKNOWN` if the trace does not say what it waits for) and waited_until (end of that activity, ns; else
            MISSING).
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
    counts: pd.DataFrame
    calls: pd.DataFrame

    def inventory(self) -> pd.DataFrame:
        """The waits of a step: its syncs in order, then its blocking copies and its polling loops.

        Columns: position (1, 2, ... among its kind), what (of `WAITS`), name, stream, steps (that have it), median_us,
        max_us, waiting_share (share of the steps in which the device was still busy; NaN if unknown for all),
        waits_for (the activity it most often waited for), queries (of a polling loop, median).
        """
        waits = self.calls[self.calls["letter"].isin(WAITS)].copy()
        waits["order"] = waits["letter"].map({letter: i for i, letter in enumerate(WAITS)})
        waits["what"] = waits["letter"].map(WAITS)
        waits["position"] = waits.groupby(["step", "order"]).cumcount() + 1
        waits["us"] = (waits["end"] - waits["start"]) / 1e3
        waits["waiting"] = (waits["waited_for"] != "").astype(float).mask(waits["waited_for"] == UNKNOWN)
        keys = ["order", "what", "position"]
        table = waits.groupby(keys).agg(
            name=("name", _commonest),
            stream=("stream", _commonest),
            steps=("step", "size"),
            median_us=("us", "median"),
            max_us=("us", "max"),
            waiting_share=("waiting", "mean"),
            queries=("queries", "median"),
        )
        busy = waits[waits["waited_for"] != ""].groupby(keys)["waited_for"].agg(_commonest)
        table["waits_for"] = busy.reindex(table.index).fillna("")
        return table.reset_index().drop(columns="order")


def _commonest(values: pd.Series) -> object:
    return values.mode().iloc[0]


def sync_report(trace: Trace, steps: Steps, calls: pd.DataFrame | None = None) -> SyncReport:
    """Count, classify and describe the host calls of every step. `calls`: the `host_calls` of the trace, if available.

    Raises:
        EmptyTraceError: the trace has no API calls inside the steps.
    """
    calls = _calls(trace, host_calls(trace) if calls is None else calls)
    calls["at"] = steps.of(*(calls[column].to_numpy() for column in ("start", "process", "thread")))
    waiting = among(calls["letter"].to_numpy(dtype="U1"), WAITS)
    waits = calls[waiting]
    asked = targets(trace, waits)
    lag = fetch_lag(trace, calls, waits, asked)
    name, until = np.full(len(calls), "", dtype=object), np.full(len(calls), MISSING)
    name[waiting], until[waiting] = _waited_for(trace, waits, asked)
    calls = calls.assign(waited_for=name, waited_until=until)[calls["at"] >= 0].reset_index(drop=True)
    if not len(calls):
        raise EmptyTraceError(f"no CUDA API call is inside a token step; {was_traced('the API', trace)}")
    calls["step"] = steps.table["step"].to_numpy()[calls["at"]]
    calls["input"] = _input_letters(trace, calls, steps)
    strategy, share = _class(_letters_by_step(calls, len(steps), "input"))
    word, times = _letters_by_step(calls, len(steps), "shown").most_common(1)[0]
    letters = calls["letter"].to_numpy()
    per_step = {
        kind: np.bincount(calls["at"][among(letters, kinds)], minlength=len(steps)) for kind, kinds in _COUNTED.items()
    }
    return SyncReport(
        strategy=strategy,
        share=share,
        signature=compress(word),
        signature_share=times / len(steps),
        steps=len(steps),
        fetch_lag=lag,
        counts=steps.table[["step", "start"]].assign(**per_step),
        calls=calls.drop(columns=["at", "input"]),
        **{f"{kind}_per_token": _usual(found) for kind, found in per_step.items()},
    )


def _usual(counts: NDArray[np.int64]) -> float:
    """The median number of calls of a step; the mean if most steps have none, but not only a few of them some, as where
    one fetch serves four steps."""
    middle, some = float(np.median(counts)), float((counts > 0).mean())
    return round(float(counts.mean()), 2) if middle == 0 and some > _FEW else middle


def _calls(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """The host calls and polling loops as one table, with queries and shown."""
    calls = calls.assign(queries=0)
    loops = poll_loops(trace)
    loops = loops[loops["thread"].isin(calls.loc[calls["letter"].isin(LAUNCHES), "thread"])]  # excludes watchdogs
    if len(loops):
        calls = pd.concat([calls, loops.assign(stream=MISSING, kind="")], ignore_index=True)
        calls = calls.sort_values(["process", "thread", "start"], kind="stable", ignore_index=True)
    calls["shown"] = blocking_pairs(calls)
    return calls


def _class(words: Counter[str]) -> tuple[str, float]:
    copies: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for word, times in words.items():
        followed = strategies_followed(word)
        copies.update({name: count * times for name, count in followed.items()})
        kinds["" if followed else without_copies(word)] += times
    return classify(copies, kinds)


def blocking_pairs(calls: pd.DataFrame) -> NDArray[np.str_]:
    """The letters as the signature shows them.

    An asynchronous copy that is alone between syncs and directly followed by its own stream's sync blocks: the pair is
    shown as one `c`, and the sync's own letter becomes empty.
    """
    letters = calls["letter"].to_numpy().astype("U1")
    stream = calls["stream"].to_numpy()
    thread = calls.groupby(["process", "thread"], sort=False).ngroup().to_numpy()
    shown = letters.copy()
    if len(shown) == 0:
        return shown
    same_thread = thread[1:] == thread[:-1]
    follows_sync = np.append(True, ~same_thread | (letters[:-1] == SYNC))
    own_sync_next = np.append(
        same_thread & (letters[1:] == SYNC) & ((stream[1:] == stream[:-1]) | (stream[1:] < 0) | (stream[:-1] < 0)),
        False,
    )
    blocks = (letters == COPY) & follows_sync & own_sync_next
    shown[blocks] = BLOCKING_COPY
    shown[1:][blocks[:-1]] = ""
    return shown


def _input_letters(trace: Trace, calls: pd.DataFrame, steps: Steps) -> NDArray[np.str_]:
    """The shown letters that determine the class.

    Copies that are not inputs (to the host, or within the device) do not count, but one that blocks still synchronises.
    A copy made by a graph launch provides input without a wait. Calls of other threads than the step's own do not delay
    a launch.
    """
    letters = calls["shown"].to_numpy(dtype="U2").copy()
    no_input = calls["kind"].isin(["DtoH", "DtoD"]).to_numpy()
    letters[no_input & (letters == COPY)] = ""
    letters[no_input & (letters == BLOCKING_COPY)] = SYNC
    brought = trace["memcpys"][trace["memcpys"]["kind"] == "HtoD"]
    inside = among(calls["letter"].to_numpy(), LAUNCHES) & (match_rows(brought, calls) >= 0)
    letters[inside] = [COPY + letter for letter in letters[inside]]
    letters[calls["thread"].to_numpy() != steps.table["thread"].to_numpy()[calls["at"]]] = ""
    return letters


def _letters_by_step(calls: pd.DataFrame, steps: int, column: str) -> Counter[str]:
    """The number of occurrences of each distinct string of letters."""
    ordered = calls.sort_values(["at", "start"], kind="stable")
    letters = ordered[column].to_numpy(dtype=object)
    bounds = np.searchsorted(ordered["at"].to_numpy(), np.arange(steps + 1))
    return Counter("".join(letters[a:b]) for a, b in pairwise(bounds))


def _waited_for(trace: Trace, waits: pd.DataFrame, asked: Targets) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Per wait (name, end) of the last activity it waited for; ("", MISSING) for none, `UNKNOWN` if the trace does not
    say.

    A blocking copy waits for the preceding work of its stream.
    """
    own = match_rows(trace["memcpys"], waits)
    begins = np.append(trace["memcpys"]["start"].to_numpy(), MISSING)[own]
    is_copy = (waits["letter"] == BLOCKING_COPY).to_numpy() & (own >= 0)
    last = last_awaited(trace, waits.assign(end=np.where(is_copy, begins, waits["end"])), asked)
    names = np.where(asked.known, "", UNKNOWN).astype(object)
    for table in DEVICE_TABLES:
        of_table = (last["table"] == table).to_numpy()
        names[of_table] = names_of(table, trace.table(table))[last["row"].to_numpy()[of_table]].texts
    return names, last["end"].where(last["table"] != "", MISSING).to_numpy()


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


def fetch_lag(trace: Trace, calls: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> FetchLag | None:
    """How far fetches lag behind launches; None if the trace shows for too few copies what waits for them.

    A fetch is the first wait for a copy to the host. Its result is that of the step with the last launch before the
    copy was issued. It is read during the step with the last launch before the wait returned.

    Args:
        trace: the recording.
        calls: its host calls: start (ns) process thread letter and at (position of the step, MISSING outside of all).
        waits: syncs, blocking copies and polling loops: start end (ns) process thread.
        asked: what these wait for.
    """
    launched = calls[among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES)].sort_values("start")
    copies = _copies_to_host(trace)
    fetches = _of_launching_threads(_fetches(copies, waits, asked), launched)
    inside = _of_launching_threads(copies, launched)
    step = np.append(launched["at"], MISSING)
    read, result = (step[last_before(fetches, fetches[moment], launched)] for moment in ("end", "issued"))
    lag = (read - result)[(result != MISSING) & (read >= result)]
    if len(lag) * 2 < max((step[last_before(inside, inside["issued"], launched)] != MISSING).sum(), 1):
        return None
    return FetchLag(float(np.median(lag)), float((lag == np.median(lag)).mean()), len(lag))


def _copies_to_host(trace: Trace) -> pd.DataFrame:
    """Process, thread, issue time (start of the call, ns) and stream of each copy that ends there, in that order."""
    copies, api = trace["memcpys"], trace["api"]
    copies = taken(copies, (copies["kind"] == "DtoH").to_numpy(), ["process", "correlation", "stream"])
    call = match_rows(api, copies)
    calls = api[[*THREAD, "start", "correlation", "name"]].iloc[call[call >= 0]]
    found = calls[THREAD].assign(issued=calls["start"], stream=copies["stream"].to_numpy()[call >= 0])
    return found[~between_devices(trace, calls)].sort_values("issued", ignore_index=True)


def _fetches(copies: pd.DataFrame, waits: pd.DataFrame, asked: Targets) -> pd.DataFrame:
    """One row per copy to the host that something waits for: process and thread (of the waiter), issued and end (of
    the first such wait), ns."""
    every = pd.concat([copies, copies.assign(stream=MISSING)], ignore_index=True)  # some wait for every stream
    found = waits[[*THREAD, "end"]].assign(**{name: asked.table[name].to_numpy() for name in ("stream", "until")})
    copy = last_at(found, found["until"], every, "issued", ["process", "stream"])
    awaited = found.assign(copy=copy % max(len(copies), 1), issued=np.append(every["issued"], MISSING)[copy])
    first = awaited[asked.known & (copy >= 0)].sort_values("end").drop_duplicates("copy")
    return first[[*THREAD, "issued", "end"]]


def _of_launching_threads(fetches: pd.DataFrame, launched: pd.DataFrame) -> pd.DataFrame:
    """The fetches; those of a thread that launches nothing are attributed to the busiest launcher of its process."""
    count = {key: len(rows) for key, rows in grouped(launched, THREAD)}
    busiest: dict[int, int] = {}
    for process, thread in sorted(count, key=lambda key: (-count[key], key)):
        busiest.setdefault(process, thread)
    threads = fetches["thread"].to_numpy(copy=True)
    for (process, thread), rows in grouped(fetches, THREAD):
        if (process, thread) not in count:
            threads[rows] = busiest.get(process, MISSING)
    return fetches.assign(thread=threads)


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
    found = bare if most_are_bare or not copies else copies
    name = max(found, key=lambda n: found[n])
    share = found[name] / (sum(steps.values()) if found is bare else sum(copies.values()))
    return (name if share >= MIN_SHARE else MIXED), share
