"""What-ifs: on a machine whose costs are known they come out exactly, or say why not."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings

from tests.tracer.bases import based, light, looped, period_ns, predicted, step_ns
from tests.tracer.handmade import Script
from tests.tracer.machine import KERNEL, LAUNCH, PAUSE_AFTER, SAMPLING, recorded
from tests.tracer.test_causality import programs
from tests.tracer.test_ranks import engines
from tests.tracer.truths import DATA, rows, scene
from tracer import Trace, analyse
from tracer.analysis.recording import Recording
from tracer.errors import CannotTellError, EmptyTraceError, IntertokenError, TraceError, UnsafePlanError
from tracer.files.bounded import tomllib
from tracer.model.fits import fits_of
from tracer.model.trace import LIGHT
from tracer.reporting.advice import facts_of, rest
from tracer.whatif.advice import advise
from tracer.whatif.base import CORRECTED, PLAIN, TRACED
from tracer.whatif.changes import Edit
from tracer.whatif.edits import (
    CopiesBehind,
    FollowStrategy,
    LaunchFirst,
    ReadLater,
    ScaleHost,
    ScaleHostCompute,
    ScaleKernels,
    SyncLatency,
    WithoutSyncs,
)
from tracer.whatif.graph_edits import BEFORE, BEHIND, BETWEEN, EagerLaunches, IntoGraph, OneGraph, eager_launches
from tracer.whatif.needed import ORDERS, READS, REUSES
from tracer.whatif.prediction import RANKS, TOO_FEW, UNMEASURED, Prediction, predict

LADDER = ["saaas", "aaas", "aaag", "ggg"]
FITS = fits_of("NVIDIA H200")


def check_period(found: Prediction, ns: float) -> None:
    assert found.predicted.period_us * 1e3 == pytest.approx(ns)


EDITS = {edit.__name__: edit for edit in (
    FollowStrategy, ScaleHost, ScaleHostCompute, ScaleKernels, SyncLatency, WithoutSyncs)}  # fmt: skip
WHY = {"READS": READS, "REUSES": REUSES, "ORDERS": ORDERS.format(9, 7)}


def test_what_is_told_of_programs() -> None:
    for told in tomllib.loads((DATA.parent / "whatif.toml").read_text(encoding="utf-8"))["truth"]:
        name, tokens = told["name"], told.get("tokens", 8)
        trace = looped(told["program"], tokens) if "program" in told else scene(told)
        edits = [EDITS[kind](*(tuple(each) if isinstance(each, list) else each for each in given))
                 for kind, *given in told["edits"]]  # fmt: skip
        if "fails" in told:
            with pytest.raises(IntertokenError, match=told["fails"]):
                predicted(trace, *edits)
            continue
        found, period = predicted(trace, *edits), step_ns(looped(told["like"]) if "like" in told else trace)
        if "speedup" in told:
            assert found.speedup.estimate == told["speedup"], name
        else:
            assert found.before.period_us * 1e3 == pytest.approx(step_ns(trace)), name
            assert found.predicted.period_us * 1e3 == pytest.approx(period + told.get("change", 0)), name
        told_notes = [re.sub("[A-Z]+$", lambda why: WHY[why[0]], note) for note in told.get("notes", ())]
        assert found.notes == told_notes or not told_notes, name


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
    with pytest.raises(TraceError, match="hosts of different rates, as of several engines: process 100"):
        predicted(engines(1000, 2000), ScaleHost(0.5))


def eager(trace_of_ours: bool, overlap: int) -> Trace:
    """Steps of 40 kernels of 10 µs, launched one by one every 12 µs, each of which starts before the previous one has
    ended, if they overlap."""
    script = Script()
    for step in range(12):
        at = 520_000 * step
        for i in range(40):
            begin = at + 12_000 * i
            script.launch((begin, begin + 8_000), (begin + 9_000 - overlap, begin + 19_000 + overlap))
        script.copy((at + 480_000, at + 484_000), (at + 490_000, at + 492_000), "DtoH")
        script.sync(at + 485_000, at + 500_000)
        script.range("token", at, at + 510_000)
    if trace_of_ours:
        script_trace = light(script.trace)
        script_trace.metadata["run"] = {"configuration": {"allocator": "sequential"}}
        return script_trace
    return light(script.trace)


@pytest.mark.parametrize(("ours", "overlap", "tried"), [(False, 0, False), (True, 0, True), (False, 1_500, True)])
def test_early_starts_are_for_programs_whose_kernels_can_and_gain_no_more_than_the_idle_time(
    ours: bool, overlap: int, tried: bool
) -> None:
    """The device idles for 120 of 520 µs; kernels that start early would be shorter than recorded."""
    trace = eager(ours, overlap)
    base = based(trace)
    found = advise(Recording.of_steps(trace, base.steps), base)
    assert found.bound == pytest.approx(520 / (400 if not overlap else 481))
    assert found.unsure["one graph launch"].speedup.estimate < found.bound
    early = "one graph launch with early starts"
    assert (early in found.withheld) == tried
    assert early not in found.unsure


def test_what_an_engine_calls_a_change_and_what_it_would_gain_is_one_row() -> None:
    """vLLM, known by its marks alone, reads each result before the next launch; its kernels are PyTorch's, too."""
    trace = hosted(0, 20_000, 50_000, mark="execute_context_0(0)_generation_1(1)")
    base = based(trace)
    facts = facts_of(advise(Recording.of_steps(trace, base.steps), base), "run", [])
    (unused,) = facts["unused"]
    assert (facts["engine"], unused["name"]) == ("vLLM", "`--async-scheduling` (`async_scheduling=True`)")
    assert unused["edit"] == "device sampling, results read a step later"
    assert unused["speedup"]["estimate"] == pytest.approx(90 / 52, rel=0.01)
    first, *others = rest(facts)
    assert first.startswith("vLLM offers launching the next step before the result of this one is read")
    assert first.endswith("+73.1 % predicted (device sampling, results read a step later), without a margin")
    assert not [line for line in others if "read a step later" in line or "no edit is predicted" in line]


