"""Steps, syncs and gaps of recordings shaped like those that HolisticTraceAnalysis tests with, with known answers.

Made by hand, not the real files: each is named for the one whose categories, names and arguments it has. Each has
four steps of 1000 µs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tracer.kineto import HOST, THREAD, Event, event, on_gpu, read
from tracer.analysis.gaps import gap_report
from tracer.analysis.streams import stream_report
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import find_steps
from tracer.model.trace import Trace


def file(step: Any, **members: Any) -> dict[str, Any]:
    events = [e for number in range(4) for e in step(1000 * number, 100 * number)]
    return {"schemaVersion": 1, **members, "traceEvents": events}


def counts(report: SyncReport) -> tuple[str, float, float, float]:
    return report.signature, report.syncs_per_token, report.copies_per_token, report.launches_per_token


def gap(trace: Trace) -> tuple[list[int], dict[str, float]]:
    found = gap_report(trace, find_steps(trace))
    return found.table["gap"].unique().tolist(), {name: us for name, us in found.causes_us.items() if us}


# --- critical_path/cuda_event_sync_multi_stream ---


def event_sync(at: int, first: int) -> list[Event]:
    """Two kernels on streams 7 and 20, the second behind the first by an event; the host waits by another event."""

    def call(name: str, start: float, end: float, number: int) -> Event:
        return event("cuda_runtime", name, at + start, end - start, correlation=first + number, cbid=1)

    def sync(kind: str, start: float, end: float, number: int, stream: int, **waits: int) -> Event:
        place = {"device": 0, "context": 1, "stream": stream, "correlation": first + number}
        return event("cuda_sync", kind, at + start, end - start, 0, stream, cuda_sync_kind=kind, **waits, **place)

    def waits(stream: int, by: int, event: int) -> dict[str, int]:
        record = "wait_on_cuda_event_record_corr_id"
        return {"wait_on_stream": stream, record: first + by, "wait_on_cuda_event_id": event}

    return [
        event("user_annotation", f"ProfilerStep#{at // 1000}", at, 950),
        call("cudaMemcpyAsync", 10, 20, 1),
        on_gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 22, 2, first + 1, bytes=64),
        call("cudaLaunchKernel", 30, 35, 2),
        on_gpu("kernel", "first", at + 40, 100, first + 2),
        call("cudaEventRecord", 36, 37, 3),
        call("cudaStreamWaitEvent", 38, 39, 4),
        sync("Stream Wait Event", 38, 39, 4, 20, **waits(7, 3, 1)),
        call("cudaLaunchKernel", 40, 45, 5),
        on_gpu("kernel", "second", at + 141, 200, first + 5) | {"tid": 20},
        call("cudaEventRecord", 46, 47, 6),
        call("cudaEventSynchronize", 50, 345, 7),
        sync("Event Sync", 50, 344, 7, -1, **waits(20, 6, 2)),
        call("cudaDeviceSynchronize", 350, 352, 8),
        sync("Context Sync", 350, 352, 8, -1),
        event("gpu_user_annotation", f"ProfilerStep#{at // 1000}", at + 22, 319, 0, 7),
    ]


def test_an_event_orders_two_streams_and_another_ends_the_step(tmp_path: Path) -> None:
    content = file(event_sync)
    for e in content["traceEvents"]:
        if e["name"] == "second":
            e["args"]["stream"] = 20
    trace = read(tmp_path, content)
    assert find_steps(trace).detail == "NVTX ranges ProfilerStep#0, ProfilerStep#1, ..."
    syncs = sync_report(trace, find_steps(trace))
    assert counts(syncs) == ("a k e w k e s×2", 2, 1, 2)
    waited = syncs.calls[syncs.calls["name"] == "cudaEventSynchronize"]
    assert set(waited["waited_for"]) == {"second"}
    assert waited["waited_until"].tolist() == [1000 * (341 + 1000 * n) for n in range(4)]
    # from 341: sync to 345 and 350..352, copy 1010..1020 and on the device 1022..1024, launch 1030..1040, the rest host
    assert gap(trace) == ([699_000], {"sync": 6, "copy": 12, "launch": 10, "host": 671})
    records = trace["cuda_events"][["stream", "event", "correlation"]].to_numpy().tolist()
    assert sorted(records) == sorted([[7, 1, 100 * n + 3] for n in range(4)] + [[20, 2, 100 * n + 6] for n in range(4)])
    assert trace["streams"]["stream"].tolist() == [7, 20]


# --- triton_example ---


def triton(at: int, first: int) -> list[Event]:
    """A Triton kernel by the driver, one of PyTorch by the runtime, whose own call to the driver stands inside it."""
    arrows = [
        {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": first + 1, "pid": pid, "tid": tid, "ts": at + ts}
        for phase, pid, tid, ts in (("s", HOST, THREAD, 100.001), ("f", 0, 7, 120.5))
    ]
    return [
        event("user_annotation", f"ProfilerStep#{at // 1000}", at, 990.999),
        event("cpu_op", "TorchDynamo Cache Lookup", at + 50, 10.25),
        event("cuda_driver", "cuLaunchKernel", at + 100.001, 4.999, cbid=307, correlation=first + 1),
        on_gpu("kernel", "triton_poi_fused_add_cos_sin_0", at + 120.5, 79.5, first + 1),
        event("cuda_runtime", "cudaLaunchKernelExC", at + 110, 10, correlation=first + 2),
        event("cuda_driver", "cuLaunchKernelEx", at + 111, 5, correlation=first + 3),
        on_gpu("kernel", "void at::native::reduce_kernel<512, 1>(float)", at + 200, 100.125, first + 2),
        event("cuda_runtime", "cudaStreamSynchronize", at + 130, 175, correlation=first + 4),
        *arrows,
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": first + 1, "pid": HOST, "tid": THREAD, "ts": at + 100.001},
    ]


def test_kernels_of_triton_are_launched_by_the_driver(tmp_path: Path) -> None:
    trace = read(tmp_path, file(triton, triton_version="3.2.0"))
    assert counts(sync_report(trace, find_steps(trace))) == ("k×2 s", 1, 0, 2)
    assert trace["api"]["layer"].astype("str").tolist()[:4] == ["driver", "runtime", "driver", "runtime"]
    # from 300.125: sync to 305, launch from 1100.001 to the kernel at 1120.5, the rest host
    assert gap(trace) == ([820_375], {"sync": 4.875, "launch": 20.499, "host": 795.001})
    assert trace.notes == []


# --- vision_transformer and nccl_data: one rank of several ---


def all_reduce(at: int, first: int) -> list[Event]:
    """A kernel 50..450 and, from 400 to 500 on a stream of its own, NCCL's; on device 3, that of rank 3."""
    nccl = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", "Group size": 8}
    place = {"device": 3, "context": 1}
    return [
        event("user_annotation", f"ProfilerStep#{at // 1000}", at, 900),
        event("user_annotation", "nccl:all_reduce", at + 60, 5),
        event("cuda_runtime", "cudaLaunchKernel", at + 30, 10, correlation=first + 1),
        event("kernel", "gemm", at + 50, 400, 3, 7, stream=7, correlation=first + 1, **place),
        event("cuda_runtime", "cudaLaunchKernelExC", at + 62, 2, correlation=first + 2),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", at + 400, 100, 3, 24,
              stream=24, correlation=first + 2, **nccl, **place),
        event("gpu_user_annotation", "nccl:all_reduce", at + 400, 100, 3, 24),
        event("cuda_runtime", "cudaDeviceSynchronize", at + 70, 440, correlation=first + 3),
    ]  # fmt: skip


