"""Rings of a host that launches and a device that works, both with what the light recorder adds to them."""

from pathlib import Path

import numpy as np

from tracer.model.fits import fits_of
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, RECORD, STAMP, Context, Ring

CALLS = [
    "cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamQuery", "cuEventRecord",
    "cuStreamWaitEvent", "cuEventSynchronize", "cuMemcpyHtoDAsync_v2",
]  # fmt: skip
LAUNCH, SYNC, GRAPH, FETCH, QUERY, EVENT, WAIT, AWAIT, SEND = range(9)
STREAM, BESIDE = 13, 16
TO_DEVICE, TO_HOST, NOT_READY = 1, 2, 600  # the kinds of copies, CUDA_ERROR_NOT_READY
POLL_NS = 5_000
AHEAD = 7_000_000_000  # the device's clock, of the host's
OWN, STEP, ARRIVES, CALL = 900, 700, 1_800, 2_500  # ns: a stamp, the next node after it, a launch on its way, a call
APART = OWN + STEP
CHAIN_GRAPH, PART, GATE_NS, GRAPH_ID = 0x7FFF, 4, 250_000, 5


class Engine:
    """A host that launches and a device that works off one stream, both with what the recorder does."""

    def __init__(self) -> None:
        self.now, self.free = 1_000_000, 0
        self.records: list[tuple[int, ...]] = []  # of the ring, as the stamps
        self.stamps: list[tuple[int, int]] = []
        self.kernels: list[tuple[int, int]] = []  # start and end of each, host ns
        self.queue: list[tuple[int, int, int]] = []
        self.gated: set[int] = set()  # steps with a gate

    def put(self, length: int, word: int = 0) -> None:
        """A call that puts a kernel, or a stamp of that word, on the stream."""
        self.now += CALL
        self.queue.append((self.now + ARRIVES, length, word))

    def stamp(self, number: int, graph: int, kind: int) -> None:
        self.put(OWN, number << 16 | graph << 1 | kind)

    def open(self, number: int) -> None:
        """The gate that was put last; it may have opened itself, as the device has nothing to do before."""
        at = max(i for i, (_, _, word) in enumerate(self.queue) if word == -1)
        self.queue[at] = (self.queue[at][0], self.now, -1)
        if self.now - self.queue[at][0] > GATE_NS:
            self.stamp(number, INSIDE_GRAPH, 1)

    def work(self) -> None:
        """The device does what it was given."""
        for arrives, length, word in self.queue:
            begin = max(arrives, self.free + STEP)
            if word == -1:
                self.free = max(begin, min(length + 1_000, begin + GATE_NS))
                continue
            self.free = begin + length
            if word > 0:
                self.stamps.append((begin + AHEAD, len(self.stamps) + 1 << 40 | word))
            elif not word:
                self.kernels.append((begin, begin + length))
        self.queue.clear()

    def record(
        self, call: int, begin: int, number: int = 0, kernel: int = 0, graph: int = 0, size: int = 1, kind: int = 0,
        result: int = 0, stream: int = STREAM,
    ) -> None:  # fmt: skip
        row = (len(self.records) + 1, begin, self.now, 1, call, result, stream, kernel, size, number, kind, 0, graph)
        self.records.append(row)

    def run(
        self, number: int, kernels: list[tuple[int, int, int]], told: set[int], pause: int = 0, ends: str = "ht"
    ) -> None:
        """Kernels with their name, length and the host's time before each; stamps inside the parts that are told, and
        at the ends that are named (head, tail); the host pauses before the call that ends the run."""
        if "h" in ends:
            self.stamp(number, 0, 0)
        for place, (name, length, host) in enumerate(kernels):
            self.now += host
            mark = BEHIND if place // PART in told else 0
            if mark and place % PART == 0:
                self.gated.add(number - 1)
                self.put(0, -1)
                self.stamp(number, INSIDE_GRAPH, 1)
                self.stamp(number, INSIDE_GRAPH, 1)
                self.put(fits_of("").light.empty_ns, -2)
                self.stamp(number, INSIDE_GRAPH, 1)
                mark |= BEFORE
            begin = self.now
            self.put(length)
            self.record(LAUNCH, begin, number | mark, name)
            if mark:
                self.stamp(number, INSIDE_GRAPH, 1)
                if (place + 1) % PART == 0 or place == len(kernels) - 1:
                    self.open(number)
        self.now += pause
        if "t" in ends:
            self.stamp(number, 0, 1)
        self.work()

    def graph(self, number: int, length: int, graph: int = GRAPH_ID) -> None:
        """A launch of a graph with its two stamps; its work is in `kernels`."""
        begin = self.now
        self.now += CALL
        for each, word in ((OWN, 0), (length, 0), (OWN, 1)):
            self.queue.append((self.now + ARRIVES, each, number << 16 | graph << 1 | word if each == OWN else 0))
        self.record(GRAPH, begin, number, graph=graph)
        self.work()

    def wait(self) -> None:
        begin = self.now
        self.now = max(self.now, self.free) + 1_500
        self.record(SYNC, begin)

    def fetch(self, length: int = 12_000) -> None:
        """A copy to the host, which takes that long."""
        begin = self.now
        self.put(length, -3)
        self.record(FETCH, begin, size=256, kind=TO_HOST)
        self.work()

    def query(self) -> None:
        """Query until the work is done."""
        done = False
        while not done:
            begin, done, self.now = self.now, self.now >= self.free, self.now + POLL_NS
            self.record(QUERY, begin, result=0 if done else NOT_READY)

    def ring(self, gpu: str = "Fake GPU") -> Ring:
        chain = [(i // 2 * 2 * (OWN + STEP) + i % 2 * (OWN + STEP) + (1 - i % 2) * OWN, i % 2) for i in range(8)]
        words = [(time + AHEAD, i + 1 << 40 | CHAIN_GRAPH << 1 | kind) for i, (time, kind) in enumerate(chain)]
        return Ring(
            Path("1-0.ring"), 1, 0, 0, "engine", 0, 0, CALLS, {}, len(self.records), 1 << 18, 0,
            np.array(self.records, RECORD), np.array([], RECORD), None, [np.array(self.stamps, STAMP)],
            [np.array(words, STAMP)], 1 << 17, [Context(0, gpu, True, bytes(16))],
        )  # fmt: skip


KERNELS = [(1, 3_000, 0), (2, 1_500, 20_000), (3, 40_000, 500), (4, 2_000, 0), (5, 1_000, 0), (6, 6_000, 30_000)]
LENGTHS = np.array([length for _, length, _ in KERNELS])
NEVER = 1 << 30


def engine(steps: int = 120, kernels: list[tuple[int, int, int]] = KERNELS, seed: int = 0, one_of: int = 8) -> Engine:
    made, chance = Engine(), np.random.default_rng(seed)
    for step in range(steps):
        made.now += 10_000
        made.run(step + 1, kernels, {part for part in range(-(-len(kernels) // PART)) if not chance.integers(one_of)})
        made.wait()
    return made


def ahead(steps: int, graph_ns: int, host_ns: int) -> Engine:
    """As vLLM decodes with asynchronous scheduling: results are copied on a stream of their own, which waits for an
    event behind the graph, and read a step later."""
    made, ended = Engine(), [0]
    for step in range(steps):
        begin = made.now = made.now + host_ns
        made.now += CALL
        made.record(SEND, begin, size=64, kind=TO_DEVICE)
        made.graph(step + 1, graph_ns)
        ended.append(made.free)
        fetched = (FETCH, BESIDE, 0), (EVENT, BESIDE, 2 + step % 2)
        for call, stream, event in ((EVENT, STREAM, 1), (WAIT, BESIDE, 1), *fetched):
            begin, made.now = made.now, made.now + CALL
            made.record(call, begin, kernel=event, stream=stream, kind=TO_HOST if call == FETCH else 0)
        if step:
            begin, made.now = made.now, max(made.now + CALL, ended[-2] + 6_000)
            made.record(AWAIT, begin, kernel=3 - step % 2, stream=BESIDE)
    return made


BEFORE_GRAPH = [(11, 2_000, 0), (12, 1_200, 8_000), (13, 3_500, 4_000)]
AFTER_GRAPH = [(14, 9_000, 0), (15, 30_000, 2_000), (14, 9_000, 0), (16, 1_500, 60_000)]
GRAPH_NS, HOST_NS = 1_240_000, 400_000
OF_STEP = np.array([*(length for _, length, _ in BEFORE_GRAPH), GRAPH_NS, *(length for _, length, _ in AFTER_GRAPH)])


def decoding(steps: int, one_of: int, seed: int = 0) -> Engine:
    """As vLLM decodes: kernels, a graph, kernels, and a wait for all of it. One run of some has stamps at its ends, and
    one part of some inside."""
    made, chance = Engine(), np.random.default_rng(seed)
    for step in range(steps):
        made.now += HOST_NS
        ends, told = ([not chance.integers(one_of) for _ in range(2)] for _ in range(2))
        made.run(2 * step + 1, BEFORE_GRAPH, {0} if told[0] else set(), pause=70_000, ends="ht" * ends[0])
        made.graph(step, GRAPH_NS)
        made.run(2 * step + 2, AFTER_GRAPH, {0} if told[1] else set(), ends="t" * ends[1])
        made.wait()
    return made
