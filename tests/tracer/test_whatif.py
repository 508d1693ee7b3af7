"""What-ifs: on a machine whose costs are known they must come out exactly; on recordings, as measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings

from tests.tracer.bases import base_of
from tests.tracer.handmade import Script
from tests.tracer.machine import KERNEL, PAUSE_AFTER, SAMPLING, Machine, recorded
from tests.tracer.test_causality import programs
from tracer import Trace
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.edits import ScaleHost, ScaleKernels, SyncLatency, WithoutSyncs
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.analysis.whatif.needed import ORDERS, READS, REUSES, needed_syncs
from tracer.analysis.whatif.prediction import RANKS, TOO_FEW, Prediction, predict
from tracer.errors import EmptyTraceError, UnsafePlanError, UsageError
from tracer.model.fits import fits_of

LADDER = ["saaas", "aaas", "aaag", "ggg"]
FITS = fits_of("NVIDIA H200")


def light(trace: Trace) -> Trace:
    """The same as if nothing had been traced."""
    trace.metadata["source"] = "host"
    return trace


def predicted(trace: Trace, *edits: Edit, untraced: float | None = None) -> Prediction:
    return predict(base_of(Causality.of(trace), find_steps(trace), untraced), edits)


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
    found = predicted(light(recorded("sccc")), FollowStrategy(strategy))
    assert found.predicted.period_us * 1e3 == pytest.approx(period_ns(recorded(strategy)))
    assert found.before.period_us * 1e3 == period_ns(recorded("sccc"))
    assert found.speedup.estimate == pytest.approx(period_ns(recorded("sccc")) / period_ns(recorded(strategy)))
    assert found.of_steps.low == found.of_steps.estimate == found.of_steps.high  # every step is like the others
    half = FITS.margins.half_width(FITS.margins.fewer_calls, found.speedup.estimate)
    low, high = (found.speedup.estimate * np.exp(sign * half) for sign in (-1, 1))
    assert found.speedup.bounds == pytest.approx((low, high))


def with_steps(trace: Trace) -> tuple[Trace, object]:
    return trace, find_steps(trace)


def test_the_new_timeline_lacks_the_calls_that_are_gone() -> None:
    recording, found = recorded("sccc", tokens=6), predicted(recorded("sccc", tokens=6), FollowStrategy("aaag"))
    assert len(recording["syncs"]) == 6 * 7
    assert len(found.trace["syncs"]) == 6
    assert len(found.trace["api"]) == len(recording["api"]) - 6 * 6
    for name in ("kernels", "memcpys", "nvtx"):
        assert len(found.trace[name]) == len(recording[name])
    ggg = predicted(recorded("sccc", tokens=6), FollowStrategy("ggg")).trace
    assert [len(ggg[name]) for name in ("kernels", "memcpys", "syncs", "api")] == [6, 0, 0, 6]


@given(programs())
@settings(max_examples=4)
def test_without_an_edit_the_recording_comes_out(trace: Trace) -> None:
    trace.metadata["source"] = "host"  # nothing was traced, so there is nothing to take out first
    found = of_program(trace)
    assert found.speedup.estimate == 1
    assert found.speedup.bounds in ((1, 1), None)
    assert (found.speedup.bounds is None) == (found.notes == [TOO_FEW])
    for name, frame in trace.tables.items():
        if "start" in frame:
            assert (found.trace[name][["start", "end"]].to_numpy() == frame[["start", "end"]].to_numpy()).all()


@given(programs())
@settings(max_examples=4)
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
    assert idle.before.period_us - idle.predicted.period_us == pytest.approx((5 + 4) / 1e3)
    with pytest.raises(UnsafePlanError, match=f"sync 2 cannot be removed: {READS}"):
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
    assert found.notes == [f"sync 1 is kept: {ORDERS.format(9, 7)}", f"sync 2 is kept: {READS}"]


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
    assert predicted(trace, ScaleKernels("^k$", 0.5)).predicted.period_us * 1e3 == base - KERNEL / 2
    assert predicted(trace, SyncLatency(0.02)).predicted.period_us * 1e3 == base + 20
    assert predicted(trace, SyncLatency(-0.004)).predicted.period_us * 1e3 == base - 4
    pauses = 5 * PAUSE_AFTER["copy"] + SAMPLING + PAUSE_AFTER["sync"]
    assert predicted(trace, ScaleHost(0)).predicted.period_us * 1e3 == base - pauses
    assert predicted(trace, ScaleHost(0), ScaleKernels("k", 2)).predicted.period_us * 1e3 == base - pauses + KERNEL
    with pytest.raises(UsageError, match=r"no kernel matches 'mul'; the recording has .*k"):
        predicted(trace, ScaleKernels("mul", 1))
    with pytest.raises(UsageError, match="not a valid regular expression"):
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
    assert predicted(script.trace, ScaleKernels("second", 0.5)).predicted.period_us * 1e3 == 2000 - 50
    assert predicted(script.trace, ScaleKernels("first", 0.5)).predicted.period_us * 1e3 == 2000 - 100
    assert predicted(script.trace, ScaleKernels(".", 0.5)).predicted.period_us * 1e3 == 2000 - 150


def step_ns(trace: Trace) -> float:
    """From the end of a step's last kernel to that of the next."""
    tokens = trace["nvtx"][trace["nvtx"]["text"] == "token"]
    ends = trace["kernels"]["end"].to_numpy()
    return float(np.median(np.diff([ends[ends <= end].max() for end in tokens["end"]])))


