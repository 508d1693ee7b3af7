"""The CUPTI recorder on a GPU, in processes of its own: CUPTI's state belongs to the process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracer

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


def ran(body: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run(
        [sys.executable, "-c", LOOP + body], capture_output=True, text=True, timeout=300, env=environment
    )


def facts(body: str) -> Any:
    done = ran(body)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SCENES = """
import gc, threading, time, cupy
found = {}
# before and after recordings, the first of the process
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
before = min(launch_us() for _ in range(3))
kernels = []
for _ in range(2):
    with tracer.record("cupti") as recording:
        during = launch_us()
    kernels.append(len(recording.trace["kernels"]))
    after = min(launch_us() for _ in range(3))
found["launches"] = dict(before=before, during=during, after=after, kernels=kernels)
# our reading of the records beside CUPTI's own
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
found["records"] = dict(theirs=theirs, ours={k: len(v) for k, v in ours.records.items()}, unread=ours.unread_bytes)
# several starts and stops
recorder = CuptiRecorder()
for tokens in (4, 3):
    recorder.start()
    loop(tokens)
    recorder.stop()
    loop(5)
found["turns"] = counts(recorder.trace)
found["about turns"] = dict(notes=recorder.trace.notes, devices=recorder.trace["devices"]["device"].tolist())
# stacks
recorder = CuptiRecorder(stacks=True)
recorder.start()
loop(5)
recorder.stop()
loop(5)
from tracer.analysis.calls import host_calls
calls = host_calls(recorder.trace)
stacks = [recorder.stacks.get(correlation, ()) for correlation in calls.correlation.tolist()]
callers = sorted({stack[0][2] if stack else "" for stack in stacks})
found["stacks"] = dict(letters="".join(calls.letter), callers=callers)
# ranges of other libraries
with tracer.record("cupti") as recording:
    cupy.cuda.nvtx.RangePushC("of cupy", 0xFF00FF00)
    with tracer.annotate("ours", index=3, domain="engine"):
        pass
    cupy.cuda.nvtx.RangePop()
nvtx = recording.trace["nvtx"][["text", "domain", "color", "kind"]]
found["ranges"] = sorted(nvtx.astype({"text": str, "domain": str, "kind": str}).values.tolist())
# a kernel that is unloaded
with tracer.record("cupti") as recording:
    code = "template <typename T> __global__ void gone(T* x) {}"
    module = cupy.RawModule(code=code, name_expressions=["gone<float>"])
    kernel = module.get_function("gone<float>")
    kernel((1,), (1,), (cupy.ones(1, cupy.float32),))
    cupy.cuda.Device().synchronize()
    del kernel, module
    gc.collect()
found["unloaded"] = recording.trace["kernels"][["name", "short_name"]].astype(str).values.tolist()[-1]
# other threads that use CUDA meanwhile
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
found["threads"] = dict(kernels=min(kernels), launched=min(launched))
show(**found)
"""


@pytest.fixture(scope="module")
def found() -> Any:
    return facts(SCENES)


def test_launching_a_graph_is_as_fast_after_a_recording_as_before(found: Any) -> None:
    launches = found["launches"]
    assert launches["kernels"] == [15000, 15000]
    assert launches["after"] < 2 * launches["before"] + 5
    assert launches["during"] > launches["after"]


def test_records_begin_where_cupti_says(found: Any) -> None:
    assert found["records"]["ours"] == found["records"]["theirs"]
    assert found["records"]["unread"] == 0


def test_node_level_starts_and_stops_at_any_time_and_beside_other_threads(found: Any) -> None:
    """And it has only the devices that the process can use."""
    assert found["turns"] == {"in_graph": 21, "copies": 7, "graphs": 0, "launches": 7, "tokens": 7}
    assert found["about turns"] == {"notes": [], "devices": [0]}
    assert found["threads"]["kernels"] >= 15
    assert found["threads"]["launched"] > 0


def test_stacks_ranges_and_names_are_the_programs(found: Any) -> None:
    """Each call that copies, waits or launches has its caller's stack, each range is there once, and the names of
    unloaded kernels stay."""
    assert found["stacks"] == {"letters": "asg" * 5 + "s", "callers": ["loop"]}
    assert found["ranges"] == [["of cupy", "", 0xFF00FF00, "push/pop"], ["ours", "engine", 255, "push/pop"]]
    assert found["unloaded"] == ["void gone<float>(float*)", "gone"]


def test_graph_level_has_one_row_per_launch_and_may_start_again() -> None:
    counted = facts("""
recorder = CuptiRecorder("graph")
for tokens in (4, 3):
    recorder.start()
    loop(tokens)
    recorder.stop()
    loop(5)
show(**counts(recorder.trace))
""")
    assert counted == {"in_graph": 0, "copies": 7, "graphs": 7, "launches": 7, "tokens": 7}
    late = ran("loop(1)\nwith tracer.record('cupti', graph_trace='graph'): pass")
    assert "RecordError: graph-level tracing must start before the first CUDA call" in late.stderr


def test_what_finds_no_buffer_is_counted() -> None:
    told = facts("""
loop(1)
with tracer.record("cupti", limit=100_000) as recording:
    loop(3000)
show(notes=recording.trace.notes, kernels=len(recording.trace["kernels"]))
""")
    assert 0 < told["kernels"] < 9000
    assert "activity records were dropped" in told["notes"][0]


def test_the_record_command_writes_the_trace_of_a_failing_script(tmp_path: Path) -> None:
    script, target = tmp_path / "script.py", tmp_path / "out"
    script.write_text(LOOP + "import sys\nloop(6)\nassert sys.argv[1:] == ['--x']\nsys.exit(3)\n")
    command = ["tracer.cli", "record", "-o", target, "--passes", "node", "--", sys.executable, script, "--x"]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert f"{target}: " in done.stderr
    assert len(tracer.read(target)["memcpys"]) == 6
