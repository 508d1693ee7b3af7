"""Trace events -> the tables of a trace, as Kineto (PyTorch's profiler), Chrome and others write them.

1. `Tables`: events -> rows of integers. Source of the categories and of the names in `args`: Kineto's own writers
   (libkineto, `CuptiActivity.cpp` and `output_json.cpp`, as of 2026), and traces of PyTorch 2.15. Older category names
   are read, too. Source of the phases: the Trace Event Format as Chromium's developers describe it.
2. `as_kineto`, `link_rpd`: what the rows mean in the JSON of AMD's rocmProfileData (`rpd2tracing`), which have no
   categories. Source: `rpd2tracing.py`, `RoctracerDataSource.cpp` and `RocprofDataSource.cpp` of rocmProfileData
   (2026), and HIP's names of commands. An operation states its type as `args.desc`, on a row of its device (pid) and
   hardware queue (tid). An arrow to it begins 2 µs before the call ends, or where the operation starts, if that is
   earlier.
3. `Pids`: the process, device and rank that a pid refers to. Kineto writes the process id as the pid of host events and
   the device as the pid of device events. Tools that merge the files of several ranks change both, so that viewers
   separate the ranks: to a text ("[TP01] 4242", "rank 1", "1_4242") or by an offset per rank (10004242). Correlations
   and `args.device` keep each rank's own numbers, so they are meaningful only together with the rank. An offset is a
   device event's pid minus its device; a host process belongs to the largest offset that is not above its pid.
4. `frames`: rows -> tables. Passes: take correlations from arrows if nothing else gives them; find the process of each
   activity by the call that launched it; add event records that only waits mention; correct HIP's rows; collect the
   streams; replace numbers by words. Source of what HIP's rows mean: `hip_runtime_api.h` (hipMemcpyKind) and
   `hip_ext.h` (global work sizes), libkineto's writers for ROCm (roctracer and rocprofiler-sdk, 2026), which copy grid
   and kind from the call's arguments; recordings of MI300.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import count
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.formats.chrome_write import DOMAIN, PROCESS, WHOLE_GRAPH
from tracer.formats.xla import Xla
from tracer.model.columns import match_rows, numbered
from tracer.model.intervals import Ints
from tracer.model.schema import (
    API_LAYERS,
    DEVICE_DOMAINS,
    DEVICE_TABLES,
    MEMCPY_KINDS,
    MEMORY_KINDS,
    MISSING,
    MOST_NS,
    NO_ID,
    NVTX_KINDS,
    PYTHON_FUNCTION,
    SYNC_TYPES,
)
from tracer.model.trace import Given
from tracer.notes import fitting

Event = Mapping[str, Any]
Span = tuple[int, int]

_SPAN: Final = ("start", "end")
_ON_STREAM: Final = ("pid", "owner", "device", "context", "stream", "correlation")
_ON_THREAD: Final = ("process", "thread")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "kernels": (
        *_SPAN, *_ON_STREAM, "name", *_SIZES, "registers", "dynamic_shared", "graph_node", "graph", "priority",
    ),
    "graph_launches": (*_SPAN, *_ON_STREAM, "graph", "graph_exec"),
    "memcpys": (*_SPAN, *_ON_STREAM, "name", "bytes", "src_device", "dst_device", "graph_node"),
    "memsets": (*_SPAN, *_ON_STREAM, "name", "bytes", "graph_node"),
    "api": (*_SPAN, *_ON_THREAD, "correlation", "name", "layer", "kind"),
    "syncs": (*_SPAN, *_ON_STREAM, "type", "event", "recorded_on", "recorded_by"),
    "cuda_events": (*_ON_STREAM, "event"),
    "nvtx": (*_SPAN, *_ON_THREAD, "text", "domain", "kind"),
    "threads": (*_ON_THREAD, "name"),
    "processes": ("process", "name"),
    "flow_starts": ("id", "start", "process", "thread"),
    "flow_ends": ("id", "start", "pid", "stream"),
}  # fmt: skip
"""The columns collected for each table. The flows (arrows from a launch to its activities) are not a table of a trace.

