"""The order of work that streams, events and syncs guarantee.

This is happens-before (Lamport, CACM 21(7), 1978). Instead of a vector clock, each piece of work has the bit set of all
work before it, which shows whether any two are ordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.graph import Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.plans import Instruction, Launch, Record, Wait

HOST_STREAM: Final = -1
"""Work of the host itself: after all work that it waited for, before all that it issues later."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes that a piece of work accesses.

    Attributes:
        owner: the tensor that owns them, for messages.
        buffer: the memory that contains them.
    """

    owner: Tensor
    buffer: str
    start: int
    end: int
    writes: bool

    def clashes_with(self, other: Extent) -> bool:
        """Whether both access the same bytes and at least one writes."""
        together = self.buffer == other.buffer and self.start < other.end and other.start < self.end
        return together and (self.writes or other.writes)


@dataclass(frozen=True, slots=True)
class Touch:
    """A piece of work that accesses these bytes, on a stream or on the host (`HOST_STREAM`).

    Attributes:
        where: description of the stream.
        step: the step that it belongs to.
    """

    name: str
    stream: int
    spans: tuple[Extent, ...]
    where: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """The copy of an input to the device, or of an output to the host."""

    stream: int
    tensor: Tensor
    to_device: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for a stream: everything it issues later, to any stream, runs after that stream's work."""

    stream: int


@dataclass(frozen=True, slots=True)
class EventSync:
    """The host waits for an event's latest record."""

    event: int


Work = Launch | Transfer | Touch
Item = Instruction | Transfer | Touch | Sync | EventSync


@dataclass(frozen=True)
class Order:
    """The order of the work in a program.

    Attributes:
        work: launches and copies, in issue order.
        before: for each of them, the bit set of those that run before it.
        closed: whether all work runs after the main stream's start and before its end.
    """

    work: Sequence[Work]
    before: Sequence[int]
    closed: bool


def happens_before(program: Sequence[Item], streams: int) -> Order:
    """Follow stream order, events and syncs through a program issued from one host thread."""
    known = [0] * streams  # per stream: the work before the next item; bit 0 is the main stream's start
    known[MAIN_STREAM] = 1
    host = 0
    recorded: dict[int, int] = {}
    work: list[Work] = []
    before: list[int] = []
    closed = True
    for item in program:
        if isinstance(item, Record):
            recorded[item.event] = known[item.stream]
        elif isinstance(item, Wait):
            known[item.stream] |= recorded.get(item.event, 0)
        elif isinstance(item, Sync):
            host |= known[item.stream]
        elif isinstance(item, EventSync):
            host |= recorded.get(item.event, 0)
        else:
            on_host = item.stream == HOST_STREAM
            seen = host if on_host else known[item.stream] | host
            closed = closed and bool(seen & 1)
            before.append(seen >> 1)
            work.append(item)
            if on_host:
                host |= 1 << len(work)
            else:
                known[item.stream] = seen | 1 << len(work)
    everything = (1 << (len(work) + 1)) - 1
    return Order(work, before, closed and known[MAIN_STREAM] == everything)
