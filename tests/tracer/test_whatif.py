"""What-ifs: on a machine whose costs are known they must come out exactly; on recordings, as measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.handmade import Script
from tests.tracer.machine import KERNEL, SAMPLING, Machine, recorded
from tests.tracer.test_causality import programs
from tracer import Trace, read
from tracer.analysis.causality.paths import Causality, StepEnds, call_slack, critical_path
from tracer.analysis.causality.positions import BESIDE_SYNC, by_position
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import (
    GRAPH_LAUNCH_NS,
    GRAPH_NODE_NS,
    Edit,
    OneGraph,
    ScaleHost,
    ScaleKernels,
    Strategy,
    SyncLatency,
    WithoutSyncs,
)
from tracer.analysis.whatif.needed import ORDERS, READS, REUSES, needed_syncs
from tracer.analysis.whatif.prediction import Prediction, predict
from tracer.analysis.whatif.streams import Concurrent, Kernel, assign, makespan
from tracer.cli import main
from tracer.errors import EmptyTraceError, TraceError, UnsafePlanError, UsageError
from tracer.graph_json import read_graph

LADDER = ["saaas", "aaas", "aaag", "ggg"]


def predicted(trace: Trace, *edits: Edit, untraced: float | None = None) -> Prediction:
    return predict(Causality.of(trace), find_steps(trace), edits, untraced)


def of_program(trace: Trace, *edits: Edit) -> Prediction:
    """Of a random program, unless its steps end in no order."""
    try:
        return predicted(trace, *edits)
    except EmptyTraceError:
        reject()


def period_ns(trace: Trace) -> float:
    return float(np.median(np.diff(trace["kernels"]["end"])))


@pytest.mark.parametrize("strategy", LADDER)
def test_every_strategy_is_predicted_exactly_from_sccc(strategy: str) -> None:
    """On a machine without noise, to the nanosecond; ggg's launches have no host code between them."""
    found = predicted(recorded("sccc"), Strategy(strategy))
    assert found.period_us * 1e3 == pytest.approx(period_ns(recorded(strategy)))
    assert found.base_period_us * 1e3 == period_ns(recorded("sccc"))
    assert found.speedup.estimate == pytest.approx(period_ns(recorded("sccc")) / period_ns(recorded(strategy)))
    assert found.speedup.low <= found.speedup.estimate <= found.speedup.high


@pytest.mark.parametrize(
    ("base", "strategy"), [("saaas", "aaas"), ("saaas", "aaag"), ("aaas", "aaag"), ("aaag", "ggg")]
)
def test_so_are_shorter_steps_of_the_ladder(base: str, strategy: str) -> None:
    found = predicted(recorded(base), Strategy(strategy))
    # A launch is 5 ns slower than a copy, and aaag has none on an idle stream to learn it from.
    assert found.period_us * 1e3 == pytest.approx(period_ns(recorded(strategy)), abs=5)


def test_the_gap_is_that_of_the_new_timeline() -> None:
    found = predicted(recorded("sccc"), Strategy("aaag"))
    assert found.trace.metadata["whatif"] == "aaag"
    assert any("prediction, not a recording" in note for note in found.trace.notes)
    measured = gap_report(found.trace, find_steps(found.trace))
    assert measured.gap_us["p50"] == pytest.approx(found.gap_us["p50"])
    assert measured.gap_us["p50"] == pytest.approx(gap_report(*with_steps(recorded("aaag"))).gap_us["p50"])
    assert found.base_gap_us["p50"] == pytest.approx(gap_report(*with_steps(recorded("sccc"))).gap_us["p50"])


def with_steps(trace: Trace) -> tuple[Trace, object]:
    return trace, find_steps(trace)


def test_the_new_timeline_lacks_the_calls_that_are_gone() -> None:
    recording, found = recorded("sccc", tokens=6), predicted(recorded("sccc", tokens=6), Strategy("aaag"))
    assert len(recording["syncs"]) == 6 * 7
    assert len(found.trace["syncs"]) == 6
    assert len(found.trace["api"]) == len(recording["api"]) - 6 * 6
    for name in ("kernels", "memcpys", "nvtx"):
        assert len(found.trace[name]) == len(recording[name])
    ggg = predicted(recorded("sccc", tokens=6), Strategy("ggg")).trace
    assert [len(ggg[name]) for name in ("kernels", "memcpys", "syncs", "api")] == [6, 0, 0, 6]


