"""Recordings of HIP programs, and the files in which rocprofv3 writes them: CSV, and databases of both schemas."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.tracer.handmade import THREAD, Script
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

CPUS: Final = 2
"""Agents of the host, which come before the GPUs."""
LAUNCH, GRAPH, COPY, SYNC = "hipLaunchKernel", "hipGraphLaunch", "hipMemcpyAsync", "hipStreamSynchronize"
GPU: Final = "AMD Instinct MI300X"


def hip(steps: int = 6, process: int = 100, device: int = 0, begin: int = 1_000_000) -> Trace:
    """Steps of 1000 ns: a range, a copy in, a launch, a graph of two kernels, a copy out, and a sync."""
    script = Script()
    for at in range(begin, begin + 1000 * steps, 1000):
        script.range("decode", at, at + 990, process=process)
        script.copied((at + 30, at + 40), "HtoD", script.call(COPY, at + 5, at + 20, process=process), size=64)
        script.launch((at + 50, at + 60), (at + 70, at + 170), name="add<float>(float*)", api=LAUNCH, process=process)
        script.launch(
            (at + 80, at + 100), (at + 180, at + 300), (at + 310, at + 700), name='mul_mat, "q"', api=GRAPH,
            process=process,
        )  # fmt: skip
        script.copied((at + 720, at + 740), "DtoH", script.call(COPY, at + 110, at + 130, process=process), size=4)
        script.call(SYNC, at + 140, at + 800, process=process)
        script.range("token", at + 810, at + 810, process=process)
        script.rows["nvtx"][-1]["kind"] = "mark"
    for table in ("kernels", "memcpys"):
        for row in script.rows[table]:
            row |= {"process": process, "context": MISSING, "device": device}
    for row in script.rows["kernels"]:
        sizes = dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1)
        row |= {"short_name": "", "grid_x": 24, "block_x": 256, "registers": 32, "dynamic_shared": 512, **sizes}
    for row in script.rows["memcpys"]:
        to_device = row["kind"] == "HtoD"
        row |= {
            "src_device": MISSING if to_device else device, "dst_device": device if to_device else MISSING,
            "src_kind": "unknown" if to_device else "device", "dst_kind": "device" if to_device else "unknown",
        }  # fmt: skip
    script.rows["devices"] = [{"device": number, "name": GPU, "sm_count": 304} for number in range(2)]
    script.rows["streams"] = [{"process": process, "context": MISSING, "stream": 7}]
    columns = {
        table: {name: [row[name] for row in rows] for name in rows[0]} for table, rows in script.rows.items() if rows
    }
    return Trace.from_columns({"source": "rocprofv3"}, **columns)


def records(trace: Trace, table: str) -> list[dict[str, Any]]:
    frame = trace[table]
    return [dict(zip(frame, row, strict=True)) for row in frame.astype(object).to_numpy().tolist()]


def _agent(device: int) -> str:
    return f"Agent {CPUS + device if device != MISSING else 0}"


def csv_folder(folder: Path, *traces: Trace, streams: bool = True) -> Path:
    """The files of each trace, of one process each, as rocprofv3 writes them; without `streams` as in 2024."""
    folder.mkdir(parents=True, exist_ok=True)
    for trace in traces:
        pid = int(trace["api"]["process"].iloc[0])
        for name, (columns, rows) in _csv_tables(trace, streams).items():
            with (folder / f"{pid}_{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
                writer.writerows([columns.split(), *rows])
    return folder


def _csv_tables(trace: Trace, streams: bool) -> dict[str, tuple[str, list[list[Any]]]]:
    kernels = [
        ["KERNEL_DISPATCH", _agent(row["device"]), 1, *[row["stream"]] * streams, THREAD, number, 9, row["name"],
         row["correlation"], row["start"], row["end"], row["dynamic_shared"], 0, row["registers"], 0, 16,
         row["block_x"], row["block_y"], row["block_z"], row["grid_x"] * row["block_x"], row["grid_y"], row["grid_z"]]
        for number, row in enumerate(records(trace, "kernels"))
    ]  # fmt: skip
    words = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}
    copies = [
        ["MEMORY_COPY", f"MEMORY_COPY_{words[row['kind']]}", *[row["stream"]] * streams, _agent(row["src_device"]),
         _agent(row["dst_device"]), row["correlation"], row["start"], row["end"]]
        for row in records(trace, "memcpys")
    ]  # fmt: skip
    api = [
        ["HIP_RUNTIME_API_EXT" if row["layer"] == "runtime" else "HSA_CORE_API", row["name"], row["process"],
         row["thread"], row["correlation"], row["start"], row["end"]]
        for row in records(trace, "api")
    ]  # fmt: skip
    ranges = [
        ["MARKER_CORE_RANGE_API", row["text"], row["process"], row["thread"], 10**6 + number, row["start"], row["end"]]
        for number, row in enumerate(records(trace, "nvtx"))
    ]
    agents = [[number, number, "CPU", 0, "", "EPYC", "cpu"] for number in range(CPUS)]
    agents += [[CPUS + row["device"], CPUS + row["device"], "GPU", row["sm_count"], row["name"], "", "gfx942"]
               for row in records(trace, "devices")]  # fmt: skip
    stream = "Stream_Id " if streams else ""
    calls = "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"
    return {
        "kernel_trace": (
            f"Kind Agent_Id Queue_Id {stream}Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id "
            "Start_Timestamp End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count "
            "Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z", kernels,
        ),
        "memory_copy_trace": (
            f"Kind Direction {stream}Source_Agent_Id Destination_Agent_Id Correlation_Id Start_Timestamp "
            "End_Timestamp", copies,
        ),
        "hip_api_trace": (calls, [row for row in api if row[0].startswith("HIP")]),
        "hsa_api_trace": (calls, [row for row in api if row[0].startswith("HSA")]),
        "marker_api_trace": (calls, ranges),
        "agent_info": ("Node_Id Logical_Node_Id Agent_Type Cu_Count Product_Name Model_Name Name", agents),
        "hip_stats": ("Name Calls TotalDurationNs AverageNs Percentage MinNs MaxNs StdDev", []),
    }  # fmt: skip


def same_tables(found: Trace, expected: Trace, *ignored: str) -> None:
    """Assert that the tables are equal but for these columns."""
    for name, frame in expected.tables.items():
        for column in frame:
            if column not in ignored and f"{name}.{column}" not in ignored:
                own, theirs = (each[name][column].astype(object).tolist() for each in (found, expected))
                assert np.array_equal(own, theirs) or str(own) == str(theirs), (name, column, own[:5], theirs[:5])
