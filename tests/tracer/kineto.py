"""Traces as PyTorch's profiler writes them, made by hand: times in µs that the test chooses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tracer import formats
from tracer.model.trace import Trace

HOST, THREAD = 100, 101
Event = dict[str, Any]


def event(cat: str, name: str, ts: Any, dur: Any, pid: Any = HOST, tid: Any = THREAD, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def on_gpu(cat: str, name: str, ts: Any, dur: Any, correlation: int, **args: Any) -> Event:
    where = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    return event(cat, name, ts, dur, 0, 7, **where, **args)


def step(number: int) -> list[Event]:
    """1000 µs: a copy (10..20, on the device 30..32), a launch (30..40, kernel 50..450), a sync (50..460)."""
    at, first = 1000 * number, 10 * number
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, 900),
        event("cpu_op", "aten::mm", at + 5, 40),
        event("cuda_runtime", "cudaMemcpyAsync", at + 10, 10, correlation=first),
        on_gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 30, 2, first, bytes=4096),
        event("cuda_runtime", "cudaLaunchKernel", at + 30, 10, correlation=first + 1),
        on_gpu(
            "kernel", "void mm<float>(int)", at + 50, 400, first + 1, grid=[2, 3, 4], block=[32, 1, 1],
            **{"registers per thread": 40, "shared memory": 1024, "graph id": 0, "graph node id": 0},
        ),
        event("cuda_runtime", "cudaStreamSynchronize", at + 50, 410, correlation=first + 2),
        on_gpu("cuda_sync", "Stream Sync", at + 50, 409, first + 2, cuda_sync_kind="Stream Sync"),
        event("gpu_user_annotation", f"ProfilerStep#{number}", at + 50, 400, 0, 7),
    ]  # fmt: skip


GPU: Event = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "GPU A", "numSms": 132, "totalGlobalMem": 2**37}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "host_name": "secret",
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": HOST, "tid": THREAD, "ts": 0, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}},
        *[e for number in range(4) for e in step(number)],
    ],
    "traceName": "/home/secret/trace.json",
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(tmp_path: Path, content: Any) -> Trace:
    return formats.read(write(tmp_path / "trace.json", content))


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    return trace[table].astype(dict.fromkeys(columns, object))[list(columns)].to_numpy().tolist()
