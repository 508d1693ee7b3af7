"""The host recorder and annotate()."""

import contextlib
import itertools
import threading

import pytest

from tracer import annotate, record
from tracer.analysis.call_sites import PYTHON, call_sites
from tracer.model.trace import Pause, pauses
from tracer.recorders import ranges
from tracer.recorders.host import HostRecorder


def clock():
    """A recorder whose clock ticks 10 ns at every look."""
    return HostRecorder(itertools.count(1010, 10).__next__)


def test_reports_become_rows_in_ns_since_the_first_event():
    recorder = clock()
    recorder.start()
    recorder.api("graphLaunch", 5000, 5010, 1)
    recorder.kernel("matvec", 5020, 5030, device=0, stream=3, correlation=1, graph_node=7, graph=2)
    recorder.memcpy("HtoD", 64, 5040, 5050, device=0, stream=3, correlation=2, src_kind="pinned", dst_kind="device")
    recorder.sync("stream", 5060, 5070, device=0, stream=3, correlation=3)
    recorder.event_record(9, device=0, stream=3, correlation=4)
    recorder.graph_launch(5080, 5090, device=0, stream=3, correlation=1, graph=2)
    trace = recorder.trace
    assert (trace.metadata["source"], trace.metadata["clock"]) == ("host", {"origin_ns": 5000})
    for table, row in {
        "graph_launches": {"start": 80, "end": 90, "graph": 2},
        "api": {"start": 0, "end": 10, "correlation": 1, "name": "graphLaunch", "thread": threading.get_native_id()},
        "kernels": {"start": 20, "stream": 3, "graph_node": 7, "graph": 2},
        "memcpys": {"kind": "HtoD", "bytes": 64, "src_kind": "pinned"},
        "syncs": {"type": "stream", "stream": 3},
        "cuda_events": {"event": 9},
    }.items():
        assert trace[table][[*row]].to_dict("records") == [row]


def test_what_is_between_a_stop_and_the_next_start_is_a_pause():
    now = 1000
    recorder = HostRecorder(lambda: now)
    for begin, end in ((1000, 1100), (1100, 1200), (1700, 1800)):  # the second follows at once
        now = begin
        recorder.start()
        recorder.api("graphLaunch", begin + 20, begin + 30, begin)
        now = end
        recorder.stop()
    assert pauses(recorder.trace) == [Pause(180, 680)], "since the first event"


def test_annotate_reaches_every_active_recorder_and_nests_and_closes_when_its_body_fails():
    """Threads have ranges of their own."""
    first, second = clock(), clock()

    def prepare():
        with annotate("inputs"):
            pass

    first.start()
    with contextlib.suppress(KeyError), annotate("token", index=3):
        second.start()
        thread = threading.Thread(target=prepare)
        thread.start()
        thread.join()
        second.stop()
        raise KeyError
    first.stop()
    with annotate("token"):
        pass
    rows = first.trace["nvtx"]
    assert rows["text"].tolist() == ["token", "inputs"]
    assert rows["payload"].tolist()[0] == 3
    assert rows["thread"].nunique() == 2
    assert rows.loc[0, "start"] < rows.loc[1, "start"] < rows.loc[1, "end"] < rows.loc[0, "end"]
    assert second.trace["nvtx"]["text"].tolist() == ["inputs"]


@pytest.mark.parametrize(("takes_nvtx", "calls"), [(False, ["push", "pop"]), (True, [])])
def test_annotate_calls_nvtx_unless_a_recorder_takes_it(monkeypatch, takes_nvtx, calls):
    """Under CUPTI the range would arrive twice; it still closes as it was opened."""
    made = []
    monkeypatch.setattr(ranges.nvtx, "push_range", lambda *_, **__: made.append("push"))
    monkeypatch.setattr(ranges.nvtx, "pop_range", lambda *_: made.append("pop"))
    recorder = clock()
    monkeypatch.setattr(recorder, "takes_nvtx", takes_nvtx)
    with annotate("before"):
        recorder.start()
        with annotate("token"):
            pass
        assert made == ["push", *calls]
        recorder.stop()
    assert made == ["push", *calls, "pop"]


def test_stacks_are_kept_once_per_call_site_and_name_it():
    with record("host", stacks=True) as recording:
        for number in range(3):
            recording.api("streamSynchronize", 10 * number, 10 * number + 5, correlation=number)
        recording.api("launchKernel", 40, 45, correlation=9)
    trace = recording.trace
    assert trace["api"]["callchain"].tolist() == [1, 1, 1, 2]
    assert trace["callchains"].groupby("chain")["depth"].min().tolist() == [0, 0]
    site = call_sites(trace, trace.api)
    code = test_stacks_are_kept_once_per_call_site_and_name_it.__code__
    assert site.site.tolist() == [f"{__file__}({code.co_firstlineno + line}): {code.co_name}" for line in (3, 3, 3, 4)]
    assert set(site.source) == {PYTHON}
