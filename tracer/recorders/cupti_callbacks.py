"""Python stacks of CUDA calls, from CUPTI's callbacks at the entry of each call that launches, copies, waits or orders.

A stack matches an activity record by correlation id: `CUpti_CallbackData.correlationId` of a call equals that of the
call's record (cupti_callbacks.h).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, ClassVar, Final

from tracer.analysis.call_names import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, letter
from tracer.recorders.cupti_library import CALLBACK, Cupti
from tracer.recorders.cupti_names import CallNames
from tracer.recorders.stacks import Stack, stack_here

DOMAINS: Final = (1, 2)
"""Driver and runtime calls (`CUpti_CallbackDomain`)."""

_ENTER: Final = 0  # CUPTI_API_ENTER
_LETTERS: Final = frozenset((SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT))


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
