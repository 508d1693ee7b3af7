"""What-ifs: on a machine whose costs are known they come out exactly, or say why not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from tracer.analysis.causality.edges import RETURN as RETURN_KIND

from tests.recordings import SAMPLES
from tests.tracer.bases import COMPUTED, based, light, looped, period_ns, predicted, step_ns
from tests.tracer.handmade import Script
from tests.tracer.machine import KERNEL, LAUNCH, PAUSE_AFTER, RETURN, SAMPLING, SYNC, recorded
from tests.tracer.test_causality import programs
from tests.tracer.test_ranks import engines
from tests.tracer.truths import rows
from tracer import Trace, analyse, read
from tracer.analysis.whatif.base import CORRECTED, PLAIN, TRACED
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.edits import ScaleHost, ScaleHostCompute, ScaleKernels, SyncLatency, WithoutSyncs
from tracer.analysis.whatif.graph_edits import OneGraph
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.analysis.whatif.needed import ORDERS, READS, REUSES
from tracer.analysis.whatif.prediction import RANKS, TOO_FEW, UNMEASURED, Prediction
from tracer.errors import EmptyTraceError, TraceError, UnsafePlanError, UsageError
from tracer.model.fits import fits_of

LADDER = ["saaas", "aaas", "aaag", "ggg"]
FITS = fits_of("NVIDIA H200")


def check_period(found: Prediction, ns: float) -> None:
    assert found.predicted.period_us * 1e3 == pytest.approx(ns)


@pytest.mark.parametrize("strategy", LADDER)
def test_every_strategy_is_predicted_exactly_from_sccc(strategy: str) -> None:
    """Without noise, to the nanosecond; ggg's launches have no host code between them."""
    found = predicted(light(recorded("sccc")), FollowStrategy(strategy))
    before, after = period_ns(recorded("sccc")), period_ns(recorded(strategy))
    check_period(found, after)
    assert found.before.period_us * 1e3 == before
    assert found.speedup.estimate == pytest.approx(before / after)
    assert found.of_steps.low == found.of_steps.estimate == found.of_steps.high  # every step is like the others
    half = FITS.margins.half_width(FITS.margins.fewer_calls, found.speedup.estimate)
    assert found.speedup.bounds == pytest.approx(tuple(found.speedup.estimate * np.exp(half * s) for s in (-1, 1)))


HYBRID = {  # parts on the device and on the host alternate, as with experts on the host, which get two inputs
    "sccc": "scscs l fs fs h " * 3 + "scscs l fs",
    "saaas": "sccs l ffs h " * 3 + "sccs l fs",
    "aaas": "ccs l ffs h " * 3 + "ccs l fs",
    "aaag": "cc l ffs h " * 3 + "cc l fs",
}


@pytest.mark.parametrize("strategy", ["saaas", "aaas", "aaag"])
def test_strategies_of_a_hybrid_step_are_predicted_exactly(strategy: str) -> None:
    """The copies behind what the host computes wait for it, and that waits for the copy that brings its input."""
    found = predicted(looped(HYBRID["sccc"]), FollowStrategy(strategy))
    check_period(found, step_ns(looped(HYBRID[strategy])))
    assert found.before.period_us * 1e3 == step_ns(looped(HYBRID["sccc"]))


def test_what_the_host_computes_stays_when_syncs_or_pauses_go_and_is_scaled_exactly() -> None:
    redundant, base = looped(HYBRID["aaag"].replace("ffs h", "ffss h")), looped(HYBRID["aaag"])
    check_period(predicted(redundant, WithoutSyncs((2, 4, 6))), step_ns(base))
    assert step_ns(redundant) - step_ns(base) == 3 * (SYNC + PAUSE_AFTER["sync"])
    faster = predicted(base, ScaleHost(0)).predicted.period_us * 1e3
    assert 0 < step_ns(base) - faster < 200
    for factor in (0, 2):
        change = 3 * COMPUTED * (factor - 1)
        check_period(predicted(base, ScaleHostCompute(factor)), step_ns(base) + change)
        check_period(predicted(base, ScaleHost(0), ScaleHostCompute(factor)), faster + change)
    with pytest.raises(UsageError, match="the host computes no products"):
        predicted(recorded("sccc"), ScaleHostCompute(2))


