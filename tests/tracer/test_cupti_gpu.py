"""The CUPTI recorder on a GPU. Each test records in a process of its own: CUPTI's state belongs to the process."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

LOOP = '''
import ctypes, json, tracer
from tracer.recorders import cupti as C
from tracer.recorders.cupti import CuptiRecorder
from tracer.recorders.cupti_records import parse

def loop(tokens, graph=[]):
    """Tokens of one copy with its sync and one graph of three kernels."""
    import cupy as cp
    stream = cp.cuda.Stream(non_blocking=True)
    if not graph:
        x = cp.ones(1024, cp.float32)
        add = cp.ElementwiseKernel("float32 a", "float32 b", "b = a + 1", "addone")
        add(x, x)
        cp.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            for _ in range(3):
                add(x, x)
            graph.extend((stream.end_capture(), x, cp.cuda.alloc_pinned_memory(4096)))
    for number in range(tokens):
        with tracer.annotate("token", index=number):
            cp.cuda.runtime.memcpyAsync(graph[1].data.ptr, graph[2].ptr, 4096, 1, stream.ptr)
            stream.synchronize()
            graph[0].launch(stream)
    stream.synchronize()

def show(**facts):
    print(json.dumps(facts))

def counts(trace):
    def number(table, column, value):
        return int((trace[table][column].astype("str") == value).sum())

    return {
        "in_graph": int((trace["kernels"]["graph_node"] >= 0).sum()),
        "copies": len(trace["memcpys"]),
        "graphs": len(trace["graph_launches"]),
        "launches": number("api", "name", "cudaGraphLaunch_v10000"),
        "tokens": number("nvtx", "text", "token"),
    }
'''


def ran(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOOP + body], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def facts(body: str, **environment: str) -> Any:
    done = ran(body, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_records_begin_where_cupti_says() -> None:
    found = facts("""
with tracer.record("cupti") as recording:
    loop(50)
process = C._process()
next_record = process.cupti.library.cuptiActivityGetNextRecord
next_record.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
theirs = {}
for filled in recording._filled:
    buffer, record = ctypes.create_string_buffer(filled, len(filled)), ctypes.c_void_p()
    while next_record(ctypes.addressof(buffer), len(filled), ctypes.byref(record)) == 0:
        kind = ctypes.c_uint32.from_address(record.value).value
        theirs[kind] = theirs.get(kind, 0) + 1
ours = parse(recording._filled, process.sizes)
show(theirs=theirs, ours={k: len(v) for k, v in ours.records.items()}, unread=ours.unread_bytes)
""")
    assert found["ours"] == found["theirs"]
    assert found["unread"] == 0


def test_node_level_starts_and_stops_at_any_time() -> None:
    found = facts("""
loop(5)
recorder = CuptiRecorder()
for tokens in (4, 3):
    recorder.start()
    loop(tokens)
    recorder.stop()
    loop(5)
show(**counts(recorder.trace), notes=recorder.trace.notes, device=recorder.trace["devices"]["name"].tolist())
""")
    assert found["in_graph"] == 21
    assert found["copies"] == found["launches"] == 7
    assert found["graphs"] == 0
    assert found["tokens"] == 7
    assert found["notes"] == []
    assert found["device"]


def test_a_recording_has_only_the_devices_that_the_process_can_use() -> None:
    found = facts("""
recorder = CuptiRecorder()
recorder.start()
loop(3)
recorder.stop()
show(devices=recorder.trace["devices"]["device"].tolist())
""", CUDA_VISIBLE_DEVICES="0")  # fmt: skip
    assert found["devices"] == [0]


def test_launching_a_graph_is_as_fast_after_a_recording_as_before() -> None:
    found = facts("""
import time, cupy
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    x = cupy.zeros(16, cupy.float32)
    stream.begin_capture()
    for _ in range(300):
        x += 1
    graph = stream.end_capture()
def launch_us():
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        graph.launch(stream)
        times.append(time.perf_counter_ns() - start)
        stream.synchronize()
    return sorted(times)[25] / 1e3
before = [launch_us() for _ in range(3)]
traces = []
for _ in range(2):
    with tracer.record("cupti") as recording:
        during = launch_us()
    traces.append(len(recording.trace["kernels"]))
    after = [launch_us() for _ in range(3)]
show(before=min(before), during=during, after=min(after), traces=traces)
""")
    assert found["traces"] == [15000, 15000]
    assert found["after"] < 2 * found["before"] + 5
    assert found["during"] > found["after"]


def test_other_threads_may_use_cuda_while_it_starts_and_stops() -> None:
    found = facts("""
