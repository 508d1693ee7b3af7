"""What CUPTI calls: two callbacks for the buffers that it fills, and one at each call whose Python stack is wanted.

These are the calls that launch, copy, wait or order. A stack matches an activity record by correlation id:
`CUpti_CallbackData.correlationId` of a call equals that of the call's record (cupti_callbacks.h).
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Final

from tracer.analysis.call_letters import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, letter
from tracer.errors import RecordError
from tracer.recorders.cupti_library import CALLBACK, COMPLETE, REQUEST, Cupti
from tracer.recorders.cupti_names import CallNames
from tracer.recorders.stacks import Stack, stack_here

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


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData of cupti_callbacks.h, CUDA 12.0 to 13.5 (64 bit)."""

    _fields_: ClassVar = [
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("return_value", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_id", ctypes.c_uint32),
        ("correlation_data", ctypes.c_void_p),
        ("correlation", ctypes.c_uint32),
    ]


class CallStacks:
    """Keeps the stack of every such call between `start` and `stop`. CUPTI allows only one subscriber.

    Args:
        cupti: the library to subscribe to.

    Attributes:
        stacks: correlation of a call -> its call site.
    """

    def __init__(self, cupti: Cupti) -> None:
        self.stacks: dict[int, Stack] = {}
        self._sites: dict[Stack, Stack] = {}  # each stack once, however many calls have it
        self._cupti = cupti
        self._callback = CALLBACK(self._called)  # CUPTI stores only its address
        self._subscriber: Any = None

    def start(self) -> None:
        """Subscribe.

        Raises:
            RecordError: another profiler has subscribed in this process.
        """
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