@given(programs())
@settings(max_examples=40, deadline=None)
def test_without_an_edit_the_recording_comes_out(trace: Trace) -> None:
    trace.metadata["source"] = "host"  # nothing was traced, so there is nothing to take out first
    found = of_program(trace)
    assert found.speedup.estimate == found.speedup.low == found.speedup.high == 1
    for name, frame in trace.tables.items():
        if "start" in frame:
            assert (found.trace[name][["start", "end"]].to_numpy() == frame[["start", "end"]].to_numpy()).all()


@given(programs())
@settings(max_examples=40, deadline=None)
def test_without_syncs_nothing_ends_later(trace: Trace) -> None:
    """And what is kept reads, orders or reuses something."""
    found = of_program(trace, WithoutSyncs())
    for name in ("kernels", "memcpys"):
        before, after = (t[name].sort_values("correlation")["end"].to_numpy() for t in (trace, found.trace))
        assert (after <= before).all()
    causality, steps = Causality.of(trace), find_steps(trace)
    reasons = needed_syncs(causality, steps)["reason"]
    assert len(found.trace["syncs"]) == (reasons != "").sum()


def test_a_sync_beside_the_path_gains_nothing_and_one_on_it_its_own_time() -> None:
    machine = Machine()
    for _ in range(10):
        start = machine.now
        machine.copy()
        event = machine.script.call("cudaEventRecord_v3020", machine.now, machine.now + 2)
        machine.now += 4
        copied = machine.free[7]
        machine.launch()
        end = max(machine.now + 5, copied + 6)
        sync = machine.script.call("cudaEventSynchronize_v3020", machine.now, end)  # returns while the kernel runs
        on = {"device": 0, "context": 1, "process": 100, "event": 1, "stream": 7}
        machine.script.rows["cuda_events"].append({**on, "correlation": event})
        span = {"start": machine.now, "end": end}
        machine.script.rows["syncs"].append({**on, **span, "correlation": sync, "type": "event"})
        machine.now = end + 4
        machine.copy("DtoH")
        machine.sync()
        machine.sync()  # once more, for nothing
        machine.script.range("token", start, machine.now)
    trace = machine.script.trace
    assert predicted(trace, WithoutSyncs((1,))).speedup.estimate == 1
    idle = predicted(trace, WithoutSyncs((3,)))
    assert idle.base_period_us - idle.period_us == pytest.approx((5 + 4) / 1e3)
    with pytest.raises(UnsafePlanError, match=f"sync 2 cannot go: {READS}"):
        predicted(trace, WithoutSyncs((2,)))
    with pytest.raises(UsageError, match="no step has a sync 4; they have 3 at most"):
        predicted(trace, WithoutSyncs((4,)))


def test_a_sync_between_streams_stays() -> None:
    machine = Machine()
    for _ in range(6):
        start = machine.now
        machine.copy(stream=9)
        machine.sync(9)
        machine.launch()
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    trace = machine.script.trace
    syncs = needed_syncs(Causality.of(trace), find_steps(trace))
    assert set(syncs.loc[syncs["position"] == 1, "reason"]) == {ORDERS.format(9, 7)}
    found = predicted(trace, WithoutSyncs())
    assert found.speedup.estimate == 1
    assert found.notes == [f"sync 1 stays: {ORDERS.format(9, 7)}", f"sync 2 stays: {READS}"]


def test_the_last_sync_before_the_host_writes_again_stays() -> None:
    machine = Machine()
    for _ in range(6):
        start = machine.now
        machine.copy()
        machine.launch()
        machine.sync()
        machine.script.range("token", start, machine.now)
    trace = machine.script.trace
    assert set(needed_syncs(Causality.of(trace), find_steps(trace))["reason"]) == {REUSES}