@pytest.mark.parametrize(("before", "behind", "left"), [(0, 40, 44), (40, 0, 44), (20, 20, 24)])
def test_with_a_call_goes_the_shorter_pause_beside_it(before: int, behind: int, left: int) -> None:
    """The longer one belongs to the neighbours, such as the code that prepares the next copy."""

    def program(has_sync: bool) -> Trace:
        machine = Machine()
        for _ in range(8):
            start = machine.now
            machine.copy()
            if has_sync:
                machine.think(before)
                machine.sync()
                machine.think(behind)
            else:
                machine.now += left - PAUSE_AFTER["copy"]
            machine.launch()
            machine.copy("DtoH")
            machine.sync()
            machine.script.range("token", start, machine.now)
        return light(machine.script.trace)

    found = predicted(program(has_sync=True), WithoutSyncs((1,)))
    assert found.predicted.period_us * 1e3 == pytest.approx(step_ns(program(has_sync=False)))


@pytest.mark.parametrize("size", [4, 64_000])
def test_the_device_takes_its_time_to_choose_where_the_host_did(size: int) -> None:
    """Logits come to the host, or tokens."""
    trace = light(recorded("sccc"))
    bring = (trace["memcpys"]["kind"] == "DtoH").to_numpy()
    trace["memcpys"].loc[bring, "bytes"] = size
    base = predicted(trace, FollowStrategy("ggg")).predicted.period_us * 1e3
    chosen = FITS.sampling.choose_ns if size > 4 else 0
    assert base == pytest.approx(period_ns(recorded("ggg")) + chosen)


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
            script.sync(at + 170, at + 1010)
            script.rows["syncs"][-1] |= {"type": "event", "event": step - 1}
        script.record(at + 1012, at + 1014, step)
    found = predicted(light(script.trace), ScaleKernels("layers", 2))
    assert found.before.idle_us["p50"] == pytest.approx(0.02)
    assert found.predicted.period_us == pytest.approx(1.98)
    assert found.predicted.idle_us["p50"] == pytest.approx(0.02)


def test_a_rank_of_several_has_no_margin() -> None:
    """Its collectives may wait for other ranks, which no replay of it alone changes."""
    trace = light(recorded("sccc"))
    alone = predicted(trace, FollowStrategy("aaag"))
    assert alone.speedup.bounds is not None
    kernels = trace["kernels"]
    names = ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"] * len(kernels)
    after = kernels.assign(start=kernels["end"] + 1, end=kernels["end"] + 2, name=names, short_name=names)
    both = Trace.from_columns(kernels=pd.concat([kernels.astype({"name": str, "short_name": str}), after]))["kernels"]
    rank = predicted(Trace(trace.tables | {"kernels": both}, trace.metadata), FollowStrategy("aaag"))
    assert rank.speedup.bounds is None
    assert RANKS in rank.notes
    assert RANKS not in predicted(Trace(trace.tables | {"kernels": both}, trace.metadata)).notes
