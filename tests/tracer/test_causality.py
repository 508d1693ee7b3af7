"""What waits for what, the critical path and slack, on traces whose every cause is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.machine import Machine, recorded
from tracer import Trace, analyse, read
from tracer.analysis.path.graph import KINDS, NEVER, Dag, Edges
from tracer.analysis.path.paths import (
    BESIDE,
    BESIDE_SYNC,
    Causality,
    Pieces,
    StepEnds,
    activity_slack,
    call_slack,
    critical_path,
    path_shares,
)
from tracer.analysis.tokens import Steps, find_steps
from tracer.model.schema import HOST_COMPUTE


def path_of(trace: Trace, steps: Steps | None = None) -> Pieces:
    causality = Causality.of(trace)
    return critical_path(causality, StepEnds.of(causality, steps or find_steps(trace)))


def pieces_of(trace: Trace, step: int = 1) -> list[tuple[str, str, int]]:
    """(kind, name, ns) of one step's path."""
    path = path_of(trace)
    path = path[path.step == step]
    return [*zip(path.kind, path.name, path.ns.tolist(), strict=True)]


def slack_of(trace: Trace) -> pd.DataFrame:
    causality, steps = Causality.of(trace), find_steps(trace)
    ends = StepEnds.of(causality, steps)
    return call_slack(causality, ends, critical_path(causality, ends), steps).frame()


def activities_of(trace: Trace) -> pd.DataFrame:
    causality = Causality.of(trace)
    ends = StepEnds.of(causality, find_steps(trace))
    return activity_slack(causality, ends, critical_path(causality, ends)).frame()


def edges_of(trace: Trace) -> set[tuple[str, int, int]]:
    """(kind, recorded time of the source, of the target)."""
    dag = Causality.of(trace).dag
    e = dag.edges
    return {(KINDS[k], int(dag.time[s]), int(dag.time[t])) for k, s, t in zip(e.kind, e.source, e.target, strict=True)}


def test_the_path_of_a_token_leads_over_everything_that_made_it_wait() -> None:
    assert pieces_of(recorded("aaag", inputs=2), step=3) == [
        ("stream order", "memcpy DtoH", 2),
        ("device", "memcpy DtoH", 8),
        ("return", "cudaStreamSynchronize_v3020", 6),
        ("host", "cudaMemcpyAsync_v3020", 54),
        ("call", "cudaMemcpyAsync_v3020", 10),
        ("host", "cudaMemcpyAsync_v3020", 4),
        ("call", "cudaMemcpyAsync_v3020", 10),
        ("host", "cudaGraphLaunch_v10000", 4),
        ("launch", "k", 30),
        ("device", "k", 300),
    ]


def test_what_the_host_computes_as_a_device_is_cut_out_of_the_time_between_two_calls() -> None:
    script = Script()
    for base in (0, 1000):
        script.range("token", base, base + 900)
        script.range("split 0: host", base + 40, base + 380)
        for text, begin, end in (("mul_mat(a)", 50, 150), ("flash_attn_ext(b)", 200, 300), ("mul_mat(c)", 350, 405)):
            script.range(text, base + begin, base + end, domain=HOST_COMPUTE)
            script.range("mul_mat(d)", base + begin, base + end, thread=THREAD + 1, domain=HOST_COMPUTE)
        script.launch((base + 400, base + 410), (base + 415, base + 700))
        script.sync(base + 420, base + 710)
    launch = "cudaLaunchKernel_v7000"
    assert pieces_of(script.trace)[1:-2] == [
        ("host", launch, 340),
        ("host compute", "mul_mat", 100),
        ("host", launch, 50),
        ("host compute", "flash_attn_ext", 100),
        ("host", launch, 50),
        ("host compute", "mul_mat", 50),
    ]
    assert sum(ns for *_, ns in pieces_of(script.trace)) == 1000


