"""Which pieces of work come before which: what stream order, events and syncs fix.

That is happens-before (Lamport, CACM 21(7), 1978). Instead of vector clocks each piece of work has the bit set of all
work before it: that answers for all pairs at once which of them are ordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.concurrency import MAIN_STREAM
from executor.graph import Tensor
from executor.plans import Instruction, Launch, Record, Wait

HOST_STREAM: Final = -1
"""What the host itself does: after all that it waited for, before all that it issues later."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that a piece of work touches.

    Attributes:
        owner: the tensor that they are, for the message.
        buffer: the memory that they are in.
    """

    owner: Tensor
    buffer: str
    start: int
    end: int
    writes: bool

    def clashes_with(self, other: Span) -> bool:
        """Whether they share bytes, and one writes."""
        together = self.buffer == other.buffer and self.start < other.end and other.start < self.end
        return together and (self.writes or other.writes)


@dataclass(frozen=True, slots=True)
class Touch:
    """A piece of work that touches these bytes: on a stream, or of the host (`HOST_STREAM`).

    Attributes:
        where: the stream in words.
        step: the step that it belongs to.
    """

    name: str
    stream: int
    spans: tuple[Span, ...]
    where: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of an input to the device, or of an output to the host."""

    stream: int
    tensor: Tensor
    to_device: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for a stream: what it issues afterwards, to any stream, comes after that stream's work."""

    stream: int


@dataclass(frozen=True, slots=True)
class EventSync:
    """The host waits for an event's last record."""

    event: int


Work = Launch | Copy | Touch
Item = Instruction | Copy | Touch | Sync | EventSync


@dataclass(frozen=True)
class Order:
    """What is ordered in a program.

    Attributes:
        work: launches and copies, in issue order.
        before: for each of them, the bit set of those that come before it.
        closed: whether all of it comes after the main stream's start and before its end.
    """

    work: Sequence[Work]
    before: Sequence[int]
    closed: bool


def happens_before(program: Sequence[Item], streams: int) -> Order:
    """Follow stream order, events and syncs through a program, issued from one host thread."""
    known = [0] * streams  # what has run before the next thing on a stream does; bit 0 is the main stream's start
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
