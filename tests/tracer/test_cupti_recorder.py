"""The CUPTI recorder over a stand-in for libcupti that fills buffers through the real callbacks."""

import ctypes
import struct
import time

import pytest

import tracer
from tracer.errors import RecordError, UsageError
from tracer.recorders import cupti as recorder_module
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti import ALL_KINDS, SIZE, Buffers, CuptiRecorder
from tracer.recorders.cupti_library import find, refuse_other_profilers
from tracer.recorders.cupti_records import SETS

VERSION = 130001


class StandIn:
    """What of `Cupti` the recorder calls. A flush delivers `pending`, as much as the buffers it is given take."""

    version, path, library = VERSION, "/somewhere/libcupti.so.13", None

    def __init__(self) -> None:
        self.enabled: list[int] = []
        self.calls: list[str] = []
        self.pending: list[bytes] = []
        self.lost = 0
        self.failing: int | None = None
        self.give = self.take = None

    def system_thread_ids(self) -> None: ...

    def set_attribute(self, attribute: int, value: object) -> None: ...

    def register(self, give: object, take: object) -> None:
        self.give, self.take = give, take

    def finalize(self) -> None:
        assert self.enabled == []
        self.give = self.take = None
        self.pending = []

    def enable(self, kind: int) -> None:
        if kind == self.failing:
            raise RecordError(f"kind {kind} is not supported")
        self.enabled.append(kind)

    enable_and_dump = enable

    def disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def flush(self) -> None:
        self.calls.append("flush")
        for records in self.pending:
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
            self.give(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
            assert most.value == 0
            if buffer.value is None:
                self.lost += 1
                continue
            assert ctypes.string_at(buffer.value, size.value) == bytes(size.value), "a buffer must come cleared"
            ctypes.memmove(buffer.value, records, len(records))
            self.take(None, 0, buffer, size, len(records))
        self.pending = []

    def dropped(self) -> int:
        lost, self.lost = self.lost, 0
        return lost


class StandInDriver:
    used = False

    def has_context(self) -> bool:
        return self.used

    def synchronize(self) -> None: ...


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    library = StandIn()
    process = recorder_module._Process.__new__(recorder_module._Process)
    process.driver, process.cupti, process.sizes = StandInDriver(), library, activity.sizes(VERSION)
    process.buffers, process.recorder, process.graph_level, process.attached = Buffers(1 << 30), None, False, False
    library.process = process
    monkeypatch.setattr(recorder_module, "_process", lambda: process)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")  # so that monkeypatch takes back what the recorder sets
    return library


def call(start: int, correlation: int = 1) -> bytes:
    return struct.pack("<IIQQIIII", activity.RUNTIME, 5, start, start + 10, 1, 2, correlation, 0)


def test_what_cupti_delivers_is_in_the_trace_since_the_recording_began(cupti: StandIn) -> None:
    before = time.time_ns()
    with tracer.record("cupti") as recording:
        assert set(cupti.enabled) == {kind for kinds in activity.KINDS.values() for kind in kinds}
        with tracer.annotate("token", index=3, domain="engine", color=0xFF112233):
            cupti.pending = [call(time.time_ns(), 7), call(time.time_ns(), 8)]
    assert cupti.enabled == []
    trace = recording.trace
    assert trace["api"]["correlation"].tolist() == [7, 8]
    assert trace["nvtx"][["text", "domain", "color", "payload"]].to_numpy().tolist() == [
        ["token", "engine", 0xFF112233, 3.0]
    ]
    (range_,) = trace["nvtx"].itertuples()
    assert 0 <= range_.start <= trace["api"]["start"].min() <= range_.end <= time.time_ns() - before
    assert trace.metadata["source"] == "cupti 13.0.1"
    assert trace.metadata["graph_trace"] == "node"
    assert before <= trace.metadata["clock"]["origin_ns"] <= time.time_ns()
    assert trace.notes == []


def test_it_goes_on_where_it_stopped_and_the_trace_may_be_read_between(cupti: StandIn) -> None:
    recorder = CuptiRecorder()
    for round_ in range(3):
        recorder.start()
        cupti.pending = [call(time.time_ns(), round_)]
        assert recorder.trace["api"]["correlation"].tolist() == list(range(round_ + 1))
        recorder.stop()
        recorder.stop()
    assert recorder.trace is recorder.trace


def test_what_stops_is_detached_but_for_graph_level_which_cannot_begin_again(cupti: StandIn) -> None:
    with tracer.record("cupti"):
        assert cupti.give is not None
    assert cupti.give is None
    cupti.failing = activity.SYNCHRONIZATION
    with pytest.raises(RecordError):
        CuptiRecorder().start()
    assert cupti.give is None
    cupti.failing = None
    with tracer.record("cupti", graph_trace="graph"):
        pass
    assert cupti.give is not None


def test_a_cupti_that_refuses_to_go_stays_and_records_again(cupti: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RecordError("CUPTI says CUPTI_ERROR_NOT_SUPPORTED to cuptiFinalize")

    monkeypatch.setattr(cupti, "finalize", refuse)
    for number in range(2):
        with tracer.record("cupti") as recording:
            cupti.pending = [call(time.time_ns(), number)]
        assert recording.trace["api"]["correlation"].tolist() == [number]


def test_buffers_that_a_detached_cupti_kept_are_cleared_and_used_again(cupti: StandIn) -> None:
    buffers = cupti.process.buffers
    free = len(buffers._free)
    recorder = CuptiRecorder()
    recorder.start()
    buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
    cupti.give(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
    ctypes.memset(buffer.value, 1, 100)
    recorder.stop()
    assert len(buffers._free) == free
    assert ctypes.string_at(buffer.value, SIZE) == bytes(SIZE)


def test_what_cupti_delivers_between_two_recordings_at_graph_level_is_in_neither(cupti: StandIn) -> None:
    recorder = CuptiRecorder("graph")
    recorder.start()
    recorder.stop()
    cupti.pending = [call(1)]
    cupti.flush()
    cupti.pending = [call(2)]  # held back until the next flush
    recorder.start()
    cupti.pending = [call(time.time_ns(), 3)]
    recorder.stop()
    assert recorder.trace["api"]["correlation"].tolist() == [3]


def test_beyond_the_limit_records_are_dropped_and_counted(cupti: StandIn) -> None:
    with tracer.record("cupti", limit=100) as recording:
        cupti.pending = [call(time.time_ns(), n) for n in range(5)]
    assert recording.trace["api"]["correlation"].tolist() == [0, 1, 2]
    assert recording.trace.notes == ["2 activity records were dropped: there was no buffer or no space for them"]


def test_the_pool_grows_and_its_buffers_return_cleared(cupti: StandIn) -> None:
    full = call(5) * (SIZE // 40)
    for _ in range(2):
        with tracer.record("cupti") as recording:
            cupti.pending = [full] * 150
    assert len(recording.trace["api"]) == 150 * (SIZE // 40)


def test_graph_level_adds_the_graphs_first_and_only_the_kinds_asked_for(cupti: StandIn) -> None:
    with tracer.record("cupti", graph_trace="graph", kinds=SETS["lean"]):
        assert cupti.enabled[0] == activity.GRAPH_TRACE
        assert set(cupti.enabled) & {activity.MEMCPY, activity.MARKER, activity.SYNCHRONIZATION} == set()


def test_graph_level_comes_too_late_once_cuda_is_used_unless_it_was_on_before(cupti: StandIn) -> None:
    cupti.process.driver.used = True
    late = CuptiRecorder("graph")
    with pytest.raises(RecordError, match="before the first CUDA call"):
        late.start()
    assert cupti.enabled == []
    cupti.process.driver.used = False
    late.start()
    late.stop()
    cupti.process.driver.used = True
    late.start()
    late.stop()


def test_one_recorder_at_a_time(cupti: StandIn) -> None:
    with tracer.record("cupti"):
        second = CuptiRecorder()
        with pytest.raises(RecordError, match="another CUPTI recorder"):
            second.start()
    second.start()
    second.stop()


def test_a_kind_that_fails_leaves_nothing_enabled(cupti: StandIn) -> None:
    cupti.failing = activity.SYNCHRONIZATION
    with pytest.raises(RecordError, match="kind 38 is not supported"):
        CuptiRecorder().start()
    assert cupti.enabled == []
    CuptiRecorder(kinds=[k for k in ALL_KINDS if k != "syncs"]).start()
    cupti.process.recorder.stop()


def test_options_that_make_no_sense(cupti: StandIn) -> None:
    with pytest.raises(UsageError, match="CUPTI cannot record coffee"):
        CuptiRecorder(kinds=("kernels", "coffee"))
    with pytest.raises(UsageError, match="node or graph"):
        CuptiRecorder("kernel")
    with pytest.raises(UsageError, match="unknown recorder 'perf'"):
        tracer.record("perf")


def test_under_another_profiler_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    with pytest.raises(RecordError, match=r"another profiler \(libToolsInjection64.so\)"):
        refuse_other_profilers()


def test_the_library_that_is_loaded_already_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    home = tmp_path / "toolkit"
    (home / "lib64").mkdir(parents=True)
    (home / "lib64" / "libcupti.so.13").touch()
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 00:00 0 /opt/a b/libcupti.so.2025.3\n7f02-7f03 r--p 0 00:00 0 [heap]\n")
    from tracer.recorders import cupti_library

    monkeypatch.setattr(cupti_library, "_in_wheels", lambda: iter(()))
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(cupti_library, "_loaded", lambda: iter(()))
    assert find() == str(home / "lib64" / "libcupti.so.13")
    monkeypatch.undo()
    assert [str(p) for p in cupti_library._loaded(maps)] == ["/opt/a b/libcupti.so.2025.3"]
