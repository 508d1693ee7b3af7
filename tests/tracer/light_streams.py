"""Rings of a host that launches on several streams, which wait for each other, and of a device that works them off."""

import numpy as np

from tests.tracer import light_engine as device
from tests.tracer.light_engine import AWAIT, BESIDE, CALL, EVENT, FETCH, GRAPH_NS, STREAM, WAIT, Engine


class Streams(Engine):
    """An engine with several streams, each of which does one thing after the other. Where a part is sampled its kernels
    take `more_ns` longer, as other streams work at the same time. A stream goes on `delay_ns` after an event."""

    def __init__(self, more_ns: int = 0, delay_ns: int = 0) -> None:
        super().__init__()
        self.on, self.more_ns, self.delay_ns = STREAM, more_ns, delay_ns
        self.done: dict[int, int] = {}  # when the work of each stream has ended
        self.marked: dict[int, int] = {}  # the same for events

    def put(self, length: int, word: int = 0) -> None:
        is_sampled = not word and any(each == -1 for _, _, each in self.queue)
        super().put(length + self.more_ns * is_sampled, word)

    def work(self) -> None:
        self.free = self.done.get(self.on, 0)
        super().work()
        self.done[self.on] = self.free

    def record(self, call: int, begin: int, *rest: int, **options: int) -> None:
        super().record(call, begin, *rest, **{"stream": self.on, **options})

    def launches(
        self, number: int, on: int, kernels: list[tuple[int, int, int]], told: set[int], ends: str
    ) -> tuple[int, int]:
        """A run on a stream; when its first kernel began and its last one ended."""
        self.on = on
        self.run(number, kernels, told, ends=ends)
        return self.kernels[-len(kernels)][0], self.kernels[-1][1]

    def replay(self, number: int, on: int, length: int) -> None:
        """A graph on a stream."""
        self.on = on
        self.graph(number, length)

    def call(self, call: int, on: int, event: int, until: int = 0, **options: int) -> None:
        """A call that returns at that time at the earliest."""
        begin, self.now = self.now, max(self.now + CALL, until)
        self.record(call, begin, kernel=event, stream=on, **options)

    def mark(self, on: int, event: int) -> None:
        """Record an event on a stream."""
        self.call(EVENT, on, event)
        self.marked[event] = self.done.get(on, 0)

    def order(self, on: int, event: int) -> None:
        """Let a stream wait for an event."""
        self.call(WAIT, on, event)
        self.done[on] = max(self.done.get(on, 0), self.marked[event] + self.delay_ns)


PREPARES = [(21, 1_200, 20_000), (22, 3_500, 20_000), (23, 2_700, 15_000), (24, 2_600, 20_000)]
FORWARD = [(31 + i, 1_200 + 150 * i, 30_000) for i in range(8)]
SAMPLES = [(41, 9_900, 20_000), (42, 2_500, 20_000), (43, 2_200, 20_000), (44, 2_000, 20_000)]
OTHER, PREPARED, ENDED = 17, 90, 91


def overlapped(
    steps: int, told: int, seed: int = 0, unsampled: int = 0, seen: int = 0, other: int = -1
) -> tuple[Streams, list[tuple[int, int]]]:
    """As SGLang decodes with its overlap schedule: a stream prepares, the other one waits for it and computes:
    kernels, a graph, kernels. The host is a step ahead. One of so many runs has stamps at its ends, and one
    inside, in the run before the graph not in its first parts, as many as are `unsampled`; all of the first
    steps, as many as are `seen`, have both. The step `other` has one kernel more. Also when the kernels of each
    step on the computing stream began and ended."""
    made, chance, spans = Streams(), np.random.default_rng(seed), list[tuple[int, int]]()
    for step in range(steps):
        stamps, inside = ([not chance.integers(told) for _ in range(3)] for _ in range(2))
        stamps, inside = ([each or step < seen for each in which] for which in (stamps, inside))
        parts = [set(range(unsampled * (place == 1), 2)) if inside[place] else set[int]() for place in range(3)]
        runs = [(3 * step + place + 1, parts[place]) for place in range(3)]
        ends = ["ht" if stamped else "" for stamped in stamps]
        prepares = [(99, 2_000, 0), *PREPARES] if step == other else PREPARES
        made.launches(runs[0][0], OTHER, prepares, runs[0][1], ends[0])
        made.mark(OTHER, PREPARED)
        made.order(STREAM, PREPARED)
        begin, _ = made.launches(runs[1][0], STREAM, FORWARD, runs[1][1], ends[1])
        made.replay(step, STREAM, GRAPH_NS)
        _, end = made.launches(runs[2][0], STREAM, SAMPLES, runs[2][1], ends[2])
        made.mark(STREAM, ENDED + step % 2)
        made.order(BESIDE, ENDED + step % 2)
        made.call(FETCH, BESIDE, 0, size=64, kind=device.TO_HOST)
        spans.append((begin, end))
        if step:
            made.call(AWAIT, 0, ENDED + (step - 1) % 2, spans[-2][1] + 1_500)
    return made, spans


def forked(
    steps: int, told: int, more_ns: int = 0, seed: int = 0, delay_ns: int = 0
) -> tuple[Streams, list[tuple[int, int]]]:
    """Steps that fork into four streams and join them again, and when each began and ended."""
    made, chance, spans = Streams(more_ns, delay_ns), np.random.default_rng(seed), list[tuple[int, int]]()
    number = 0

    def run(on: int, kernels: int) -> tuple[int, int]:
        nonlocal number
        number += 1
        stamps, inside = (not chance.integers(told) for _ in range(2))
        parts = {int(chance.integers(-(-kernels // device.PART)))} if inside else set()
        return made.launches(number, on, [(1, 20_500, 0)] * kernels, parts, "ht" if stamps else "")

    for _ in range(steps):
        made.now += 40_000
        begin, _ = run(STREAM, 1)
        made.mark(STREAM, 1)
        for beside in (OTHER, OTHER + 1, OTHER + 2):
            made.order(beside, 1)
            run(beside, 12 - (beside - OTHER))
            made.mark(beside, beside)
        run(STREAM, 4)
        for beside in (OTHER, OTHER + 1, OTHER + 2):
            made.order(STREAM, beside)
        _, end = run(STREAM, 1)
        made.call(FETCH, STREAM, 0, size=64, kind=device.TO_HOST)
        made.call(device.SYNC, STREAM, 0, end + 3_000)
        spans.append((begin, end))
    return made, spans
