"""The buffers that CUPTI fills: a pool with two callbacks."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any, Final

from tracer.errors import RecordError
from tracer.recorders.cupti_library import COMPLETE, REQUEST, Cupti

SIZE: Final = 256 * 1024  # bytes; large enough that callbacks are rare, small enough that `parse` walks many at once
_SLAB: Final = 64 * SIZE
_PREPARED: Final = 4  # slabs
_FEW: Final = 32  # buffers
_POPULATE: Final = 0x8000  # MAP_POPULATE: avoids page faults on the application's thread
_ZEROED_OUT_ACTIVITY_BUFFER: Final = 5  # CUpti_ActivityAttribute: buffers are already cleared, CUPTI need not do it
_PER_THREAD_ACTIVITY_BUFFER: Final = 9  # CUpti_ActivityAttribute, CUDA 12.3: no lock between threads


class Buffers:
    """Gives CUPTI empty buffers and keeps the filled ones. One per process, as CUPTI has one pair of callbacks.

    While recording, nothing is copied or cleared: the callbacks only move addresses. Memory is allocated (without
    holding the GIL) in the callback that CUPTI's own thread calls.

    Args:
        limit: maximum bytes of records to keep. Beyond it CUPTI gets no buffer, drops records and counts them.

    Attributes:
        limit: the same; may be changed.
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
        self.callbacks = REQUEST(self._give), COMPLETE(self._take)  # CUPTI stores only their addresses

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
