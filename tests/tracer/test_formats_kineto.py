"""What PyTorch's profiler and other writers of Chrome JSON put into a file beyond complete events of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.tracer.kineto import GPU, HOST, THREAD, Event, event, on_gpu, read, rows, step, write
from tracer import formats
from tracer.analysis.calls import of_graph_launches
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError
from tracer.model.schema import MISSING

CPU = Path(__file__).parent / "data" / "pytorch-2.15-cpu.json.gz"
CUDA = CPU.with_name("pytorch-2.11-cuda.json.gz")


def edge(phase: str, ts: float, name: str = "", **more: Any) -> Event:
    named = {"name": name, "cat": "work"} if name else {}
    return {"ph": phase, "pid": HOST, "tid": THREAD, "ts": ts, **named, **more}


# --- ranges by their ends ---


def test_begin_and_end_nest_on_each_thread(tmp_path: Path) -> None:
    events = [
        edge("B", 1, "outer"), edge("B", 2, "other", tid=THREAD + 1), edge("B", 3, "inner"), edge("E", 4),
        edge("E", 5, tid=THREAD + 1), edge("E", 6),
    ]  # fmt: skip
    trace = read(tmp_path, events)
    assert rows(trace, "nvtx", "text", "start", "end", "thread", "domain", "kind") == [
        ["outer", 1000, 6000, THREAD, "work", "push/pop"],
        ["other", 2000, 5000, THREAD + 1, "work", "push/pop"],
        ["inner", 3000, 4000, THREAD, "work", "push/pop"],
    ]
    assert trace.notes == []


def test_ends_that_lack_and_ends_too_many_are_noted(tmp_path: Path) -> None:
    events = [edge("E", 1), edge("B", 2, "never closed"), event("cpu_op", "op", 3, 7), edge("B", 5), edge("E", 1)]
    trace = read(tmp_path, [*events, edge("B", 4, "also"), edge("e", 2, cat="work", id=1)])
    assert rows(trace, "nvtx", "text", "start", "end") == [["op", 3000, 10_000], ["also", 4000, 10_000]]
    assert trace.notes == [
        "1 ranges were never closed; they end with the recording",
        "1 events of phase 'E' without a begin are left out",
        "1 events without a usable time or name are left out",
        "1 events with a negative or impossible duration are left out",
        "1 events of phase 'e' without a begin are left out",
    ]


def test_asynchronous_ranges_go_by_category_and_id(tmp_path: Path) -> None:
    events = [
        edge("b", 1, "request", id="0x1"), edge("b", 2, "request", id="0x2"), edge("n", 3, "first token", id="0x1"),
        edge("e", 4, "request", id="0x2", tid=9), edge("b", 5, "local", id2={"local": "0x2"}),
        edge("e", 6, "request", id="0x1"), edge("e", 7, "local", id2={"local": "0x2"}, pid=HOST + 1),
        edge("e", 8, "local", id2={"local": "0x2"}),
    ]  # fmt: skip
    trace = read(tmp_path, events)
    assert rows(trace, "nvtx", "text", "start", "end", "kind", "thread") == [
        ["request", 1000, 6000, "start/end", THREAD],
        ["request", 2000, 4000, "start/end", THREAD],
        ["first token", 3000, 3000, "mark", THREAD],
        ["local", 5000, 8000, "start/end", THREAD],
    ]
    assert trace.notes == ["1 events of phase 'e' without a begin are left out"]


# --- annotations ---


def test_annotations_over_the_devices_time_are_kept_and_are_no_steps(tmp_path: Path) -> None:
    trace = read(tmp_path, GPU)
    nvtx = trace["nvtx"]
    on_device = nvtx[nvtx["domain"] == "gpu_user_annotation"]
    assert on_device[["start", "end", "process", "thread"]].to_numpy().tolist()[1] == [1_050_000, 1_450_000, -1, -1]
    host_only = [e for e in GPU["traceEvents"] if e.get("cat") != "gpu_user_annotation"]
    expected = read(tmp_path, host_only)
    steps = find_steps(trace)
    assert steps.table.equals(find_steps(expected).table)
    assert gap_report(trace, steps).table.equals(gap_report(expected, steps).table)


def test_a_range_is_the_hosts_though_the_devices_goes_on(tmp_path: Path) -> None:
    decodes = [event("user_annotation", "decode", 1000 * n + at, 9) for n in range(4) for at in (20, 905)]
    late = [event("gpu_user_annotation", f"ProfilerStep#{n}", 1000 * n + 50, 900, 0, 7) for n in range(4)]
    trace = read(tmp_path, GPU["traceEvents"] + decodes + late)
    assert find_steps(trace, within=r"ProfilerStep").table["start"].tolist() == [
        1_000_000 * n + 20_000 for n in range(4)
    ]


def test_operators_that_are_called_like_a_token_are_no_steps(tmp_path: Path) -> None:
    ops = [event("cpu_op", "sgl_kernel::decode_attention", 1000 * n + 20, 10) for n in range(4)]
    functions = [event("python_function", "model.py(7): forward", 1000 * n + 20, 10) for n in range(4)]
    path = write(tmp_path / "a.json", GPU["traceEvents"] + ops + functions)
    steps = find_steps(formats.read(path, python_functions=True))
    assert steps.detail == "NVTX ranges ProfilerStep#0, ProfilerStep#1, ..."
    assert len(find_steps(formats.read(path), pattern="decode")) == 4


def test_python_functions_are_kept_where_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [*GPU["traceEvents"], event("python_function", "f.py(1): f", 1, 2)])
    for options, kept in ((["--python-functions"], 1), ([], 0)):
        target = tmp_path / f"out-{kept}"
        result = CliRunner().invoke(main, ["convert", *options, str(path), str(target)])
        assert result.exit_code == 0, result.output
        assert (formats.read(target)["nvtx"]["domain"] == "python_function").sum() == kept
        assert ("1 python_function events are left out" in result.output) is not bool(kept)
    result = CliRunner().invoke(main, ["convert", "--python-functions", str(target), str(tmp_path / "again")])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].endswith("run directory has no python functions")


# --- what a sync waits for, and streams ---


def test_waits_name_the_record_of_their_event(tmp_path: Path) -> None:
    recorded = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 12, "wait_on_cuda_event_id": 3}
    none = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "wait_on_cuda_event_id": 4294967295}
    on = {"device": 0, "context": 1}
    events = [
        event("cuda_runtime", "cudaEventRecord", 1, 1, correlation=12),
        event("cuda_runtime", "cudaStreamWaitEvent", 3, 1, correlation=13),
        event("cuda_runtime", "cudaEventSynchronize", 5, 9, correlation=14),
        event("cuda_sync", "Stream Wait Event", 3, 1, 0, 20, stream=20, correlation=13, **on, **recorded),
        event("cuda_sync", "Event Sync", 5, 9, 0, -1, stream=-1, correlation=14, **on, **recorded),
        event("cuda_sync", "Event Sync", 15, 1, 0, -1, stream=-1, correlation=15, **on, **none),
        event("cuda_sync", "Context Sync", 17, 1, 0, -1, stream=4294967295, correlation=-3, **on),
    ]
    trace = read(tmp_path, events)
    assert rows(trace, "syncs", "type", "stream", "event", "correlation", "process") == [
        ["stream wait", 20, 3, 13, HOST],
        ["event", 7, 3, 14, HOST],
        ["event", MISSING, MISSING, 15, HOST],
        ["context", MISSING, MISSING, MISSING, HOST],
    ]
    record = [0, 1, 7, 12, HOST, 3]
    columns = ("device", "context", "stream", "correlation", "process", "event")
    assert rows(trace, "cuda_events", *columns) == [record]
    own = event("cuda_event", "cudaEvent", 1, 0, 0, 7, stream=7, correlation=12, event_id=3, **on)
    assert rows(read(tmp_path, [*events, own]), "cuda_events", *columns) == [record]


def test_an_event_without_a_number_is_known_by_the_call_that_recorded_it(tmp_path: Path) -> None:
    on = {"device": 0, "context": 1, "wait_on_stream": 7}
    events = [
        event("cuda_sync", "Event Sync", 10 * by, 9, 0, -1, correlation=by, wait_on_cuda_event_record_corr_id=by, **on)
        for by in (12, 13, 13, 14)
    ]
    own = event("cuda_event", "cudaEvent", 1, 0, 0, 7, device=0, context=1, stream=7, correlation=14, event_id=3)
    trace = read(tmp_path, [event("cuda_runtime", "cudaEventRecord", 1, 1, correlation=12), *events, own])
    first, second, again, known = trace["syncs"]["event"]
    assert (known, second) == (3, again)
    assert len({first, second, known, MISSING}) == 4
    recorded = rows(trace, "cuda_events", "correlation", "event", "stream")
    assert sorted(recorded) == [[12, first, 7], [13, second, 7], [14, 3, 7]]


def test_the_streams_on_which_something_was_seen(tmp_path: Path) -> None:
    events = [
        *step(0),
        event("kernel", "k", 5, 1, 0, 20, device=0, context=1, stream=20, correlation=1, priority=-5),
        event("kernel", "k", 7, 1, 1, 20, device=1, context=2, stream=20, correlation=1, priority=0),
        event("cuda_sync", "Context Sync", 9, 1, 0, -1, device=0, context=1, stream=-1, correlation=3),
        event("cuda_sync", "Stream Sync", 9, 1, 0, 33, device=0, context=1, stream=33, correlation=4),
    ]
    assert rows(read(tmp_path, events), "streams", "process", "context", "stream", "priority") == [
        [HOST, 1, 7, MISSING], [HOST, 1, 20, -5], [HOST, 1, 33, MISSING], [HOST, 2, 20, 0],
    ]  # fmt: skip


def test_correlations_larger_than_cuptis_still_link(tmp_path: Path) -> None:
    large = [2**62 + n for n in range(3)]
    calls = [event("cuda_runtime", "cudaLaunchKernel", n, 1, correlation=c) for n, c in enumerate(large)]
    kernels = [on_gpu("kernel", "k", 10 + n, 1, c) for n, c in enumerate(reversed(large))]
    trace = read(tmp_path, [*calls, *kernels])
    assert trace["api"]["correlation"].tolist() == [0, 1, 2]
    assert trace["kernels"]["correlation"].tolist() == [2, 1, 0]


# --- other shapes ---


@pytest.mark.parametrize("command", ["tokens", "syncs", "gaps", "streams"])
def test_a_recording_without_a_gpu_says_so(command: str) -> None:
    result = CliRunner().invoke(main, [command, str(CPU)])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == (
        f"intertoken: {CPU}: the trace has no kernels and no graph launches; "
        "was CUDA traced (torch.profiler with activities=[CPU, CUDA], on a GPU)?"
    )


def test_a_recording_by_pytorch_on_a_gpu() -> None:
    """24 steps of benchmarks/record_pytorch.py (two layers) on an H200, PyTorch 2.11 and CUDA 13.0."""
    trace = formats.read(CUDA)
    sizes = {name: len(trace[name]) for name in ("kernels", "memcpys", "api", "syncs", "streams", "devices")}
    assert sizes == {"kernels": 816, "memcpys": 96, "api": 1009, "syncs": 25, "streams": 1, "devices": 1}
    assert not trace.notes
    steps = find_steps(trace)
    assert (steps.source, len(steps)) == ("nvtx", 24)
    syncs = sync_report(trace, steps)
    assert (syncs.strategy, syncs.signature) == ("aaag", "a k×9 a k×15 a k×10 a s")
    assert (syncs.syncs_per_token, syncs.copies_per_token, syncs.launches_per_token) == (1, 4, 34)
    gaps = gap_report(trace, steps)
    assert len(gaps.table) == 23
    assert gaps.gap_us["p50"] == pytest.approx(172.7, abs=0.1)
    annotations = trace["nvtx"][trace["nvtx"]["domain"] == "gpu_user_annotation"]
    assert len(annotations) == 24
    assert (annotations[["process", "thread"]] == MISSING).all(axis=None)


# --- HIP, and accelerators that are neither CUDA's nor HIP's ---


def on_mi300(name: str, at: int, correlation: int, **args: Any) -> Event:
    return event("cuda_runtime", name, at, 5, correlation=correlation, **args)


def test_kernels_of_a_hip_graph_are_known_as_such(tmp_path: Path) -> None:
    """No node is ever given: many kernels share the launch's correlation."""
    events = [e for i in range(4) for e in (
        event("user_annotation", "token", 1000 * i, 900),
        on_mi300("hipModuleLaunchKernel", 1000 * i, 10 * i + 1), on_gpu("kernel", "k", 1000 * i + 20, 5, 10 * i + 1),
        on_mi300("hipGraphLaunch", 1000 * i + 10, 10 * i + 2),
        *(on_gpu("kernel", f"k{j}", 1000 * i + 30 + 10 * j, 5, 10 * i + 2) for j in range(9)),
    )]  # fmt: skip
    trace = read(tmp_path, events)
    steps = find_steps(trace)
    assert of_graph_launches(trace).tolist() == [False, *[True] * 9] * 4
    gaps = gap_report(trace, steps)
    assert (gaps.graph_trace, gaps.estimated) == ("node", None)
    found = sync_report(trace, steps)
    assert (found.signature, found.launches_per_token, found.strategy) == ("k g", 2, "ggg")