`pid` and `process` are the event's own pid; texts are numbered downwards from -2. `owner` is the process as given by a
file that we wrote. `recorded_on` and `recorded_by` are the stream and the call that recorded the event that a sync
waits for. A kernel's `priority` is its stream's. A call's `kind` is the kind that a HIP copy requests.
"""

NO_EVENT: Final = "entries that are not events"
_TABLE_OF: Final = {
    "kernel": "kernels", "gpu_memcpy": "memcpys", "memcpy": "memcpys", "gpu_memset": "memsets", "memset": "memsets",
    "cuda_runtime": "api", "runtime": "api", "cuda_driver": "api", "cuda_sync": "syncs", "cuda_event": "cuda_events",
}  # fmt: skip
_OPERATORS: Final = ("cpu_op", "operator")
_STEP: Final = "ProfilerStep#"  # an operator in files of 2021
_BEGIN: Final = ("B", "b")
_KINDS: Final = {
    "X": NVTX_KINDS["push/pop"], "B": NVTX_KINDS["push/pop"], "b": NVTX_KINDS["start/end"], "i": NVTX_KINDS["mark"],
    "I": NVTX_KINDS["mark"], "n": NVTX_KINDS["mark"],
}  # fmt: skip
_CHUNK: Final = 1 << 16
_LIMIT: Final = 2**63


class Tables:
    """Collects events as integers in chunks of NumPy arrays; texts are numbered.

    Attributes:
        left_out: description -> the number of such events left out.
        unclosed: the number of ranges that were begun but never ended.
        codes: text -> its number in text columns.
        pids: text -> its number, for pids that are texts.
        rpd: whether the times of rocmProfileData's operations have fractions of a µs; empty in other files.
        xla: the tracks of JAX's profiler.
    """

    def __init__(self, python_functions: bool = False) -> None:
        self.left_out: Counter[str] = Counter()
        self.unclosed = 0
        self.codes: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.rpd: set[bool] = set()
        self.xla = Xla()
        self._python = python_functions
        self._rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in COLUMNS}
        self._chunks: dict[str, list[Ints]] = {name: [] for name in COLUMNS}
        self._open: dict[Hashable, list[tuple[int, Event]]] = {}

    def add(self, event: Any) -> None:
        """Add one event; unusable ones are counted in `left_out`."""
        if not isinstance(event, dict):
            self.left_out[NO_EVENT] += 1
            return
        if not event:  # behind the last one, whose comma it follows
            return
        phase, args, category = event.get("ph"), event.get("args"), event.get("cat")
        phase, args = phase if isinstance(phase, str) else "", args if isinstance(args, dict) else {}
        category = category.lower() if isinstance(category, str) else ""
        if phase == "M":
            self._describe(event, args)
            return
        start = _ns(event.get("ts"))
        if phase in ("s", "f", "t") and start is not None:
            if category in ("ac2g", RPD_ARROW) and phase != "t":
                table = "flow_starts" if phase == "s" else "flow_ends"
                self._append(table, (_int(event.get("id")), start, *self._thread(event)))
            return
        if phase == "X":
            self._complete(category, event, args, start, _ns(event.get("dur")))
        elif phase in ("E", "e") and start is not None:
            self._end(event, category, args, start)
        elif phase in _BEGIN and start is not None and isinstance(event.get("name"), str):
            kept = event if category in _TABLE_OF else {k: v for k, v in event.items() if k != "args"}
            self._open.setdefault(self._range(event, category), []).append((start, kept))
        elif phase in _KINDS:
            self._complete(category, event, args, start, 0)
        else:
            self.left_out[f"events of phase {str(phase)[:20]!r}"] += 1

    def _range(self, event: Event, category: str) -> Hashable:
        """The key that a begin and its end share: the thread, or the category and id of an asynchronous range."""
        if event["ph"] in "BE":
            return self._pid(event.get("pid")), str(event.get("tid"))
        of_process = isinstance(event.get("id2"), dict) and "local" in event["id2"]
        return category, str(event.get("id", event.get("id2"))), self._pid(event.get("pid")) if of_process else None

    def _end(self, event: Event, category: str, args: Event, end: int) -> None:
        """End the range that was begun most recently."""
        begun = self._open.get(self._range(event, category))
        if not begun:
            self.left_out[f"events of phase {event['ph']!r} without a begin"] += 1
            return
        start, begin = begun.pop()
        self._take_begun(begin, args, start, end)

    def _take_begun(self, begin: Event, args: Event, start: int, end: int) -> None:
        category, own = begin.get("cat"), begin.get("args")
        category = category.lower() if isinstance(category, str) else ""
        self._complete(category, begin, {**own, **args} if isinstance(own, dict) else args, start, end - start)

    def _complete(self, category: str, event: Event, args: Event, start: int | None, duration: int | None) -> None:
        if not category and (known := self.xla.as_kineto(event, args)):
            category, event, args = known
        if category == PYTHON_FUNCTION and not self._python:
            self.left_out[f"{category} events"] += 1
        elif start is None or duration is None or not isinstance(event.get("name"), str):
            self.left_out["events without a usable time or name"] += 1
        elif duration < 0 or start + duration >= MOST_NS:
            self.left_out["events with a negative or impossible duration"] += 1
        else:
            if not category and (of_rpd := as_kineto(event, args)):
                category, event = of_rpd
                if category in _OPERATION_ON_DEVICE:
                    self.rpd.add("." in str(event["ts"]))
            self._take(category, event, args, (start, start + duration))

    def _take(self, category: str, event: Event, args: Event, span: Span) -> None:
        if category == _NO_DEVICE:
            self.left_out[category] += 1
            return
        table = _TABLE_OF.get(category, "nvtx")
        if table == "kernels" and args.get(WHOLE_GRAPH) == 1:
            table = "graph_launches"
        if table == "nvtx":
            thread = (MISSING, MISSING) if category in DEVICE_DOMAINS else self._thread(event)
            domain = self._code(_domain(category, event["name"], args))
            self._append(table, (*span, *thread, self._code(event["name"]), domain, _KINDS[event["ph"]]))
        elif table == "api":
            layer = API_LAYERS["driver" if category == "cuda_driver" else "runtime"]
            name, correlation = self._code(event["name"]), _id(args.get("correlation"))
            kind = _int(args["kind"]) if "kind" in args else MISSING
            self._append(table, (*span, *self._thread(event), correlation, name, layer, kind))
        else:
            where = (
                self._pid(event.get("pid")),
                _id(args.get(PROCESS)),
                _id(args.get("device", args.get("inDevice")), NO_ID),
                _id(args.get("context", args.get("inContext")), NO_ID),
                _id(args.get("stream", event.get("tid")), NO_ID),
                _id(args.get("correlation")),
            )
            self._append(table, self._activity(table, event, args, span, where))

    def _activity(self, table: str, event: Event, args: Event, span: Span, where: tuple[int, ...]) -> tuple[int, ...]:
        if table == "cuda_events":
            return (*where, _id(args.get("event_id"), NO_ID))
        if table == "syncs":
            kind = self._code(str(args.get("cuda_sync_kind", event["name"])))
            recorded = (_id(args.get("wait_on_stream"), NO_ID), _id(args.get("wait_on_cuda_event_record_corr_id")))
            return (*span, *where, kind, _id(args.get("wait_on_cuda_event_id"), NO_ID), *recorded)
        graph = _id(args.get("graph id")) or MISSING
        if table == "graph_launches":
            return (*span, *where, graph, _id(args.get("graph exec id")))
        name, node = self._code(event["name"]), _id(args.get("graph node id")) or MISSING
        if table == "kernels":
            sizes = (*_three(args.get("grid")), *_three(args.get("block")))
            used = (_int(args.get("registers per thread")), _int(args.get("shared memory")))
            return (*span, *where, name, *sizes, *used, node, graph, _int(args.get("priority")))
        size = _int(args.get("bytes"))
        if table == "memsets":
            return (*span, *where, name, size, node)
        return (*span, *where, name, size, _id(args.get("fromDevice")), _id(args.get("toDevice")), node)

    def _describe(self, event: Event, args: Event) -> None:
        name = args.get("name")
        if isinstance(name, str):
            self.xla.describe(event, name)
        process, thread = self._thread(event)
        if not isinstance(name, str) or process == MISSING:
            return
        if event.get("name") == "process_name":
            self._append("processes", (process, self._code(name)))
        elif event.get("name") == "thread_name":
            self._append("threads", (process, thread, self._code(name)))

    def _code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def _thread(self, event: Event) -> tuple[int, int]:
        """Pid and thread; MISSING for a value that is neither number nor text."""
        pid = event.get("pid")
        return pid if type(pid) is int and 0 <= pid < _LIMIT else self._pid(pid), _int(event.get("tid"))

    def _pid(self, pid: Any) -> int:
        if not isinstance(pid, str) or pid.isdecimal():
            return _id(pid, NO_ID)
        return -2 - self.pids.setdefault(pid, len(self.pids))

    def _append(self, table: str, row: tuple[int, ...]) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) == _CHUNK:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows[table]
        self._chunks[table].append(np.array(rows, np.int64).reshape(len(rows), len(COLUMNS[table])))
        rows.clear()

    def collected(self) -> dict[str, pd.DataFrame]:
        """The rows of every table of `COLUMNS`. Ranges that were never ended end with the recording."""
        last = -_LIMIT
        for name, columns in COLUMNS.items():
            self._flush(name)
            if "end" in columns:
                ends = (chunk[:, columns.index("end")] for chunk in self._chunks[name])
                last = max(last, *(int(end.max(initial=-_LIMIT)) for end in ends))
        begun = [range for ranges in self._open.values() for range in ranges]
        for start, begin in begun:
            self._take_begun(begin, {}, start, max(start, last))
        self.unclosed += len(begun)
        self._open.clear()
        for name in COLUMNS:
            self._flush(name)
        chunks = {name: np.concatenate(self._chunks.pop(name)) for name in COLUMNS}
        return {name: pd.DataFrame(rows, columns=list(COLUMNS[name])) for name, rows in chunks.items()}


def _domain(category: str, name: str, args: Event) -> str:
    if category in _OPERATORS:
        return "" if name.startswith(_STEP) else "cpu_op"
    if category != "user_annotation":
        return category
    domain = args.get(DOMAIN)
    return domain if isinstance(domain, str) else ""


def _ns(us: Any) -> int | None:
    """Microseconds as whole nanoseconds, exactly; None if it is not a number or out of range."""
    if isinstance(us, str) and len(us) < 40:  # Ascend's
        try:
            us = Decimal(us)
        except InvalidOperation:
            return None
    if type(us) is int:
        ns = us * 1000
    elif isinstance(us, Decimal):
        ns = round(us.scaleb(3)) if us.is_finite() and us.adjusted() < 20 else _LIMIT
    else:
        return None
    return ns if abs(ns) < MOST_NS else None


def _int(value: Any) -> int:
    if type(value) is int and -_LIMIT <= value < _LIMIT:
        return value
    return _int(int(value)) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else MISSING


def _id(value: Any, none: int = MISSING) -> int:
    """The id of a device, context, stream, event or correlation; MISSING if it is negative or equals `none`."""
    id = value if type(value) is int else _int(value)
    return id if 0 <= id < _LIMIT and id != none else MISSING


def _three(sizes: Any) -> tuple[int, int, int]:
    if not isinstance(sizes, list) or len(sizes) != 3:
        return MISSING, MISSING, MISSING
    return _int(sizes[0]), _int(sizes[1]), _int(sizes[2])


RPD: Final = "rocmProfileData"
"""`metadata["source"]` of these recordings."""

RPD_ARROW: Final = "api_op"
"""The category of the arrows from calls to operations."""

_NO_DEVICE: Final = "copies whose device rocmProfileData does not know"

_OPERATIONS: Final = {
    "KernelExecution": ("kernel", ""), "FillBuffer": ("gpu_memset", "Memset"),
    "CopyHostToDevice": ("gpu_memcpy", "Memcpy HtoD"), "CopyHostToDevice2D": ("gpu_memcpy", "Memcpy HtoD"),
    "CopyDeviceToHost": ("gpu_memcpy", "Memcpy DtoH"), "CopyDeviceToHost2D": ("gpu_memcpy", "Memcpy DtoH"),
    "CopyDeviceToDevice": ("gpu_memcpy", "Memcpy DtoD"), "CopyDeviceToDevice2D": ("gpu_memcpy", "Memcpy DtoD"),
}  # fmt: skip
"""Type of an operation -> Kineto's category and name of it ("" for its own)."""