def test_the_new_timeline_lacks_the_calls_that_are_gone() -> None:
    recording, found = recorded("sccc", tokens=6), predicted(recorded("sccc", tokens=6), FollowStrategy("aaag"))
    assert [len(t["syncs"]) for t in (recording, found.trace)] == [6 * 7, 6]
    assert len(found.trace["api"]) == len(recording["api"]) - 6 * 6
    for name in ("kernels", "memcpys", "nvtx"):
        assert len(found.trace[name]) == len(recording[name])
    ggg = predicted(recorded("sccc", tokens=6), FollowStrategy("ggg")).trace
    assert [len(ggg[name]) for name in ("kernels", "memcpys", "syncs", "api")] == [6, 0, 0, 6]


def of_program(trace: Trace, *edits: Edit) -> Prediction:
    """Of a random program, unless its steps end in no order."""
    try:
        return predicted(light(trace), *edits)
    except EmptyTraceError:
        reject()


@given(programs)
@settings(max_examples=4)
def test_without_an_edit_the_recording_comes_out_and_without_syncs_nothing_ends_later(trace: Trace) -> None:
    same, found = of_program(trace), of_program(trace, WithoutSyncs())
    assert same.speedup.estimate == 1
    assert same.speedup.bounds in ((1, 1), None)
    assert (same.speedup.bounds is None) == (same.notes == [TOO_FEW])
    for name, frame in trace.tables.items():
        if "start" in frame:
            assert rows(same.trace[name], "start", "end") == rows(frame, "start", "end")
    for name in ("kernels", "memcpys"):
        before, after = (dict(rows(t[name], "correlation", "end")) for t in (trace, found.trace))
        assert all(after[number] <= end for number, end in before.items())


def test_a_sync_beside_the_path_gains_nothing_and_one_on_it_its_own_time() -> None:
    trace = looped("crl wfss", 10)  # once more, for nothing
    assert predicted(trace, WithoutSyncs((1,))).speedup.estimate == 1
    idle = predicted(trace, WithoutSyncs((3,)))
    assert idle.before.period_us - idle.predicted.period_us == pytest.approx((5 + 4) / 1e3)
    with pytest.raises(UnsafePlanError, match=f"sync 2 cannot be removed: {READS}"):
        predicted(trace, WithoutSyncs((2,)))
    with pytest.raises(UsageError, match="no step has a sync 4; they have 3 at most"):
        predicted(trace, WithoutSyncs((4,)))


@pytest.mark.parametrize(
    ("program", "kept"),
    [("CS l fs", [ORDERS.format(9, 7), READS]), ("c l s", [REUSES])],  # between streams; before the host writes again
)
def test_needed_syncs_stay(program: str, kept: list[str]) -> None:
    found = predicted(looped(program, 6), WithoutSyncs())
    assert found.speedup.estimate == 1
    assert found.notes == [f"sync {at} is kept: {why}" for at, why in enumerate(kept, 1)]


def test_kernels_host_code_and_syncs_scale() -> None:
    trace = recorded("aaag")
    base, pauses = period_ns(trace), 5 * PAUSE_AFTER["copy"] + SAMPLING + PAUSE_AFTER["sync"]
    for edits, change in (
        ([ScaleKernels("^k$", 0.5)], -KERNEL / 2), ([SyncLatency(0.02)], 20), ([SyncLatency(-0.004)], -4),
        ([ScaleHost(0)], -pauses), ([ScaleHost(0), ScaleKernels("k", 2)], KERNEL - pauses),
    ):  # fmt: skip
        check_period(predicted(trace, *edits), base + change)
    with pytest.raises(UsageError, match=r"no kernel matches 'mul'; the recording has .*k"):
        predicted(trace, ScaleKernels("mul", 1))
    with pytest.raises(UsageError, match="not a valid regular expression"):
        predicted(trace, ScaleKernels("(", 1))