def test_a_hip_copy_is_what_its_call_asked_for(tmp_path: Path) -> None:
    """From pinned memory a kernel copies, and the profiler sees a copy inside the device."""
    inside = "Memcpy DtoD (Device -> Device)"
    events = [
        on_mi300("hipMemcpyAsync", 0, 1, kind="1", bytes="4"), on_gpu("gpu_memcpy", inside, 10, 1, 1),
        on_mi300("hipMemcpyWithStream", 20, 2, kind="2"), on_gpu("gpu_memcpy", inside, 22, 1, 2),
        on_mi300("hipMemcpyAsync", 30, 3, kind="4"), on_gpu("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 40, 1, 3),
        on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Host)", 50, 1, 4),
    ]  # fmt: skip
    assert rows(read(tmp_path, events), "memcpys", "kind") == [["HtoD"], ["DtoH"], ["HtoD"], ["DtoH"]]


def test_a_grid_in_threads_becomes_one_in_blocks_once(tmp_path: Path) -> None:
    sizes = {"grid": [114944, 3, 1], "block": [256, 2, 1]}
    events = [
        on_mi300("hipExtModuleLaunchKernel", 0, 1), on_gpu("kernel", "gemm", 10, 1, 1, **sizes),
        on_mi300("hipModuleLaunchKernel", 20, 2), on_gpu("kernel", "k", 30, 1, 2, **sizes),
    ]  # fmt: skip
    trace = read(tmp_path, events)
    expected = [[449, 2, 1], [114944, 3, 1]]
    assert rows(trace, "kernels", "grid_x", "grid_y", "grid_z") == expected
    formats.write(trace, tmp_path / "copy.json.gz")
    assert rows(formats.read(tmp_path / "copy.json.gz"), "kernels", "grid_x", "grid_y", "grid_z") == expected


def test_rows_of_other_accelerators_are_named_in_one_line(tmp_path: Path) -> None:
    npu = [{"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "Ascend Hardware"}}] + [
        {"ph": "X", "name": "MatMulV2", "pid": 4, "tid": 3, "ts": f"{i}.5", "dur": 1.0, "args": {}} for i in range(3)
    ]
    events = [
        event("mtia_ccp_events", "gemm", 0, 5), event("mtia_runtime", "launch", 0, 5),
        event("mtia_runtime", "launch", 1, 5), event("xpu_runtime", "urEnqueueKernelLaunch", 2, 5), *npu,
    ]  # fmt: skip
    trace = read(tmp_path, events)
    assert trace.notes == [
        "rows of an unsupported accelerator are kept as plain ranges (2 mtia_runtime, 1 mtia_ccp_events, "
        "1 xpu_runtime, 3 Ascend Hardware): its work is not analysed"
    ]
    assert len(trace["nvtx"]) == 7
    with pytest.raises(EmptyTraceError, match=r"not supported \(mtia_ccp_events, mtia_runtime, xpu_runtime\)"):
        find_steps(trace)
