"""A ring of host memory that asynchronous copies read instead of the caller's memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


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
        self._bytes: Array = np.empty(0, np.uint8)
        self._taken = threading.Lock()

    def fill(self, source: Array) -> Array:
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

    def stage(self, source: Array) -> tuple[Array, StagingSlot]:
        """Copy the source to a slot; return the copy and the slot."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot.fill(source), slot
