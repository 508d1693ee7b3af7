"""Host calls by what they do: launches, copies, syncs and events, whichever API they come from.

Names are matched without vendor prefix and version suffix (`cudaStreamSynchronize_v3020`, `cuStreamSynchronize` and
`hipStreamSynchronize` are all `streamsynchronize`), once per distinct name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.trace import Trace

SYNC, COPY, BLOCKING_COPY, LAUNCH, EVENT, WAIT = "s", "a", "c", "g", "e", "w"
"""The letters of a sync signature: sync, asynchronous copy, blocking copy, launch, event record, stream wait."""

GRAPH_LAUNCH: Final = "G"  # told apart from LAUNCH only inside this package: graph launches do not join into runs
LAUNCHES: Final = (LAUNCH, GRAPH_LAUNCH)
COPIES: Final = (COPY, BLOCKING_COPY)
BEGIN_CAPTURE, _END_CAPTURE = "<", ">"

_RULES: Final = (
    (re.compile(r"(stream|device|ctx|context|event|thread)synchronize"), SYNC),
    (re.compile(r"graphlaunch"), GRAPH_LAUNCH),
    (re.compile(r"launch(cooperative)?(kernel|grid)?(exc?|multidevice)*"), LAUNCH),
    (re.compile(r"eventrecord(withflags)?"), EVENT),
    (re.compile(r"streamwaitevent"), WAIT),
    (re.compile(r"memcpy.*async|memcpybatch.*"), COPY),
    (re.compile(r"memcpy.*"), BLOCKING_COPY),
    (re.compile(r"streambegincapture.*"), BEGIN_CAPTURE),
    (re.compile(r"streamendcapture"), _END_CAPTURE),
)
_SETUP: Final = re.compile(r"graph.*|stream(begin|end|update)capture.*")
_ALLOCATION: Final = re.compile(
    r"(m?alloc|free).*|host(alloc|malloc|free|register|unregister)"
    r"|mem(alloc|free|hostalloc|hostregister|hostunregister|create|release|map|unmap|address|setaccess|pool).*"
)
_AFFIXES: Final = re.compile(r"^(cuda|cu|hip)(?=[A-Z])|(_v\d+|_pt[sd]z?|_ptds|_ptsz)+$")


def among(values: NDArray[Any], wanted: Iterable[Any]) -> NDArray[np.bool_]:
    """Which values are one of a few: `np.isin` without its sort."""
    return np.asarray(np.logical_or.reduce([values == one for one in wanted]))


def text_of(letters: NDArray[np.str_]) -> str:
    """Single letters, one behind the other."""
    return letters.astype("U1").tobytes().decode("utf-32")


def letter(name: str) -> str:
    """The letter of one API call's name, or "" for a call that neither launches, copies nor synchronises.

    Example:
        >>> letter("cudaMemcpyAsync_v3020"), letter("cuLaunchKernel"), letter("cudaMalloc_v3020")
        ('a', 'g', '')
    """
    plain = _plain(name)
    return next((value for rule, value in _RULES if rule.fullmatch(plain)), "")


def _plain(name: str) -> str:
    return _AFFIXES.sub("", name).casefold()


def is_setup(name: str) -> bool:
    """Whether a call builds, instantiates, updates, uploads or destroys a CUDA graph."""
    plain = _plain(name)
    return _SETUP.fullmatch(plain) is not None and not plain.startswith("graphlaunch")


def is_allocation(name: str) -> bool:
    """Whether a call allocates, registers, maps or frees memory, of device or host.

    Example:
        >>> is_allocation("cudaMallocAsync_v11020"), is_allocation("cuMemHostRegister_v2"), is_allocation("cuMemsetD8")
        (True, True, False)
    """
    return _ALLOCATION.fullmatch(_plain(name)) is not None


def rows_named(names: pd.Series, chosen: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Which rows of a categorical name column have a name that is chosen; one look at each distinct name."""
    if not len(names):
        return np.zeros(0, dtype=bool)
    return np.asarray(np.array([chosen(str(name)) for name in names.cat.categories])[names.cat.codes.to_numpy()])


def letters_of(names: pd.Series) -> NDArray[np.str_]:
    """Per row of a categorical name column its letter; one look at each distinct name."""
    if not len(names):
        return np.zeros(0, dtype="U1")
    table = np.array([letter(str(name)) for name in names.cat.categories] or [""], dtype="U1")
    return np.asarray(table[names.cat.codes.to_numpy()])