def test_kernels_host_code_and_syncs_scale() -> None:
    trace = recorded("aaag")
    base = period_ns(trace)
    assert predicted(trace, ScaleKernels("^k$", 0.5)).period_us * 1e3 == base - KERNEL / 2
    assert predicted(trace, SyncLatency(0.02)).period_us * 1e3 == base + 20
    assert predicted(trace, SyncLatency(-0.004)).period_us * 1e3 == base - 4
    pauses = 3 * 5 + SAMPLING + 4
    assert predicted(trace, ScaleHost(0)).period_us * 1e3 == base - pauses
    assert predicted(trace, ScaleHost(0), ScaleKernels("k", 2)).period_us * 1e3 == base - pauses + KERNEL
    with pytest.raises(UsageError, match=r"no kernel matches 'mul'; there are .*k"):
        predicted(trace, ScaleKernels("mul", 1))
    with pytest.raises(UsageError, match="no regular expression"):
        predicted(trace, ScaleKernels("(", 1))


def test_a_kernel_that_waited_for_the_one_before_shrinks_by_its_own_part() -> None:
    """The second of two overlapping kernels runs alone for 100 of its 200 ns, the first for all of them."""
    script = Script()
    for token in range(6):
        at = token * 2000
        script.range("token", at, at + 1500)
        correlation = script.call("cudaGraphLaunch_v10000", at, at + 20)
        script.kernel(at + 30, at + 230, correlation, name="first")
        script.kernel(at + 130, at + 330, correlation, name="second")
        script.sync(at + 40, at + 340)
    assert predicted(script.trace, ScaleKernels("second", 0.5)).period_us * 1e3 == 2000 - 50
    assert predicted(script.trace, ScaleKernels("first", 0.5)).period_us * 1e3 == 2000 - 100
    assert predicted(script.trace, ScaleKernels(".", 0.5)).period_us * 1e3 == 2000 - 150


def test_costs_have_an_interval_of_speed_ups_too() -> None:
    """However much slower: what it costs may be off by a factor, and no speed-up is negative."""
    found = predicted(recorded("aaag"), SyncLatency(100)).speedup
    assert 0 < found.low < found.estimate < found.high < 1


def test_where_no_time_passes_there_is_no_speedup() -> None:
    script = Script()
    for token in range(4):
        script.range("token", token * 100, token * 100 + 100)
        script.kernel(token * 100, token * 100 + 100)
    assert predicted(script.trace, ScaleKernels("k", 0.5)).speedup.estimate == 2
    with pytest.raises(EmptyTraceError, match="none is left"):
        predicted(script.trace, ScaleKernels("k", 0))
    with pytest.raises(UsageError, match="no step has a sync 1; they have none"):
        predicted(script.trace, WithoutSyncs((1,)))


def test_kernels_of_no_duration() -> None:
    script = Script()
    for token in range(4):
        at = token * 100_000
        script.range("token", at, at + 100_000)
        script.graph((at, at + 10_000), (at + 20_000, at + 20_000))
        script.sync(at + 20_000, at + 30_000)
    found = predicted(script.trace, SyncLatency(100), untraced=1e9 / 90_000)
    assert found.base_tokens_per_s == pytest.approx(1e9 / 90_000)
    assert found.speedup.estimate < 1


def in_two_parts(*between: str) -> Trace:
    """Two launches a step; between them what is given."""
    machine = Machine()
    for _ in range(8):
        start = machine.now
        machine.copy()
        machine.sync()
        machine.launch()
        for kind in between:
            machine.copy(kind)
            machine.sync()
        machine.launch()
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    return machine.script.trace


def test_what_the_host_reads_between_two_launches_is_still_read() -> None:
    """Whatever the strategy; and ggg would have the device do what the host does with it."""
    trace = in_two_parts("DtoH", "HtoD")
    for strategy, syncs in (("saaas", 4), ("aaag", 2)):
        assert len(predicted(trace, Strategy(strategy)).trace["syncs"]) == 8 * syncs
    with pytest.raises(UnsafePlanError, match="between two launches of a step the host reads"):
        predicted(trace, Strategy("ggg"))
    assert len(predicted(in_two_parts("HtoD"), Strategy("ggg")).trace["syncs"]) == 0