@pytest.mark.parametrize("name", ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "fill"])
def test_collectives_may_be_hidden_in_whole_graphs_of_a_rank(name: str) -> None:
    """It communicates before its steps; so its graphs may, too."""
    script = Script()
    script.launch((0, 1_000), (1_500, 3_000), name=name)
    for step in range(12):
        at = 100_000 * (step + 1)
        script.graph((at, at + 5_000), (at + 8_000, at + 60_000))
        script.copy((at + 6_000, at + 8_000), (at + 60_000, at + 61_000), "DtoH")
        script.sync(at + 9_000, at + 65_000)
        script.sync(at + 66_000, at + 68_000)
        script.range("token", at, at + 70_000)
    assert (RANKS in predicted(light(script.trace), WithoutSyncs((2,))).notes) == name.startswith("nccl")


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


def hosted(copies: int = 0, code: int = 0, kernel: int = 10_000, mark: str = "token") -> Trace:
    """Steps of `code` ns of host code, copies of 10 µs of the host, a launch of 10 µs whose kernel begins 15 µs after
    it, and the fetch of the result, for which the host waits until 3 µs after it."""
    script, at = Script(), 0
    for _ in range(16):
        begin, at = at, at + code
        for _ in range(copies):
            script.copy((at, at + 10_000), (at + 5_000, at + 6_000))
            at += 10_000
        end = at + 15_000 + kernel
        script.graph((at, at + 10_000), (at + 15_000, end))
        script.copy((at + 10_000, at + 20_000), (end, end + 2_000), kind="DtoH")
        script.sync(at + 20_000, end + 5_000)
        at = end + 5_000
        script.range(mark, begin, at)
    return light(script.trace)


@pytest.mark.parametrize(
    ("copies", "code", "edit", "gain"),
    [
        (0, 20_000, LaunchFirst(), 90 / 70), (0, 0, LaunchFirst(), 1),
        # the copies' calls are hidden, but not the host's code; each takes the device 1 µs
        (1, 20_000, CopiesBehind(), 100 / 91), (3, 20_000, CopiesBehind(), 120 / 93),
        (0, 20_000, ReadLater(), 90 / 52),  # the device computes 50 and copies 2
        (0, 60_000, ReadLater(), 130 / 80),  # the host needs 80 for its code and its calls
    ],
)  # fmt: skip
def test_edits_of_the_host_gain_what_they_hide(copies: int, code: int, edit: Edit, gain: float) -> None:
    found = predicted(hosted(copies, code, 50_000), edit)
    assert found.speedup.estimate == pytest.approx(gain, rel=0.01)
    assert found.speedup.low is None
    assert not [note for note in found.notes if "lacks" in note]


def test_copies_that_cannot_move_or_whose_time_is_missing() -> None:
    lacking, pageable = hosted(3, 20_000, 50_000), hosted(3)
    lacking.tables["memcpys"] = lacking["memcpys"].iloc[:0]
    found = predicted(lacking, CopiesBehind())
    assert found.speedup.estimate == pytest.approx(120 / 90, rel=0.01)
    assert [note for note in found.notes if "lacks the copies' time" in note]
    copies = pageable["memcpys"]
    kinds = copies["src_kind"].where(copies["kind"] != "HtoD", "pageable")
    pageable.tables["memcpys"] = copies.assign(src_kind=kinds)
    for trace in (hosted(), pageable):
        with pytest.raises(EmptyTraceError, match="asynchronous copy"):
            predicted(trace, CopiesBehind())


