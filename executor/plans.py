"""Pass 6: the instructions of a split, in the order in which the host issues them to streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.concurrency import MAIN_STREAM, Region, map_streams
from executor.graph import Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a node's kernel."""

    stream: int
    node: Tensor


@dataclass(frozen=True, slots=True)
class Record:
    """Record an event: it happens when everything issued to the stream before has run."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Let what is issued to the stream after this wait for an event."""

    stream: int
    event: int


Instruction = Launch | Record | Wait


@dataclass(frozen=True)
class Plan:
    """What a split does on its backend; it starts and ends on the main stream.

    Attributes:
        instructions: in issue order.
        streams: how many streams they use.
        events: how many events they use, each recorded once.
    """

    instructions: tuple[Instruction, ...]
    streams: int
    events: int

    @property
    def launches(self) -> list[Launch]:
        """The kernels, in issue order."""
        return [i for i in self.instructions if isinstance(i, Launch)]

    def on_stream(self, stream: int) -> list[Instruction]:
        """One stream's instructions, in order."""
        return [i for i in self.instructions if i.stream == stream]


def make_plan(nodes: Sequence[Tensor], regions: Sequence[Region]) -> Plan:
    """Launch every kernel on its stream, with an event at each fork and one per branch at each join."""
    streams = map_streams(nodes, regions)
    forks = {region.fork: region for region in regions}
    joins = {region.join: region for region in regions}
    instructions: list[Instruction] = []
    events = 0
    for i, node in enumerate(nodes):
        if i in joins:
            for stream, _ in enumerate(joins[i].branches, start=MAIN_STREAM + 1):
                instructions += [Record(stream, events), Wait(streams[i], events)]
                events += 1
        if node.has_kernel:
            instructions.append(Launch(streams[i], node))
        if i in forks:
            instructions.append(Record(streams[i], events))
            instructions += [Wait(s, events) for s, _ in enumerate(forks[i].branches, start=MAIN_STREAM + 1)]
            events += 1
    return Plan(tuple(instructions), max(streams, default=MAIN_STREAM) + 1, events)