import threading, cupy
done = threading.Event()
launched = [0] * 4
def work(number):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1024, cupy.float32)
        while not done.is_set():
            for _ in range(20):
                x += 1
            stream.synchronize()
            launched[number] += 20
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
kernels = []
for _ in range(20):
    with tracer.record("cupti") as recording:
        loop(5)
    kernels.append(len(recording.trace["kernels"]))
done.set()
for t in threads: t.join()
show(kernels=kernels, launched=launched)
""")
    assert min(found["kernels"]) >= 15
    assert min(found["launched"]) > 0


def test_graph_level_has_one_row_per_launch_and_may_start_again() -> None:
    found = facts("""
recorder = CuptiRecorder("graph")
for tokens in (4, 3):
    recorder.start()
    loop(tokens)
    recorder.stop()
    loop(5)
show(**counts(recorder.trace))
""")
    assert found == {"in_graph": 0, "copies": 7, "graphs": 7, "launches": 7, "tokens": 7}


def test_every_call_that_copies_waits_or_launches_has_the_stack_of_its_caller() -> None:
    found = facts("""
loop(1)
recorder = CuptiRecorder(stacks=True)
recorder.start()
loop(5)
recorder.stop()
loop(5)
from tracer.analysis.calls import host_calls
calls = host_calls(recorder.trace)
stacks = [recorder.stacks.get(correlation, ()) for correlation in calls["correlation"]]
show(letters="".join(calls["letter"]), callers=sorted({stack[0][2] if stack else "" for stack in stacks}))
""")
    assert found == {"letters": "asg" * 5 + "s", "callers": ["loop"]}


def test_graph_level_after_the_first_cuda_call_is_refused() -> None:
    done = ran("loop(1)\nwith tracer.record('cupti', graph_trace='graph'): pass")
    assert "RecordError: graph-level tracing must start before the first CUDA call" in done.stderr


def test_what_finds_no_buffer_is_counted() -> None:
    found = facts("""
loop(1)
with tracer.record("cupti", limit=100_000) as recording:
    loop(3000)
show(notes=recording.trace.notes, kernels=len(recording.trace["kernels"]))
""")
    assert 0 < found["kernels"] < 9000
    assert "activity records were dropped" in found["notes"][0]


def test_ranges_of_other_libraries_arrive_and_ours_are_there_once() -> None:
    found = facts("""
with tracer.record("cupti") as recording:
    import cupy
    cupy.cuda.nvtx.RangePushC("of cupy", 0xFF00FF00)
    with tracer.annotate("ours", index=3, domain="engine"):
        pass
    cupy.cuda.nvtx.RangePop()
nvtx = recording.trace["nvtx"]
show(rows=nvtx[["text", "domain", "color", "kind"]].astype({"text": str, "domain": str, "kind": str}).values.tolist())
""")
    assert sorted(found["rows"]) == [
        ["of cupy", "", 0xFF00FF00, "push/pop"],
        ["ours", "engine", 255, "push/pop"],
    ]


def test_the_names_of_unloaded_kernels_stay() -> None:
    found = facts("""
import gc, cupy
with tracer.record("cupti") as recording:
    code = "template <typename T> __global__ void gone(T* x) {}"
    module = cupy.RawModule(code=code, name_expressions=["gone<float>"])
    kernel = module.get_function("gone<float>")
    kernel((1,), (1,), (cupy.ones(1, cupy.float32),))
    cupy.cuda.Device().synchronize()
    del kernel, module
    gc.collect()
kernels = recording.trace["kernels"]
show(names=kernels["name"].tolist()[-1:], short=kernels["short_name"].tolist()[-1:])
""")
    assert found == {"names": ["void gone<float>(float*)"], "short": ["gone"]}


def test_another_profiler_in_the_process_is_one_clear_line() -> None:
    done = ran("with tracer.record('cupti'): pass", CUDA_INJECTION64_PATH="/nowhere/libToolsInjection64.so")
    assert "CUDA_INJECTION64_PATH names another profiler (libToolsInjection64.so)" in done.stderr


def test_the_record_command_writes_the_trace_of_a_failing_script(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP + "import sys\nloop(6)\nassert sys.argv[1:] == ['--x']\nsys.exit(3)\n")
    target = tmp_path / "out"
    command = ["record", "-o", target, "--passes", "node", "--", sys.executable, script, "--x"]
    command = [sys.executable, "-m", "tracer.cli", *command]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert f"{target}: " in done.stderr
    import tracer

    assert len(tracer.read(target)["memcpys"]) == 6
