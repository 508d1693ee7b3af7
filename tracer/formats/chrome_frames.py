"""The rows that `chrome_tables` collects -> the tables of a trace.

Passes: interpret the pids (`chrome_ranks`); take correlations from arrows if nothing else gives them; find the process
of each activity by the call that launched it; add event records that only waits mention; correct HIP's rows;
collect the streams; replace numbers by words.

Source of what HIP's rows mean: `hip_runtime_api.h` (hipMemcpyKind) and `hip_ext.h` (global work sizes), libkineto's
writers for ROCm (roctracer and rocprofiler-sdk, 2026), which copy grid and kind from the call's arguments; recordings
of MI300.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.formats.chrome_ranks import ON_DEVICE, Pids
from tracer.model.intervals import Ints
from tracer.model.rows import match_rows
from tracer.model.schema import API_LAYERS, DEVICE_TABLES, MEMCPY_KINDS, MEMORY_KINDS, MISSING, NVTX_KINDS, SYNC_TYPES
from tracer.model.trace import Given

Frames = dict[str, pd.DataFrame]

_TEXTS: Final = {"name", "text", "domain", "type"}
_COLLECTED: Final = {"kernels": ["priority"], "syncs": ["recorded_on", "recorded_by"]}
"""Collected columns that no table has."""
_SYNC_KINDS: Final = {
    "Event Sync": "event", "Stream Wait Event": "stream wait", "Stream Sync": "stream", "Context Sync": "context",
}  # fmt: skip
REQUESTED_KINDS: Final = ("HtoH", "HtoD", "DtoH", "DtoD")
"""The requested kind of a copy, by hipMemcpyKind; 4 lets HIP decide."""

_IN_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Launches whose grid counts threads, not blocks."""
_COPY: Final = re.compile(r"Memcpy (\w+)(?: \((.+) -> (.+)\))?")
_FILL: Final = re.compile(r"Memset \((.+)\)")
_CORRELATIONS: Final = 1 << 40  # of one rank; larger ones are renumbered


def frames(found: Frames, pids: Pids, texts: Sequence[str], *, ours: bool = False) -> dict[str, Given]:
    """Return the trace's non-empty tables as columns.

    Args:
        tables: the rows, which are modified.
        pids: the meaning of their pids.
        texts: the texts that the numbers in text columns refer to.
        ours: whether we wrote the file.
    """
    link(found, pids)
    shorten_correlations(found)
    number_places(found, pids, ours=ours)
    add_recorded_events(found)
    correct_hip(found, texts, grids=not ours)
    found["streams"] = streams(found)
    for name in ON_DEVICE:
        found[name] = found[name].drop(columns=["pid", "owner", *_COLLECTED.get(name, [])])
    tables = {name: frame for name, frame in found.items() if len(frame) and not name.startswith("flow")}
    return {name: _named(name, frame, texts) for name, frame in tables.items()}


def link(tables: Frames, pids: Pids) -> None:
    """Set missing correlations of activities from the arrow that ends where the activity starts."""
    starts, ends, api = tables["flow_starts"], tables["flow_ends"], tables["api"]
    lacking = [n for n in DEVICE_TABLES if (tables[n]["correlation"] == MISSING).any()]
    if not lacking or not len(starts) or not len(ends):
        return
    keys, where, flow = ["start", "process", "thread"], ["start", "pid", "stream"], ["rank", "id"]
    calls = api.reset_index().drop_duplicates(keys).set_index(keys)["index"]
    starts = starts.assign(rank=pids.rank(starts["process"])).drop_duplicates(flow)
    rows = calls.reindex(pd.MultiIndex.from_frame(starts[keys])).fillna(-1).to_numpy(np.int64)
    starts, rows = starts[rows >= 0], rows[rows >= 0]
    own = api["correlation"].to_numpy()[rows]
    linked = np.where(own == MISSING, starts["id"], own)
    api.loc[rows, "correlation"] = linked
    of_flow = pd.Series(linked, index=pd.MultiIndex.from_frame(starts[flow]))
    ends = ends.assign(rank=pids.rank(ends["pid"])).drop_duplicates(where)
    flow_at = pd.Series(np.arange(len(ends)), index=pd.MultiIndex.from_frame(ends[where]))
    to = of_flow.reindex(pd.MultiIndex.from_frame(ends[flow])).fillna(MISSING).to_numpy(np.int64)
    for name in lacking:
        frame = tables[name]
        at = flow_at.reindex(pd.MultiIndex.from_frame(frame[where])).fillna(-1).to_numpy(np.int64)
        new = np.where(at >= 0, to[at], MISSING)
        frame["correlation"] = np.where(frame["correlation"] == MISSING, new, frame["correlation"])


