"""Gaps and their causes, to the nanosecond."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import THREAD, Script
from tracer import Trace
from tracer.analysis.causes import CAUSES
from tracer.analysis.gaps import GapReport, gap_report
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError, TraceError


def two_tokens() -> Script:
    """Compute ends at 1000 and goes on at 1500; the 500 ns between are 60 copy, 120 launch, 40 sync, 280 host."""
    script = Script()
    script.range("token", 0, 1050)
    script.range("token", 1050, 3000)
    script.launch((10, 20), (30, 1000))
    script.sync(40, 1040)  # returns 40 late
    script.copy((1100, 1120), (1130, 1170))  # 20 in the call, 40 on the device
    script.launch((1400, 1450), (1500, 2000))  # 50 in the call, 50 until the kernel starts
    script.launch((1220, 1240), (2000, 2100))  # another launch call, 20
    return script


def report(trace: Trace, **options: float) -> GapReport:
    return gap_report(trace, find_steps(trace), **options)


def causes(trace: Trace) -> dict[str, int]:
    row = report(trace).table.iloc[0]
    return {name: int(row[name]) for name in ("gap", *CAUSES)}


def test_each_nanosecond_has_one_cause() -> None:
    expected = {"gap": 500, "communication": 0, "sync": 40, "copy": 60, "launch": 120, "host": 280, "other": 0}
    assert causes(two_tokens().trace) == expected


def test_a_copy_on_the_device_explains_the_sync_that_waits_for_it() -> None:
    script = two_tokens()
    script.copy((45, 50), (1000, 1030), "DtoH")  # the logits, while the host is inside the sync
    assert causes(script.trace)["copy"] == 90
    assert causes(script.trace)["sync"] == 10


def test_other_threads_count_only_where_the_launching_one_makes_no_call() -> None:
    script = two_tokens()
    script.call("cudaMalloc_v3020", 1030, 1090, thread=THREAD + 1)
    assert causes(script.trace)["other"] == 50
    script.kernel(1300, 1320, process=999)
    assert causes(script.trace)["other"] == 70
    assert sum(v for k, v in causes(script.trace).items() if k != "gap") == 500


def test_steps_that_overlap_on_the_device_have_no_gap() -> None:
    script = Script()
    for token in range(3):
        script.range("token", token * 10, token * 10 + 10)
        script.launch((token * 10 + 1, token * 10 + 2), (1000 + token * 100, 1150 + token * 100), stream=7 + token)
    found = report(script.trace)
    assert found.gap_us == {"p50": 0.0, "p90": 0.0, "mean": 0.0}
    assert sum(found.causes_us.values()) == 0


def test_no_gap_between_groups_or_devices() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 800), device=token % 2)
    script.range("first", 0, 1950)
    script.range("second", 1960, 4000)
    with pytest.raises(EmptyTraceError, match="no gap"):
        report(script.trace)


def test_several_devices_are_measured_apart() -> None:
    script = Script()
    for token in range(3):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 720), device=0)
        script.launch((t + 20, t + 30), (t + 50, t + 450), device=1)
    table = report(script.trace).table
    assert table[["device", "step", "gap"]].to_numpy().tolist() == [
        [0, 0, 300],
        [0, 1, 300],
        [1, 0, 600],
        [1, 1, 600],
    ]


def test_two_processes_that_decode_at_the_same_time_have_gaps_of_their_own() -> None:
    script = Script()
    for token in range(4):
        for process, shift in ((1, 0), (2, 300)):
            t = token * 1000 + shift
            row = {
                "text": "token",
                "start": t,
                "end": t + 900,
                "process": process,
                "thread": process,
                "kind": "push/pop",
            }
            script.rows["nvtx"].append(row)
            script.launch((t, t + 10), (t + 20, t + 620), device=process, process=process, thread=process)
    table = report(script.trace).table
    assert table["device"].tolist() == [1, 1, 1, 2, 2, 2]
    assert set(table["gap"]) == {400}


def test_where_the_launching_call_is_unknown_the_step_s_own_thread_counts() -> None:
    script = two_tokens()
    for row in script.rows["kernels"]:
        row["correlation"] = -1
    found = causes(script.trace)
    assert found["other"] == 0
    assert found["launch"] == 70  # both calls, but not the way to the kernel


def test_the_untraced_rate_corrects_the_gap() -> None:
    script = Script()
    for token in range(11):
        t = token * 2_000_000
        script.range("token", t, t + 1_900_000)
        script.launch((t, t + 1000), (t + 5_000, t + 1_505_000))
    found = report(script.trace, untraced_tokens_per_s=625.0)  # 1600 us
    assert found.gap_us["p50"] == 500.0
    assert found.distortion == pytest.approx(2000 / 1600)
    assert found.warning is not None
    corrected = found.corrected()
    assert corrected.gap_us == {"p50": 100.0, "mean": 100.0}
    assert sum(corrected.causes_us.values()) == pytest.approx(100.0)
    assert corrected.warning is None


def test_of_a_node_level_trace_the_corrected_gap_has_an_interval() -> None:
    script = two_tokens()
    for row in script.rows["kernels"]:
        row["graph_node"] = 7
    corrected = report(script.trace, untraced_tokens_per_s=800_000.0).corrected()
    assert corrected.graph_trace == "node"
    assert "node-level tracing stretched the CUDA graphs" in str(corrected.warning)
    assert corrected.estimated is not None
    assert corrected.estimated.holds(corrected.gap_us["p50"])


def test_a_rate_that_leaves_no_time_for_a_gap_is_refused() -> None:
    with pytest.raises(TraceError, match=r"busy for 1.0 µs a step, longer than"):
        report(two_tokens().trace, untraced_tokens_per_s=2_000_000.0).corrected()
    assert report(two_tokens().trace, untraced_tokens_per_s=2_000_000.0).untraced_gap_us is None


def test_the_host_recorder_is_its_own_light_pass() -> None:
    trace = two_tokens().trace
    trace.metadata["source"] = "host"
    assert report(trace).distortion == 1.0
    assert report(trace).warning is None


SPAN = st.tuples(st.integers(0, 5000), st.integers(0, 400)).map(lambda s: (s[0], s[0] + s[1]))


@settings(max_examples=8)
@given(st.data())
def test_causes_add_up_and_are_never_negative(data: st.DataObject) -> None:
    """Whatever calls, copies and threads there are, in whatever disorder."""
    script = Script()
    for token in range(data.draw(st.integers(2, 6))):
        script.range("token", token * 1000, token * 1000 + 900)
        kernel = data.draw(SPAN)
        script.launch((token * 1000 + 1, token * 1000 + 30), kernel, device=data.draw(st.integers(0, 1)))
    names = [
        "cudaMemcpyAsync_v3020",
        "cudaStreamSynchronize_v3020",
        "cudaMalloc_v3020",
        "cudaGraphLaunch_v10000",
    ]
    for span in data.draw(st.lists(SPAN, max_size=12)):
        script.call(data.draw(st.sampled_from(names)), *span, thread=data.draw(st.sampled_from([THREAD, THREAD + 1])))
    for span in data.draw(st.lists(SPAN, max_size=6)):
        script.copy((0, 1), span)
    try:
        found = report(script.trace)
    except EmptyTraceError:
        return
    parts = found.table[list(CAUSES)].to_numpy()
    assert (parts >= 0).all()
    assert (parts.sum(axis=1) == found.table["gap"].to_numpy()).all()
    assert sum(found.causes_us.values()) == pytest.approx(found.gap_us["mean"])
    assert np.issubdtype(parts.dtype, np.integer)


def test_prompts_alone_have_no_gap_and_it_says_why() -> None:
    script = Script()
    for at in range(0, 5000, 1000):
        script.range("execute_context_1(512)_generation_0(0)", at - 1, at + 60)
        script.launch((at, at + 10), (at + 20, at + 700))
    with pytest.raises(EmptyTraceError, match="no gap: 5 prompts, before each of which the device may have waited"):
        gap_report(script.trace, find_steps(script.trace))
