"""Pass 5: the instructions of a split, in the order in which the host issues them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from executor.graph import Tensor
from executor.planning.concurrency import MAIN_STREAM, Dependencies, bits

_START: Final = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a node's kernel."""

    stream: int
    node: Tensor


@dataclass(frozen=True, slots=True)
class Record:
    """Record an event, which completes when all earlier work of the stream has run."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Make later work of the stream wait for an event."""

    stream: int
    event: int


Instruction = Launch | Record | Wait


@dataclass(frozen=True, slots=True)
class Subplan:
    """A plan issued by one graph launch, whose main stream is the stream of the launch."""

    stream: int
    plan: Plan


@dataclass(frozen=True)
class Plan:
    """The work of a split on its backend. It starts and ends on the main stream.

    Attributes:
        instructions: in issue order.
        events: number of events used, each recorded once.
        cut: whether `parts` are cut at events; otherwise the plan is one part.
        whole: whether this is an entire step.
    """

    instructions: tuple[Instruction, ...]
    streams: int
    events: int
    cut: bool = False
    whole: bool = True

    @property
    def launches(self) -> list[Launch]:
        """The kernels, in issue order."""
        return [i for i in self.instructions if isinstance(i, Launch)]

    @property
    def parts(self) -> list[Subplan | Record | Wait]:
        """The graphs to launch, and the records and waits between them, in issue order."""
        if not self.cut:
            return [Subplan(MAIN_STREAM, self)]
        parts: list[tuple[int, Subplan | Record | Wait]] = []  # each at the place of its last instruction
        for stream in range(self.streams):
            own = ((place, i) for place, i in enumerate(self.instructions) if i.stream == stream)
            for launches, group in groupby(own, key=lambda placed: isinstance(placed[1], Launch)):
                placed = list(group)
                if launches:
                    nodes = tuple(Launch(MAIN_STREAM, i.node) for _, i in placed if isinstance(i, Launch))
                    parts.append((placed[-1][0], Subplan(stream, Plan(nodes, streams=1, events=0, whole=False))))
                else:
                    parts += [(place, i) for place, i in placed if not isinstance(i, Launch)]
        return [part for _, part in sorted(parts, key=lambda placed: placed[0])]


def make_plan(nodes: Sequence[Tensor], order: Dependencies, streams: Sequence[int], *, cut: bool = False) -> Plan:
    """Launch every kernel on its stream, with the fewest events and waits that preserve the order.

    A stream waits for a kernel only if neither stream order nor an earlier wait implies that it has run. All work runs
    after the start on the main stream and before the end on the main stream.
    """
    waits = _waits(order, streams)
    events: dict[int, int] = {}
    for i in sorted({awaited for awaited_by in waits.values() for awaited in awaited_by}):
        events[i] = len(events)
    instructions: list[Instruction] = []
    if _START in events:
        instructions.append(Record(MAIN_STREAM, events[_START]))
    for i in bits(order.kernels):
        instructions += [Wait(streams[i], events[awaited]) for awaited in waits[i]]
        instructions.append(Launch(streams[i], nodes[i]))
        if i in events:
            instructions.append(Record(streams[i], events[i]))
    instructions += [Wait(MAIN_STREAM, events[awaited]) for awaited in waits[len(nodes)]]
    used = max((i.stream for i in instructions), default=MAIN_STREAM) + 1
    return Plan(tuple(instructions), used, len(events), cut)


def _waits(order: Dependencies, streams: Sequence[int]) -> dict[int, list[int]]:
    """Return, for every kernel and for the end, the kernels (or the start) to wait for.

    The latest kernel is taken first: earlier kernels cannot imply it, but it may imply them. No wait is therefore
    implied by the others.
    """
    end = len(streams)
    known = dict.fromkeys({MAIN_STREAM, *streams}, 0)  # per stream: the work known to have run; bit 0 is the start
    known[MAIN_STREAM] = 1
    seen = {_START: 1}  # per kernel: the work known to have run after it
    waits: dict[int, list[int]] = {}
    for i in (*bits(order.kernels), end):
        stream = MAIN_STREAM if i == end else streams[i]
        missing = ((order.kernels if i == end else order.needs[i]) << 1 | 1) & ~known[stream]
        waits[i] = []
        while missing:
            latest = missing.bit_length() - 2
            waits[i].append(latest)
            known[stream] |= seen[latest]
            missing &= ~known[stream]
        known[stream] |= 1 << (i + 1)
        seen[i] = known[stream]
    return waits
