"""The CUPTI recorder: CUDA activity of this process, on the host and on the device.

CUPTI writes raw records into our buffers. No Python code runs per record, neither while recording nor when the trace is
built. Its clock is CLOCK_REALTIME.

CUPTI calls back for buffers and when one is filled, and, where stacks are wanted, at each call that launches, copies,
waits or orders. A stack matches an activity record by correlation id: `CUpti_CallbackData.correlationId` of a call
equals that of the call's record (cupti_callbacks.h).

The Python package `nvtx` asks NVTX whether a domain is enabled, and opens no ranges if it is not. Under CUPTI the
default domain is reported as disabled, while named domains are enabled. So the default domain gets a name while CUPTI
records; the trace removes it again.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from nvtx import nvtx as package

from tracer.errors import RecordError, UsageError
from tracer.model.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, letter
from tracer.model.trace import Pause, Trace, add_pauses
from tracer.recorders import cupti_library, ranges
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti_library import INJECTION, Cupti, Driver
from tracer.recorders.cupti_records import STAND_IN, CallNames, OwnRanges, Sources, build, parse
from tracer.recorders.ranges import Stack, stack_here, with_chains
from tracer.recorders.symbols import c_string

GraphTrace = Literal["node", "graph"]

ALL_KINDS: Final = activity.SETS["all"]
_HOST_SIDE: Final = ("api", "syncs", "cuda_events", "nvtx")  # disabled before stop() waits for the device
_LIMIT: Final = 4 << 30
_LOOKUP: Final = "_get_domain_cached"

DOMAINS: Final = (1, 2)
"""Driver and runtime calls (`CUpti_CallbackDomain`)."""

_ENTER: Final = 0  # CUPTI_API_ENTER
_LETTERS: Final = frozenset((SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT))
SIZE: Final = 256 * 1024  # bytes; large enough that callbacks are rare, small enough that `parse` walks many at once
_SLAB: Final = 64 * SIZE
_PREPARED: Final = 4  # slabs
_FEW: Final = 32  # buffers
_POPULATE: Final = 0x8000  # MAP_POPULATE: avoids page faults on the application's thread
_ZEROED_OUT_ACTIVITY_BUFFER: Final = 5  # CUpti_ActivityAttribute: buffers are already cleared, CUPTI need not do it
_PER_THREAD_ACTIVITY_BUFFER: Final = 9  # CUpti_ActivityAttribute, CUDA 12.3: no lock between threads


class _Process:
    """CUPTI in this process: one library, one pair of callbacks, one recorder at a time."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.cupti = Cupti(cupti_library.find())
        self.sizes = activity.sizes(self.cupti.version, self.cupti.record_bytes)
        self.buffers = Buffers(_LIMIT)
        self.attached = False
        self.recorder: CuptiRecorder | None = None
        self.graph_level = False  # whether graph-level tracing was enabled before CUDA was used

    def attach(self) -> None:
        """Prepare CUPTI for recording, and discard its earlier records and drop counts."""
        if self.attached:
            self.cupti.flush()
        else:
            self.cupti.system_thread_ids()
            self.buffers.register(self.cupti)
            self.attached = True
        self.cupti.dropped()

    def detach(self) -> None:
        """Detach CUPTI from the process.

        If CUPTI is only disabled, every later graph launch takes about 0.35 us longer per node
        (benchmarks/gpu_after_cupti.py). After graph-level tracing it stays attached, because CUPTI cannot start that a
        second time. It also stays attached if it refuses to detach; the recording is complete by then.
        """
        if self.graph_level:
            return
        try:
            self.cupti.finalize()
        except RecordError:
            return
        self.buffers.reclaim()
        self.attached = False


@cache
def _process() -> _Process:
    return _Process()


