"""The CUPTI recorder: CUDA activity of this process, on the host and on the device.

CUPTI writes raw records into our buffers. No Python code runs per record, neither while recording nor when the trace is
built. Its clock is CLOCK_REALTIME.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from tracer.errors import RecordError, UsageError
from tracer.model.trace import Pause, Trace, add_pauses
from tracer.recorders import cupti_activity as activity
from tracer.recorders import ranges
from tracer.recorders.cupti_activity import parse
from tracer.recorders.cupti_callbacks import Buffers, CallStacks
from tracer.recorders.cupti_library import INJECTION, Cupti, Driver, find, refuse_other_profilers
from tracer.recorders.cupti_names import CallNames, Sources, c_string
from tracer.recorders.cupti_nvtx import NamedDefault, OwnRanges
from tracer.recorders.cupti_tables import build
from tracer.recorders.stacks import Stack, with_chains

GraphTrace = Literal["node", "graph"]

ALL_KINDS: Final = activity.SETS["all"]
_HOST_SIDE: Final = ("api", "syncs", "cuda_events", "nvtx")  # disabled before stop() waits for the device
_LIMIT: Final = 4 << 30


class _Process:
    """CUPTI in this process: one library, one pair of callbacks, one recorder at a time."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.cupti = Cupti(find())
        self.sizes = activity.sizes(self.cupti.version)
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


@lru_cache(maxsize=1)
def _process() -> _Process:
    return _Process()


class CuptiRecorder:
    """Records CUDA activity of this process. `start` and `stop` may alternate; only one recorder records at a time.

    Args:
        graph_trace: "node" records every kernel and copy inside a CUDA graph, "graph" one row per graph launch.
            "graph" must be started before the first CUDA call of the process.
        kinds: the kinds of activity to record, of `cupti_activity.KINDS`; fewer kinds cost less.
        limit: maximum bytes of raw records to keep; later ones are dropped and counted in the trace's notes.
        stacks: whether to keep the Python stack of each call that launches, copies, waits or orders, as call chains of
            the trace, which costs about 10 us per call.

    Raises:
        UsageError: unknown kind or level.
        RecordError: no driver, no libcupti, or an unsupported version of it.
    """

    takes_nvtx = True

    def __init__(
        self,
        graph_trace: GraphTrace = "node",
        kinds: Iterable[str] = ALL_KINDS,
        limit: int = _LIMIT,
        stacks: bool = False,
    ) -> None:
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
        refuse_other_profilers()
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
        trace.metadata |= {
            "source": f"cupti {activity.version_name(cupti.version)}",
            "graph_trace": self.graph_trace,
            "kinds": list(self.kinds),
        }
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