@pytest.mark.parametrize(("kernel", "shrinks"), [("second", 50), ("first", 100), (".", 150)])
def test_a_kernel_that_waited_for_the_one_before_shrinks_by_its_own_part(kernel: str, shrinks: int) -> None:
    """The second of two overlapping kernels runs alone for 100 of its 200 ns, the first for all of them."""
    script = Script()
    for at in range(0, 12_000, 2000):
        script.range("token", at, at + 1500)
        script.launch((at, at + 20), (at + 30, at + 230), name="first", api="cudaGraphLaunch_v10000")
        script.kernel(at + 130, at + 330, script.rows["api"][-1]["correlation"], name="second")
        script.sync(at + 40, at + 340)
    check_period(predicted(script.trace, ScaleKernels(kernel, 0.5)), 2000 - shrinks)


@pytest.mark.parametrize(("before", "behind", "left"), [(0, 40, 44), (40, 0, 44), (20, 20, 24)])
def test_with_a_call_goes_the_shorter_pause_beside_it(before: int, behind: int, left: int) -> None:
    """The longer one belongs to the neighbours, such as the code that prepares the next copy."""
    found = predicted(looped(f"c {before} s {behind} l fs"), WithoutSyncs((1,)))
    check_period(found, step_ns(looped(f"c {left - PAUSE_AFTER['copy']} l fs")))


@pytest.mark.parametrize("size", [4, 64_000])
def test_the_device_takes_its_time_to_choose_where_the_host_did(size: int) -> None:
    """Logits come to the host, or tokens."""
    trace = light(recorded("sccc"))
    trace["memcpys"].loc[(trace["memcpys"]["kind"] == "DtoH").to_numpy(), "bytes"] = size
    chosen = FITS.sampling.choose_ns if size > 4 else 0
    check_period(predicted(trace, FollowStrategy("ggg")), period_ns(recorded("ggg")) + chosen)


def test_a_device_does_not_idle_while_the_step_before_computes() -> None:
    """The host launches a step while the device computes the one before, and its first kernel, on a stream of its own,
    runs there and then: the time from it to the next one is not idle, however long the others take."""
    script = Script()
    for step in range(12):
        at = 1000 * step
        script.launch((at + 110, at + 120), (at + 150, at + 160), stream=8, name="prepare")
        script.launch((at + 130, at + 140), (at + 1020, at + 2000), name="layers")
        script.copy((at + 150, at + 160), (at + 2000, at + 2002), "DtoH")
        if step:
            script.sync(at + 170, at + 1010, type="event", event=step - 1)
        script.record(at + 1012, at + 1014, step)
    found = predicted(light(script.trace), ScaleKernels("layers", 2))
    assert found.predicted.period_us == pytest.approx(1.98)
    assert found.before.idle_us["p50"] == found.predicted.idle_us["p50"] == pytest.approx(0.02)


def test_what_the_host_reads_between_two_launches_is_still_read() -> None:
    """Whatever the strategy; and ggg would have the device do what the host does with it."""
    trace = looped("cs l fs cs l fs")
    for strategy, syncs in (("saaas", 4), ("aaag", 2)):
        assert len(predicted(trace, FollowStrategy(strategy)).trace["syncs"]) == 8 * syncs
    with pytest.raises(UnsafePlanError, match="the host reads a copy's result between two launches"):
        predicted(trace, FollowStrategy("ggg"))
    assert len(predicted(looped("cs l cs l fs"), FollowStrategy("ggg")).trace["syncs"]) == 0


