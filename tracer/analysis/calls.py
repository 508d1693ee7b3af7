"""Classifies host calls of every API: launches, copies, syncs, polls and events.

`tracer.analysis.call_letters` knows what each call does; it is queried once per distinct name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tracer.analysis.call_letters import BEGIN_CAPTURE, END_CAPTURE, is_unknown, letter, plain
from tracer.analysis.call_letters import BLOCKING_COPY as BLOCKING_COPY
from tracer.analysis.call_letters import COPY as COPY
from tracer.analysis.call_letters import EVENT as EVENT
from tracer.analysis.call_letters import GRAPH_LAUNCH as GRAPH_LAUNCH
from tracer.analysis.call_letters import LAUNCH as LAUNCH
from tracer.analysis.call_letters import POLL as POLL
from tracer.analysis.call_letters import SYNC as SYNC
from tracer.analysis.call_letters import WAIT as WAIT
from tracer.model.rows import grouped, groups_of, taken
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

LAUNCHES: Final = (LAUNCH, GRAPH_LAUNCH)
COPIES: Final = (COPY, BLOCKING_COPY)
CALLS: Final = (SYNC, *COPIES, *LAUNCHES, EVENT, WAIT)
"""The columns of `host_calls`."""

_COLUMNS: Final = ["start", "end", "process", "thread", "correlation", "name"]
_SETUP: Final = re.compile(r"graph.*|stream(begin|end|update)capture.*")
_ALLOCATION: Final = re.compile(
    r"(m?alloc|free).*|host(alloc|malloc|free|register|unregister)"
    r"|mem(alloc|free|hostalloc|hostregister|hostunregister|create|release|map|unmap|address|setaccess|pool).*"
)
_DENSE: Final = 4  # so many numbers per row may be listed to find rows by their number
_LARGEST: Final = np.iinfo(np.int64).max
_PREFIX: Final = re.compile(r"^(cuda|cu|hip)(?=[A-Z])")


def among(values: NDArray[Any], wanted: Iterable[Any]) -> NDArray[np.bool_]:
    """Which values are in a small set: `np.isin` without sorting."""
    return np.asarray(np.logical_or.reduce([values == one for one in wanted]))


def _bare(name: str) -> str:
    return _PREFIX.sub("", plain(name)).casefold()


def is_setup(name: str) -> bool:
    """Whether a call builds, instantiates, updates, uploads or destroys a CUDA graph."""
    return _SETUP.fullmatch(_bare(name)) is not None and letter(name) != GRAPH_LAUNCH


def is_allocation(name: str) -> bool:
    """Whether a call allocates, registers, maps or frees device or host memory.

    Example:
        >>> is_allocation("cudaMallocAsync_v11020"), is_allocation("cuMemHostRegister_v2"), is_allocation("cuMemsetD8")
        (True, True, False)
    """
    return _ALLOCATION.fullmatch(_bare(name)) is not None


def rows_named(names: pd.Series, chosen: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows of a categorical name column have a chosen name; each distinct name is checked once."""
    if not len(names):
        return np.zeros(0, dtype=bool)
    return np.asarray(np.array([bool(chosen(str(name))) for name in names.cat.categories])[names.cat.codes.to_numpy()])


def letters_of(names: pd.Series) -> NDArray[np.str_]:
    """The letter for each row of a categorical name column; each distinct name is looked up once."""
    if not len(names):
        return np.zeros(0, dtype="U1")
    table = np.array([letter(str(name)) for name in names.cat.categories] or [""], dtype="U1")
    return np.asarray(table[names.cat.codes.to_numpy()])


def unknown_calls(trace: Trace) -> Counter[str]:
    """Unlisted names that look like launches, copies or syncs, with their counts."""
    names = trace["api"]["name"]
    counts = np.bincount(names.cat.codes.to_numpy(), minlength=len(names.cat.categories)) if len(names) else ()
    return Counter({str(n): int(c) for n, c in zip(names.cat.categories, counts, strict=False) if is_unknown(str(n))})


def of_graph_launches(trace: Trace) -> NDArray[np.bool_]:
    """Which rows of trace["kernels"] ran in a CUDA graph: those with a node, or caused by a graph launch."""
    kernels, api = trace["kernels"], trace["api"]
    inside = (kernels["graph_node"] != MISSING).to_numpy()
    launching = api[letters_of(api["name"]) == GRAPH_LAUNCH]
    return inside | (match_rows(launching, kernels) >= 0)


