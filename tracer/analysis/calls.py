"""The host calls of a recording that launch, copy, synchronise or order work, and the calls inside others.

What a name means is in `tracer.model.calls`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.calls import (
    BEGIN_CAPTURE,
    CALLS,
    COPIES,
    END_CAPTURE,
    GRAPH_LAUNCH,
    POLL,
    letter,
    letters_of,
)
from tracer.model.rows import among, by_thread, groups_of, match_rows, rows_named, taken
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

_COLUMNS: Final = ["start", "end", "process", "thread", "correlation", "name"]


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
