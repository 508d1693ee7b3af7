"""Pass 7: find accesses of different streams to the same bytes whose order is not guaranteed.

What streams, events and syncs guarantee is happens-before, see `tracer.races.order`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.graph import Flag, Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.devices import Split
from executor.planning.plans import Instruction, Launch, Plan, Record, Wait
from tracer.races.order import Accesses
from tracer.races.order import Order as Operations
from tracer.races.program import Program

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
        numbers: the number of each of them among all operations.
        items: the number of each item of the program, in its order.
        operations: the order of these: work, records, waits and syncs.
        closed: whether all work runs after the main stream's start and before its end.
    """

    work: Sequence[Work]
    numbers: Sequence[int]
    items: Sequence[int]
    operations: Operations
    closed: bool

    def before(self, first: int, second: int) -> bool:
        """Whether a piece of work, by its position, runs before another one."""
        return bool(self.operations.before(np.array(self.numbers[first]), np.array(self.numbers[second])))


def happens_before(program: Sequence[Item]) -> Order:
    """Follow stream order, events and syncs through a program issued from one host thread."""
    taken = Program()
    start = taken.work(MAIN_STREAM)
    work: list[Work] = []
    numbers: list[int] = []
    items: list[int] = []
    for item in program:
        items.append(_added(taken, item))
        if not isinstance(item, Record | Wait | Sync | EventSync):
            numbers.append(items[-1])
            work.append(item)
    end, order = taken.work(MAIN_STREAM, None), taken.order
    each = np.array(numbers, np.int64)
    closed = order.before(np.full(len(each), start), each) & order.before(each, np.full(len(each), end))
    return Order(work, numbers, items, order, bool(closed.all()))


def _added(program: Program, item: Item) -> int:
    """Add an item to a program; return its number there."""
    if isinstance(item, Record):
        return program.record(item.event, item.stream)
    if isinstance(item, Wait):
        return program.wait(item.event, item.stream)
    if isinstance(item, Sync):
        return program.sync(item.stream)
    if isinstance(item, EventSync):
        return program.sync_event(item.event)
    return program.host() if item.stream == HOST_STREAM else program.work(item.stream)


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
    ordered = happens_before(program)
    if ordered.closed:
        return unordered(ordered, offsets)
    twice = [*program, *program]
    return unordered(happens_before(twice), offsets, step=len(ordered.work))


def unordered(order: Order, offsets: Mapping[Tensor, int], step: int | None = None) -> list[Hazard]:
    """Find all conflicting pairs of accesses that the order leaves unordered.

    Args:
        step: number of pieces of work per step; None if all are in one step.
    """
    touched = touched_by(order.work, offsets)
    born: dict[Tensor, int] = {}  # position of a tensor's first write
    for k, span in touched:
        if span.writes:
            born.setdefault(span.owner, k)
    hazards: list[Hazard] = []
    clashes = order.operations.clashes(accesses_of(order, touched))
    for a, b in zip(clashes.first.tolist(), clashes.second.tolist(), strict=True):
        (j, one), (i, other) = touched[a], touched[b]
        first, second = access_of(order.work, j, one, step), access_of(order.work, i, other, step)
        if first.step == second.step and born.get(other.owner, 0) < born.get(one.owner, 0):
            first, second = second, first
        hazards.append(Hazard(first, second, max(one.start, other.start), min(one.end, other.end), one.buffer))
    return hazards


def touched_by(work: Sequence[Work], offsets: Mapping[Tensor, int]) -> list[tuple[int, Extent]]:
    """Return the position of each piece of work with each span that it accesses."""
    return [(k, span) for k, item in enumerate(work) for span in _touched(item, offsets)]


def accesses_of(order: Order, touched: Sequence[tuple[int, Extent]]) -> Accesses:
    """The spans that pieces of work, by their positions, access."""
    buffers: dict[str, int] = {}
    numbers = np.array([order.numbers[k] for k, _ in touched], np.int64)
    by_host = np.array([item.stream == HOST_STREAM for item in order.work], bool)
    spans = [(buffers.setdefault(span.buffer, len(buffers)), span.start, span.end, span.writes) for _, span in touched]
    buffer, start, end, writes = np.array(spans, np.int64).reshape(-1, 4).T
    at = np.array([k for k, _ in touched], np.int64)
    return Accesses(numbers, buffer, start, end, writes.astype(bool), by_host[at], np.zeros(len(at), bool))


def access_of(work: Sequence[Work], k: int, span: Extent, step: int | None = None) -> Access:
    """Describe the access of a piece of work, by its position, to a span; `step` as in `unordered`."""
    item, number = work[k], k // step if step else 0
    if isinstance(item, Touch):
        return Access(item.name, item.stream, item.step, span.owner, span.writes, item.where)
    name = f"copy of {item.tensor.name}" if isinstance(item, Transfer) else item.node.name
    return Access(name, item.stream, number, span.owner, span.writes)


def _touched(work: Work, offsets: Mapping[Tensor, int]) -> Sequence[Extent]:
    """Return one span per tensor and length; read and written counts as written."""
    if isinstance(work, Touch):
        return work.spans
    if isinstance(work, Transfer):
        return [_span(work.tensor, offsets, work.to_device)]
    written = [_span(tensor, offsets, writes=True) for tensor in (work.node, *work.node.updates)]
    read = {(source.root, source.nbytes): source for source in work.node.src}
    own = {(span.owner, span.end - span.start) for span in written}
    others = (tensor for key, tensor in read.items() if key not in own and not key[0].flags & Flag.WEIGHT)
    return [*written, *(_span(tensor, offsets, writes=False) for tensor in others)]


def _span(tensor: Tensor, offsets: Mapping[Tensor, int], writes: bool) -> Extent:
    owner = tensor.root
    start = offsets.get(owner)
    if start is None:
        return Extent(owner, owner.name, 0, tensor.nbytes, writes)
    return Extent(owner, ARENA, start, start + tensor.nbytes, writes)
