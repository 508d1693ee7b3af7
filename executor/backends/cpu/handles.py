"""The handles of the CPU backend: bound kernels, events and graphs; the streams that run them; staging memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from executor.backends.cpu.kernels import BoundKernel
from executor.backends.interface import HostArray
from executor.planning.plans import Instruction


class Ticket:
    """A one-time event for any number of waiting threads. A bare lock is far cheaper than `threading.Event`."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def happen(self) -> None:
        """Release all present and future waiters. Call it once."""
        self._lock.release()

    def wait(self) -> None:
        """Return once it has happened."""
        with self._lock:
            pass


class StagingSlot:
    """One slot; taken from `stage` until the copy that reads it calls `free`."""

    def __init__(self) -> None:
        self._bytes: HostArray = np.empty(0, np.uint8)
        self._taken = threading.Lock()

    def fill(self, source: HostArray) -> HostArray:
        """Wait until the slot is free, take it, and return its copy of the source."""
        self._taken.acquire()
        if self._bytes.nbytes < source.nbytes:
            self._bytes = np.empty(source.nbytes, np.uint8)
        staged = self._bytes[: source.nbytes].view(source.dtype).reshape(source.shape)
        staged[...] = source
        return staged

    def free(self) -> None:
        """Release the slot after its copy. Any thread may call this."""
        self._taken.release()


class StagingRing:
    """Slots, taken in turn. If all are taken, the next copy waits for the oldest."""

    def __init__(self, slots: int) -> None:
        self._slots = [StagingSlot() for _ in range(slots)]
        self._next = 0

    def stage(self, source: HostArray) -> tuple[HostArray, StagingSlot]:
        """Copy the source to a slot; return the copy and the slot."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot.fill(source), slot


Program = Sequence[tuple[Instruction, "CpuKernel | None", int]]
"""Instructions with their kernels and their numbers in the plan."""


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A kernel bound to its arrays; its label `op(node)` takes the place of a demangled name.

    Attributes:
        key: identifies the computation and its memory.
        reads: returns the bytes of weights that a run reads, or None; set for kernels shown as a host activity.
    """

    label: str
    run: BoundKernel
    key: Hashable = None
    reads: Callable[[], int | None] | None = None


@dataclass(slots=True)
class CpuEvent:
    """An event and the ticket of its latest issued record."""

    id: int
    recorded: Ticket | None = None


@dataclass(slots=True)
class CpuGraph:
    """An instantiated plan: the instructions of each stream, with bound kernels and numbered nodes."""

    id: int
    programs: Mapping[int, Program]
    events: int


class CpuStream:
    """A queue and the thread that processes it; None ends the thread."""

    def __init__(self, number: int) -> None:
        self._queue: SimpleQueue[BoundKernel | None] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._work, name=f"cpu stream {number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def topology(graph: CpuGraph) -> Any:
    """Return the kind, event and number of every instruction, by stream."""
    return {
        stream: [(type(i), getattr(i, "event", None), number) for i, _, number in program]
        for stream, program in graph.programs.items()
    }
