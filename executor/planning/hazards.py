"""Pass 7: find accesses of different streams to the same bytes whose order is not guaranteed.

What streams, events and syncs guarantee is happens-before (Lamport, CACM 21(7), 1978). Instead of a vector clock, each
piece of work has the bit set of all work before it, which shows whether any two are ordered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from executor.graph import Flag, Tensor
from executor.planning.concurrency import MAIN_STREAM, bits
from executor.planning.devices import Split
from executor.planning.plans import Instruction, Launch, Plan, Record, Wait

ARENA: Final = "the arena"

HOST_STREAM: Final = -1
"""Work of the host itself: after all work that it waited for, before all that it issues later."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a buffer that a piece of work accesses, and the tensor that owns them, for messages."""

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
    """A piece of work that accesses these bytes, on a stream or on the host (`HOST_STREAM`), as `where` says."""

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


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a piece of work to a tensor's bytes.

    Attributes:
        step: 0, 1 for the next step, and so on.
        tensor: the owner of the bytes.
        where: description of the stream, if its number is not enough.
    """

    name: str
    stream: int
    step: int
    tensor: Tensor
    writes: bool
    where: str = ""

    @property
    def place(self) -> str:
        """The work and its stream."""
        where = self.where or f"stream {self.stream}"
        step = {0: "", 1: "next step, "}.get(self.step, f"{self.step} steps later, ")
        return f"{self.name} ({step}{where})"

    def __str__(self) -> str:
        return f"{self.place} {'writes' if self.writes else 'reads'} {self.tensor.name}"


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two accesses to the same bytes, at least one a write, whose order is not guaranteed.

    Attributes:
        first: the access that must come first: to the tensor written first, or for one tensor, the one issued first.
        start: first byte that both access, within `buffer`.
        buffer: the arena, or the state that owns the bytes.
    """

    first: Access
    second: Access
    start: int
    end: int
    buffer: str

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} in bytes {self.start}-{self.end - 1} of {self.buffer}: "
            f"needs an edge from {self.first.place} to {self.second.place}"
        )


def find_hazards(split: Split, plan: Plan, offsets: Mapping[Tensor, int]) -> list[Hazard]:
    """Find all hazards of a plan, within a step and between consecutive steps, in the order of their later access.

    Hazards between steps exist only if the plan does not start and end on the main stream; otherwise consecutive steps
    are fully ordered.
    """
    program = [  # without syncs: the weakest possible strategy
        *(Transfer(MAIN_STREAM, tensor, to_device=True) for tensor in split.inputs),
        *plan.instructions,
        *(Transfer(MAIN_STREAM, node, to_device=False) for node in split.nodes if node.flags & Flag.OUTPUT),
    ]
    ordered = happens_before(program, plan.streams)
    if ordered.closed:
        return unordered(ordered, offsets)
    twice = [*program, *program]
    return unordered(happens_before(twice, plan.streams), offsets, step=len(ordered.before))


def unordered(order: Order, offsets: Mapping[Tensor, int], step: int | None = None) -> list[Hazard]:
    """Find all conflicting pairs of accesses that the order leaves unordered.

    Args:
        step: number of pieces of work per step; None if all are in one step.
    """
    spans = _Spans(order.work, offsets)
    touched = spans.touched
    born: dict[Tensor, int] = {}  # position of a tensor's first write
    for i, of_work in enumerate(touched):
        for span in of_work:
            if span.writes:
                born.setdefault(span.owner, i)
    hazards: list[Hazard] = []
    for j, i in _open_pairs(order, spans, touched):
        for one, other in product(touched[j], touched[i]):
            if one.clashes_with(other):
                first, second = _access(order.work, j, one, step), _access(order.work, i, other, step)
                if first.step == second.step and born.get(other.owner, 0) < born.get(one.owner, 0):
                    first, second = second, first
                start, end = max(one.start, other.start), min(one.end, other.end)
                hazards.append(Hazard(first, second, start, end, one.buffer))
    return hazards


def _open_pairs(order: Order, spans: _Spans, touched: Sequence[Sequence[Extent]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of unordered work, in issue order, that share bytes which at least one of them writes.

    The bytes are cut wherever a tensor starts or ends; two bit sets per piece hold its writers and its users.
    """
    wrote: dict[tuple[str, int], int] = {}
    used: dict[tuple[str, int], int] = {}
    for i, before in enumerate(order.before):
        open_pairs = 0
        for span in touched[i]:
            for piece in spans.pieces(span):
                open_pairs |= (used if span.writes else wrote).get(piece, 0) & ~before
        yield from ((j, i) for j in bits(open_pairs))
        for span in touched[i]:
            for piece in spans.pieces(span):
                used[piece] = used.get(piece, 0) | 1 << i
                if span.writes:
                    wrote[piece] = wrote.get(piece, 0) | 1 << i


def _access(work: Sequence[Work], k: int, span: Extent, step: int | None) -> Access:
    item, number = work[k], k // step if step else 0
    if isinstance(item, Touch):
        return Access(item.name, item.stream, item.step, span.owner, span.writes, item.where)
    name = f"copy of {item.tensor.name}" if isinstance(item, Transfer) else item.node.name
    return Access(name, item.stream, number, span.owner, span.writes)


class _Spans:
    """The bytes that each piece of work accesses (`touched`), and the pieces that they are cut into."""

    def __init__(self, work: Sequence[Work], offsets: Mapping[Tensor, int]) -> None:
        self._offsets = offsets
        self.touched = [self._of(item) for item in work]
        ends = {edge for tensor, start in offsets.items() for edge in (start, start + tensor.nbytes)}
        ends |= {span.end for of_item in self.touched for span in of_item if span.buffer == ARENA}
        self._cuts = sorted(ends)
        self._pieces: dict[Extent, list[tuple[str, int]]] = {}

    def _of(self, work: Work) -> Sequence[Extent]:
        """Return one span per tensor and length; read and written counts as written."""
        if isinstance(work, Touch):
            return work.spans
        if isinstance(work, Transfer):
            return [self._span(work.tensor, work.to_device)]
        written = [self._span(tensor, writes=True) for tensor in (work.node, *work.node.updates)]
        read = {(source.root, source.nbytes): source for source in work.node.src}
        own = {(span.owner, span.end - span.start) for span in written}
        others = (tensor for key, tensor in read.items() if key not in own and not key[0].flags & Flag.WEIGHT)
        return [*written, *(self._span(tensor, writes=False) for tensor in others)]

    def pieces(self, span: Extent) -> list[tuple[str, int]]:
        if span.buffer != ARENA:
            return [(span.buffer, 0)]
        if span not in self._pieces:
            low, high = bisect_left(self._cuts, span.start), bisect_left(self._cuts, span.end)
            self._pieces[span] = [(ARENA, piece) for piece in range(low, high)]
        return self._pieces[span]

    def _span(self, tensor: Tensor, writes: bool) -> Extent:
        owner = tensor.root
        start = self._offsets.get(owner)
        if start is None:
            return Extent(owner, owner.name, 0, tensor.nbytes, writes)
        return Extent(owner, ARENA, start, start + tensor.nbytes, writes)
