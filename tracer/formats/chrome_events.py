"""Trace events -> rows of integers, as Kineto (PyTorch's profiler), Chrome and others write them.

1. `Tables`: events -> rows of integers. Source of the categories and of the names in `args`: Kineto's own writers
   (libkineto, `CuptiActivity.cpp` and `output_json.cpp`, as of 2026), and traces of PyTorch 2.15. Older category names
   are read, too. Source of the phases: the Trace Event Format as Chromium's developers describe it.
2. `as_kineto`, `link_rpd`: what the rows mean in the JSON of AMD's rocmProfileData (`rpd2tracing`), which have no
   categories. Source: `rpd2tracing.py`, `RoctracerDataSource.cpp` and `RocprofDataSource.cpp` of rocmProfileData
   (2026), and HIP's names of commands. An operation states its type as `args.desc`, on a row of its device (pid) and
   hardware queue (tid). An arrow to it begins 2 µs before the call ends, or where the operation starts, if that is
   earlier.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pandas as pd

from tracer.formats.chrome_write import DOMAIN, PROCESS, WHOLE_GRAPH
from tracer.formats.xla import Xla
from tracer.model.intervals import Ints
from tracer.model.schema import (
    API_LAYERS,
    DEVICE_DOMAINS,
    MISSING,
    MOST_NS,
    NO_ID,
    NVTX_KINDS,
    PYTHON_FUNCTION,
)

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
            "times are whole µs, rounded down: idle time after a kernel seems 0.5 µs longer; convert the .rpd with a "
            "newer rpd2tracing\nold versions write them so; it is 1 µs shorter to 2 longer"
        )
    return lacking
