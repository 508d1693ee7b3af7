"""The CUPTI recorder over stand-ins for libcupti that fill buffers, or call back, through the real callbacks."""

import ctypes
import inspect
import itertools
import struct
import time
from types import SimpleNamespace
from unittest.mock import Mock

import nvtx
import pytest
from nvtx import nvtx as package

import tracer
from tracer.errors import RecordError, UsageError
from tracer.recorders import cupti as recorder_module
from tracer.recorders import cupti_library
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti import SIZE, Buffers, CallbackData, CallStacks, CuptiRecorder, NamedDefault
from tracer.recorders.cupti_library import find, refuse_other_profilers
from tracer.recorders.cupti_records import SETS, STAND_IN

VERSION = 130001


class StandIn:
    """What of `Cupti` the recorder calls. A flush delivers `pending`, as much as the buffers it is given take."""

    version, path, library, failing, lost = VERSION, "/somewhere/libcupti.so.13", None, None, 0
    give = take = None

    def __init__(self):
        self.enabled: list[int] = []
        self.pending: list[bytes] = []
        self.system_thread_ids = self.set_attribute = lambda *_: None
        self.enable_and_dump, self.disable = self.enable, self.enabled.remove

    def register(self, give, take):
        self.give, self.take = give, take

    def finalize(self):
        assert self.enabled == []
        self.give = self.take = None
        self.pending = []

    def enable(self, kind):
        if kind == self.failing:
            raise RecordError(f"kind {kind} is not supported")
        self.enabled.append(kind)

    def buffer(self):
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        self.give(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
        assert most.value == 0
        return buffer, size

    def flush(self):
        for records in self.pending:
            buffer, size = self.buffer()
            if buffer.value is None:
                self.lost += 1
                continue
            assert ctypes.string_at(buffer.value, size.value) == bytes(size.value), "a buffer must come cleared"
            ctypes.memmove(buffer.value, records, len(records))
            self.take(None, 0, buffer, size, len(records))
        self.pending = []

    def dropped(self):
        lost, self.lost = self.lost, 0
        return lost


@pytest.fixture
def cupti(monkeypatch):
    library = StandIn()
    process = library.process = recorder_module._Process.__new__(recorder_module._Process)
    process.driver = SimpleNamespace(used=False, has_context=lambda: process.driver.used, synchronize=lambda: None)
    process.cupti, process.sizes, process.buffers = library, activity.sizes(VERSION), Buffers(1 << 30)
    process.recorder, process.graph_level, process.attached = None, False, False
    monkeypatch.setattr(recorder_module, "_process", lambda: process)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")  # so that monkeypatch takes back what the recorder sets
    return library


def call(start, correlation=1):
    return struct.pack("<IIQQIIII", activity.RUNTIME, 5, start, start + 10, 1, 2, correlation, 0)


def test_what_cupti_delivers_is_in_the_trace_since_the_recording_began(cupti):
    before = time.time_ns()
    with tracer.record("cupti") as recording:
        assert set(cupti.enabled) == {kind for kinds in activity.KINDS.values() for kind in kinds}
        with tracer.annotate("token", index=3, domain="engine", color=0xFF112233):
            cupti.pending = [call(time.time_ns(), 7), call(time.time_ns(), 8)]
    assert cupti.enabled == []
    trace = recording.trace
    assert trace["api"]["correlation"].tolist() == [7, 8]
    range_ = trace["nvtx"].iloc[0]
    assert range_[["text", "domain", "color", "payload"]].tolist() == ["token", "engine", 0xFF112233, 3.0]
    assert 0 <= range_.start <= trace["api"]["start"].min() <= range_.end <= time.time_ns() - before
    assert (trace.metadata["source"], trace.metadata["graph_trace"]) == ("cupti 13.0.1", "node")
    assert before <= trace.metadata["clock"]["origin_ns"] <= time.time_ns()
    assert trace.notes == []


def test_it_goes_on_where_it_stopped_and_the_trace_may_be_read_between(cupti, monkeypatch):
    """Also if CUPTI refuses to go, as some version says CUPTI_ERROR_NOT_SUPPORTED to cuptiFinalize."""
    recorder = CuptiRecorder()
    for round_ in range(4):
        recorder.start()
        cupti.pending = [call(time.time_ns(), round_)]
        assert recorder.trace["api"]["correlation"].tolist() == list(range(round_ + 1))
        recorder.stop()
        recorder.stop()
        if round_ == 1:
            monkeypatch.setattr(cupti, "finalize", Mock(side_effect=RecordError("not supported")))
    assert recorder.trace is recorder.trace


def test_what_stops_or_fails_is_detached_but_for_graph_level_which_cannot_begin_again(cupti):
    with tracer.record("cupti"):
        assert cupti.give is not None
        with pytest.raises(RecordError, match="another CUPTI recorder"):
            CuptiRecorder().start()
    assert cupti.give is None
    cupti.failing = activity.SYNCHRONIZATION
    with pytest.raises(RecordError, match="kind 38 is not supported"):
        CuptiRecorder().start()
    assert cupti.give is None
    assert cupti.enabled == []
    with tracer.record("cupti", graph_trace="graph", kinds=SETS["lean"]):
        assert cupti.enabled[0] == activity.GRAPH_TRACE
        assert set(cupti.enabled) & {activity.MEMCPY, activity.MARKER, activity.SYNCHRONIZATION} == set()
    assert cupti.give is not None


def test_buffers_return_cleared_and_beyond_the_limit_records_are_dropped_and_counted(cupti):
    """Those that a detached CUPTI kept, too; the pool grows."""
    free = len(cupti.process.buffers._free)
    with tracer.record("cupti"):
        buffer, _ = cupti.buffer()
        ctypes.memset(buffer.value, 1, 100)
    assert len(cupti.process.buffers._free) == free
    assert ctypes.string_at(buffer.value, SIZE) == bytes(SIZE)
    for _ in range(2):
        with tracer.record("cupti") as recording:
            cupti.pending = [call(5) * (SIZE // 40)] * 150
    assert len(recording.trace["api"]) == 150 * (SIZE // 40)
    with tracer.record("cupti", limit=100) as recording:
        cupti.pending = [call(time.time_ns(), n) for n in range(5)]
    assert recording.trace["api"]["correlation"].tolist() == [0, 1, 2]
    assert recording.trace.notes == ["2 activity records were dropped: there was no buffer or no space for them"]


def test_what_cupti_delivers_between_two_recordings_at_graph_level_is_in_neither(cupti):
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


def test_graph_level_comes_too_late_once_cuda_is_used_unless_it_was_on_before(cupti):
    late = CuptiRecorder("graph")
    cupti.process.driver.used = True
    with pytest.raises(RecordError, match="before the first CUDA call"):
        late.start()
    assert cupti.enabled == []
    for used in (False, True):
        cupti.process.driver.used = used
        late.start()
        late.stop()


def test_what_is_refused_is_said(cupti, monkeypatch):
    with pytest.raises(UsageError, match="CUPTI cannot record coffee"):
        CuptiRecorder(kinds=("kernels", "coffee"))
    with pytest.raises(UsageError, match="node or graph"):
        CuptiRecorder("kernel")
    with pytest.raises(UsageError, match="unknown recorder 'perf'"):
        tracer.record("perf")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    with pytest.raises(RecordError, match=r"another profiler \(libToolsInjection64.so\)"):
        refuse_other_profilers()


def test_the_library_that_is_loaded_already_comes_first(monkeypatch, tmp_path):
    installed, loaded, maps = tmp_path / "lib64" / "libcupti.so.13", cupti_library._loaded, tmp_path / "maps"
    installed.parent.mkdir()
    installed.touch()
    maps.write_text("7f00-7f01 r-xp 0 00:00 0 /opt/a b/libcupti.so.2025.3\n7f02-7f03 r--p 0 00:00 0 [heap]\n")
    assert [str(path) for path in loaded(maps)] == ["/opt/a b/libcupti.so.2025.3"]
    monkeypatch.setattr(cupti_library, "_in_wheels", lambda: iter(()))
    monkeypatch.setattr(cupti_library, "_loaded", lambda: iter(()))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find() == str(installed)


NAMES = {
    1: {10: "cuLaunchKernel", 11: "cuMemAlloc_v2"},
    2: {20: "cudaStreamSynchronize_v3020", 21: "cudaMemcpyAsync_v3020", 22: "cudaMalloc_v3020",
        23: "cudaEventRecord_v3020", 24: "cudaStreamBeginCapture_v10000"},
}  # fmt: skip


def test_calls_that_launch_copy_wait_or_order_have_the_stack_of_their_caller(monkeypatch):
    """Where the fields of a callback lie is by hand from cupti_callbacks.h."""
    names = [name for name, _ in CallbackData._fields_]
    assert names[:5] == ["site", "function", "parameters", "return_value", "symbol"]
    assert names[5:] == ["context", "context_id", "correlation_data", "correlation"]
    assert [getattr(CallbackData, name).offset for name in names] == list(range(0, 72, 8))
    named = type("Names", (), {"__init__": lambda *_: None, "known": lambda _, domain: NAMES[domain]})
    monkeypatch.setattr(recorder_module, "CallNames", named)
    subscribed = []
    enabled = set()

    def subscribe(callback):
        if subscribed:
            raise RecordError("another profiler holds it in this process")
        subscribed.append(callback)
        return "subscription"

    cupti = SimpleNamespace(
        library=None, subscribe=subscribe, enable_callback=lambda _, *which: enabled.add(which),
        unsubscribe=lambda _: subscribed.clear(),
    )  # fmt: skip

    def call(correlation):
        """What CUPTI does around a call of cudaStreamSynchronize: it enters, and leaves."""
        for site, callback in itertools.product((0, 1), subscribed):
            data = CallbackData(site=site, correlation=correlation)
            callback(None, 2, 20, ctypes.addressof(data))

    stacks = CallStacks(cupti)
    stacks.start()
    assert enabled == {(1, 10), (2, 20), (2, 21), (2, 23)}
    with pytest.raises(RecordError, match="another profiler"):
        CallStacks(cupti).start()

    def synchronize():
        call(correlation=7)
        return inspect.currentframe().f_lineno - 1

    line = synchronize()
    stacks.stop()
    stacks.stop()
    call(correlation=8)
    assert list(stacks.stacks) == [7]
    frames = [frame for frame in stacks.stacks[7] if frame[2] != "call"]
    assert frames[0] == (__file__, line, "synchronize")
    assert frames[1][2].startswith("test_calls_that_launch")


def test_only_the_default_domain_of_the_package_nvtx_has_a_name_that_cupti_sees(monkeypatch):
    if not hasattr(package, "_get_domain_cached"):
        pytest.skip("this version of the package looks domains up in another way")
    asked = []
    original = package._get_domain_cached
    monkeypatch.setattr(package, "_get_domain_cached", lambda name: asked.append(name) or original(name))

    named = NamedDefault()
    for change in (lambda: None, named.install, named.remove):
        change()
        change()
        nvtx.push_range("x")
        nvtx.pop_range()
        nvtx.mark("y", domain="mine")
    plain = [None, None, "mine"]
    assert asked == [*plain, STAND_IN, STAND_IN, "mine", *plain]
    monkeypatch.delattr(package, "_get_domain_cached")  # a package without it is left alone
    named.install()
    named.remove()
    assert not hasattr(package, "_get_domain_cached")