def host_calls(trace: Trace) -> pd.DataFrame:
    """The calls that launch, copy, synchronise or order work, sorted by thread; see `waits` for those that query.

    A call made inside another on the same thread (a driver call within a runtime call) counts once, as the outer one.
    Calls recorded into a graph during a stream capture do not execute and do not count.

    Returns:
        Columns start end process thread correlation name letter (of `s a c k g e w`), stream (that it copies on or
        waits for; MISSING if the trace does not say), kind (of the copy; "" for other calls; PtoP for copies between
        devices, also those that the driver stages through the host), sorted by (process, thread, start).
    """
    api = trace["api"]
    found = letters_of(api["name"])
    chosen = (found != "") & (found != POLL)
    calls = _in_order(taken(api, chosen, _COLUMNS).assign(letter=found[chosen]))
    marks = among(calls["letter"].to_numpy(dtype="U1"), [BEGIN_CAPTURE, END_CAPTURE])
    calls = calls[_outermost(calls) & ~_captured(calls) & ~marks].reset_index(drop=True)
    copies, syncs = trace["memcpys"], trace["syncs"]
    copy, sync = match_rows(copies, calls), match_rows(syncs, calls)
    of_copy, of_sync = (np.append(each["stream"].to_numpy(), MISSING) for each in (copies, syncs))
    words, codes = [*copies["kind"].cat.categories, ""], np.append(copies["kind"].cat.codes.to_numpy(), -1)
    kind = np.array(words, dtype=object)[codes[copy]]
    kind[between_devices(trace, calls)] = "PtoP"
    return calls.assign(stream=np.where(copy >= 0, of_copy[copy], of_sync[sync]), kind=kind)