class CuptiRecorder:
    """Records CUDA activity of this process. `start` and `stop` may alternate; only one recorder records at a time.

    Args:
        graph_trace: "node" records every kernel and copy inside a CUDA graph, "graph" one row per graph launch.
            "graph" must be started before the first CUDA call of the process.
        kinds: the kinds of activity to record, of `cupti_records.KINDS`; fewer kinds cost less.
        limit: maximum bytes of raw records to keep; later ones are dropped and counted in the trace's notes.
        stacks: whether to keep the Python stack of each call that launches, copies, waits or orders, as call chains of
            the trace, which costs about 10 us per call.

    Raises:
        UsageError: unknown kind or level.
        RecordError: no driver, no libcupti, or an unsupported version of it.
    """

    takes_nvtx = True

    def __init__(
        self, graph_trace: GraphTrace = "node", kinds: Iterable[str] = ALL_KINDS, limit: int = _LIMIT,
        stacks: bool = False,
    ) -> None:  # fmt: skip
        self.graph_trace = graph_trace
        self.kinds = tuple(kinds)
        if unknown := set(self.kinds) - set(ALL_KINDS):
            raise UsageError(f"CUPTI cannot record {', '.join(sorted(unknown))}; use {', '.join(ALL_KINDS)}")
        if graph_trace not in ("node", "graph"):
            raise UsageError(f"graph_trace is {graph_trace!r}; use node or graph")
        self.recording = False
        self._limit = limit
        self._process = _process()
        self._call_stacks = CallStacks(self._process.cupti) if stacks else None
        self._filled: list[bytes] = []
        self._ranges = OwnRanges()
        self._default_domain = NamedDefault()
        self._origin = 0
        self._last = 0
        self._idle = 0  # when it was last stopped and the device had ended its work
        self._pauses: list[Pause] = []
        self._dropped = 0
        self._trace: Trace | None = None
        if "nvtx" in self.kinds:
            os.environ.setdefault(INJECTION, self._process.cupti.path)  # read at the process's first NVTX call

    def start(self) -> None:
        """Start or resume recording.

        Raises:
            RecordError: another recorder or profiler is recording, or it is too late for graph-level tracing.
        """
        process = self._process
        cupti_library.refuse_other_profilers()
        if process.recorder is not None:
            raise RecordError("another CUPTI recorder is recording in this process; stop it first")
        if self.graph_trace == "graph" and not process.graph_level and process.driver.has_context():
            raise RecordError(
                "graph-level tracing must start before the first CUDA call of the process (CUPTI crashes on existing "
                "graphs): start the recorder first, or record with graph_trace='node'"
            )
        process.attach()
        process.buffers.keeping, process.buffers.limit = True, self._limit
        process.buffers.drain()
        now = time.time_ns()
        self._origin = self._origin or now
        enabled = []
        try:
            if self._call_stacks is not None:
                self._call_stacks.start()
            for kind in self._activities():
                if kind in activity.KINDS["descriptions"] and process.driver.has_context():
                    process.cupti.enable_and_dump(kind)
                else:
                    process.cupti.enable(kind)
                enabled.append(kind)
        except RecordError:
            if self._call_stacks is not None:
                self._call_stacks.stop()
            for kind in enabled:
                process.cupti.disable(kind)
            process.buffers.keeping = False
            process.detach()
            raise
        if self._origin < self._idle < now:
            self._pauses.append(Pause(self._idle - self._origin, now - self._origin))
        process.graph_level |= self.graph_trace == "graph"
        process.recorder = self
        if "nvtx" in self.kinds:
            self._default_domain.install()
        self.recording = True
        ranges.recording.append(self)
        self._trace = None
        atexit.register(self.stop)

    def stop(self) -> None:
        """Wait for the device, collect all records and detach CUPTI, so that there is no further overhead.

        After graph-level tracing CUPTI keeps timing the graphs that it has seen, and we discard these records.
        """
        if not self.recording:
            return
        atexit.unregister(self.stop)
        cupti = self._process.cupti
        if self._call_stacks is not None:
            self._call_stacks.stop()
        self.recording = False
        ranges.recording.remove(self)
        self._default_domain.remove()
        self._last = time.time_ns()
        for kind in self._activities(only=_HOST_SIDE):
            cupti.disable(kind)
        self._process.driver.synchronize()
        self._idle = time.time_ns()
        for kind in set(self._activities()) - set(self._activities(only=_HOST_SIDE)):
            cupti.disable(kind)
        self._take()
        self._process.buffers.keeping = False
        self._process.detach()
        self._process.recorder = None

    @property
    def stacks(self) -> dict[int, Stack]:
        """Correlation of a call -> its Python stack, if stacks are kept."""
        return self._call_stacks.stacks if self._call_stacks is not None else {}

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = -1) -> None:
        """Open an NVTX range on the calling thread."""
        self._ranges.push(text, payload, domain, color, self.recording)

    def pop_range(self) -> None:
        """Close the calling thread's innermost range; one opened while not recording leaves no row."""
        self._ranges.pop(self.recording)

    @property
    def trace(self) -> Trace:
        """Everything recorded so far, times in ns since the recording began."""
        if self.recording:
            self._last = time.time_ns()
            self._take()
        elif self._trace is not None:
            return self._trace
        cupti = self._process.cupti
        program = Path(sys.executable).name
        threads = {thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id}
        sources = Sources(self._origin, os.getpid(), c_string, CallNames(cupti.library), program, threads)
        trace = build(parse(self._filled, self._process.sizes), sources, self._ranges, self._last, self._dropped)
        trace.metadata |= activity.recorded(cupti.version, self.graph_trace, self.kinds)
        trace.notes += activity.of_version(cupti.version)
        add_pauses(trace, self._pauses)
        self._trace = with_chains(trace, self.stacks)
        return trace

    def _activities(self, only: Iterable[str] = ALL_KINDS) -> list[int]:
        chosen = [kind for name in self.kinds if name in only for kind in activity.KINDS[name]]
        if self.graph_trace == "graph" and "kernels" in self.kinds and "kernels" in only:
            chosen.insert(0, activity.GRAPH_TRACE)
        return chosen

    def _take(self) -> None:
        self._process.cupti.flush()
        self._dropped += self._process.cupti.dropped()
        self._filled += self._process.buffers.drain()


