"""The host recorder: events that a backend reports from the software clock (CPU and simulated devices).

A report appends one tuple to a list (list.append is atomic, so any thread may report). Tables are built when the trace
is requested. Nothing is dropped; memory is the only limit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pandas as pd

from tracer.model.schema import MISSING
from tracer.model.trace import Pause, Trace, add_pauses
from tracer.recorders import ranges
from tracer.recorders.ranges import Stack, stack_here, with_chains

_COLUMNS: Final = {
    "api": ("start", "end", "thread", "correlation", "name"),
    "kernels": ("start", "end", "device", "stream", "correlation", "name", "graph_node", "graph"),
    "memcpys": ("start", "end", "device", "stream", "correlation", "kind", "bytes", "src_kind", "dst_kind"),
    "syncs": ("start", "end", "type", "device", "stream", "event", "correlation"),
    "cuda_events": ("device", "stream", "event", "correlation"),
    "graph_launches": ("start", "end", "device", "stream", "correlation", "graph"),
    "nvtx": ("start", "end", "thread", "text", "payload", "domain", "color"),
}
_WAITS: Final = {"streamSynchronize": "stream", "eventSynchronize": "event", "streamWaitEvent": "stream wait"}
"""Call that also leaves a row in `syncs` -> the type of that row."""

_WORDS: Final = {"name", "kind", "src_kind", "dst_kind", "type", "text", "domain"}

FIRST_CALL: Final = 1 << 30
"""Correlation of the first of a recorder's `calls`; the others follow, far above the correlations passed to `api`."""

Call = tuple[str, int, int, int, int, int]
"""Name without `cuda`, start, end, device, stream, event (MISSING if none)."""

_OpenRange = tuple[int, str, int | float | None, str, int]
_ON_DEVICE: Final = ("kernels", "memcpys", "syncs", "cuda_events", "graph_launches")


class _Thread(threading.local):
    """Per-thread state: the thread's id (cached, as it costs a system call) and its open ranges."""

    def __init__(self) -> None:
        self.id = threading.get_native_id()
        self.open: list[_OpenRange | None] = []


_watching: Final[list[list[HostRecorder]]] = []


class _CallsWithStacks(list[Call]):
    """A recorder's `calls` that also keeps the stack of each call."""

    def __init__(self, stacks: dict[int, Stack]) -> None:
        super().__init__()
        self._stacks = stacks

    def append(self, call: Call) -> None:
        self._stacks[FIRST_CALL + len(self)] = stack_here()
        super().append(call)


