"""What a wait waits for: a stream, an event's record, everything, or what nobody tells."""

import pytest

from tests.tracer.handmade import THREAD, Script
from tests.tracer.kineto import event, on_gpu, read
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.waits import MANY, poll_loops
from tracer.model.trace import Trace

NOT_READY = 600


def report(trace: Trace) -> SyncReport:
    return sync_report(trace, find_steps(trace))


def waited_for(script: Script) -> list[str]:
    """Of the waits in the ranges called token."""
    return [str(name) for name in report(script.trace).inventory()["waits_for"]]


def test_a_sync_of_an_event_waits_for_what_was_given_before_its_record() -> None:
    script = Script()
    script.range("token", 0, 1000)
    script.launch((0, 10), (20, 300), name="before")
    script.record(30, 35, event=5)
    script.launch((40, 50), (300, 420), name="behind")
    script.sync(60, 310, stream=-1, name="cudaEventSynchronize_v3020", type="event", event=5)
    script.sync(320, 430)
    assert waited_for(script) == ["before", "behind"]


def test_a_sync_of_an_event_recorded_a_step_earlier_waits_for_that_step() -> None:
    script = Script()
    for token in range(4):  # the host is one step ahead, and fetches what the step before sent
        t = token * 1000
        script.range("token", t, t + 1000)
        script.launch((t, t + 10), (t + 400, t + 1300), name=f"of step {token}")
        script.copy((t + 20, t + 30), (t + 1300, t + 1310), "DtoH")
        script.record(t + 40, t + 50, event=token)
        if token:
            script.sync(t + 60, t + 320, stream=-1, name="cudaEventSynchronize", type="event", event=token - 1)
    found = report(script.trace)
    syncs = found.calls[found.calls["letter"] == "s"]
    assert syncs["waited_for"].tolist() == ["memcpy DtoH"] * 3
    assert (syncs["waited_until"] - syncs["step"] * 1000).tolist() == [310] * 3
    assert found.fetch_lag is not None
    assert (found.fetch_lag.median, found.fetch_lag.share, found.fetch_lag.fetches) == (1.0, 1.0, 3)


def test_of_several_records_of_an_event_the_last_before_the_sync_counts() -> None:
    script = Script()
    script.range("token", 0, 1000)
    script.launch((0, 5), (10, 100), name="first")
    script.record(20, 25, event=5)
    script.launch((30, 35), (100, 200), name="second")
    script.record(40, 45, event=5)
    script.sync(50, 210, stream=-1, name="cudaEventSynchronize", type="event", event=5)
    script.record(300, 305, event=5)
    assert waited_for(script) == ["second"]


def test_an_event_whose_record_is_not_in_the_recording_is_unknown() -> None:
    script = Script()
    for token in range(3):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 300))
        script.sync(t + 60, t + 310, stream=-1, name="cudaEventSynchronize", type="event", event=5)
    row = report(script.trace).inventory().iloc[0]
    assert row["waits_for"] == "unknown"
    assert row["waiting_share"] != row["waiting_share"]


def test_a_device_sync_waits_for_every_stream_and_a_stream_sync_for_its_own() -> None:
    script = Script()
    script.range("token", 0, 1000)
    script.launch((0, 5), (10, 100), stream=7, name="on 7")
    script.launch((6, 9), (10, 200), stream=8, name="on 8")
    script.sync(20, 120, stream=7)
    script.sync(130, 210, stream=-1, name="cudaDeviceSynchronize_v3020", type="context")
    assert waited_for(script) == ["on 7", "on 8"]


@pytest.mark.parametrize(("streams", "expected"), [((7, 7), "k1"), ((7, 8), "unknown")])
def test_a_stream_sync_without_a_row_is_known_where_there_is_one_stream(tmp_path, streams, expected) -> None:
    """As HIP's recordings are, and Kineto's without `cuda_sync`."""
    events = [
        event("user_annotation", "token", 0, 900),
        *[event("cuda_runtime", "hipLaunchKernel", 10 * i, 5, correlation=i + 1) for i in range(2)],
        event("cuda_runtime", "hipStreamSynchronize", 30, 300, correlation=9),
        *[
            on_gpu("kernel", f"k{i}", 100 + 100 * i, 90, i + 1) | {"tid": stream, "args": {
                "device": 0, "context": 1, "stream": stream, "correlation": i + 1}}
            for i, stream in enumerate(streams)
        ],
    ]  # fmt: skip
    trace = read(tmp_path, events)
    assert report(trace).inventory()["waits_for"].tolist() == [expected]