def between_devices(trace: Trace, calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Which calls (name, process, correlation) copy from one device to another: by their name, or those copies that go
    to the host and from there to a device, as the driver does without peer access (CUDA Driver API,
    cuMemcpyPeerAsync)."""
    copies = trace["memcpys"]
    both = rows_named(calls["name"], lambda name: letter(name) in COPIES and "Batch" not in name)
    for kind in ("DtoH", "HtoD"):
        both &= match_rows(taken(copies, (copies["kind"] == kind).to_numpy(), ["process", "correlation"]), calls) >= 0
    return both | rows_named(calls["name"], lambda name: "Peer" in name)


def outer_calls(calls: pd.DataFrame) -> pd.DataFrame:
    """The outermost calls of each thread, sorted by (process, thread, start)."""
    ordered = _in_order(calls)
    return ordered[_outermost(ordered)].reset_index(drop=True)


def outermost_calls(trace: Trace) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """All outermost calls of each thread, of any kind.

    Returns:
        (columns start end process thread correlation name, row (in trace["api"]) and letter (of the call, or else of
        the first call inside it that has one; "" if it was recorded into a graph or only queries), sorted by (process,
        thread, start); for each row of trace["api"] the position of the call that contains it).
    """
    api = trace["api"]
    calls = _in_order(api[_COLUMNS].assign(row=np.arange(len(api)), letter=letters_of(api["name"])))
    calls.loc[_captured(calls) | calls["letter"].isin([BEGIN_CAPTURE, END_CAPTURE, POLL]), "letter"] = ""
    outer = _outermost(calls)
    position = np.cumsum(outer) - 1
    lettered = calls["letter"].to_numpy() != ""
    first = np.unique(position[lettered], return_index=True)
    letters = np.full(int(outer.sum()), "", dtype="U1")
    letters[first[0]] = calls["letter"].to_numpy(dtype="U1")[lettered][first[1]]
    inside = np.empty(len(calls), np.int64)
    inside[calls["row"].to_numpy()] = position
    letter_of = pd.Categorical(letters, categories=pd.Index(["", *CALLS]))
    return calls[outer].assign(letter=letter_of).reset_index(drop=True), inside


def match_rows(table: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.int64]:
    """For each of `rows`, the position in `table` of the first row with its (process, correlation), or -1."""
    if not len(table) or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    of_table, of_rows = ([frame[name].to_numpy() for name in ("process", "correlation")] for frame in (table, rows))
    low = int(of_table[1].min())
    span = int(of_table[1].max()) - low + 1
    processes = _distinct(of_table[0])
    given = of_rows[1] >= 0
    if len(processes) * span > _LARGEST:  # no profiler numbers calls like this, but a file may
        distinct = np.unique(of_table[1])
        at = np.minimum(np.searchsorted(distinct, of_rows[1]), len(distinct) - 1)
        of_rows[1] = np.where(distinct[at] == of_rows[1], at, MISSING)
        of_table[1] = np.searchsorted(distinct, of_table[1])
        low, span = 0, len(distinct)

    def keys(of: NDArray[np.int64], number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Process and correlation as one number below `len(processes) * span`, and which rows have one."""
        number = number - low
        if len(processes) == 1:
            return number, (of == processes[0]) & (number >= 0) & (number < span)
        place = np.minimum(np.searchsorted(processes, of), len(processes) - 1)
        return place * span + number, (processes[place] == of) & (number >= 0) & (number < span)

    table_key, (row_key, known) = keys(*of_table)[0], keys(*of_rows)
    known &= given
    row_key = np.where(known, row_key, 0)
    if len(processes) * span <= _DENSE * (len(table) + len(rows)):
        first = np.full(len(processes) * span, -1, dtype=np.int64)
        first[table_key[::-1]] = np.arange(len(table))[::-1]  # of equal keys the last assignment stays
        return np.where(known, first[row_key], -1)
    order = np.argsort(table_key, kind="stable")
    candidate = order[np.minimum(np.searchsorted(table_key, row_key, sorter=order), len(order) - 1)]
    return np.asarray(np.where(known & (table_key[candidate] == row_key), candidate, -1), dtype=np.int64)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct values, sorted; usually there is only one."""
    return values[:1] if (values == values[0]).all() else np.unique(values)


def by_thread(frame: pd.DataFrame) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(process, thread, positions of its rows) for every thread in a frame."""
    for (process, thread), rows in grouped(frame, ["process", "thread"]):
        yield process, thread, rows


def last_before(rows: pd.DataFrame, times: ArrayLike, others: pd.DataFrame) -> NDArray[np.int64]:
    """For each of `rows`, the position in `others` of the last row of its thread that starts at or before a time (ns),
    or -1; `others` are sorted by start, at least within each thread."""
    times, starts = np.asarray(times), others["start"].to_numpy()
    of_thread = {(process, thread): candidates for process, thread, candidates in by_thread(others)}
    result = np.full(len(rows), -1, dtype=np.int64)
    for process, thread, positions in by_thread(rows):
        candidates = of_thread.get((process, thread), result[:0])
        result[positions] = np.append(candidates, -1)[
            np.searchsorted(starts[candidates], times[positions], side="right") - 1
        ]
    return result


def _in_order(calls: pd.DataFrame) -> pd.DataFrame:
    """Sort by process, thread and start, with outer calls before the calls inside them."""
    order = np.lexsort((-calls["end"], calls["start"], calls["thread"], calls["process"]))
    return calls.iloc[order].reset_index(drop=True)


def _outermost(calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls that are not inside an earlier call of their thread; merely touching its end does not count as inside."""
    start, end, outer = calls["start"].to_numpy(), calls["end"].to_numpy(), np.ones(len(calls), dtype=bool)
    for *_, rows in by_thread(calls):
        reach, later = np.maximum.accumulate(end[rows])[:-1], rows[1:]
        outer[later] = (start[later] >= reach) | (end[later] > reach)
    return outer


def _captured(calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls made during a stream capture of their thread; a capture that never ends excludes nothing."""
    letters = calls["letter"].to_numpy(dtype="U1")
    if not (letters == BEGIN_CAPTURE).any():
        return np.zeros(len(calls), bool)
    threads, _ = groups_of(calls, ["process", "thread"])
    begins, ends = (pd.Series((letters == mark).astype(np.int64)) for mark in (BEGIN_CAPTURE, END_CAPTURE))
    ended = ends.groupby(threads).cumsum()
    depth = begins.groupby(threads).cumsum() - ended
    to_come = ends.groupby(threads).transform("sum") - ended
    return np.asarray((depth > 0) & (to_come > 0) & (begins == 0))
