"""A device in virtual time: streams of work in ns, whose kernels share the memory bandwidth; and its kernels' costs.

A piece of work is a chain of stages. A stage first takes a fixed time, in which nothing is shared, and then moves its
bytes, at its own maximum rate or its share of the bandwidth, whichever is lower (latency + size / bandwidth: Hockney,
Parallel Computing 20, 1994; the shares are max-min fair: Bertsekas and Gallager, Data Networks, 1992, 6.5.2). Latencies
therefore overlap, and memory-bound kernels slow each other down. The device ticks in whole ns: a transfer ends at the
tick after its last byte, and the same work takes the same time whenever it starts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from executor.backends.sim.profiles import Profile
from executor.graph import Tensor
from executor.graph.fusion import PARTS, outer_sources
from executor.planning.plans import Launch, Plan, Record
from tracer.errors import ExecutionError


class Stage(NamedTuple):
    """A kernel, a copy, or a whole graph: fixed_ns, then nbytes at ns_per_byte or slower."""

    fixed_ns: int
    nbytes: int = 0
    ns_per_byte: float = 0


Span = tuple[int, int]
"""Start and end, ns."""


@dataclass(slots=True)
class Task:
    """A sequence of stages.

    Attributes:
        ready: its earliest start, ns.
        after_ns: the minimum time between it and the previous work on its stream.
        done: called with the spans of the stages at the end.
    """

    ready: int
    stages: Sequence[Stage]
    after_ns: int = 0
    done: Callable[[list[Span]], None] | None = None
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class Fence:
    """A point in a stream, such as an event's record; `time` is None until it is known."""

    queue: int
    ready: int = 0
    time: int | None = None


@dataclass(slots=True)
class FenceWait:
    """A stream waits for a fence."""

    fence: Fence
    ready: int = 0


Item = Task | Fence | FenceWait
_NEVER: Final = float("inf")


@dataclass(slots=True)
class _Running:
    """The current stage of a piece of work: in its fixed time until `until`, or (None) with `left` bytes to move."""

    work: Task
    start: int
    until: int | None
    left: float


class VirtualDevice:
    """Streams, simulated only as far as results are requested.

    A caller that has requested the time of a fence may afterwards only submit work that is ready at that time or later.
    Later work therefore never changes an earlier result.

    Args:
        edge_ns: from a fence on one stream to the work that waits for it on another.
    """

    def __init__(self, bytes_per_ns: float, edge_ns: int) -> None:
        self._bandwidth, self._edge_ns = bytes_per_ns, edge_ns
        self._queues: dict[int, deque[Item]] = {}
        self._free: dict[int, int] = {}
        self._running: dict[int, _Running] = {}
        self._now = 0

    def submit(self, queue: int, item: Item) -> None:
        """Append an item to a stream."""
        self._queues.setdefault(queue, deque()).append(item)
        self._free.setdefault(queue, 0)

    def fence(self, queue: int) -> Fence:
        """Mark the end of the work submitted to a stream so far."""
        fence = Fence(queue)
        self.submit(queue, fence)
        return fence

    def finish(self, fence: Fence) -> int:
        """Simulate until a fence is passed; return the time of the fence.

        Raises:
            ExecutionError: the fence is never passed, because streams wait for a fence that is not submitted.
        """
        while fence.time is None:
            self._settle()
            if fence.time is None:
                self._advance()
        return fence.time

    def drain(self) -> int:
        """Simulate all submitted work; return the time when the last stream is done."""
        return max((self.finish(self.fence(queue)) for queue in list(self._queues)), default=0)

    def _settle(self) -> None:
        """Pass all fences, and waits for passed fences, that idle streams have reached."""
        passed = True
        while passed:
            passed = False
            for queue, items in self._queues.items():
                while items and queue not in self._running and self._pass(queue, items[0]):
                    items.popleft()
                    passed = True

    def _pass(self, queue: int, item: Item) -> bool:
        if isinstance(item, Fence):
            item.time = max(self._free[queue], item.ready)
        elif isinstance(item, FenceWait) and item.fence.time is not None:
            happened = item.fence.time + (self._edge_ns if item.fence.queue != queue else 0)
            self._free[queue] = max(self._free[queue], item.ready, happened)
        else:
            return False
        return True

    def _advance(self) -> None:
        """Advance to the next start of work, end of a fixed time, or end of a transfer."""
        rates = self._rates()
        events = list(self._starts())
        for queue, running in self._running.items():
            if running.until is None:
                events.append((self._now + max(math.ceil(running.left / rates[queue]), 0), queue))
            else:
                events.append((running.until, queue))
        if not events:
            raise ExecutionError("the device waits for an event that is never recorded")
        now, queue = min(events)
        for moving, rate in rates.items():
            self._running[moving].left -= (now - self._now) * rate
        self._now = now
        if queue not in self._running:
            work = self._queues[queue].popleft()
            if isinstance(work, Task):
                self._enter(queue, work, now)
        elif self._running[queue].until is not None and self._running[queue].left > 0:
            self._running[queue].until = None
        else:
            self._leave(queue, now)

    def _starts(self) -> Iterator[tuple[int, int]]:
        """Yield the start of the next work of every idle stream that waits for no fence."""
        for queue, items in self._queues.items():
            if items and queue not in self._running and isinstance(work := items[0], Task):
                yield max(work.ready, self._free[queue] + work.after_ns, self._now), queue

    def _enter(self, queue: int, work: Task, now: int) -> None:
        stage = work.stages[len(work.spans)]
        self._running[queue] = _Running(work, now, now + stage.fixed_ns, stage.nbytes)

    def _leave(self, queue: int, now: int) -> None:
        running = self._running.pop(queue)
        work = running.work
        work.spans.append((running.start, now))
        self._free[queue] = now
        if len(work.spans) < len(work.stages):
            self._enter(queue, work, now)
        elif work.done is not None:
            work.done(work.spans)

    def _rates(self) -> dict[int, float]:
        """Return the bytes per ns of every stage that is moving bytes: lowest demand first, each at most its share."""
        moving = [(queue, r.work.stages[len(r.work.spans)]) for queue, r in self._running.items() if r.until is None]
        left, rates = self._bandwidth, dict[int, float]()
        wishes = sorted((1 / s.ns_per_byte if s.ns_per_byte else _NEVER, queue) for queue, s in moving)
        for others, (wish, queue) in zip(range(len(wishes), 0, -1), wishes, strict=True):
            rates[queue] = min(wish, left / others)
            left -= rates[queue]
        return rates