def test_ggg_is_not_for_steps_that_the_host_computes_a_part_of() -> None:
    trace = read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13")
    with pytest.raises(UnsafePlanError, match=r"the host computes a part of the step \('split 0: host'\)"):
        predicted(trace, FollowStrategy("ggg"))
    assert predicted(trace, FollowStrategy("aaag")).speedup.estimate == 1


def test_eager_launches_become_one_graph_or_all_that_the_host_does() -> None:
    """What lies before and behind a run of launches goes with the token's own host code."""
    trace = looped("c" + "e" * 30 + "fs")  # launch calls that are slower than their kernels
    check_period(predicted(trace, FollowStrategy("ggg")), 30 * 20 + 29 * PAUSE_AFTER["launch"])
    found = predicted(trace, OneGraph())
    change = FITS.graph.launch_ns + 30 * FITS.graph.node_ns - 20  # of the call that stays; behind it the kernels queue
    queued = 29 * (LAUNCH + PAUSE_AFTER["launch"]) + 5  # none was behind another: how close they could be is unknown
    before = rows(trace["kernels"], "end")[59] - rows(trace["kernels"], "start")[30]
    assert (found.predicted.period_us - found.before.period_us) * 1e3 == pytest.approx(change + queued - before, abs=5)
    assert len(found.trace["api"]) == len(trace["api"]) - 8 * 29
    assert len(found.trace["kernels"]) == len(trace["kernels"])
    with pytest.raises(EmptyTraceError, match="nothing to put into a graph"):
        predicted(recorded("aaag"), OneGraph())


def test_one_graph_on_several_streams_starts_behind_its_launch() -> None:
    found = predicted(looped("eEeEeEeEeEeEeEeEeEeE fs"), OneGraph()).trace
    launched = [start for name, start in rows(found["api"], "name", "start") if name == "cudaLaunchKernel_v7000"]
    begun = rows(found["kernels"], "start")
    assert len(launched) == 8
    assert all(min(begun[20 * step :][:20]) > at for step, at in enumerate(launched))


def test_a_rank_of_several_has_no_margin() -> None:
    """Its collectives may wait for other ranks, which no replay of it alone changes; engines are refused together."""
    trace = light(recorded("sccc"))
    assert predicted(trace, FollowStrategy("aaag")).speedup.bounds is not None
    kernels = trace["kernels"].astype({"name": str, "short_name": str})
    names = ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"] * len(kernels)
    after = kernels.assign(start=kernels["end"] + 1, end=kernels["end"] + 2, name=names, short_name=names)
    both = Trace(trace.tables | {"kernels": Trace.from_columns(kernels=pd.concat([kernels, after]))["kernels"]},
                 trace.metadata)  # fmt: skip
    rank = predicted(both, FollowStrategy("aaag"))
    assert (rank.speedup.bounds, RANKS in rank.notes, RANKS in predicted(both).notes) == (None, True, False)
    with pytest.raises(TraceError, match="no prediction: hosts of different rates, as of several engines: process 100"):
        predicted(engines(1000, 2000), ScaleHost(0.5))


def test_what_was_never_measured_has_no_margin() -> None:
    """And several edits have one only where each has."""
    found = predicted(light(recorded("aaag")), SyncLatency(100))
    assert 0 < found.speedup.estimate < 1
    assert (found.speedup.bounds, found.notes) == (None, [UNMEASURED])
    both = predicted(light(recorded("sccc")), FollowStrategy("saaas"), ScaleHost(0.5))
    assert both.speedup.bounds is None
    assert both.of_steps.bounds is not None