_OPERATION_ON_DEVICE: Final = frozenset(category for category, _ in _OPERATIONS.values())

_ON_DEVICE_0: Final = re.compile(r"(MEMORY_COPY_)?(HOST|DEVICE)_TO_(HOST|DEVICE)")
"""Types of copies by rocprofiler-sdk, all of which are written as of device 0."""
_HIP_CALL: Final = re.compile(r"hip[A-Z]\w*")
_REPEATED: Final = re.compile(r"UserMarker frame: \d+ ops")
_OF_GRAPH: Final = {"kernels"}
"""The `args` of a row that spans the kernels of a graph, which have rows of their own."""
_END_NS: Final = 2000  # from an arrow's begin to the end of its call
_ROUNDING_NS: Final = 1000  # of times that are whole µs


def as_kineto(event: Mapping[str, Any], args: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The category and the event as Kineto would write them, of a complete event without a category and its `args`;
    None if it is not one of rocmProfileData's."""
    kind, name = args.get("desc"), event.get("name")
    if args.keys() == _OF_GRAPH:
        return "gpu_user_annotation", event
    if not isinstance(kind, str) or not isinstance(name, str):
        return None
    if kind in _OPERATIONS:
        category, plain = _OPERATIONS[kind]
        return category, {**event, "name": plain or name}
    if _ON_DEVICE_0.fullmatch(kind):
        return _NO_DEVICE, event
    if _REPEATED.fullmatch(kind):
        return "gpu_user_annotation", event
    return ("cuda_runtime", event) if _HIP_CALL.fullmatch(name) else None


def link_rpd(tables: dict[str, pd.DataFrame]) -> None:
    """Number the calls, and let each arrow begin where its call does: the last that began before the end that the arrow
    gives, if it had not ended. Others lead from no call. Calls with numbers are of another profiler and keep them."""
    api, arrows = tables["api"], tables["flow_starts"]
    if (api["correlation"] != MISSING).any():
        return
    api["correlation"] = np.arange(1, len(api) + 1)
    keys = ["process", "thread"]
    calls = api.assign(begin=api["start"])[[*keys, "start", "begin", "end"]].sort_values("start", kind="stable")
    ends = arrows.assign(at=arrows["start"] + _END_NS).reset_index()[["index", *keys, "at"]].sort_values("at")
    of = pd.merge_asof(ends, calls, left_on="at", right_on="start", by=keys, allow_exact_matches=False)
    begin = of["begin"].where(of["end"] >= of["at"] - _ROUNDING_NS, MISSING)
    tables["flow_starts"] = arrows.assign(start=begin.set_axis(of["index"]).reindex(arrows.index).astype(np.int64))


def notes_of_rpd(are_fractional: bool) -> list[str]:
    """What these recordings lack. `are_fractional`: whether their times have fractions of a µs."""
    lacking = [f"streams are hardware queues: {RPD}'s JSON does not name those of HIP"]
    if not are_fractional:
        lacking.append(
            "times are whole µs, rounded down, as old versions of rpd2tracing write them: idle time after a kernel "
            "seems 0.5 µs longer (1 shorter to 2 longer); convert the .rpd with a newer rpd2tracing"
        )
    return lacking


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
        if len(self.ranks) < 2:
            return []
        shown = [self._describe(place) for place in range(min(len(self.ranks), _MOST_SHOWN))]
        more = ", ..." if len(self.ranks) > _MOST_SHOWN else ""
        ranks = f"the file holds {len(self.ranks)} ranks"
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