def shorten_correlations(tables: Frames) -> None:
    """Renumber the correlations if some are too large to share 64 bits with a rank or process."""
    places = [(name, "correlation") for name in ("api", *ON_DEVICE)] + [("syncs", "recorded_by")]
    every = np.concatenate([tables[name][column].to_numpy() for name, column in places])
    if every.max(initial=0) < _CORRELATIONS:
        return
    distinct = np.unique(every[every != MISSING])
    for name, column in places:
        values = tables[name][column].to_numpy()
        tables[name][column] = np.where(values == MISSING, MISSING, np.searchsorted(distinct, values))


def number_places(tables: Frames, pids: Pids, *, ours: bool = False) -> None:
    """Replace pids by our processes and devices. An activity's process is what the file says if it is `ours`, else
    that of its call, else the only process of its rank."""

    def call(rank: Ints, correlation: pd.Series) -> Ints:
        return np.asarray(rank * _CORRELATIONS + correlation.to_numpy())

    host_rank = {name: pids.rank(tables[name]["process"]) for name in ("api", "nvtx")}
    for name in ("api", "nvtx", "threads", "processes"):
        tables[name]["process"] = pids.process(tables[name]["process"])
    api = tables["api"]
    known = (api["correlation"] != MISSING).to_numpy()
    process_of = pd.Series(api["process"].to_numpy()[known], index=call(host_rank["api"], api["correlation"])[known])
    process_of = process_of[~process_of.index.duplicated()]
    hosts = pd.DataFrame(
        {
            "rank": np.concatenate(list(host_rank.values())),
            "process": np.concatenate([tables[name]["process"].to_numpy() for name in host_rank]),
        }
    ).drop_duplicates()
    hosts = hosts[hosts["process"] != MISSING]
    only = hosts.drop_duplicates("rank", keep=False).set_index("rank")["process"]
    for name in ON_DEVICE:
        frame, rank = tables[name], pids.rank(tables[name]["pid"])
        by_call = process_of.reindex(call(rank, frame["correlation"])).to_numpy(np.float64)
        alone = only.reindex(rank).fillna(MISSING).to_numpy(np.int64)
        frame["process"] = np.where(np.isnan(by_call), alone, np.nan_to_num(by_call, nan=MISSING).astype(np.int64))
        if ours:
            frame["process"] = frame["owner"].where(frame["owner"] != MISSING, frame["process"])
        for column in {"device", "src_device", "dst_device"} & set(frame):
            frame[column] = pids.device(frame, column)
    for name, keys in (("threads", ["process", "thread"]), ("processes", ["process"])):
        described = tables[name][tables[name]["process"].isin(hosts["process"])]  # Kineto describes GPUs so, too
        tables[name] = described.drop_duplicates(keys, keep="last")


def add_recorded_events(tables: Frames) -> None:
    """Add event records that the file lacks but a wait mentions, and events that have no number there. A host that
    waits for an event waits for the stream that recorded it."""
    syncs, events = tables["syncs"], tables["cuda_events"]
    keys = ["process", "correlation"]
    nameless = ((syncs["recorded_by"] != MISSING) & (syncs["event"] == MISSING)).to_numpy()
    if nameless.any():  # the call that recorded it says which event it is
        by = pd.MultiIndex.from_frame(syncs[["process", "recorded_by"]], names=keys)
        told = events.drop_duplicates(keys).set_index(keys)["event"].reindex(by, fill_value=MISSING).to_numpy()
        new = max(events["event"].max() if len(events) else MISSING, syncs["event"].max()) + 1 + pd.factorize(by)[0]
        syncs["event"] = np.where(nameless, np.where(told == MISSING, new, told), syncs["event"])
    waits = syncs[(syncs["recorded_on"] != MISSING) & (syncs["recorded_by"] != MISSING) & (syncs["event"] != MISSING)]
    named = waits.assign(stream=waits["recorded_on"], correlation=waits["recorded_by"])[events.columns]
    named = named.drop_duplicates(keys)
    known = pd.MultiIndex.from_frame(named[keys]).isin(pd.MultiIndex.from_frame(events[keys]))
    tables["cuda_events"] = pd.concat([events, named[~known]], ignore_index=True)
    syncs["stream"] = np.where(syncs["stream"] == MISSING, syncs["recorded_on"], syncs["stream"])


