"""Several ranks in one file: each keeps its own processes and devices, however a tool changed the pids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tracer.kineto import GPU, HOST, THREAD, Event, event, read, rows
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps


def merged(host: Any, device: Any, ranks: int = 2, late: int = 5) -> list[Event]:
    """Files of several ranks, one device each, as a tool merges them by changing the pids; each starts `late` µs."""
    events = []
    for rank in range(ranks):
        for e in GPU["traceEvents"]:
            on_host = e["pid"] == HOST
            events.append(e | {"pid": (host if on_host else device)(rank), "ts": e["ts"] + rank * late})
    return events


@pytest.mark.parametrize(
    ("host", "device", "processes"),
    [
        (lambda rank: f"[TP{rank:02}] {HOST}", lambda rank: f"[TP{rank:02}] 0", [100, 0]),
        (lambda rank: f"{rank}_{HOST + rank}", lambda rank: f"{rank}_0", [100, 101]),
        (lambda rank: f"rank {rank}", lambda rank: f"rank {rank}", [0, 1]),
        (lambda rank: f"rank {rank} python", lambda rank: f"rank {rank} GPU 0", [0, 1]),
        (lambda rank: 10**6 * rank + HOST, lambda rank: 10**6 * rank, [100, 1_000_100]),
        (lambda rank: rank, lambda rank: rank, [0, 1]),
    ],
)
def test_ranks_in_one_file_stay_apart(tmp_path: Path, host: Any, device: Any, processes: list[int]) -> None:
    trace = read(tmp_path, GPU | {"traceEvents": merged(host, device)})
    kernels = trace["kernels"]
    assert kernels.groupby("device")["process"].unique().map(list).to_dict() == {
        0: [processes[0]], 1: [processes[1]],
    }  # fmt: skip
    assert kernels.loc[kernels["device"] == 1, "start"].tolist() == [55_000, 1_055_000, 2_055_000, 3_055_000]
    assert rows(trace, "devices", "device", "name") == [[0, "GPU A"], [1, "GPU A"]]
    assert sorted(trace["processes"]["process"]) == sorted(processes)
    steps = find_steps(trace)
    assert steps.table.groupby("process").size().to_dict() == dict.fromkeys(processes, 4)
    gaps = gap_report(trace, steps).table
    assert gaps.groupby("device")["gap"].agg(list).to_dict() == {0: [600_000] * 3, 1: [600_000] * 3}
    assert gaps["sync"].tolist() == [10_000] * 6  # each by its own thread's call
    assert trace.notes == [
        f"the file holds 2 ranks: rank 0 = process {processes[0]} and device 0, "
        f"rank 1 = process {processes[1]} and device 1"
    ]
    assert trace.metadata["source"] == "PyTorch profiler"


def test_devices_of_ranks_that_count_them_differently_keep_their_numbers(tmp_path: Path) -> None:
    one = [e | {"pid": f"1_{e['pid']}"} for e in merged(lambda _: HOST, lambda _: 3, ranks=1)]
    for e in one:
        e["args"] = e["args"] | ({"device": 3} if "device" in e["args"] else {})
    zero = [e | {"pid": f"0_{e['pid']}"} for e in GPU["traceEvents"]]
    assert sorted(set(read(tmp_path, zero + one)["kernels"]["device"])) == [0, 3]


def test_arrows_link_within_their_rank(tmp_path: Path) -> None:
    events: list[Event] = []
    for rank in range(2):
        host, device, at = f"{rank}_100", f"{rank}_0", 100 * rank
        flow = {"cat": "ac2g", "id": 5, "name": "ac2g"}
        events += [
            event("cuda_runtime", "cudaLaunchKernel", at + 1, 1, host),
            {"ph": "s", "pid": host, "tid": THREAD, "ts": at + 1, **flow},
            {"ph": "f", "pid": device, "tid": 7, "ts": at + 20, **flow},
            event("kernel", "k", at + 20, 5, device, 7, device=0),
        ]
    trace = read(tmp_path, events)
    assert rows(trace, "kernels", "device", "correlation", "process") == [[0, 5, 100], [1, 5, 0]]
    assert trace["api"]["correlation"].tolist() == [5, 5]


def test_devices_whose_host_the_file_does_not_tell(tmp_path: Path) -> None:
    trace = read(tmp_path, merged(lambda rank: HOST + rank, lambda rank: 500 + rank))
    assert sorted(set(trace["kernels"]["device"])) == [0, 1]
    assert trace.notes == ["devices with equal numbers but different pids are treated as 2 devices"]


def test_peer_copies_name_the_devices_of_their_rank(tmp_path: Path) -> None:
    peer = {"inDevice": 0, "fromDevice": 0, "toDevice": 1, "stream": 7, "bytes": 64}
    events = [event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", r, 1, f"{r}_0", 7, **peer) for r in range(2)]
    trace = read(tmp_path, events)
    assert rows(trace, "memcpys", "device", "src_device", "dst_device", "kind") == [
        [0, 0, 1, "PtoP"],
        [2, 2, 3, "PtoP"],
    ]
