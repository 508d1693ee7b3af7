"""Rows of trace events, as `chrome_events` collects them -> the tables of a trace.

1. `Pids`: the process, device and rank that a pid refers to. Kineto writes the process id as the pid of host events and
   the device as the pid of device events. Tools that merge the files of several ranks change both, so that viewers
   separate the ranks: to a text ("[TP01] 4242", "rank 1", "1_4242") or by an offset per rank (10004242). Correlations
   and `args.device` keep each rank's own numbers, so they are meaningful only together with the rank. An offset is a
   device event's pid minus its device; a host process belongs to the largest offset that is not above its pid.
2. `frames`: rows -> tables. Passes: take correlations from arrows if nothing else gives them; find the process of each
   activity by the call that launched it; add event records that only waits mention; correct HIP's rows; collect the
   streams; replace numbers by words. Source of what HIP's rows mean: `hip_runtime_api.h` (hipMemcpyKind) and
   `hip_ext.h` (global work sizes), libkineto's writers for ROCm (roctracer and rocprofiler-sdk, 2026), which copy grid
   and kind from the call's arguments; recordings of MI300.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.columns import match_rows, numbered
from tracer.model.intervals import Ints
from tracer.model.schema import (
    API_LAYERS,
    DEVICE_TABLES,
    MEMCPY_KINDS,
    MEMORY_KINDS,
    MISSING,
    NVTX_KINDS,
    SYNC_TYPES,
)
from tracer.model.trace import Given
from tracer.notes import fitting

Rank = tuple[int, ...]
"""The numbers by which a file names a rank: (1,) of "rank 1", (0, 1) of "[TP00-DP01] 4242"."""

ON_DEVICE: Final = (*DEVICE_TABLES, "syncs", "cuda_events")
_ON_HOST: Final = ("api", "nvtx")
_OWN_TRACKS: Final = ("Spans", "Traces")  # Kineto's own tracks, which are not processes
_MOST_SHOWN: Final = 8


class Pids:
    """The meaning of the pids of a file, from the rows that `Tables` collects; a pid that is text is -2 minus its index
    in `texts`.

    Attributes:
        ranks: the ranks, sorted; a single one if the file does not distinguish ranks.
        devices: our device -> (index of its rank in `ranks`, the rank's own device number).
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame], texts: Sequence[str]) -> None:
        parsed = {-2 - place: _parse(text) for place, text in enumerate(texts)}
        named = {pid: rank for pid, (rank, _) in parsed.items()}
        self._number = {pid: number for pid, (_, number) in parsed.items()}
        hosts = _unique(tables, _ON_HOST, "process")
        tracks = self._tracks(tables, ON_DEVICE)
        of_device, of_host = _offsets(self._tracks(tables, DEVICE_TABLES), hosts)
        rank_of = dict.fromkeys([*hosts, *tracks["pid"].tolist()], ()) | named | of_device | of_host
        used = {*hosts, *tracks["pid"].tolist()} - {MISSING}
        self.ranks: list[Rank] = sorted({rank_of[pid] for pid in used}) or [()]
        place_of = {rank: place for place, rank in enumerate(self.ranks)}
        self._rank = {pid: place_of[rank_of[pid]] for pid in used}
        self.ranks_known = not of_device or bool(of_host)  # otherwise devices differ, but their ranks are unknown
        self._process = self._processes(hosts)
        self.devices = self._number_devices(tables, tracks)

    def rank(self, pids: pd.Series) -> Ints:
        """The index in `ranks` of each pid; 0 for all if the rank of calls is unknown."""
        return _look_up(pids, self._rank, 0) if self.ranks_known else np.zeros(len(pids), np.int64)

    def process(self, pids: pd.Series) -> Ints:
        """The process of each host event's pid; MISSING for a track that is not a process."""
        return _look_up(pids, self._process, MISSING)

    def device(self, frame: pd.DataFrame, column: str = "device") -> Ints:
        """Our device for each row's `column`, which holds the rank's own device number."""
        counted = self._device(frame) if column == "device" else frame[column].to_numpy()
        if all(ours == theirs for ours, (_, theirs) in self.devices.items()):
            return counted
        ours = {place: device for device, place in self.devices.items()}
        codes, distinct = numbered(_look_up(frame["pid"], self._rank, 0), counted)
        return np.array([ours.get((int(rank), int(device)), MISSING) for rank, device in distinct], np.int64)[codes]

    def notes(self) -> list[str]:
        """Notes on a file of several ranks: the processes and devices of each."""
        if not self.ranks_known:
            return [f"devices with equal numbers but different pids are treated as {len(self.devices)} devices"]
        known = {self._rank[pid] for pid in self._process} | {rank for rank, _ in self.devices.values()}
        if len(known) < 2:  # the marks of the profiler itself are of no rank
            return []
        shown = [self._describe(place) for place in sorted(known)[:_MOST_SHOWN]]
        more = ", ..." if len(known) > _MOST_SHOWN else ""
        ranks = f"the file holds {len(known)} ranks"
        return [fitting(f"{ranks}: {', '.join(shown)}{more}", ranks)]

    def _describe(self, place: int) -> str:
        processes = sorted(self._process[pid] for pid in self._process if self._rank[pid] == place)
        devices = sorted(device for device, (rank, _) in self.devices.items() if rank == place)
        of = [f"{what} {' '.join(map(str, ids))}" for what, ids in (("process", processes), ("device", devices)) if ids]
        return f"rank {'-'.join(map(str, self.ranks[place])) or '?'} = {' and '.join(of)}"

    def _tracks(self, rows: Mapping[str, pd.DataFrame], tables: Sequence[str]) -> pd.DataFrame:
        """The pids under which devices have rows; columns pid and device."""
        tracks = pd.concat([rows[name][["pid", "device"]] for name in tables]).drop_duplicates()
        return tracks.assign(device=self._device(tracks))

    def _device(self, frame: pd.DataFrame) -> Ints:
        """The rank's own device number: from the event itself, else from its pid."""
        pids, device = frame["pid"].to_numpy(), frame["device"].to_numpy()
        stated = np.where(pids < MISSING, _look_up(frame["pid"], self._number, MISSING), pids)
        return np.where(device == MISSING, stated, device)

    def _processes(self, hosts: list[int]) -> dict[int, int]:
        """Process ids: the file's if they are unique, else the next free ones."""
        known = {pid: pid for pid in hosts if pid >= 0}
        used, free = set(known), count()
        for pid in sorted((pid for pid in hosts if pid < MISSING), key=lambda pid: (self._rank[pid], -pid)):
            number = self._number[pid]
            if number is None:
                continue
            if number in used or number == MISSING:
                number = next(id for id in free if id not in used)
            known[pid] = number
            used.add(number)
        return known

    def _number_devices(self, tables: Mapping[str, pd.DataFrame], tracks: pd.DataFrame) -> dict[int, tuple[int, int]]:
        """The ranks' own device numbers if they are unique across ranks, else consecutive numbers."""
        ends = [tables["memcpys"][["pid", column]] for column in ("src_device", "dst_device")]
        every = pd.concat([tracks, *(end.set_axis(["pid", "device"], axis=1) for end in ends)]).drop_duplicates()
        every = every[(every["device"] >= 0) & (every["pid"] != MISSING)]
        places = sorted(set(zip(_look_up(every["pid"], self._rank, 0).tolist(), every["device"].tolist(), strict=True)))
        counted = [device for _, device in places]
        return dict(zip(counted if len(set(counted)) == len(counted) else range(len(counted)), places, strict=True))


