"""The handles of the CPU backend: bound kernels, events and graphs; and the streams that run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from executor.backends.cpu.staging import Ticket
from executor.planning.plans import Instruction

Work = Callable[[], None]
Program = Sequence[tuple[Instruction, "CpuKernel | None", int]]
"""Instructions with their kernels and their numbers in the plan."""


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A kernel bound to its arrays; its label `op(node)` takes the place of a demangled name.

    Attributes:
        key: identifies the computation and its memory.
        reads: returns the bytes of weights that a run reads, or None; set for kernels shown as a host activity.
    """

    label: str
    run: Work
    key: Hashable = None
    reads: Callable[[], int | None] | None = None


@dataclass(slots=True)
class CpuEvent:
    """An event and the ticket of its latest issued record."""

    id: int
    recorded: Ticket | None = None


@dataclass(slots=True)
class CpuGraph:
    """An instantiated plan: the instructions of each stream, with bound kernels and numbered nodes."""

    id: int
    programs: Mapping[int, Program]
    events: int


class CpuStream:
    """A queue and the thread that processes it; None ends the thread."""

    def __init__(self, number: int) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._work, name=f"cpu stream {number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def topology(graph: CpuGraph) -> Any:
    """Return the kind, event and number of every instruction, by stream."""
    return {
        stream: [(type(i), getattr(i, "event", None), number) for i, _, number in program]
        for stream, program in graph.programs.items()
    }
