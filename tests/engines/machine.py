"""A machine of host threads and devices: every call takes the host its time, every stream runs in order.

Programs make calls of a `Host`. What each began and ended at, and what it caused on a device, is kept in the machine;
`recorded.py` writes of it what a recorder would, `truth.py` what is true.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.engines.drawn import Drawn

PROCESS, THREAD, STREAM, COPY_STREAM = 100, 101, 7, 16
BEGIN_NS = 1_000_000_000
NOT_READY = 600
BYTES_PER_NS = 20
Program = Generator[None, None, None]
"""The calls of a thread; it yields where another thread may be earlier."""


class Kernel(NamedTuple):
    """A kernel: its name, how long it runs (ns), and its blocks."""

    name: str
    ns: int
    blocks: int = 8


@dataclass(frozen=True)
class Graph:
    """A CUDA graph: its number and kernels."""

    number: int
    kernels: tuple[Kernel, ...]


@dataclass
class Call:
    """A call of a host, ns; `what` in the words of `recorded.NAMES`; `kind` of its copy; the sync's `type`, the stream
    and the event that it waits for."""

    what: str
    start: int
    end: int
    process: int
    thread: int
    number: int
    device: int
    kind: str = ""
    type: str = ""
    stream: int = -1
    event: int = -1
    answer: int = 0
    step: int = -1


@dataclass
class Ran:
    """What a device did for a call: `what` is kernel, graph, copy or memset; a graph has its `nodes`.

    `step` is the number of the step that it is of, -1 outside any.
    """

    what: str
    start: int
    end: int
    device: int
    stream: int
    call: Call
    step: int
    name: str = ""
    blocks: int = 8
    graph: int = -1
    node: int = -1
    kind: str = ""
    bytes: int = 0
    nodes: list[Ran] = field(default_factory=list)


class Begun(NamedTuple):
    """A step as the program began it: its phase, when, by which thread, of which engine, and of which larger one."""

    phase: str
    start: int
    process: int
    thread: int
    engine: str
    whole: int


class Mark(NamedTuple):
    """An NVTX range of a thread."""

    text: str
    start: int
    end: int
    process: int
    thread: int


@dataclass(frozen=True)
class Costs:
    """What calls take the host, and what passes between a call and its work, ns."""

    launch: int
    graph: int
    copy: int
    sync: int
    event: int
    pause: int
    latency: int
    wake: int
    between: int
    inside: int

    @classmethod
    def of(cls, drawn: Drawn) -> Costs:
        """Drawn at random from what H100 and older machines take."""
        return cls(
            launch=drawn.ns("launch call", 1_800, 7_000), graph=drawn.ns("graph call", 5_000, 60_000),
            copy=drawn.ns("copy call", 2_500, 9_000), sync=drawn.ns("sync call", 1_500, 4_000),
            event=drawn.ns("event call", 500, 1_500), pause=drawn.ns("pause", 200, 4_000),
            latency=drawn.ns("latency", 1_000, 6_000), wake=drawn.ns("wake", 2_000, 20_000),
            between=drawn.ns("between kernels", 400, 1_800), inside=drawn.ns("inside a graph", 200, 1_500),
        )  # fmt: skip


class Machine:
    """Devices, and the hosts that use them.

    Args:
        drawn: where costs and noise are drawn from.
        is_shared: whether only one kernel at a time runs on a device, of whatever stream.

    `waits_unseen` says that a host waited without a call.
    """

    def __init__(self, drawn: Drawn, is_shared: bool = False) -> None:
        self.costs = Costs.of(drawn)
        self.noise = drawn.one_of("noise, percent", 0, 1, 3, 8) / 100
        self.chance: random.Random = drawn.chance()
        self.is_shared = is_shared
        self.calls: list[Call] = []
        self.ran: list[Ran] = []
        self.steps: list[Begun] = []
        self.marks: list[Mark] = []
        self.free: dict[tuple[int, int], int] = {}
        self.busy: dict[int, int] = {}
        self.events: dict[int, int] = {}
        self.waits_unseen = False

    def noisy(self, ns: float) -> int:
        """About so long."""
        return max(1, round(ns * math.exp(self.noise * self.chance.gauss(0, 1))))

    def cut(self, begin: int, end: int) -> None:
        """Only what is called from `begin` on and before `end` was recorded, and what ran meanwhile."""
        until = [*(step.start for step in self.steps[1:]), max(call.end for call in self.calls)]
        self.calls = [call for call in self.calls if begin <= call.start < end]
        self.ran = [ran for ran in self.ran if begin <= ran.start < end]
        for at, (step, over) in enumerate(zip(self.steps, until, strict=True)):
            if step.start < begin or over > end:
                phase = "unseen" if over <= begin or step.start >= end else "begun" if over > end else "ended"
                self.steps[at] = step._replace(phase=phase)

    def run(self, *programs: tuple[Host, Program]) -> None:
        """Programs of several threads at once: the earliest goes on. One that waits for another yields."""
        left = list(programs)
        while left:
            host, program = min(left, key=lambda each: each[0].now)
            before = host.now
            try:
                next(program)
            except StopIteration:
                left.remove((host, program))
                continue
            if host.now == before:  # nothing for it yet: after the next call of another
                others = [each.now for each, _ in left if each is not host]
                assert others, "a program waits for another that has ended"
                host.now = max(host.now, min(others)) + 1


class Host:
    """A thread that makes calls on streams of a device."""

    def __init__(
        self, machine: Machine, process: int = PROCESS, thread: int = THREAD, device: int = 0, engine: str = "",
        stream: int = STREAM,
    ) -> None:  # fmt: skip
        self.machine, self.process, self.thread, self.device = machine, process, thread, device
        self.engine, self.stream = engine, stream
        self.now, self.at = BEGIN_NS, -1
        self.is_capturing = False

    def step(self, phase: str, whole: int = -1) -> int:
        """A step begins: what is launched from now on is of it. Those with the same `whole` may be counted as one."""
        self.at = len(self.machine.steps)
        self.machine.steps.append(Begun(phase, self.now, self.process, self.thread, self.engine, whole))
        return self.at

    def think(self, ns: float) -> None:
        """Code of the host."""
        self.now += self.machine.noisy(ns)

    def call(self, what: str, ns: float, **more: object) -> Call:
        """A call that takes so long."""
        start, end = self.now, self.now + self.machine.noisy(ns)
        call = Call(what, start, end, self.process, self.thread, len(self.machine.calls) + 1, self.device, step=self.at)
        for name, value in more.items():
            setattr(call, name, value)
        self.machine.calls.append(call)
        self.now = end + self.machine.noisy(self.machine.costs.pause)
        return call

    def launch(self, kernel: Kernel, stream: int = 0, early: int = 0, what: str = "launch") -> None:
        """An eager launch; with `early` the kernel starts so long before the one ahead of it ends."""
        call = self.call(what, self.machine.costs.launch)
        if not self.is_capturing:
            self._on_device("kernel", call, [kernel], stream or self.stream, early)

    def launches(self, kernels: Sequence[Kernel], stream: int = 0, early: int = 0, what: str = "launch") -> None:
        """Eager launches, one behind the other."""
        for kernel in kernels:
            self.launch(kernel, stream, early, what)

    def graph(self, graph: Graph, stream: int = 0) -> None:
        """A launch of a graph."""
        call = self.call("graph", self.machine.costs.graph)
        self._on_device("graph", call, graph.kernels, stream or self.stream, graph=graph.number)

    def capture(self, graph: Graph) -> None:
        """Capture a graph: launches that run nothing, then it is instantiated."""
        self.call("begin capture", 2_000)
        self.is_capturing = True
        self.launches(graph.kernels)
        self.is_capturing = False
        self.call("end capture", 5_000)
        self.call("instantiate", 40_000 + 800 * len(graph.kernels))

    def copy(self, kind: str, size: int, stream: int = 0, is_blocking: bool = False) -> None:
        """A copy; a blocking one returns when it is done."""
        machine = self.machine
        call = self.call("blocking copy" if is_blocking else "copy", machine.costs.copy, kind=kind)
        ran = self._placed("copy", call, 900 + size / BYTES_PER_NS, stream or self.stream)
        ran.kind, ran.bytes = kind, size
        machine.ran.append(ran)
        if is_blocking and (end := ran.end + machine.noisy(machine.costs.wake)) > call.end:
            self._returns(call, end)

    def sync(self, stream: int = 0) -> None:
        """Wait for a stream."""
        stream = stream or self.stream
        call = self.call("sync", self.machine.costs.sync, type="stream", stream=stream)
        self._waits(call, self.machine.free.get((self.device, stream), 0))

    def sync_device(self) -> None:
        """Wait for all streams."""
        call = self.call("device sync", self.machine.costs.sync, type="context")
        self._waits(call, max((end for (at, _), end in self.machine.free.items() if at == self.device), default=0))

    def record(self, event: int, stream: int = 0) -> None:
        """Record an event on a stream."""
        stream = stream or self.stream
        self.call("record", self.machine.costs.event, stream=stream, event=event)
        self.machine.events[event] = max(self.machine.free.get((self.device, stream), 0), self.now)

    def wait(self, event: int, stream: int) -> None:
        """A stream waits for an event."""
        self.call("wait", self.machine.costs.event, type="stream wait", stream=stream, event=event)
        at = (self.device, stream)
        self.machine.free[at] = max(self.machine.free.get(at, 0), self.machine.events[event])

    def sync_event(self, event: int) -> None:
        """Wait for an event."""
        call = self.call("event sync", self.machine.costs.sync, type="event", event=event)
        self._waits(call, self.machine.events[event])

    def poll_event(self, event: int, every: int) -> None:
        """Ask for an event until it has come."""
        is_done = False
        while not is_done:
            is_done = self.now >= self.machine.events[event]
            self.call("query", 800, type="event", event=event, answer=0 if is_done else NOT_READY)
            self.think(every)

    def poll_memory(self, stream: int = 0) -> None:
        """Read memory that the device writes until it has: no call shows it."""
        self.machine.waits_unseen = True
        self.now = max(self.now, self.machine.free.get((self.device, stream or self.stream), 0))
        self.think(self.machine.costs.wake)

    def mark(self, text: str, since: int) -> None:
        """An NVTX range that ends now."""
        self.machine.marks.append(Mark(text, since, self.now, self.process, self.thread))

    def _waits(self, call: Call, until: int) -> None:
        end = until + self.machine.noisy(self.machine.costs.wake)
        if until > call.start and end > call.end:
            self._returns(call, end)

    def _returns(self, call: Call, end: int) -> None:
        self.now += end - call.end
        call.end = end

    def _placed(self, what: str, call: Call, ns: float, stream: int, early: int = 0) -> Ran:
        machine, at = self.machine, (self.device, stream)
        ready = machine.free.get(at, 0)
        arrives, behind = (machine.noisy(ns) for ns in (machine.costs.latency, machine.costs.between))
        start = max(call.end + arrives, ready + behind - early)
        if machine.is_shared and what != "copy":
            start = max(start, machine.busy.get(self.device, 0) + machine.noisy(machine.costs.between))
        end = max(start + machine.noisy(ns), ready if early else 0)
        machine.free[at] = end
        if what != "copy":
            machine.busy[self.device] = max(machine.busy.get(self.device, 0), end)
        return Ran(what, start, end, self.device, stream, call, self.at)

    def _on_device(
        self, what: str, call: Call, kernels: Sequence[Kernel], stream: int, early: int = 0, graph: int = -1
    ) -> None:
        machine, nodes = self.machine, list[Ran]()
        for kernel in kernels:
            if nodes:
                start = nodes[-1].end + machine.noisy(machine.costs.inside)
                ran = Ran("kernel", start, start + machine.noisy(kernel.ns), self.device, stream, call, self.at)
            else:
                ran = self._placed("kernel", call, kernel.ns, stream, early)
            ran.name, ran.blocks, ran.graph, ran.node = kernel.name, kernel.blocks, graph, len(nodes) + 1
            nodes.append(ran)
        machine.free[self.device, stream] = machine.busy[self.device] = nodes[-1].end
        if what == "kernel":
            machine.ran += nodes
            return
        first, last = nodes[0], nodes[-1]
        machine.ran.append(
            Ran("graph", first.start, last.end, self.device, stream, call, self.at, graph=graph, nodes=nodes)
        )
