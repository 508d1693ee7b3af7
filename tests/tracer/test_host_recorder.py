"""The host recorder and annotate()."""

import threading

import pytest

from tracer import annotate, record
from tracer.analysis.call_sites import PYTHON, call_sites
from tracer.model.trace import Pause, pauses
from tracer.recorders import ranges
from tracer.recorders.host import HostRecorder


class Clock:
    """Ticks 10 ns at every look."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        self.now += 10
        return self.now


def test_reports_become_rows_in_ns_since_the_first_event() -> None:
    recorder = HostRecorder(Clock())
    recorder.start()
    recorder.api("graphLaunch", 5000, 5010, 1)
    recorder.kernel("matvec", 5020, 5030, device=0, stream=3, correlation=1, graph_node=7, graph=2)
    recorder.memcpy("HtoD", 64, 5040, 5050, device=0, stream=3, correlation=2, src_kind="pinned", dst_kind="device")
    recorder.sync("stream", 5060, 5070, device=0, stream=3, correlation=3)
    recorder.event_record(9, device=0, stream=3, correlation=4)
    recorder.graph_launch(5080, 5090, device=0, stream=3, correlation=1, graph=2)
    trace = recorder.trace
    assert trace.metadata["source"] == "host"
    assert trace.metadata["clock"] == {"origin_ns": 5000}
    assert trace["graph_launches"][["start", "end", "graph"]].to_numpy().tolist() == [[80, 90, 2]]
    assert trace["api"][["start", "end", "correlation", "name"]].to_numpy().tolist() == [[0, 10, 1, "graphLaunch"]]
    assert trace["api"]["thread"].tolist() == [threading.get_native_id()]
    assert trace["kernels"][["start", "stream", "graph_node", "graph"]].to_numpy().tolist() == [[20, 3, 7, 2]]
    assert trace["memcpys"][["kind", "bytes", "src_kind"]].to_numpy().tolist() == [["HtoD", 64, "pinned"]]
    assert trace["syncs"][["type", "stream"]].to_numpy().tolist() == [["stream", 3]]
    assert trace["cuda_events"]["event"].tolist() == [9]


def test_what_is_between_a_stop_and_the_next_start_is_a_pause() -> None:
    now = 1000
    recorder = HostRecorder(lambda: now)
    for begin, end in ((1000, 1100), (1100, 1200), (1700, 1800)):  # the second follows at once
        now = begin
        recorder.start()
        recorder.api("graphLaunch", begin + 20, begin + 30, begin)
        now = end
        recorder.stop()
    assert pauses(recorder.trace) == [Pause(180, 680)], "since the first event"


def test_annotate_reaches_every_active_recorder_and_nests() -> None:
    first, second = HostRecorder(Clock()), HostRecorder(Clock())
    first.start()
    with annotate("token", index=3):
        second.start()
        with annotate("inputs"):
            pass
        second.stop()
    first.stop()
    with annotate("token"):
        pass
    rows = first.trace["nvtx"]
    assert rows["text"].tolist() == ["token", "inputs"]
    assert rows["payload"].tolist()[0] == 3
    assert rows.loc[0, "start"] < rows.loc[1, "start"] < rows.loc[1, "end"] < rows.loc[0, "end"]
    assert second.trace["nvtx"]["text"].tolist() == ["inputs"]


def test_threads_have_ranges_of_their_own() -> None:
    with record() as recording:

        def work() -> None:
            with annotate("worker"):
                pass

        with annotate("main"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert recording.trace["nvtx"]["thread"].nunique() == 2
    assert sorted(recording.trace["nvtx"]["text"]) == ["main", "worker"]


def test_a_range_closes_when_its_body_fails() -> None:
    with record() as recording:
        try:
            with annotate("token"):
                raise ValueError
        except ValueError:
            pass
    assert recording.trace["nvtx"]["text"].tolist() == ["token"]


@pytest.mark.parametrize(("takes_nvtx", "calls"), [(False, ["push", "pop"]), (True, [])])
def test_annotate_calls_nvtx_unless_a_recorder_takes_it(monkeypatch: pytest.MonkeyPatch, takes_nvtx, calls) -> None:
    """Under CUPTI the range would arrive twice; it still closes as it was opened."""
    made: list[str] = []
    monkeypatch.setattr(ranges.nvtx, "push_range", lambda *_, **__: made.append("push"))
    monkeypatch.setattr(ranges.nvtx, "pop_range", lambda *_: made.append("pop"))
    recorder = HostRecorder(Clock())
    monkeypatch.setattr(recorder, "takes_nvtx", takes_nvtx)
    with annotate("before"):
        recorder.start()
        with annotate("token"):
            pass
        assert made == ["push", *calls]
        recorder.stop()
    assert made == ["push", *calls, "pop"]


def test_stacks_are_kept_once_per_call_site_and_name_it() -> None:
    with record("host", stacks=True) as recording:
        for number in range(3):
            recording.api("streamSynchronize", 10 * number, 10 * number + 5, correlation=number)
        recording.api("launchKernel", 40, 45, correlation=9)
    trace = recording.trace
    assert trace["api"]["callchain"].tolist() == [1, 1, 1, 2]
    assert trace["callchains"].groupby("chain")["depth"].min().tolist() == [0, 0]
    site = call_sites(trace, trace["api"])
    line = test_stacks_are_kept_once_per_call_site_and_name_it.__code__.co_firstlineno
    here = f"{__file__}({{}}): {test_stacks_are_kept_once_per_call_site_and_name_it.__name__}"
    assert site["site"].tolist() == [here.format(line + 3)] * 3 + [here.format(line + 4)]
    assert set(site["source"]) == {PYTHON}