def correct_hip(tables: Frames, texts: Sequence[str], *, grids: bool) -> None:
    """Correct HIP's rows: convert grids to blocks, and add to the copies a column `requested`, the kind that their call
    requested.

    For the profiler a copy that a kernel performs in pinned host memory is a copy within the device; for its caller it
    is not.

    Args:
        tables: the collected rows, which are modified.
        texts: the texts that the numbers in text columns refer to.
        grids: whether grids are as HIP gives them; files that we wrote already count blocks.
    """
    requested = tables["api"].pop("kind").to_numpy()
    call = _launching(tables, "memcpys", requested != MISSING)
    tables["memcpys"]["requested"] = np.append(requested, MISSING)[call]
    in_threads = [code for code, text in enumerate(texts) if text in _IN_THREADS]
    if grids and in_threads:
        rows = _launching(tables, "kernels", tables["api"]["name"].isin(in_threads).to_numpy()) >= 0
        for axis in "xyz":
            grid, block = (tables["kernels"][f"{size}_{axis}"] for size in ("grid", "block"))
            known = rows & (grid > 0) & (block > 0)
            tables["kernels"][f"grid_{axis}"] = np.where(known, -(-grid // block.where(known, 1)), grid)


def _launching(tables: Frames, table: str, chosen: NDArray[np.bool_]) -> Ints:
    """For each row of a table, the position of the chosen call that launched it, or -1."""
    if not chosen.any():
        return np.full(len(tables[table]), -1, np.int64)
    rows = np.append(np.flatnonzero(chosen), -1)
    return rows[match_rows(tables["api"][chosen], tables[table])]


def streams(tables: Frames) -> pd.DataFrame:
    """The streams that occur in each context, with the priority that their kernels state."""
    keys = ["process", "context", "stream"]
    seen = pd.concat([tables[name].reindex(columns=[*keys, "priority"], fill_value=MISSING) for name in ON_DEVICE])
    seen = seen[seen["stream"] != MISSING]
    order = (seen["priority"] == MISSING).to_numpy().argsort(kind="stable")
    return seen.iloc[order].drop_duplicates(keys).sort_values(keys, ignore_index=True)


def _named(table: str, frame: pd.DataFrame, texts: Sequence[str]) -> Given:
    columns: dict[str, Any] = {str(name): frame[name].to_numpy() for name in frame}
    for name in _TEXTS & columns.keys():
        columns[name] = _texts(columns[name], texts)
    if table == "nvtx":
        columns["kind"] = _words(columns["kind"], NVTX_KINDS)
    elif table == "api":
        columns["layer"] = _words(columns["layer"], API_LAYERS)
    elif table == "syncs":
        columns["type"] = _map(columns["type"], lambda text: _SYNC_KINDS.get(text, "unknown"), SYNC_TYPES)
    elif table == "memsets":
        columns["mem_kind"] = _map(columns.pop("name"), lambda text: _memory(_FILL, text, 1), MEMORY_KINDS)
    elif table == "memcpys":
        names = columns.pop("name")
        columns["kind"] = _requested(columns.pop("requested"), _map(names, _copy_kind, MEMCPY_KINDS))
        columns["src_kind"] = _map(names, lambda text: _memory(_COPY, text, 2), MEMORY_KINDS)
        columns["dst_kind"] = _map(names, lambda text: _memory(_COPY, text, 3), MEMORY_KINDS)
    return columns


def _texts(codes: Ints, texts: Sequence[str]) -> pd.Categorical:
    used, at = np.unique(codes, return_inverse=True)
    return pd.Categorical.from_codes(at, pd.Index([texts[code] for code in used], dtype="str"))


def _words(ids: Ints, enum: dict[str, int]) -> pd.Categorical:
    at = {id: code for code, id in enumerate(enum.values())}
    return pd.Categorical.from_codes([at[id] for id in ids.tolist()], pd.Index(list(enum), dtype="str"))


def _map(texts: pd.Categorical, word: Callable[[str], str], enum: dict[str, int]) -> pd.Categorical:
    """The texts as words of an enum; each distinct text is mapped once."""
    words = list(enum)
    codes = np.array([words.index(word(text)) for text in texts.categories], np.int64)
    return pd.Categorical.from_codes(codes[texts.codes], pd.Index(words, dtype="str"))


def _requested(requested: Ints, kinds: pd.Categorical) -> pd.Categorical:
    """The kinds of copies, replaced by the kind that the call requested if it is known."""
    words = list(kinds.categories)
    code = np.array([*(words.index(kind) for kind in REQUESTED_KINDS), -1], np.int64)[
        np.where((requested >= 0) & (requested < len(REQUESTED_KINDS)), requested, -1)
    ]
    return pd.Categorical.from_codes(np.where(code >= 0, code, kinds.codes), dtype=kinds.dtype)


def _copy_kind(text: str) -> str:
    match = _COPY.fullmatch(text)
    return match[1] if match and match[1] in MEMCPY_KINDS else "unknown"


def _memory(pattern: re.Pattern[str], text: str, group: int) -> str:
    match = pattern.fullmatch(text)
    word = (match[group] or "").lower() if match else ""
    return word if word in MEMORY_KINDS else "unknown"