def host_calls(trace: Trace) -> pd.DataFrame:
    """The calls that launch, copy, synchronise or order, in the order of each thread.

    A call made inside another one on the same thread (a driver call under a runtime call) counts once, as the outer
    one; calls recorded into a graph between begin and end of a stream capture do not run and do not count.

    Returns:
        Columns start end process thread correlation name letter (of `s a c g G e w`), stream (what it copies on or
        waits for; MISSING where the trace does not say), kind (of the copy; "" for other calls), sorted by
        (process, thread, start).
    """
    api = trace["api"]
    found = letters_of(api["name"])
    calls = api.loc[found != "", ["start", "end", "process", "thread", "correlation", "name"]]
    calls = calls.assign(letter=found[found != ""])
    order = np.lexsort((-calls["end"], calls["start"], calls["thread"], calls["process"]))  # outer before inner
    calls = calls.iloc[order].reset_index(drop=True)
    calls = calls[_outermost(calls) & ~_captured(calls)].reset_index(drop=True)
    calls = calls[~calls["letter"].isin([BEGIN_CAPTURE, _END_CAPTURE])].reset_index(drop=True)
    targets = pd.concat(
        [
            trace["memcpys"][["process", "correlation", "stream", "kind"]],
            trace["syncs"][["process", "correlation", "stream"]].assign(kind=""),
        ]
    ).drop_duplicates(["process", "correlation"])
    rows = match_rows(targets, calls)
    for column, missing in (("stream", -1), ("kind", "")):
        values = targets[column].to_numpy(dtype=object if column == "kind" else np.int64)
        calls[column] = np.where(rows >= 0, values[rows], missing) if len(values) else missing
    return pd.DataFrame(calls)


def outermost_calls(trace: Trace) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """All calls that lie in no other call of their thread, whatever they do.

    Returns:
        (columns start end process thread correlation name, row (in trace["api"]) and letter (of the call, or else of
        the first call inside it that has one; "" where it was recorded into a graph), sorted by (process, thread,
        start); for each row of trace["api"] the position of the call that it lies in).
    """
    api = trace["api"]
    columns = ["start", "end", "process", "thread", "correlation", "name"]
    calls = api[columns].assign(row=np.arange(len(api)), letter=letters_of(api["name"]))
    order = np.lexsort((-calls["end"], calls["start"], calls["thread"], calls["process"]))
    calls = calls.iloc[order].reset_index(drop=True)
    calls.loc[_captured(calls) | calls["letter"].isin([BEGIN_CAPTURE, _END_CAPTURE]), "letter"] = ""
    outer = _outermost(calls)
    position = np.cumsum(outer) - 1
    lettered = calls["letter"].to_numpy() != ""
    first = np.unique(position[lettered], return_index=True)
    letters = np.full(int(outer.sum()), "", dtype="U1")
    letters[first[0]] = calls["letter"].to_numpy(dtype="U1")[lettered][first[1]]
    inside = np.empty(len(calls), np.int64)
    inside[order] = position
    letter_of = pd.Categorical(letters, categories=pd.Index(["", *(value for _, value in _RULES)]))
    return calls[outer].assign(letter=letter_of).reset_index(drop=True), inside


def match_rows(table: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.int64]:
    """For each of `rows`, the position in `table` of the first row with its (process, correlation), or -1."""
    if not len(table) or not len(rows):
        return np.full(len(rows), -1, dtype=np.int64)
    processes = np.unique(np.concatenate((table["process"].to_numpy(), rows["process"].to_numpy())))

    def key(frame: pd.DataFrame) -> NDArray[np.int64]:
        return np.asarray((np.searchsorted(processes, frame["process"]) << 40) + frame["correlation"].to_numpy())

    table_key, row_key = key(table), key(rows)
    order = np.argsort(table_key, kind="stable")
    at = np.searchsorted(table_key, row_key, sorter=order)
    candidate = order[np.minimum(at, len(order) - 1)]
    known = (table_key[candidate] == row_key) & (rows["correlation"].to_numpy() >= 0)
    return np.asarray(np.where(known, candidate, -1), dtype=np.int64)


def by_thread(frame: pd.DataFrame) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(process, thread, positions of its rows) for every thread in a frame."""
    for key, rows in frame.groupby(["process", "thread"], sort=False).indices.items():
        process, thread = cast("tuple[int, int]", key)
        yield process, thread, np.asarray(rows, dtype=np.int64)


def _thread_ids(calls: pd.DataFrame) -> NDArray[np.int64]:
    return np.asarray(calls.groupby(["process", "thread"], sort=False).ngroup(), dtype=np.int64)


def _outermost(calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls that do not lie inside an earlier call of their thread; touching its end is not inside."""
    threads = _thread_ids(calls)
    reach = calls["end"].groupby(threads).cummax().to_numpy()
    start, end = calls["start"].to_numpy(), calls["end"].to_numpy()
    outer = np.ones(len(calls), dtype=bool)
    outer[1:] = (start[1:] >= reach[:-1]) | (end[1:] > reach[:-1]) | (threads[1:] != threads[:-1])
    return outer


def _captured(calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls between begin and end of a stream capture of their thread; a capture that never ends hides nothing."""
    letters, threads = calls["letter"].to_numpy(dtype="U1"), _thread_ids(calls)
    begins, ends = (pd.Series((letters == mark).astype(np.int64)) for mark in (BEGIN_CAPTURE, _END_CAPTURE))
    ended = ends.groupby(threads).cumsum()
    depth = begins.groupby(threads).cumsum() - ended
    to_come = ends.groupby(threads).transform("sum") - ended
    return np.asarray((depth > 0) & (to_come > 0) & (begins == 0))