def test_the_interval_holds_what_differs_between_blocks_of_steps() -> None:
    """What a sync that waits for nothing costs is sure where all steps have it, less so where some have it, here and
    there, and least where it is a run of them."""
    mixed = np.random.default_rng(0).permutation(40) < 24
    widths = []
    for has_idle_sync in (np.ones(40, bool), mixed, np.sort(mixed)):
        trace = looped([f"clfs{'s' if idle else ''} {SAMPLING // 8}" for idle in has_idle_sync])
        found = predicted(trace, WithoutSyncs())
        assert found.of_steps.low <= found.of_steps.estimate <= found.of_steps.high
        widths.append(found.of_steps.high - found.of_steps.low)
        assert found.speedup.low < found.of_steps.low <= found.of_steps.high < found.speedup.high
    assert widths[0] == 0 < widths[1] < widths[2]


def test_a_traced_recording_tells_of_the_engine_only_with_a_rate() -> None:
    """As recorded is as recorded; compute stays, and what the host does shrinks to what the rate leaves."""
    trace, edit, base = recorded("sccc"), FollowStrategy("aaag"), period_ns(recorded("sccc"))
    found, known = predicted(trace, edit), predicted(trace, edit, rate=1e9 / (base - 100))
    assert (found.state, found.of_engine, found.speedup.bounds, found.corrected) == (TRACED, None, None, None)
    assert found.recorded.gap_us == known.recorded.gap_us == analyse(trace).gaps.gap_us
    assert predicted(found.trace).state == TRACED  # nor does what was predicted from it
    assert (known.state, known.of_engine) == (CORRECTED, known.speedup)
    assert known.corrected.gap_us["p50"] < known.recorded.gap_us["p50"]
    assert predicted(known.trace).state == PLAIN
    assert known.before.period_us * 1e3 == pytest.approx(base - 100, abs=6)
    assert known.before.steps_per_s == pytest.approx(1e9 / (base - 100))
    assert known.before.tokens_per_s is None  # nothing tells how many a step gains
    stretch = FITS.stretch.per_kernel + FITS.stretch.share * KERNEL  # its graph has one kernel
    assert known.corrected.idle_us["p50"] * 1e3 == pytest.approx(base - 100 - KERNEL + stretch, abs=1)
    left = known.predicted.period_us * 1e3 - KERNEL + stretch
    assert known.predicted.idle_us["p50"] * 1e3 == pytest.approx(left, abs=20)
    assert known.recorded.idle_us["p50"] * 1e3 == base - KERNEL
    for rate, why in ((1e9 / KERNEL, "tracing stretched the kernels"), (1e9 / base / 2, "that rate is from another r")):
        with pytest.raises(TraceError, match=why):
            predicted(trace, edit, rate=rate)


def test_launches_of_graphs_lose_their_records_first_and_waits_keep_their_return() -> None:
    """With a rate that these account for, the host's other times stay: what they make up is known, not of the rest."""
    trace, period = recorded("sccc"), period_ns(recorded("sccc"))
    little, more, slower = (based(trace, 1e9 / (period + change)) for change in (-10, -100, 50))
    assert little.assumed.host == 1
    assert 0 < little.assumed.graph_launch < 1
    assert more.assumed.host < 0.95
    assert more.assumed.graph_launch == FITS.launch_left("node")
    assert slower.assumed.host > 1
    assert slower.corrected.period_us * 1e3 == pytest.approx(period + 50, abs=12)
    edges = more.causality.dag.edges
    returns = (edges.kind == RETURN_KIND) & (edges.weight == RETURN)
    assert returns.sum() >= 12
    assert np.median((more.time[edges.target] - more.time[edges.source])[returns]) == RETURN


def test_where_no_time_passes_there_is_no_speedup() -> None:
    script = Script()
    for token in range(4):
        script.range("token", token * 100, token * 100 + 100)
        script.kernel(token * 100, token * 100 + 100)
    assert predicted(script.trace, ScaleKernels("k", 0.5)).speedup.estimate == 2
    with pytest.raises(EmptyTraceError, match="would become zero"):
        predicted(script.trace, ScaleKernels("k", 0))
    with pytest.raises(UsageError, match="no step has a sync 1; they have none"):
        predicted(script.trace, WithoutSyncs((1,)))
