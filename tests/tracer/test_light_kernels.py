"""Kernels of runs of launches, from stamps of some of them, against a device whose kernels are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.recorders.light import light_trace
from tracer.recorders.light_kernels import EMPTY_NS
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, RECORD, STAMP, Context, Ring
from tracer.recorders.light_work import stamped_work

CALLS = ["cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch"]
LAUNCH, SYNC, GRAPH = range(3)
AHEAD = 7_000_000_000  # the device's clock, of the host's
OWN, STEP, ARRIVES, CALL = 900, 700, 1_800, 2_500  # ns: a stamp, the next node after it, a launch on its way, a call
CHAIN_GRAPH, PART, GATE_NS = 0x7FFF, 4, 250_000


class Engine:
    """A host that launches and a device that works off one stream, both with what the recorder does.

    Attributes:
        records, stamps: of the ring.
        kernels: start and end of each, host ns.
        gated: steps with a gate.
    """

    def __init__(self) -> None:
        self.now, self.free = 1_000_000, 0
        self.records: list[tuple[int, ...]] = []
        self.stamps: list[tuple[int, int]] = []
        self.kernels: list[tuple[int, int]] = []
        self.queue: list[tuple[int, int, int]] = []
        self.gated: set[int] = set()

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

    def record(self, call: int, begin: int, number: int = 0, kernel: int = 0) -> None:
        self.records.append((len(self.records) + 1, begin, self.now, 1, call, 0, 13, kernel, 1, number, 0, 0, 0))

    def run(self, number: int, kernels: list[tuple[int, int, int]], told: set[int], pause: int = 0) -> None:
        """Kernels with their name, length and the host's time before each; stamps inside the parts that are told; the
        host pauses before the call that ends the run."""
        self.stamp(number, 0, 0)
        for place, (name, length, host) in enumerate(kernels):
            self.now += host
            mark = BEHIND if place // PART in told else 0
            if mark and place % PART == 0:
                self.gated.add(number - 1)
                self.put(0, -1)
                self.stamp(number, INSIDE_GRAPH, 1)
                self.stamp(number, INSIDE_GRAPH, 1)
                self.put(EMPTY_NS, -2)
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
        self.stamp(number, 0, 1)
        begin = self.now
        self.work()
        self.now = max(self.now, self.free) + 1_500
        self.record(SYNC, begin)

    def ring(self) -> Ring:
        chain = [(i // 2 * 2 * (OWN + STEP) + i % 2 * (OWN + STEP) + (1 - i % 2) * OWN, i % 2) for i in range(8)]
        words = [(time + AHEAD, i + 1 << 40 | CHAIN_GRAPH << 1 | kind) for i, (time, kind) in enumerate(chain)]
        return Ring(
            Path("1-0.ring"), 1, 0, 0, "engine", 0, 0, CALLS, {}, len(self.records), 1 << 18,
            np.array(self.records, RECORD), np.array([], RECORD), None, [np.array(self.stamps, STAMP)],
            [np.array(words, STAMP)], 1 << 17, [Context(0, "Fake GPU", True, bytes(16))],
        )  # fmt: skip


KERNELS = [(1, 3_000, 0), (2, 1_500, 20_000), (3, 40_000, 500), (4, 2_000, 0), (5, 1_000, 0), (6, 6_000, 30_000)]
LENGTHS = np.array([length for _, length, _ in KERNELS])
NEVER = 1 << 30


def engine(steps: int = 120, kernels: list[tuple[int, int, int]] = KERNELS, seed: int = 0, one_of: int = 8) -> Engine:
    made, chance = Engine(), np.random.default_rng(seed)
    for step in range(steps):
        made.now += 10_000
        made.run(step + 1, kernels, {part for part in range(-(-len(kernels) // PART)) if not chance.integers(one_of)})
    return made


def test_kernels_are_where_they_ran() -> None:
    made = engine()
    work = stamped_work(made.ring())
    assert len(work.kernels.table) == len(made.kernels) == 120 * len(KERNELS)
    found = work.kernels.table[["start", "end"]].to_numpy().reshape(120, -1, 2)
    lengths = found[:, :, 1] - found[:, :, 0]
    assert (lengths == lengths[0]).all()
    assert np.abs(lengths[0] - LENGTHS).max() <= 1  # exact, also of those that are shorter than a call
    plain = [step for step in range(120) if step not in made.gated]
    assert 20 < len(plain) < 110
    apart = (found - np.array(made.kernels).reshape(120, -1, 2))[plain]
    assert np.abs(apart).max() <= work.alignments[0].error_ns
    assert np.ptp(apart) < OWN + STEP  # the first kernel of a run waits for the head
    assert work.kernels.apart_ns <= work.alignments[0].error_ns


def test_the_idle_time_inside_runs_is_told() -> None:
    trace = light_trace([engine(400, one_of=32).ring()])
    assert not len(trace["graph_launches"])
    assert trace["kernels"]["name"].tolist()[:6] == [f"kernel {n + 1}" for n in range(6)]
    told = gap_report(trace, find_steps(trace)).idle.idle_us
    starts = np.array(engine(400, one_of=NEVER).kernels)[:: len(KERNELS), 0]
    idle = np.diff(starts)[10:].mean() - LENGTHS.sum()
    assert told["p50"] == pytest.approx(idle / 1e3, rel=0.01)
    assert any("2400 kernels of 400 runs of eager launches" in note for note in trace.notes)


def test_stamps_that_came_late_tell_nothing() -> None:
    """A gate that opens before the part is launched: the host was away for longer than it waits."""
    kernels = [(name, length, GATE_NS if place else 0) for place, (name, length, _) in enumerate(KERNELS)]
    kernels = kernels * 2
    work = stamped_work(engine(60, kernels, one_of=1).ring())
    assert not len(work.kernels.table)
    assert len(work.table) == 60


def test_without_stamps_inside_a_run_is_one_row() -> None:
    trace = light_trace([engine(one_of=NEVER).ring()])
    assert not len(trace["kernels"])
    assert len(trace["graph_launches"]) == 120
    assert gap_report(trace, find_steps(trace)).idle.idle_us == {}


def test_two_stamps_are_too_few() -> None:
    made = Engine()
    for step in range(30):
        made.run(step + 1, KERNELS, {0, 1} if step < 2 else set())
    assert not len(stamped_work(made.ring()).kernels.table)


def test_a_run_whose_kernels_took_longer_stays_whole() -> None:
    made = Engine()
    for step in range(60):
        slow = 5 if step == 30 else 1
        made.run(
            step + 1, [(name, slow * length, host) for name, length, host in KERNELS], {0, 1} if step < 9 else set()
        )
    work = stamped_work(made.ring())
    assert len(work.kernels.table) == 59 * len(KERNELS)
    assert set(work.table.index) - set(work.kernels.table["run"]) == {30}


def test_a_tail_that_comes_late_is_one_of_a_host_that_paused() -> None:
    """vLLM prepares its inputs and works in Python for 100 µs before it launches the graph."""
    made = Engine()
    for step in range(60):
        made.run(step + 1, KERNELS, {0, 1} if step < 9 else set(), pause=100_000 + 500 * step)
    work = stamped_work(made.ring())
    assert len(work.kernels.table) == 60 * len(KERNELS)
    ends = work.kernels.table.groupby("run")["end"].last().to_numpy()
    truth = np.array(made.kernels)[len(KERNELS) - 1 :: len(KERNELS), 1]
    assert np.abs(ends - truth)[9:].max() <= work.alignments[0].error_ns
    assert (work.table["end"].to_numpy() - ends).min() > 40_000  # idle until the tail
    assert work.kernels.apart_ns <= work.alignments[0].error_ns


def test_other_kernels_are_other_runs() -> None:
    made = Engine()
    for step in range(40):
        kernels = KERNELS[::-1] if step % 2 else KERNELS
        made.run(step + 1, kernels, {0, 1} if step % 2 == 0 else set())
    assert stamped_work(made.ring()).kernels.table["run"].tolist() == [s for s in range(0, 40, 2) for _ in KERNELS]


def test_stamps_that_were_overwritten_tell_nothing() -> None:
    made = engine()
    whole = stamped_work(made.ring()).kernels.timed
    inside = [i for i, (_, word) in enumerate(made.stamps) if word >> 1 & 0x7FFF == INSIDE_GRAPH]
    del made.stamps[inside[5]]
    kernels = stamped_work(made.ring()).kernels
    assert whole - len(KERNELS) <= kernels.timed < whole
    assert len(kernels.table) == 120 * len(KERNELS)


RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(500, 60_000), st.integers(0, 60_000)), min_size=1, max_size=12)


@given(kernels=RUNS, seed=st.integers(0, 99), one_of=st.integers(1, 5))
def test_kernels_keep_the_order_and_the_bounds_of_their_run(
    kernels: list[tuple[int, int, int]], seed: int, one_of: int
) -> None:
    made = engine(30, kernels, seed, one_of)
    ring = made.ring()
    work = stamped_work(ring)
    table = work.kernels.table
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    same = table["run"].to_numpy()[1:] == table["run"].to_numpy()[:-1]
    assert (start <= end).all()
    assert (start[1:][same] >= end[:-1][same]).all()
    assert (start >= ring.records["begin"][table["record"].to_numpy()]).all()
    until = table.groupby("run")["end"].last()
    runs = work.table.loc[until.index]
    most = np.maximum(20_000, 0.1 * (runs["end"] - runs["start"])) + OWN + STEP
    is_right = (until - runs["end"]).abs() <= most
    assert is_right[~is_right.index.isin(made.gated)].all()
    whole = light_trace([ring])
    counted = len(whole["kernels"]) + int(work.table.drop(table["run"].unique())["launches"].sum())
    assert counted == 30 * len(kernels)
    assert isinstance(whole["kernels"]["name"].dtype, pd.CategoricalDtype)