def test_products_on_the_host_have_their_bytes_on_the_path() -> None:
    """A part of a product has its share of the bytes; of attention they are unknown."""
    script = Script()
    for base in (0, 1000):
        script.range("token", base, base + 900)
        for text, begin, end, nbytes in (
            ("mul_mat(a)", 50, 150, 2000), ("flash_attn_ext(b)", 200, 300, np.nan), ("mul_mat(c)", 350, 450, 3000)
        ):  # fmt: skip
            script.range(text, base + begin, base + end, domain=HOST_COMPUTE, payload=nbytes)
        script.launch((base + 400, base + 410), (base + 415, base + 700))
        script.sync(base + 420, base + 710)
    shares = path_shares(path_of(script.trace)).frame().set_index(["kind", "name"])["bytes_per_step"]
    assert shares["host compute", "mul_mat"] == 2000 + 3000 / 2
    assert shares.notna().sum() == 1


def test_blocking_copies_are_on_the_path_with_their_device_time() -> None:
    one = [("launch", "memcpy HtoD", 25), ("device", "memcpy HtoD", 8), ("return", "cudaStreamSynchronize_v3020", 6)]
    assert pieces_of(recorded("sccc", inputs=1), step=3) == [
        ("stream order", "memcpy DtoH", 2),
        ("device", "memcpy DtoH", 8),
        ("return", "cudaStreamSynchronize_v3020", 6),
        ("host", "cudaStreamSynchronize_v3020", 54),
        ("call", "cudaStreamSynchronize_v3020", 5),
        ("host", "cudaMemcpyAsync_v3020", 4),
        *one,
        ("host", "cudaGraphLaunch_v10000", 4),
        ("launch", "k", 30),
        ("device", "k", 300),
    ]


def test_graphs_that_follow_each_other_leave_the_host_beside_the_path() -> None:
    trace = recorded("ggg")
    assert pieces_of(trace, step=5) == [("stream order", "k", 2), ("device", "k", 300)]
    calls = slack_of(trace)
    late = calls[(calls["step"] > 0) & (calls["step"] < 11)]
    assert (late["slack_ns"] == late["step"] * (302 - 24)).all()  # every launch is that much earlier than needed
    assert (late["on_path_ns"] == 0).all()
    kernels = activities_of(trace).query("stream == stream.mode()[0]")
    assert kernels["slack_ns"].tolist()[:11] == [0] * 11
    assert kernels["on_path_ns"].tolist()[1:11] == [300] * 10


def test_a_host_that_launches_ahead_too_slowly_is_the_path_and_not_the_kernels_beside_it() -> None:
    """The kernels compute for 600 of 1,000 ns, but the host, which waits for nothing, needs 1,000 for each launch."""
    script = Script()
    for base in range(0, 12_000, 1_000):
        script.range("token", base, base + 990)
        script.launch((base + 100, base + 120), (base + 130, base + 730))
        script.sync(base + 800, base + 810)
    launch, sync = "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020"
    for step in range(1, 11):
        assert pieces_of(script.trace, step) == [
            ("host", sync, 70), ("call", sync, 10), ("host", launch, 290), ("call", launch, 20), ("host", sync, 610)
        ]  # fmt: skip
    assert pieces_of(script.trace, 11)[-2:] == [("launch", "k", 30), ("device", "k", 600)]
    calls = slack_of(script.trace)
    assert (calls["slack_ns"] == 0).all() == (calls["on_path_ns"] > 0).all()


def test_a_kernel_that_nothing_waits_for_can_end_whenever_it_likes() -> None:
    script = Script()
    for base in (0, 1000):
        script.range("token", base, base + 900)
        script.launch((base + 10, base + 20), (base + 30, base + 530))
        script.launch((base + 40, base + 50), (base + 60, base + 160), stream=9)
        script.sync(base + 60, base + 540)
    found = activities_of(script.trace).sort_values("start")
    assert found["on_path_ns"].tolist() == [0, 0, 500, 0]
    assert found["slack_ns"].iloc[2] == 0
    assert found["slack_ns"].iloc[3] > NEVER // 2