def _parse(text: str) -> tuple[Rank, int | None]:
    """The rank and the number (process or device; MISSING if absent) in a text pid; None if it is not a process."""
    numbers = [int(n) for n in re.findall(r"\d{1,18}", text)]
    if not numbers or text.endswith(_OWN_TRACKS):
        return (), None
    if len(numbers) == 1 and "rank" in text.lower():
        return (numbers[0],), MISSING
    if text[-1].isdigit():
        return tuple(numbers[:-1]), numbers[-1]
    return (tuple(numbers) if len(numbers) > 1 else ()), MISSING


def _offsets(tracks: pd.DataFrame, hosts: list[int]) -> tuple[dict[int, Rank], dict[int, Rank]]:
    """The ranks of pids that differ by an offset, of device events and of hosts; both empty for a single rank.

    If a device occurs under several pids but the offsets do not separate the hosts, only the devices have ranks.
    """
    tracks = tracks[(tracks["pid"] >= 0) & (tracks["device"] >= 0)]
    offset = dict(zip(tracks["pid"].tolist(), (tracks["pid"] - tracks["device"]).tolist(), strict=True))
    offsets = sorted(set(offset.values()))
    if len(offsets) < 2:
        return {}, {}
    owner = {pid: bisect_right(offsets, pid) - 1 for pid in hosts if pid >= offsets[0]}
    of_device: dict[int, Rank] = {pid: (bisect_left(offsets, at),) for pid, at in offset.items()}
    if len(set(owner.values())) == len(offsets):
        return of_device, {pid: (place,) for pid, place in owner.items()}
    return (of_device, {}) if tracks.groupby("device")["pid"].nunique().max() > 1 else ({}, {})


def _unique(rows: Mapping[str, pd.DataFrame], tables: Sequence[str], column: str) -> list[int]:
    ids = np.concatenate([pd.unique(rows[name][column]) for name in tables])
    return sorted({int(id) for id in ids} - {MISSING})


def _look_up(values: pd.Series, table: Mapping[int, int | None], missing: int) -> Ints:
    """Each value's entry in a table; `missing` for values without one."""
    codes, distinct = pd.factorize(values)
    entries = [table.get(int(value)) for value in distinct]
    return np.array([missing if entry is None else entry for entry in entries], np.int64)[codes]


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


def frames(rows: Frames, pids: Pids, texts: Sequence[str], *, ours: bool = False) -> dict[str, Given]:
    """Return the trace's non-empty tables as columns. `rows` are modified; the numbers in their text columns
    refer to `texts`. `ours`: whether we wrote the file."""
    link(rows, pids)
    shorten_correlations(rows)
    number_places(rows, pids, ours=ours)
    add_recorded_events(rows)
    correct_hip(rows, texts, grids=not ours)
    rows["streams"] = streams(rows)
    for name in ON_DEVICE:
        rows[name] = rows[name].drop(columns=["pid", "owner", *_COLLECTED.get(name, [])])
    tables = {name: frame for name, frame in rows.items() if len(frame) and not name.startswith("flow")}
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
    of_hosts = [pd.DataFrame({"rank": rank, "process": tables[name]["process"]}) for name, rank in host_rank.items()]
    hosts = pd.concat(of_hosts).drop_duplicates()
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
    """Correct HIP's rows in place: convert grids to blocks, and add to the copies a column `requested`, the kind that
    their call requested.

    For the profiler a copy that a kernel performs in pinned host memory is a copy within the device; for its caller it
    is not. `grids`: whether grids are as HIP gives them; files that we wrote already count blocks.
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