@dataclass(frozen=True, slots=True)
class SimKernel:
    """A kernel: its label, in the place of a demangled name, and its cost."""

    label: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Execution:
    """A kernel's place in a graph: its stream, its number in the plan, and its times in ns from the graph's start."""

    kernel: SimKernel
    stream: int
    node: int
    span: Span


@dataclass(frozen=True, slots=True)
class SimGraph:
    """An instantiated plan.

    Attributes:
        stages: its work on the device: one stage of known length if it runs alone, else its kernels in sequence, as
            other work may slow them down.
        host_ns: host time of a launch in addition to that of the call.
        as_kernels: whether launches are reported kernel by kernel.
    """

    id: int
    executions: Sequence[Execution]
    stages: Sequence[Stage]
    host_ns: int
    as_kernels: bool


def moved_bytes(node: Tensor) -> int:
    """Return the bytes that a node's kernel reads and writes, derived from the shapes.

    Intermediate results of a fused kernel do not count, nor do table rows, experts and KV cells that are not used.
    """
    parts: Sequence[Tensor] = node.params.get(PARTS, (node,))
    outside = set(outer_sources(parts))
    read = dict.fromkeys(outside, 0)
    for part in parts:
        for place, source in enumerate(part.src):
            if source in outside:
                read[source] = max(read[source], _read_bytes(part, place, source))
    last = parts[-1]
    written = min(last.nbytes, last.src[0].nbytes) if last.op == "set_rows" else last.nbytes
    return sum(read.values()) + written + sum(state.nbytes for part in parts for state in part.updates)


def _read_bytes(part: Tensor, place: int, source: Tensor) -> int:
    if (part.op, place) == ("get_rows", 0):
        return part.nbytes
    if (part.op, place) in (("set_rows", 2), ("cpy", 1)):
        return 0
    if (part.op, place) == ("mul_mat_id", 0):
        chosen = part.src[2].shape[0] * part.src[2].shape[1]
        return source.nbytes * min(chosen, source.shape[0]) // source.shape[0]
    if part.op == "flash_attn_ext" and place in (1, 2):
        return source.nbytes * part.src[3].shape[1] // source.shape[1]
    return source.nbytes


def instantiate(
    profile: Profile, plan: Plan, kernels: Mapping[Tensor, SimKernel], number: int, *, as_kernels: bool
) -> SimGraph:
    """Run a plan once on a separate device, so that a launch need not simulate its kernels."""
    device, cost = VirtualDevice(profile.bytes_per_ns, profile.edge_ns), profile.graph
    tasks: dict[int, Task] = {}  # by the number of the instruction
    fences = {}
    for place, instruction in enumerate(plan.instructions):
        queue = instruction.stream % profile.streams
        if isinstance(instruction, Launch):
            stage = kernels[instruction.node].stage
            tasks[place] = Task(0, [stage._replace(fixed_ns=stage.fixed_ns + cost.node_ns)])
            device.submit(queue, tasks[place])
        elif isinstance(instruction, Record):
            fences[instruction.event] = device.fence(queue)
        else:
            device.submit(queue, FenceWait(fences[instruction.event]))
    length = device.drain()
    executions = [
        Execution(kernels[launch.node], launch.stream, place, task.spans[0])
        for launch, (place, task) in zip(plan.launches, tasks.items(), strict=True)
    ]
    stages = [Stage(length)] if plan.whole else [task.stages[0] for task in tasks.values()]
    host_ns = cost.host_node_ns * len(tasks) + cost.host_stream_ns * (min(plan.streams, profile.streams) - 1)
    return SimGraph(number, executions, stages, host_ns, as_kernels)