def test_ggg_is_not_for_steps_that_the_host_computes_a_part_of() -> None:
    trace = read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13")
    with pytest.raises(UnsafePlanError, match=r"the host computes a part of the step \('split 0: host'\)"):
        predicted(trace, Strategy("ggg"))
    assert predicted(trace, Strategy("aaag")).speedup.estimate == 1


def test_ggg_leaves_the_host_what_it_does_between_launches_of_a_run() -> None:
    """Launching is all that it does; what lies before and behind the run goes with the token's own host code."""
    trace = eager()
    found = predicted(trace, Strategy("ggg"))
    assert found.period_us * 1e3 == 30 * 20 + 29 * 3


def test_one_graph_on_several_streams_starts_behind_its_launch() -> None:
    machine = Machine()
    for _ in range(8):
        start = machine.now
        for _ in range(10):
            machine.launch(7, kernel=5, api="cudaLaunchKernel_v7000")
            machine.launch(9, kernel=5, api="cudaLaunchKernel_v7000")
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    found = predicted(machine.script.trace, OneGraph()).trace
    launched = found["api"].loc[found["api"]["name"] == "cudaLaunchKernel_v7000", "start"].to_numpy()
    begun = found["kernels"].groupby(np.arange(len(found["kernels"])) // 20)["start"].min().to_numpy()
    assert len(launched) == 8
    assert (begun > launched).all()
    for stream in (7, 9):
        on_stream = found["kernels"][found["kernels"]["stream"] == stream]
        assert (on_stream["start"].to_numpy()[::10] > launched).all()


def eager(kernels: int = 30) -> Trace:
    """One launch call after another, slower than their kernels."""
    machine = Machine()
    for _ in range(8):
        start = machine.now
        machine.copy()
        for _ in range(kernels):
            machine.launch(kernel=5, api="cudaLaunchKernel_v7000")
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    return machine.script.trace


def test_eager_launches_become_one_graph() -> None:
    trace = eager()
    found = predicted(trace, OneGraph())
    change = GRAPH_LAUNCH_NS + 30 * GRAPH_NODE_NS - 20  # of the call that stays; behind it the kernels queue
    queued = 29 * (5 + 18) + 5  # no kernel was queued behind another: how close they could be is not known
    before = trace["kernels"]["end"].to_numpy()[59] - trace["kernels"]["start"].to_numpy()[30]
    assert (found.period_us - found.base_period_us) * 1e3 == pytest.approx(change + queued - before, abs=5)
    assert len(found.trace["api"]) == len(trace["api"]) - 8 * 29
    assert len(found.trace["kernels"]) == len(trace["kernels"])
    with pytest.raises(EmptyTraceError, match="nothing to put into a graph"):
        predicted(recorded("aaag"), OneGraph())


def test_kernels_together_share_the_device() -> None:
    """Two kernels of 100 ns latency and 100 ns of work: those that each need all of the device follow each other."""

    def kernel(demand: float, *after: int, late: float = 0) -> Kernel:
        return Kernel(100, 100, demand, late, after)

    whole, half = kernel(1), kernel(0.5)
    assert makespan([whole, whole], [0, 0]) == pytest.approx(400)
    assert makespan([whole, whole], [0, 1]) == pytest.approx(100 + 200)
    assert makespan([half, half], [0, 1]) == pytest.approx(200)
    assert makespan([whole, whole, kernel(1, 0, 1, late=30)], [0, 1, 0]) == pytest.approx(300 + 30 + 200)
    assert makespan([whole, kernel(1, 0, late=30)], [0, 0]) == pytest.approx(400)


def test_branches_get_streams_and_joins_give_them_back() -> None:
    """Two layers of norm -> q, k, v -> attention."""

    def kernel(*after: int) -> Kernel:
        return Kernel(1, 1, 1, 0, after)

    layer = [kernel(), kernel(0), kernel(0), kernel(0), kernel(1, 2, 3), kernel(4), kernel(5), kernel(5), kernel(5)]
    found = assign([*layer, kernel(6, 7, 8)], 4)
    assert len(set(found)) == 3
    assert len({found[i] for i in (1, 2, 3)}) == len({found[i] for i in (6, 7, 8)}) == 3
    assert set(assign([*layer, kernel(6, 7, 8)], 2)) == {0, 1}
    assert set(assign(layer, 1)) == {0}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_more_streams_without_costs_are_never_slower_than_one(data: st.DataObject) -> None:
    sizes, demands = st.integers(0, 1000), st.floats(0.01, 1)
    kernels = []
    for i in range(data.draw(st.integers(1, 12))):
        after = data.draw(st.sets(st.integers(0, i - 1))) if i else set()
        kernels.append(Kernel(data.draw(sizes), data.draw(sizes), data.draw(demands), 0, tuple(sorted(after))))
    alone = makespan(kernels, [0] * len(kernels))
    assert alone == pytest.approx(sum(k.latency_ns + k.work_ns for k in kernels), rel=1e-6)
    assert makespan(kernels, assign(kernels, 4)) <= alone * (1 + 1e-6) + 1e-2


def test_bad_strategies_are_named() -> None:
    with pytest.raises(UsageError, match="no prediction for strategy 'sccc'; there are saaas, aaas, aaag, ggg"):
        predicted(recorded("aaag"), Strategy("sccc"))


def test_an_untraced_rate_takes_the_profilers_part_out_of_the_host() -> None:
    """Compute stays; what the host does shrinks until a token takes what it took without the profiler."""
    trace = recorded("sccc")
    base = period_ns(trace)
    found = predicted(trace, Strategy("aaag"), untraced=1e9 / (base - 100))
    assert found.base_period_us * 1e3 == pytest.approx(base - 100, abs=6)
    assert found.base == "measured"
    assert found.base_tokens_per_s == pytest.approx(1e9 / (base - 100))
    assert predicted(trace, Strategy("aaag")).base in ("estimated", "traced")
    with pytest.raises(TraceError, match="tracing stretched the kernels"):
        predicted(trace, Strategy("aaag"), untraced=1e9 / KERNEL)
    with pytest.raises(TraceError, match="that figure is of another run"):
        predicted(trace, Strategy("aaag"), untraced=1e9 / base / 2)


# What was measured: sample_traces, benchmarks/results.


def rate(name: str) -> float:
    run = json.loads((SAMPLES / name / "run.json").read_text())
    return float(run["measured"]["tokens_per_s"]["median"])


def test_the_ladder_of_the_h200_is_predicted_from_sccc() -> None:
    """Tokens/s within 2 % (the median within 0.5 %), and the order as measured."""
    base = "llama-1.1b-sccc-sequential-cuda"
    trace = read(SAMPLES / base)
    causality, steps = Causality.of(trace), find_steps(trace)
    found = [predict(causality, steps, [Strategy(name)]) for name in LADDER]
    errors = []
    for prediction, name in zip(found, LADDER, strict=True):
        measured = rate(base.replace("sccc", name))
        errors.append(abs(prediction.tokens_per_s / measured - 1))
        assert prediction.speedup.low < measured / rate(base) < prediction.speedup.high
    assert max(errors) < 0.02
    assert np.median(errors) < 0.005
    rates = [prediction.tokens_per_s for prediction in found]
    assert rates == sorted(rates)


@pytest.mark.parametrize("strategy", ["sccc", "saaas", "aaas", "aaag", "ggg"])
def test_branches_are_predicted_from_one_stream(strategy: str) -> None:
    name = f"llama-1.1b-{strategy}-sequential-cuda"
    trace, node = read(SAMPLES / name), read(SAMPLES / name / "node")
    edit = Concurrent(read_graph(SAMPLES / name / "graph.json"), node, find_steps(node))
    measured = rate(name.replace("sequential", "branches"))
    assert predicted(trace, edit).tokens_per_s == pytest.approx(measured, rel=0.02)
    assert predicted(trace, edit).speedup.estimate > 1


@pytest.mark.parametrize("level", ["graph", "node"])
def test_saaas_of_llama_cpp_is_predicted_from_a_traced_recording(level: str) -> None:
    """Measured without a profiler: +1.4 %."""
    found = predicted(read(SAMPLES / f"llama1b-sccc-{level}"), Strategy("saaas"), untraced=748.7)
    assert found.speedup.estimate == pytest.approx(759.5 / 748.7, abs=0.01)
    assert found.speedup.estimate > 1.002
    assert found.base_tokens_per_s == pytest.approx(748.7)


def test_a_sync_of_a_cupy_loop_is_beside_the_path_and_costs_nothing() -> None:
    """Measured without a profiler: 0.9996 [0.9989, 1.0006]."""
    trace = read(SAMPLES / "cupy-sync-beside")
    causality, steps = Causality.of(trace), find_steps(trace)
    ends = StepEnds.of(causality, steps)
    table = by_position(call_slack(causality, ends, critical_path(causality, ends), steps))
    sync = table[table["letter"] == "s"].iloc[0]
    assert (sync["on_path_us"], sync["verdict"]) == (0, BESIDE_SYNC)
    assert 190 < sync["slack_us"] < 240
    found = predict(causality, steps, [WithoutSyncs((1,))])
    assert found.speedup.estimate == pytest.approx(1, abs=1e-4)
    assert found.base_gap_us["p50"] == pytest.approx(30, abs=0.5)  # the period less the graph's time


def test_a_prediction_is_not_corrected_again() -> None:
    found = predicted(read(SAMPLES / "llama1b-sccc-graph"), Strategy("saaas"))
    again = predicted(found.trace)
    assert again.base_gap_us == pytest.approx(found.gap_us)
    assert again.base_period_us == pytest.approx(found.period_us)


def run(*arguments: object) -> object:
    return CliRunner().invoke(main, ["whatif", *map(str, arguments)])


def test_the_command_prints_a_table_and_json(tmp_path) -> None:
    name = SAMPLES / "llama1b-sccc-graph"
    text = run(name, "--without-syncs")
    assert text.exit_code == 0
    assert "sync 13 stays: the host reads what the copy before it brought" in text.output
    facts = json.loads(run(name, "--sync", "saaas,aaag", "--json").stdout)
    assert facts["schema"] == "intertoken.whatif/1"
    assert facts["edit"] == "saaas"
    assert set(facts["speedup"]) == {"estimate", "low", "high"}
    assert [p["edit"] for p in facts["predictions"]] == ["saaas", "aaag"]
    assert facts["gap_us"]["p50"] < facts["recorded"]["gap_us"]["p50"]
    out = tmp_path / "new.sqlite"
    assert run(name, "--sync", "aaag", "-o", out).exit_code == 0
    assert gap_report(*with_steps(read(out))).gap_us["p50"] < 60
    again = run(name, "--sync", "aaag", "-o", out)
    assert again.exit_code == 2
    assert "exists already" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing is different"),
        (["--without-sync", "13"], "llama1b-sccc-graph: sync 13 cannot go: the host reads"),
        (["--without-sync", "x"], "not a list of positions"),
        (["--scale-kernels", "a"], "is not REGEX=FACTOR"),
        (["--scale-kernels", "a=-1"], "is not REGEX=FACTOR"),
        (["--scale-host", "nan"], "nan is no number"),
        (["--sync-latency-us", "nan"], "nan is no number"),
        (["--concurrent"], "has no graph.json"),
        (["--sync", "saaas,aaag", "-o", "x.sqlite"], "-o takes one prediction"),
        (["--graph"], "nothing to put into a graph"),
    ],
)
def test_bad_use_is_one_line(options: list[str], message: str) -> None:
    found = run(SAMPLES / "llama1b-sccc-graph", *options)
    assert found.exit_code == 2
    assert message in found.output


def test_the_path_command() -> None:
    found = CliRunner().invoke(main, ["path", str(SAMPLES / "llama1b-sccc-graph")])
    assert found.exit_code == 0
    assert "critical path of a token: 1,439.4 µs" in found.output
    assert "costs nothing: beside the path" in found.output