@pytest.mark.parametrize("name", ["cudaMemcpy_v3020", "hipMemcpyWithStream", "cuMemcpyDtoH_v2"])
def test_a_blocking_copy_is_a_wait(name: str) -> None:
    script = Script()
    for token in range(3):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 300), name="matvec")
        script.copy((t + 30, t + 330), (t + 305, t + 320), "DtoH", name=name)
    found = report(script.trace)
    assert (found.syncs_per_token, found.blocking_copies_per_token, found.copies_per_token) == (0, 1, 1)
    (row,) = found.inventory().to_dict("records")
    assert (row["what"], row["position"], row["waits_for"], row["median_us"]) == ("blocking copy", 1, "matvec", 0.3)
    assert (found.strategy, found.share) == ("none", 1.0)
    assert found.fetch_lag is not None
    assert found.fetch_lag.median == 0.0


def polling(script: Script, t: int, answers: list[int], name: str = "cudaEventQuery_v3020", event: int = 5) -> None:
    for i, answer in enumerate(answers):
        script.sync(t + 10 * i, t + 10 * i + 5, -1, name=name, type="event", event=event)
        script.rows["api"][-1]["return_value"] = answer
    for row in script.rows["api"]:
        row.setdefault("return_value", 0)


def test_a_loop_of_queries_is_one_wait() -> None:
    script = Script()
    for token in range(3):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 138), name="matvec")
        script.record(t + 20, t + 25, event=5)
        polling(script, t + 100, [NOT_READY] * 4 + [0])
    found = report(script.trace)
    assert (found.syncs_per_token, found.polls_per_token, found.signature) == (0, 1, "k e q")
    (row,) = found.inventory().to_dict("records")
    assert (row["what"], row["queries"], row["median_us"], row["waits_for"]) == ("polling loop", 5, 0.045, "matvec")
    assert found.strategy == "none"


def test_a_query_that_finds_work_ended_ends_its_loop() -> None:
    script = Script()
    polling(script, 0, [NOT_READY, 0, NOT_READY, NOT_READY, 0, 0])
    loops = poll_loops(script.trace)
    assert loops["queries"].tolist() == [2, 3]
    assert loops[["start", "end"]].to_numpy().tolist() == [[0, 15], [20, 45]]


def test_queries_of_several_events_or_with_a_call_between_are_no_loop() -> None:
    script = Script()
    for i in range(6):
        polling(script, 100 * i, [NOT_READY], event=i)
    for i in range(6):
        script.call("cudaMalloc_v3020", 1050 + 100 * i, 1060 + 100 * i)
        polling(script, 1080 + 100 * i, [NOT_READY], event=1)
    assert not len(poll_loops(script.trace))


@pytest.mark.parametrize(("queries", "ends_at", "expected"), [(MANY, 138, [MANY]), (MANY - 1, 138, []), (MANY, 70, [])])
def test_without_answers_a_loop_ends_when_work_does(queries: int, ends_at: int, expected: list[int]) -> None:
    """As in Kineto's recordings: two queries are an allocator's."""
    script = Script()
    script.kernel(0, ends_at)
    first = 145 - 10 * queries
    for i in range(queries):
        script.call("hipEventQuery", first + 10 * i, first + 10 * i + 5)
    assert poll_loops(script.trace)["queries"].tolist() == expected


def test_what_a_thread_that_launches_nothing_asks_is_not_counted() -> None:
    script = Script()
    for token in range(3):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 138))
        for i in range(5):
            script.call("cudaEventQuery", t + 100 + 10 * i, t + 105 + 10 * i, thread=THREAD + 1)
    found = report(script.trace)
    assert found.polls_per_token == 0
    assert found.inventory().empty


def test_who_fetches_cannot_be_told_where_syncs_do_not_say_what_they_wait_for() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 300))
        script.copy((t + 30, t + 40), (t + 305, t + 310), "DtoH", stream=8)
        script.call("cudaEventSynchronize_v3020", t + 50, t + 320)
    script.sync(5000, 5010, stream=-1, name="cudaDeviceSynchronize_v3020", type="context")
    assert report(script.trace).fetch_lag is None


def test_a_thread_of_its_own_may_fetch() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 1000)
        script.launch((t, t + 10), (t + 20, t + 1200))
        script.copy((t + 30, t + 40), (t + 1205, t + 1210), "DtoH")
        script.sync(t + 50, t + 1215, thread=THREAD + 1)  # while the other thread launches the next step
    found = report(script.trace)
    assert found.fetch_lag is not None
    assert (found.fetch_lag.median, found.fetch_lag.fetches) == (1.0, 4)
    assert found.fetch_lag.share == 0.75  # no step follows the last
