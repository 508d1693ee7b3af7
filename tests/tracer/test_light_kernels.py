"""Kernels of runs of launches, from stamps of some of them, against a device whose kernels are known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.light_engine import (
    AFTER_GRAPH,
    BEFORE_GRAPH,
    GATE_NS,
    GRAPH,
    GRAPH_ID,
    GRAPH_NS,
    HOST_NS,
    KERNELS,
    LENGTHS,
    NEVER,
    OF_STEP,
    OWN,
    STEP,
    Engine,
    decoding,
    engine,
)
from tracer.analysis.gaps import gap_report
from tracer.analysis.idle import PLACES
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError
from tracer.model.fits import fits_of
from tracer.model.schema import MISSING
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import INSIDE_GRAPH
from tracer.recorders.light_work import stamped_work


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


def test_each_gpu_has_its_own_empty_kernel() -> None:
    """CUPTI's duration of a kernel that does nothing, which stamps cannot measure, is part of each kernel."""
    made = engine()
    rings = [made.ring(gpu) for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")]
    lengths = [
        (table["end"] - table["start"]).to_numpy() for table in (stamped_work(ring).kernels.table for ring in rings)
    ]
    more = fits_of("NVIDIA H100").light.empty_ns - fits_of("NVIDIA H200").light.empty_ns
    assert np.unique(lengths[1] - lengths[0]).tolist() == [more] == [352]
    assert (lengths[2] == lengths[0]).all()
    told = [next(note for note in light_trace([ring]).notes if "does nothing" in note) for ring in rings]
    assert ["0.90 µs of each" in note for note in told] == [False, True, False]
    assert ["on this one each may be" in note for note in told] == [False, False, True]


def test_the_idle_time_inside_runs_is_told() -> None:
    trace = light_trace([engine(400, one_of=32).ring()])
    assert not len(trace["graph_launches"])
    assert trace["kernels"]["name"].tolist()[:6] == [f"kernel {n + 1}" for n in range(6)]
    told = gap_report(trace, find_steps(trace)).idle.idle_us
    starts = np.array(engine(400, one_of=NEVER).kernels)[:: len(KERNELS), 0]
    idle = np.diff(starts)[10:].mean() - LENGTHS.sum()
    assert told["p50"] == pytest.approx(idle / 1e3, rel=0.01)
    assert any("2400 kernels of 400 runs of eager launches" in note for note in trace.notes)


def test_runs_without_stamps_are_where_they_ran() -> None:
    """Exactly, but for the clocks' error: the idle time between their kernels is known."""
    made = Engine()
    for step in range(200):
        made.now += 10_000
        made.run(step + 1, KERNELS, {0, 1} if step % 40 == 7 else set(), ends="ht" if step % 10 == 3 else "")
        made.wait()
    work = stamped_work(made.ring())
    assert work.table["is_stamped"].sum() == 20
    assert len(work.kernels.table) == len(made.kernels) == 200 * len(KERNELS)
    truth = np.array(made.kernels).reshape(200, -1, 2)
    apart = work.kernels.table[["start", "end"]].to_numpy().reshape(200, -1, 2) - truth
    plain = [step for step in range(200) if step - 1 not in made.gated and step not in made.gated]
    assert np.abs(apart[plain]).max() <= work.alignments[0].error_ns + OWN + STEP
    assert np.abs(apart[plain] - np.median(apart[plain])).max() < OWN + STEP + 2
    left = ~work.table["is_stamped"].to_numpy(bool)
    starts, ends = work.table["start"].to_numpy(), work.table["end"].to_numpy()
    of_run = work.kernels.table.groupby("run")
    assert (of_run["start"].min().to_numpy() == starts)[left].all()
    assert (of_run["end"].max().to_numpy() == ends)[left].all()
    trace = light_trace([made.ring()])
    told = gap_report(trace, find_steps(trace)).idle.idle_us
    idle = np.median(np.diff(truth[:, 0, 0])) - LENGTHS.sum()
    assert told["p50"] == pytest.approx(idle / 1e3, abs=0.1)


@pytest.mark.parametrize("one_of", [12, 40])
def test_the_idle_time_of_steps_with_a_graph_and_runs_is_told(one_of: int) -> None:
    made = decoding(400, one_of)
    trace = light_trace([made.ring()])
    assert len(trace["graph_launches"]) == 400  # no run is left
    found = gap_report(trace, find_steps(trace))
    plain = np.array(decoding(60, NEVER).kernels).reshape(60, -1, 2)
    idle = np.diff(plain[:, 0, 0])[5] - OF_STEP.sum() - 2 * (OWN + STEP)  # the stamps of a graph are part of it
    assert found.idle.idle_us["p50"] == pytest.approx(idle / 1e3, abs=1.0)
    assert found.idle.busy_us == pytest.approx((OF_STEP.sum() + 2 * (OWN + STEP)) / 1e3, abs=1.0)
    gap = plain[1:, 0, 0] - plain[:-1, -1, 1]
    assert found.gap_us["p50"] == pytest.approx(np.median(gap) / 1e3, abs=1.0)


def test_a_host_that_is_ahead_tells_when_launches_arrive_all_the_same() -> None:
    """It waits in every 32nd step; in the others the device reaches a head long after its launch."""
    made, chance = Engine(), np.random.default_rng(1)
    for step in range(640):
        ends, told = ([not chance.integers(8) for _ in range(2)] for _ in range(2))
        made.run(2 * step + 1, BEFORE_GRAPH, {0} if told[0] else set(), ends="ht" if ends[0] else "")
        made.now += GRAPH_NS - 200_000
        made.graph(step, GRAPH_NS)
        made.run(2 * step + 2, AFTER_GRAPH, {0} if told[1] else set(), pause=70_000, ends="t" * ends[1])
        if step % 32 == 31:
            made.wait()
            made.now += HOST_NS
    work = stamped_work(made.ring())
    runs = work.table[work.table["graph"] == MISSING]
    assert runs.index.isin(work.kernels.table["run"]).mean() > 0.99
    assert work.kernels.apart_ns < 2_000


def test_where_samples_are_missing_the_idle_time_is_unknown() -> None:
    """Such runs may last until the next stamp or wait, and this is said."""
    made = Engine()
    for step in range(60):
        made.now += HOST_NS
        made.run(2 * step + 1, BEFORE_GRAPH, set(), pause=70_000, ends="")
        made.graph(step, GRAPH_NS)
        made.run(2 * step + 2, AFTER_GRAPH, set(), ends="")
        made.wait()
    trace = light_trace([made.ring()])
    assert not len(trace["kernels"])
    work = trace["graph_launches"].sort_values("start")
    assert work["graph"].tolist() == [-1, GRAPH_ID, -1] * 60
    assert (work["end"].to_numpy()[0::3] <= work["start"].to_numpy()[1::3] + 1).all()  # at the latest
    waits = trace["syncs"]["end"].to_numpy()
    assert work["end"].to_numpy()[2::3].tolist() == waits.tolist()
    assert gap_report(trace, find_steps(trace)).idle.idle_us == {}
    assert any("120 of the graph launches are runs of eager launches without stamps" in note for note in trace.notes)


def test_what_follows_work_of_which_nothing_is_known_is_not_reconstructed() -> None:
    """A graph without stamps, until the next stamp."""
    made = Engine()
    for step in range(90):
        ends = "ht" if step % 3 == 0 else ""
        if step == 46:
            made.record(GRAPH, made.now)  # without stamps
        made.run(step + 1, KERNELS, {0, 1} if step % 9 == 0 else set(), ends=ends)
        made.wait()
    work = stamped_work(made.ring())
    assert len(work.table) == 90
    assert set(work.table.index) - set(work.kernels.table["run"]) == {46, 47}


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


def test_few_samples_count_if_there_are_no_others() -> None:
    made = Engine()
    for step in range(30):
        made.run(step + 1, KERNELS, {0, 1} if step == 9 else set())
        made.wait()
    found = stamped_work(made.ring()).kernels.table
    assert np.array_equal((found["end"] - found["start"]).to_numpy().reshape(30, -1), np.tile(LENGTHS, (30, 1)))


def test_without_samples_no_kernel_has_a_duration() -> None:
    assert not len(stamped_work(engine(30, one_of=NEVER).ring()).kernels.table)


def test_a_run_of_unknown_end_leaves_no_gap_and_no_idle_time() -> None:
    """The host runs ahead without a wait, and no stamp shows when the kernels between two graphs end: a light
    recording must not say that the device was busy until the next graph, nor that it idled."""
    made = Engine()
    for step in range(40):
        made.graph(step, 100_000)
        made.run(step + 1, AFTER_GRAPH, set(), ends="")
        made.now += HOST_NS
    made.wait()
    work = stamped_work(made.ring()).table
    left = work[~work["is_stamped"].astype(bool)].sort_values("record")
    graphs = work[work["graph"] == GRAPH_ID].sort_values("record")
    assert (left["start"].to_numpy() >= graphs["end"].to_numpy()).all()
    assert (left["end"].to_numpy()[:-1] == graphs["start"].to_numpy()[1:]).all()
    trace = light_trace([made.ring()])
    with pytest.raises(EmptyTraceError, match="unknown when the last run of eager launches ended"):
        gap_report(trace, find_steps(trace, pattern="cuGraphLaunch"))


def test_a_run_whose_kernels_took_longer_stays_whole() -> None:
    made = Engine()
    for step in range(60):
        slow = 5 if step == 30 else 1
        made.run(
            step + 1, [(name, slow * length, host) for name, length, host in KERNELS], {0, 1} if step < 9 else set()
        )
        made.wait()
    work = stamped_work(made.ring())
    assert len(work.kernels.table) == 59 * len(KERNELS)
    assert set(work.table.index) - set(work.kernels.table["run"]) == {30}


def test_a_tail_that_comes_late_is_one_of_a_host_that_paused() -> None:
    """vLLM prepares its inputs and works in Python for 100 µs before it launches the graph."""
    made = Engine()
    for step in range(60):
        made.run(step + 1, KERNELS, {0, 1} if step < 9 else set(), pause=100_000 + 500 * step)
        made.wait()
    work = stamped_work(made.ring())
    assert len(work.kernels.table) == 60 * len(KERNELS)
    ends = work.kernels.table.groupby("run")["end"].last().to_numpy()
    truth = np.array(made.kernels)[len(KERNELS) - 1 :: len(KERNELS), 1]
    assert np.abs(ends - truth)[9:].max() <= work.alignments[0].error_ns
    assert (work.table["end"].to_numpy() - ends).min() > 40_000  # idle until the tail
    assert work.kernels.apart_ns <= work.alignments[0].error_ns


@pytest.mark.parametrize(("apart", "resolved"), [(0, range(40)), (10, range(0, 40, 2))])
def test_samples_tell_of_the_same_kernels_in_any_order(apart: int, resolved: range) -> None:
    made = Engine()
    others = [(name + apart, length, host) for name, length, host in KERNELS[::-1]]
    for step in range(40):
        made.run(step + 1, others if step % 2 else KERNELS, {0, 1} if step % 2 == 0 else set())
        made.wait()
    assert stamped_work(made.ring()).kernels.table["run"].tolist() == [s for s in resolved for _ in KERNELS]


def test_stamps_that_were_overwritten_tell_nothing() -> None:
    made = engine()
    whole = stamped_work(made.ring()).kernels.timed
    inside = [i for i, (_, word) in enumerate(made.stamps) if word >> 1 & 0x7FFF == INSIDE_GRAPH]
    del made.stamps[inside[5]]
    kernels = stamped_work(made.ring()).kernels
    assert whole - len(KERNELS) <= kernels.timed < whole
    assert len(kernels.table) == 120 * len(KERNELS)


RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(500, 60_000), st.integers(0, 60_000)), min_size=1, max_size=12)


@given(seed=st.integers(0, 999), one_of=st.integers(1, 9))
@settings(max_examples=5)
def test_places_and_causes_of_reconstructed_steps_add_up(seed: int, one_of: int) -> None:
    trace = light_trace([decoding(30, one_of, seed).ring()])
    found = gap_report(trace, find_steps(trace))
    steps = found.idle.steps
    assert (steps["period"] == steps[["busy", "communication", "others", "idle"]].sum(axis=1)).all()
    assert (steps["idle"] == steps[list(PLACES)].sum(axis=1)).all()
    assert sum(found.causes_us.values()) == pytest.approx(found.gap_us["mean"])
    for place, causes in found.idle.causes_us.items():
        assert sum(causes.values()) == pytest.approx(found.idle.idle_us[place])


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