class HostRecorder:
    """Collects events reported by backends, in ns of one clock.

    Args:
        clock: returns ns; `time.perf_counter_ns` unless a test or a simulated device provides its own.
        stacks: whether to keep the Python stack of each call, as call chains of the trace, which costs about 10 us per
            call.

    Attributes:
        calls: a list to which a backend whose calls take microseconds appends directly while `recording`, because a
            method call would add to the measured time. The calls belong to the thread that last called `start`. Waits
            and event records also leave rows in `syncs` and `cuda_events`. The correlation of calls[i] is
            FIRST_CALL + i.
        stacks: correlation of a call -> its Python stack, if they are kept, also for a recorder created inside
            `watched`.
    """

    takes_nvtx = False

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns, stacks: bool = False) -> None:
        self.clock = clock
        self.recording = False
        self.stacks: dict[int, Stack] = {}
        self._keeps_stacks = stacks or bool(_watching)
        self.calls: list[Call] = _CallsWithStacks(self.stacks) if self._keeps_stacks else []
        for made in _watching:
            made.append(self)
        self._caller = MISSING
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _COLUMNS}
        self._thread = _Thread()
        self._streams: dict[tuple[int, int], None] = {}  # in order of announcement
        self._devices: dict[int, str] = {}
        self._stopped: int | None = None
        self._pauses: list[Pause] = []  # by its clock

    def start(self) -> None:
        """Start or resume recording; the trace tells the pauses in between."""
        if not self.recording:
            if self._stopped is not None and self._stopped < (now := self.clock()):
                self._pauses.append(Pause(self._stopped, now))
            self.recording = True
            self._caller = self._thread.id
            ranges.recording.append(self)

    def stop(self) -> None:
        """Stop recording; the events so far are kept."""
        if self.recording:
            self.recording = False
            ranges.recording.remove(self)
            self._stopped = self.clock()

    def api(self, name: str, start: int, end: int, correlation: int) -> None:
        """Report a call on the calling host thread, by CUDA's name without the `cuda` prefix."""
        if self.recording:
            self._rows["api"].append((start, end, self._thread.id, correlation, name))
            if self._keeps_stacks:
                self.stacks[correlation] = stack_here()

    def kernel(
        self, name: str, start: int, end: int, *, device: int, stream: int, correlation: int,
        graph_node: int = MISSING, graph: int = MISSING,
    ) -> None:  # fmt: skip
        """Report a kernel execution on a stream; the short name ends before the name's first bracket."""
        if self.recording:
            self._rows["kernels"].append((start, end, device, stream, correlation, name, graph_node, graph))

    def memcpy(
        self, kind: str, bytes: int, start: int, end: int, *, device: int, stream: int, correlation: int,
        src_kind: str, dst_kind: str,
    ) -> None:  # fmt: skip
        """Report a copy on the device; kinds as in `schema.MEMCPY_KINDS` and `schema.MEMORY_KINDS`."""
        if self.recording:
            self._rows["memcpys"].append((start, end, device, stream, correlation, kind, bytes, src_kind, dst_kind))

    def sync(
        self, type: str, start: int, end: int, *, device: int, stream: int, correlation: int, event: int = MISSING
    ) -> None:
        """Report what a synchronising call waited for; types as in `schema.SYNC_TYPES`."""
        if self.recording:
            self._rows["syncs"].append((start, end, type, device, stream, event, correlation))

    def event_record(self, event: int, *, device: int, stream: int, correlation: int) -> None:
        """Report an event recorded on a stream."""
        if self.recording:
            self._rows["cuda_events"].append((device, stream, event, correlation))

    def graph_launch(self, start: int, end: int, *, device: int, stream: int, correlation: int, graph: int) -> None:
        """Report a whole-graph execution."""
        if self.recording:
            self._rows["graph_launches"].append((start, end, device, stream, correlation, graph))

    def describe_device(self, device: int, name: str) -> None:
        """Name a device."""
        self._devices[device] = name

    def describe_stream(self, device: int, stream: int) -> None:
        """Announce a stream, so that it is listed even if nothing runs on it."""
        self._streams[device, stream] = None

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = MISSING) -> None:
        """Open an NVTX range on the calling thread; colour as 0xAARRGGBB."""
        self._thread.open.append((self.clock(), text, payload, domain, color) if self.recording else None)

    def pop_range(self) -> None:
        """Close the calling thread's innermost range; a range opened while not recording leaves no row."""
        end, thread = self.clock(), self._thread
        opened = thread.open.pop()
        if opened is not None and self.recording:
            start, text, payload, domain, color = opened
            self._rows["nvtx"].append((start, end, thread.id, text, payload, domain, color))

    @property
    def trace(self) -> Trace:
        """Everything recorded so far, times in ns since the first event."""
        process = os.getpid()
        of_calls = self._rows_of_calls()
        tables = {n: _columns_of(n, self._rows[n] + of_calls.get(n, []), process) for n in _COLUMNS}
        starts = [columns["start"] for columns in tables.values() if "start" in columns and len(columns["start"])]
        origin = min((int(start.min()) for start in starts), default=0)
        for columns in tables.values():
            columns |= {name: columns[name] - origin for name in ("start", "end") if name in columns}
        tables |= self._descriptions(tables, process)
        metadata: dict[str, Any] = {"source": "host", "clock": {"origin_ns": origin}}
        if self.clock is time.perf_counter_ns:
            metadata["start_utc_ns"] = time.time_ns() - time.perf_counter_ns() + origin
        trace = Trace.from_columns(metadata, **tables)
        add_pauses(trace, [Pause(each.since - origin, each.until - origin) for each in self._pauses])
        return with_chains(trace, self.stacks)

    def _rows_of_calls(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows that `calls` adds to the tables."""
        calls = list(enumerate(self.calls, start=FIRST_CALL))
        return {
            "api": [(start, end, self._caller, i, name) for i, (name, start, end, *_) in calls],
            "syncs": [
                (start, end, _WAITS[name], device, stream, event, i)
                for i, (name, start, end, device, stream, event) in calls
                if name in _WAITS
            ],
            "cuda_events": [
                (device, stream, event, i) for i, (name, _, _, device, stream, event) in calls if name == "eventRecord"
            ],
        }

    def _descriptions(self, tables: Mapping[str, Mapping[str, Any]], process: int) -> dict[str, dict[str, Any]]:
        threads = pd.unique(np.concatenate([tables["api"]["thread"], tables["nvtx"]["thread"]]))
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        streams = [stream for _, stream in self._streams]
        return {
            "devices": {"device": list(self._devices), "name": list(self._devices.values())},
            "streams": {"process": [process] * len(streams), "context": [1] * len(streams), "stream": streams},
            "threads": {
                "process": [process] * len(threads), "thread": threads, "name": [names.get(t, "") for t in threads],
            },
            "processes": {"process": [process], "name": ["intertoken"]},
        }  # fmt: skip


def _columns_of(table: str, rows: Sequence[tuple[Any, ...]], process: int) -> dict[str, Any]:
    """The columns of a table's rows, including constant ones."""
    values = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS[table])
    columns: dict[str, Any] = dict(zip(_COLUMNS[table], values, strict=True))
    for name in set(columns) - _WORDS:
        columns[name] = np.array(columns[name], np.float64 if name == "payload" else np.int64)  # None becomes NaN
    columns["process"] = np.full(len(rows), process)
    match table:
        case "kernels":
            columns["short_name"] = [name.partition("(")[0] for name in columns["name"]]
        case "api":
            columns["return_value"] = np.zeros(len(rows), np.int64)
        case "nvtx":
            columns["kind"] = ["push/pop"] * len(rows)
    if table in _ON_DEVICE:
        columns["context"] = np.ones(len(rows), np.int64)
    return columns


@contextmanager
def watched() -> Iterator[list[HostRecorder]]:
    """Collect all recorders created inside the body; they keep the Python stack of every call."""
    made: list[HostRecorder] = []
    _watching.append(made)
    try:
        yield made
    finally:
        _watching.remove(made)