def test_a_sync_that_waits_beside_the_path_costs_nothing() -> None:
    machine = Machine()
    for _ in range(8):
        start = machine.now
        machine.copy()
        machine.copy(stream=9)
        machine.launch()
        machine.sync(9)  # of the other stream: returns while the kernel runs
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    table = analyse(machine.script.trace).path.calls.frame().set_index("position")
    assert table.loc[4, "verdict"] == BESIDE_SYNC
    assert table.loc[4, "on_path_us"] == 0
    assert table.loc[5, "verdict"] == BESIDE  # so does asking for the logits while the kernel runs
    assert table.loc[6, "verdict"] == ""
    # The sync of stream 9 returns 42 ns behind that copy's call; the copy back could begin when the kernel ends.
    calls = slack_of(machine.script.trace).set_index(["step", "position"])
    kernel_end = machine.script.trace["kernels"]["end"].iloc[3]
    copy_start = calls.loc[(3, 5), "start"]
    assert calls.loc[(3, 5), "slack_ns"] == kernel_end + 2 - 25 - copy_start
    assert calls.loc[(3, 4), "slack_ns"] == calls.loc[(3, 5), "slack_ns"]


def test_stream_waits_order_what_is_behind_them() -> None:
    script = Script()
    script.launch((0, 10), (20, 100), stream=7)
    record = script.call("cudaEventRecord_v3020", 12, 14)
    wait = script.call("cudaStreamWaitEvent_v3020", 16, 18)
    script.launch((20, 30), (105, 150), stream=8)
    on = {"device": 0, "context": 1, "process": PROCESS, "event": 4}
    script.rows["cuda_events"].append({**on, "stream": 7, "correlation": record})
    script.rows["syncs"].append({**on, "start": 16, "end": 18, "stream": 8, "correlation": wait, "type": "stream wait"})
    assert ("event", 100, 105) in edges_of(script.trace)


def test_an_event_sync_waits_for_what_was_before_the_record_alone() -> None:
    script = Script()
    script.launch((0, 10), (20, 100))
    record = script.call("cudaEventRecord_v3020", 12, 14)
    script.launch((20, 30), (102, 500))
    sync = script.call("cudaEventSynchronize_v3020", 40, 110)
    on = {"device": 0, "context": 1, "process": PROCESS, "event": 4, "stream": 7}
    script.rows["cuda_events"].append({**on, "correlation": record})
    script.rows["syncs"].append({**on, "start": 40, "end": 110, "correlation": sync, "type": "event"})
    assert {e for e in edges_of(script.trace) if e[0] == "return"} == {("return", 100, 110)}


def test_a_context_sync_waits_for_all_its_streams_and_no_other_context() -> None:
    script = Script()
    script.launch((0, 10), (20, 100), stream=7)
    script.launch((12, 20), (30, 200), stream=8)
    script.launch((22, 30), (40, 150), stream=9, device=1)
    sync = script.call("cudaDeviceSynchronize_v3020", 40, 210)
    script.rows["syncs"].append(
        {"start": 40, "end": 210, "correlation": sync, "type": "context", "device": 0, "context": 1, "process": PROCESS}
    )
    returns = {e for e in edges_of(script.trace) if e[0] == "return"}
    assert returns == {("return", 100, 210), ("return", 200, 210)}


@pytest.mark.parametrize("start", [40, 110])
def test_a_sync_of_which_the_trace_says_nothing_waits_for_what_ended_before_it_did(start: int) -> None:
    """Also where that was over when the sync began."""
    script = Script()
    script.launch((0, 10), (20, 100), stream=7)
    script.launch((12, 20), (30, 200), stream=8)
    script.call("cudaStreamSynchronize_v3020", start, 120)
    assert ("return", 100, 120) in edges_of(script.trace)


def test_nodes_of_a_graph_on_several_streams_wait_for_the_last_that_ended() -> None:
    script = Script()
    correlation = script.call("cudaGraphLaunch_v10000", 0, 10)
    for start, end, stream in ((20, 40, 7), (41, 80, 7), (42, 90, 8), (92, 120, 7)):
        script.kernel(start, end, correlation, stream)
    events = {e for e in edges_of(script.trace) if e[0] == "event"}
    assert events == {("event", 40, 42), ("event", 90, 92)}


def test_a_kernel_that_starts_early_ends_behind_the_one_before() -> None:
    script = Script()
    correlation = script.call("cudaGraphLaunch_v10000", 0, 10)
    script.kernel(20, 100, correlation)
    script.kernel(60, 130, correlation)
    edges = edges_of(script.trace)
    assert {e for e in edges if e[0] == "stream order"} == {("stream order", 20, 60)}
    assert ("device", 100, 130) in edges