def test_whether_a_margin_is_known_is_the_same_with_and_without_the_kernels_of_a_graph() -> None:
    """The gap is mostly host code; holes in the graph, which is one activity or ten kernels, are longer than it."""
    verdicts = set()
    for nodes in (False, True):
        script = Script()
        for at in range(0, 16 * 140_000, 140_000):
            if nodes:
                kernels = [(at + 15_000 + 10_000 * k, at + 20_000 + 10_000 * k) for k in range(10)]
                script.launch((at, at + 5_000), *kernels, api="cudaGraphLaunch_v10000")
            else:
                script.graph((at, at + 5_000), (at + 15_000, at + 110_000))
            script.copy((at + 6_000, at + 7_000), (at + 110_000, at + 111_000), kind="DtoH")
            script.sync(at + 8_000, at + 112_000)
        base = based(light(script.trace))
        verdicts.add((base.is_checked, base.report.gap_us["p50"]))
    assert verdicts == {(False, 45.0)}


PERIOD, TOKENS = 100_000, 12


def mixed(*, wait: bool = False, pieces: int = 1, unknown: int = 0) -> Trace:
    """Steps of a fill (2 µs, from 12 µs on), a graph (40 µs, from 30 µs on), an argmax (5 µs, from 75 µs on) and the
    wait for it, until 85 µs; with `wait` the host waits for the fill. Of two `pieces`, the second graph (3 µs, from
    81 µs on) follows the argmax. In the last `unknown` steps the fill is a run of launches that may last until the
    graph starts."""
    script = Script()
    for token in range(TOKENS):
        at = token * PERIOD
        script.range("token", at, at + PERIOD - 1)
        script.range("aten::fill_", at + 1_000, at + 9_000, domain="cpu_op")
        if token < TOKENS - unknown:
            script.launch((at + 2_000, at + 8_000), (at + 12_000, at + 14_000), name="fill")
        else:
            script.run((at + 2_000, at + 8_000), (at + 12_000, at + 30_000))
        if wait:
            script.sync(at + 9_000, at + 15_000)
        script.graph((at + 20_000, at + 26_000), (at + 30_000, at + 70_000))
        script.launch((at + 60_000, at + 66_000), (at + 75_000, at + 80_000), name="argmax")
        if pieces == 2:
            script.graph((at + 67_000, at + 69_000), (at + 81_000, at + 84_000))
        script.sync(at + 70_000, at + 85_000)
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return trace


def launched(trace: Trace) -> EagerLaunches:
    base = based(trace)
    return eager_launches(base.causality, base.steps)


FILL, ARGMAX = IntoGraph("fill", "aten::fill_", BEFORE), IntoGraph("argmax", "token", BEHIND)
BY_KERNEL = ("kernel", "operator", "where", "per_step", "kernel_us")


def test_each_kernel_beside_a_graph_has_its_operator_its_place_and_the_hole_before_it() -> None:
    found = launched(mixed())
    expected = [["fill", "aten::fill_", BEFORE, 1, 2], ["argmax", "token", BEHIND, 1, 5]]
    assert rows(found.by_kernel(), *BY_KERNEL) == expected
    assert (found.steps, found.lacking, rows(found.by_kernel(), "launch_us")) == (TOKENS, 0, [6, 6])
    holes = {(kernel, hole) for at, kernel, hole in rows(found.table, "at", "kernel", "hole_ns") if at > 0}
    assert holes == {("fill", PERIOD - 80_000 + 12_000), ("argmax", 5_000)}
    partly = launched(mixed(unknown=4))
    assert (partly.steps, partly.lacking, rows(partly.by_kernel(), *BY_KERNEL)) == (TOKENS - 4, 4, expected)
    of_two = launched(mixed(pieces=2)).by_kernel()
    assert rows(of_two, "kernel", "where") == [["fill", BEFORE], ["argmax", BETWEEN]]
    assert predicted(mixed(pieces=2), IntoGraph("argmax", "token", BETWEEN)).speedup.estimate > 1


def test_in_the_graph_a_kernel_behind_it_follows_at_once() -> None:
    found = predicted(mixed(), ARGMAX)
    assert found.speedup.estimate > 1
    assert found.speedup.low is None  # no such change was measured
    starts = [start for name, start in rows(found.trace["kernels"], "name", "start") if name == "argmax"]
    ends = rows(found.trace["graph_launches"], "end")
    assert {start - end for start, end in zip(starts, ends, strict=True)} == {400}


def test_a_kernel_that_the_host_waits_for_before_the_graph_cannot_move() -> None:
    base = based(mixed(wait=True))
    with pytest.raises(UnsafePlanError, match="the host waits for them"):
        predict(base, [FILL])
    assert predict(base, [ARGMAX]).speedup.estimate > 1


def test_steps_with_unknown_kernels_are_left_out_as_if_there_were_none() -> None:
    whole, partly = (based(mixed(unknown=unknown)) for unknown in (0, 4))
    for edits in ([IntoGraph()], [FILL], [IntoGraph(), WithoutSyncs()]):
        one, other = (predict(base, edits) for base in (whole, partly))
        assert one.speedup.estimate == pytest.approx(other.speedup.estimate)
        assert one.predicted.idle_us == pytest.approx(other.predicted.idle_us)
    with pytest.raises(CannotTellError, match="in most of the 12 steps it is unknown"):
        based(mixed(unknown=7))