class NamedDefault:
    """Between `install` and `remove`, ranges that `nvtx` opens without a domain are opened in `STAND_IN`.

    Existing `nvtx.annotate` objects keep their domain. With a version of the package that looks up domains differently,
    nothing happens.
    """

    def __init__(self) -> None:
        self._original: Callable[[str | None], Any] | None = None

    def install(self) -> None:
        """Redirect the default domain; repeated calls do nothing."""
        original = getattr(package, _LOOKUP, None)
        if self._original is not None or original is None:
            return
        self._original = original
        setattr(package, _LOOKUP, lambda name: original(STAND_IN if name is None else name))

    def remove(self) -> None:
        """Restore the default domain."""
        if self._original is not None:
            setattr(package, _LOOKUP, self._original)
            self._original = None


class Buffers:
    """Gives CUPTI empty buffers and keeps the filled ones. One per process, as CUPTI has one pair of callbacks.

    While recording, nothing is copied or cleared: the callbacks only move addresses. Memory is allocated (without
    holding the GIL) in the callback that CUPTI's own thread calls.

    Attributes:
        limit: maximum bytes of records to keep; may be changed. Beyond it CUPTI gets no buffer, drops and counts.
        keeping: whether filled buffers are kept; False while not recording. CUPTI keeps tracing graphs that were
            launched under graph-level tracing, even after that is disabled.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.keeping = True
        self._kept = 0
        self._free: list[int] = []
        self._given: set[int] = set()
        self._filled: list[tuple[int, int]] = []
        self._map = ctypes.CDLL(None, use_errno=True).mmap
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
        for _ in range(_PREPARED):
            self._grow()
        # CUPTI stores only their addresses
        self.callbacks = cupti_library.REQUEST(self._give), cupti_library.COMPLETE(self._take)

    def register(self, cupti: Cupti) -> None:
        """Register the callbacks with CUPTI."""
        cupti.set_attribute(_ZEROED_OUT_ACTIVITY_BUFFER, ctypes.c_uint8(1))
        with suppress(RecordError):  # an older CUPTI
            cupti.set_attribute(_PER_THREAD_ACTIVITY_BUFFER, ctypes.c_uint8(1))
        cupti.register(*self.callbacks)

    def reclaim(self) -> None:
        """Take back the buffers that CUPTI did not return before it was detached."""
        for address in self._given:
            ctypes.memset(address, 0, SIZE)
        self._free += self._given
        self._given.clear()

    def drain(self) -> list[bytes]:
        """Copy all filled buffers and free them."""
        filled, self._filled, self._kept = self._filled, [], 0
        copies = []
        for address, valid in filled:
            copies.append(ctypes.string_at(address, valid))
            ctypes.memset(address, 0, valid)
            self._free.append(address)
        return copies

    def _grow(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE
        first = self._map(None, _SLAB, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if first is None or first == ctypes.c_void_p(-1).value:
            raise RecordError(f"not enough memory for another {_SLAB >> 20} MiB of CUPTI buffers")
        self._free += range(first, first + _SLAB, SIZE)

    def _give(self, buffer: Any, size: Any, most_records: Any) -> None:
        most_records[0] = 0  # as many as fit
        if self._kept < self.limit and self._free:
            buffer[0], size[0] = (address := self._free.pop()), SIZE
            self._given.add(address)
        else:
            buffer[0], size[0] = None, 0

    def _take(self, context: int | None, stream: int, buffer: int | None, size: int, valid: int) -> None:
        if buffer is None:
            return
        self._given.discard(buffer)
        if not (valid and self.keeping):
            ctypes.memset(buffer, 0, valid)
            self._free.append(buffer)
            return
        self._filled.append((buffer, valid))
        self._kept += valid
        if len(self._free) < _FEW and self._kept < self.limit:
            try:
                self._grow()
            except RecordError:
                self.limit = self._kept  # from here on records are dropped, and counted


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData of cupti_callbacks.h, CUDA 12.0 to 13.5 (64 bit)."""

    _fields_: ClassVar = [
        ("site", ctypes.c_int), ("function", ctypes.c_char_p), ("parameters", ctypes.c_void_p),
        ("return_value", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("context", ctypes.c_void_p),
        ("context_id", ctypes.c_uint32), ("correlation_data", ctypes.c_void_p), ("correlation", ctypes.c_uint32),
    ]  # fmt: skip


class CallStacks:
    """Keeps the stack of every such call between `start` and `stop`, by its correlation. CUPTI allows only one
    subscriber."""

    def __init__(self, cupti: Cupti) -> None:
        self.stacks: dict[int, Stack] = {}
        self._sites: dict[Stack, Stack] = {}  # each stack once, however many calls have it
        self._cupti = cupti
        self._callback = cupti_library.CALLBACK(self._called)  # CUPTI stores only its address
        self._subscriber: Any = None

    def start(self) -> None:
        """Subscribe. Raises RecordError if another profiler has subscribed in this process."""
        self._subscriber = self._cupti.subscribe(self._callback)
        for domain in DOMAINS:
            for cbid in _calls_of_interest(self._cupti.library, domain):
                self._cupti.enable_callback(self._subscriber, domain, cbid)

    def stop(self) -> None:
        """Unsubscribe, so that others can subscribe; does nothing without a subscription."""
        if self._subscriber is not None:
            self._cupti.unsubscribe(self._subscriber)
            self._subscriber = None

    def _called(self, user: int | None, domain: int, cbid: int, address: int | None) -> None:
        if address is None:
            return
        data = CallbackData.from_address(address)
        if data.site == _ENTER:
            stack = stack_here()
            self.stacks[data.correlation] = self._sites.setdefault(stack, stack)


@cache
def _calls_of_interest(library: ctypes.CDLL, domain: int) -> tuple[int, ...]:
    """The ids of a domain's calls that have one of the letters above."""
    return tuple(cbid for cbid, name in CallNames(library).known(domain).items() if letter(name) in _LETTERS)