def test_one_rank_of_several(tmp_path: Path) -> None:
    info = {
        "backend": "nccl",
        "rank": 3,
        "world_size": 8,
        "pg_count": 1,
        "pg_config": [{"pg_name": "0", "ranks": "[]"}],
    }
    devices = [{"id": id, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108} for id in range(8)]
    trace = read(tmp_path, file(all_reduce, distributedInfo=info, deviceProperties=devices))
    assert (trace.metadata["source"], trace.metadata["distributed"]) == ("PyTorch profiler, rank 3 of 8", info)
    assert trace["devices"]["device"].tolist() == list(range(8))
    assert counts(sync_report(trace, find_steps(trace))) == ("k×2 s", 1, 0, 2)
    assert gap(trace) == ([600_000], {"sync": 10, "launch": 20, "communication": 50, "host": 520})
    table = stream_report(trace, find_steps(trace)).streams
    assert table[["device", "stream"]].to_numpy().tolist() == [[3, 7], [3, 24]]


# --- files of 2021 ---


def old(at: int, first: int) -> list[Event]:
    """Categories with capitals, whole µs, thread ids as texts, and the step among the operators."""
    place = {"device": 0, "context": 1, "stream": 7}
    events = [
        event("Operator", f"ProfilerStep#{at // 1000}", at, 900),
        event("Operator", "aten::mm", at + 5, 40, **{"Input dims": []}),
        event("Runtime", "cudaMemcpyAsync", at + 10, 10, correlation=first + 1),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", at + 15, 3, 0, 7, correlation=first + 1, bytes=8, **place),
        event("Runtime", "cudaLaunchKernel", at + 30, 10, correlation=first + 2),
        event("Kernel", "gemm", at + 50, 400, 0, 7, correlation=first + 2, **place),
        event("Memset", "Memset (Device)", at + 451, 1, 0, 7, correlation=first + 3, bytes=8, **place),
        event("Runtime", "cudaDeviceSynchronize", at + 60, 400, correlation=first + 4),
    ]
    return [e | {"tid": "stream 7" if e["pid"] == 0 else str(THREAD)} for e in events]


def test_a_file_of_2021(tmp_path: Path) -> None:
    trace = read(tmp_path, file(old))
    assert counts(sync_report(trace, find_steps(trace))) == ("a k s", 1, 1, 1)
    assert set(trace["nvtx"]["domain"]) == {"", "cpu_op"}
    assert trace["memsets"]["mem_kind"].unique().tolist() == ["device"]
    # from 450: copy 451..452 (the fill) and 1010..1020, sync to 460 but for the fill, launch 1030..1050, the rest host
    assert gap(trace) == ([600_000], {"sync": 9, "copy": 11, "launch": 20, "host": 560})