def test_overlapping_kernels_are_on_the_path_with_their_own_time() -> None:
    """Each of three kernels starts 20 ns before the one ahead of it ends."""
    script = Script()
    for token in range(3):
        at = token * 1000
        script.range("token", at, at + 900)
        correlation = script.call("cudaGraphLaunch_v10000", at, at + 20)
        for start, end, name in ((30, 130, "a"), (110, 330, "b"), (310, 630, "c")):
            script.kernel(at + start, at + end, correlation, name=name)
        script.sync(at + 40, at + 640)
    assert pieces_of(script.trace)[-3:] == [("device", "a", 100), ("device", "b", 200), ("device", "c", 300)]


def test_clocks_that_disagree_are_counted_and_the_rest_replays() -> None:
    script = Script()
    script.launch((0, 10), (-5, 100))
    script.sync(20, 110)
    dag = Causality.of(script.trace).dag
    assert dag.backward == 1
    assert (dag.replayed()[0] == dag.time).all()


def test_points_of_one_time_that_wait_for_one_another() -> None:
    edges = Edges.of(np.arange(3), np.array([1, 2, 0]), np.zeros(3, np.int64), 0)
    dag = Dag.recorded(np.array([5, 5, 5]), edges)
    assert dag.backward == 1
    assert (dag.replayed()[0] == 5).all()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.sampled_from([7, 8])),
        st.tuples(st.just("fetch"), st.sampled_from([7, 8])),
        st.tuples(st.just("sync"), st.sampled_from([7, 8])),
        st.tuples(st.just("launch"), st.sampled_from([7, 8])),
        st.tuples(st.just("think"), st.integers(0, 400)),
    ),
    max_size=10,
)


@st.composite
def programs(draw: st.DrawFn) -> Trace:
    machine = Machine()
    for _ in range(draw(st.integers(2, 5))):
        start = machine.now
        machine.launch(kernel=draw(st.integers(1, 500)))
        for name, value in draw(operations):
            {"copy": lambda s: machine.copy(stream=s), "fetch": lambda s: machine.copy("DtoH", s), "sync": machine.sync,
             "launch": machine.launch, "think": machine.think}[name](value)  # fmt: skip
        machine.script.range("token", start, machine.now)
    return machine.script.trace


@given(programs())
@settings(max_examples=8)
def test_paths_are_whole_and_no_longer_than_their_steps(trace: Trace) -> None:
    causality, steps = Causality.of(trace), find_steps(trace)
    assert (causality.dag.replayed()[0] == causality.dag.time).all()
    ends = StepEnds.of(causality, steps)
    pieces = critical_path(causality, ends)
    everything = sum(int((f.end - f.start).sum()) for f in (causality.segments.calls, causality.segments.activities))
    between = int(np.ptp(causality.segments.calls.start))
    for row in ends.followed.frame().itertuples():
        mine = pieces[pieces.step == row.step]
        length = mine.ns.sum()
        assert length <= row.end - row.before or row.end < row.before
        assert length <= everything + between
        if len(mine) and row.end > row.before:
            assert mine.end[-1] == row.end
            assert (mine.start[1:] == mine.end[:-1]).all()
            assert length == row.end - row.before
    slack = call_slack(causality, ends, pieces, steps)
    assert (slack.slack_ns >= 0).all()
    assert (slack.slack_ns[(slack.on_path_ns > 0) & (slack.letter == "s")] == 0).all()
    activities = activity_slack(causality, ends, pieces)
    assert (activities.slack_ns >= 0).all()
    assert (activities.slack_ns[activities.on_path_ns > 0] == 0).all()


@pytest.mark.parametrize("name", ["llama1b-sccc-graph", "llama1b-saaas-node", "six-strategies"])
def test_recordings_replay_to_the_nanosecond(name: str) -> None:
    trace = read(SAMPLES / name)
    causality = Causality.of(trace)
    assert (causality.dag.replayed()[0] == causality.dag.time).all()
    assert causality.dag.backward == 0
