"""What the CPU backend hands out: bound kernels, events, graphs; and the streams that work them off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from executor.backends.staging import Ticket
from executor.plans import Instruction

Work = Callable[[], None]
Program = Sequence[tuple[Instruction, "CpuKernel | None", int]]
"""Instructions with their kernels and their numbers in the plan."""


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A kernel bound to its arrays; the label is shown like a demangled name, `op(node)`.

    Attributes:
        key: what it does, and to what memory.
        reads: gives the bytes of weights that a run reads, or None; set for what is worth an activity on the host.
    """

    label: str
    run: Work
    key: Hashable = None
    reads: Callable[[], int | None] | None = None


@dataclass(slots=True)
class CpuEvent:
    """An event, and the ticket of its last issued record."""

    id: int
    recorded: Ticket | None = None


@dataclass(slots=True)
class CpuGraph:
    """An instantiated plan: each stream's instructions, kernels looked up and nodes numbered."""

    id: int
    programs: Mapping[int, Program]
    events: int


class CpuStream:
    """A queue and the thread that works it off; None ends it."""

    def __init__(self, number: int) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._work, name=f"cpu stream {number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def topology(graph: CpuGraph) -> Any:
    """Which instructions stand where."""
    return {
        stream: [(type(i), getattr(i, "event", None), number) for i, _, number in program]
        for stream, program in graph.programs.items()
    }
