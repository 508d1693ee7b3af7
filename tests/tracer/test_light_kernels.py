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
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, RECORD, STAMP, Context, Ring
from tracer.recorders.light_work import stamped_work

CALLS = ["cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch"]
LAUNCH, SYNC, GRAPH = range(3)
AHEAD = 7_000_000_000  # the device's clock, of the host's
OWN, STEP, ARRIVES, CALL = 900, 700, 1_800, 2_500  # ns: a stamp, the next node after it, a launch on its way, a call
CHAIN_GRAPH, PART = 0x7FFF, 4


class Engine:
    """A host that launches and a device that works off one stream, both with what the recorder does.

    Attributes:
        records, stamps: of the ring.
        kernels: start and end of each, host ns.
    """

    def __init__(self) -> None:
        self.now, self.free = 1_000_000, 0
        self.records: list[tuple[int, ...]] = []
        self.stamps: list[tuple[int, int]] = []
        self.kernels: list[tuple[int, int]] = []

    def put(self, length: int) -> int:
        """A call that puts work on the stream: when that begins."""
        self.now += CALL
        begin = max(self.now + ARRIVES, self.free + STEP)
        self.free = begin + length
        return begin

    def stamp(self, number: int, graph: int, kind: int) -> None:
        time = self.put(OWN) + AHEAD
        self.stamps.append((time, len(self.stamps) + 1 << 40 | number << 16 | graph << 1 | kind))

    def record(self, call: int, begin: int, number: int = 0, kernel: int = 0) -> None:
        self.records.append((len(self.records) + 1, begin, self.now, 1, call, 0, 13, kernel, 1, number, 0, 0, 0))

    def run(self, number: int, kernels: list[tuple[int, int, int]], told: set[int]) -> None:
        """Kernels with their name, length and the host's time before each; stamps inside the parts that are told."""
        self.stamp(number, 0, 0)
        for place, (name, length, host) in enumerate(kernels):
            self.now += host
            mark = BEHIND if place // PART in told else 0
            if mark and place % PART == 0 and place and place // PART - 1 not in told:
                self.stamp(number, INSIDE_GRAPH, 1)
                mark |= BEFORE
            begin = self.now
            start = self.put(length)
            self.kernels.append((start, start + length))
            self.record(LAUNCH, begin, number | mark, name)
            if mark:
                self.stamp(number, INSIDE_GRAPH, 1)
        self.stamp(number, 0, 1)
        begin = self.now
        self.now = max(self.now, self.free) + 1_500
        self.record(SYNC, begin)

    def ring(self) -> Ring:
        chain = [(i // 2 * 2 * (OWN + STEP) + i % 2 * (OWN + STEP) + (1 - i % 2) * OWN, i % 2) for i in range(8)]
        words = [(time + AHEAD, i + 1 << 40 | CHAIN_GRAPH << 1 | kind) for i, (time, kind) in enumerate(chain)]
        return Ring(
            Path("1-0.ring"), 1, 0, 0, "engine", 0, 0, CALLS, {}, len(self.records), 1 << 18,
            np.array(self.records, RECORD), np.array([], RECORD), None, [np.array(self.stamps, STAMP)],
            [np.array(words, STAMP)], 1 << 17, [Context(0, "Fake GPU", True)],
        )  # fmt: skip


KERNELS = [(1, 3_000, 0), (2, 1_500, 20_000), (3, 40_000, 500), (4, 2_000, 0), (5, 1_000, 0), (6, 6_000, 30_000)]


def engine(steps: int = 60, kernels: list[tuple[int, int, int]] = KERNELS, seed: int = 0, one_of: int = 4) -> Engine:
    made, chance = Engine(), np.random.default_rng(seed)
    for step in range(steps):
        made.now += 10_000
        made.run(step + 1, kernels, {part for part in range(-(-len(kernels) // PART)) if not chance.integers(one_of)})
    return made


def test_kernels_are_where_they_ran() -> None:
    made = engine()
    kernels = stamped_work(made.ring()).kernels
    assert len(kernels.table) == len(made.kernels) == 60 * len(KERNELS)
    apart = kernels.table[["start", "end"]].to_numpy() - np.array(made.kernels)
    error = stamped_work(made.ring()).alignments[0].error_ns
    assert np.abs(apart).max() < error + CALL + OWN + STEP  # what a stamp delays
    assert np.ptp(apart) < CALL + 2 * (OWN + STEP)
    lengths = (kernels.table["end"] - kernels.table["start"]).to_numpy()[: len(KERNELS)]
    assert lengths[2] == pytest.approx(40_000, abs=STEP)
    short = [3_000, 1_500, 2_000, 1_000, 6_000]
    behind_call = CALL + STEP  # a stamp comes no sooner behind a kernel's begin
    assert (lengths[[0, 1, 3, 4, 5]] <= np.maximum(short, behind_call) + STEP).all()
    assert (lengths[[0, 1, 3, 4, 5]] >= np.array(short) - 2 * STEP).all()
    assert kernels.apart_ns < CALL + OWN + STEP


def test_the_idle_time_inside_runs_is_told() -> None:
    made = engine(200)
    trace = light_trace([made.ring()])
    assert not len(trace["graph_launches"])
    assert trace["kernels"]["name"].tolist()[:6] == [f"kernel {n + 1}" for n in range(6)]
    report = gap_report(trace, find_steps(trace))
    starts = np.array(made.kernels)[:: len(KERNELS), 0]
    busy = sum(length for _, length, _ in KERNELS)
    idle = np.diff(starts)[10:].mean() - busy
    assert report.idle.idle_us["mean"] == pytest.approx(idle / 1e3, rel=0.05)
    assert any("1200 kernels of 200 runs of eager launches" in note for note in trace.notes)


def test_without_stamps_inside_a_run_is_one_row() -> None:
    trace = light_trace([engine(one_of=1 << 30).ring()])
    assert not len(trace["kernels"])
    assert len(trace["graph_launches"]) == 60
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
    assert whole - 2 * PART <= kernels.timed < whole
    assert len(kernels.table) == 60 * len(KERNELS)


RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(500, 60_000), st.integers(0, 60_000)), min_size=1, max_size=12)


@given(kernels=RUNS, seed=st.integers(0, 99), one_of=st.integers(1, 5))
def test_kernels_keep_the_order_and_the_bounds_of_their_run(
    kernels: list[tuple[int, int, int]], seed: int, one_of: int
) -> None:
    ring = engine(30, kernels, seed, one_of).ring()
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
    assert ((until - runs["end"]).abs() <= most).all()
    whole = light_trace([ring])
    counted = len(whole["kernels"]) + int(work.table.drop(table["run"].unique())["launches"].sum())
    assert counted == 30 * len(kernels)
    assert isinstance(whole["kernels"]["name"].dtype, pd.CategoricalDtype)
