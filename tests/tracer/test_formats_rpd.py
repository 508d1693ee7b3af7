"""JSON of AMD's rocmProfileData (`rpd2tracing`): operations of devices, calls and the arrows between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tracer.kineto import Event, event, on_gpu, read, rows
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

HOST, THREAD = "4242", "4243"


def row(pid: str, tid: str, name: str, ts: Any, dur: Any, desc: str = "") -> Event:
    """A row as rpd2tracing writes it: numbers are texts, and there is no category."""
    return {"pid": pid, "tid": tid, "name": name, "ts": str(ts), "dur": str(dur), "ph": "X", "args": {"desc": desc}}


def arrow(number: int, call_end: float, start: float, queue: str = "1") -> list[Event]:
    """It begins 2 µs before the call ends, or with the operation if that is earlier."""
    ends = {"cat": "api_op", "name": "api_op", "id": str(number)}
    return [
        {**ends, "pid": HOST, "tid": THREAD, "ts": str(min(call_end - 2, start)), "ph": "s"},
        {**ends, "pid": "2", "tid": queue, "ts": str(start), "ph": "f", "bp": "e"},
    ]


def step(number: int) -> list[Event]:
    """1000 µs: two launches, whose kernels run at 50..450 and 460.5..500.75, and a blocking copy of 520..530."""
    at, first = 1000.0 * number, 3 * number + 1
    return [
        row("2", "1", "void mm<float>(int)", at + 50, 400.0, "KernelExecution"),
        row("2", "1", "argmax", at + 460.5, 40.25, "KernelExecution"),
        row("2", "1", "CopyDeviceToHost", at + 520, 10.0, "CopyDeviceToHost"),
        row(HOST, THREAD, "hipLaunchKernel", at + 30, 8.0),
        row(HOST, THREAD, "hipExtModuleLaunchKernel", at + 40, 1.5),
        row(HOST, THREAD, "hipMemcpyWithStream", at + 42, 500.0),
        *arrow(first, at + 38, at + 50),
        *arrow(first + 1, at + 41.5, at + 460.5),
        *arrow(first + 2, at + 542, at + 520),
    ]


STEPS = [{}, *(each for number in range(20) for each in step(number))]


def test_operations_calls_and_arrows(tmp_path: Path) -> None:
    trace = read(tmp_path, STEPS)
    assert trace.metadata["source"] == "rocmProfileData"
    assert rows(trace, "kernels", "name", "start", "end", "device", "stream", "process")[:2] == [
        ["void mm<float>(int)", 50_000, 450_000, 2, 1, 4242], ["argmax", 460_500, 500_750, 2, 1, 4242],
    ]  # fmt: skip
    assert rows(trace, "memcpys", "kind", "start", "end")[:1] == [["DtoH", 520_000, 530_000]]
    called = trace["api"].set_index("correlation")["name"].astype(str)
    assert called.loc[trace["kernels"]["correlation"]].tolist() == ["hipLaunchKernel", "hipExtModuleLaunchKernel"] * 20
    assert called.loc[trace["memcpys"]["correlation"]].tolist() == ["hipMemcpyWithStream"] * 20
    assert trace.notes[0] == "streams are hardware queues: rocmProfileData's JSON does not name those of HIP"
    assert not [note for note in trace.notes if "whole µs" in note]


def test_the_steps_of_a_loop_and_its_gap(tmp_path: Path) -> None:
    trace = read(tmp_path, STEPS)
    steps = find_steps(trace)
    assert len(steps) == 20
    report = sync_report(trace, steps)
    assert (report.signature, report.launches_per_token) == ("k×2 c", 2)
    assert gap_report(trace, steps).gap_us["p50"] == 549.25  # from 500.75 to 1050


def test_one_graph_launch_has_all_its_kernels(tmp_path: Path) -> None:
    trace = read(tmp_path, [
        row(HOST, THREAD, "hipGraphLaunch", 10.0, 5.0),
        row("2", "1", "a", 20.0, 4.0, "KernelExecution"), row("2", "1", "b", 25.0, 4.0, "KernelExecution"),
        {**row("2", "1", "Graph 7", 20.0, 9.0), "args": {"kernels": "2"}},
        *arrow(1, 15.0, 20.0), *arrow(2, 15.0, 25.0),
    ])  # fmt: skip
    assert rows(trace, "kernels", "name", "correlation") == [["a", 1], ["b", 1]]
    assert trace["api"]["correlation"].tolist() == [1]
    assert rows(trace, "nvtx", "text", "domain", "process") == [["Graph 7", "gpu_user_annotation", -1]]


def test_an_arrow_of_disagreeing_clocks_leads_from_no_call(tmp_path: Path) -> None:
    trace = read(tmp_path, [
        row(HOST, THREAD, "hipMalloc", 0.0, 5.0), row(HOST, THREAD, "hipLaunchKernel", 30.0, 8.0),
        row("2", "1", "a", 20.0, 4.0, "KernelExecution"), *arrow(1, 38.0, 20.0),
    ])  # fmt: skip
    assert trace["kernels"]["correlation"].tolist() == [-1]


def test_the_numbers_of_another_profiler_are_kept(tmp_path: Path) -> None:
    launch = event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=7)
    trace = read(tmp_path, [launch, on_gpu("kernel", "b", 5, 2, 7), row("2", "1", "a", 20.0, 4.0, "KernelExecution")])
    assert rows(trace, "kernels", "name", "correlation") == [["b", 7], ["a", -1]]


def test_markers_and_copies_without_a_device(tmp_path: Path) -> None:
    trace = read(tmp_path, [
        row("2", "1", "a", 20.0, 4.0, "KernelExecution"), row(HOST, THREAD, "decode", 5.0, 30.0, "decode"),
        row("2", "1", "decode", 19.0, 6.0, "UserMarker frame: 1 ops"),
        row("0", "0", "MEMORY_COPY_HOST_TO_DEVICE", 21.0, 1.0, "MEMORY_COPY_HOST_TO_DEVICE"),
    ])  # fmt: skip
    assert rows(trace, "nvtx", "text", "domain", "process") == [
        ["decode", "", 4242], ["decode", "gpu_user_annotation", -1],
    ]  # fmt: skip
    assert len(trace["memcpys"]) == 0
    assert "1 copies whose device rocmProfileData does not know are left out" in trace.notes
