"""Recordings of HIP programs, and the files in which rocprofv3 writes them: CSV, and databases of both schemas."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
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


_COMMON: Final = {
    "metadata": "tag, value", "string": "string", "info_node": "machine_id, hostname",
    "info_process": "nid, ppid, pid, command", "info_thread": "nid, ppid, pid, tid, name",
    "info_agent": "nid, pid, type, absolute_index, logical_index, type_index, name, model_name, product_name, extdata",
    "info_stream": "nid, pid, name", "info_queue": "nid, pid, name",
    "info_kernel_symbol": "kernel_name, display_name, arch_vgpr_count, sgpr_count, extdata",
    "event": "category_id, stack_id, parent_stack_id, correlation_id, extdata",
}  # fmt: skip
_SIZES: Final = ", ".join(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
_SCHEMAS: Final[dict[int, dict[str, str]]] = {
    3: {
        "track": "nid, pid, tid, name_id", "region": "nid, pid, tid, start, end, name_id, event_id",
        "sample": "track_id, timestamp, event_id",
        "kernel_dispatch": "nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
        f"group_segment_size, event_id, {_SIZES}",
        "memory_copy": "nid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, size, queue_id, stream_id, "
        "event_id",
    },
    4: {
        "info_category": "name", "timestamp": "value, phase, track_id",
        "track": "nid, ppid, pid, tid, agent_id, queue_id, stream_id, name_id",
        "region": "track_id, name_id, start_id, end_id, event_id",
        "sample": "track_id, name_id, timestamp_id, event_id",
        "kernel_dispatch": "track_id, kernel_id, dispatch_id, start_id, end_id, group_segment_size, event_id, "
        f"{_SIZES}",
        "memory_copy": "track_id, start_id, end_id, name_id, dst_agent_id, src_agent_id, size, event_id",
    },
}  # fmt: skip
"""Schema -> table -> its columns behind `id`, as far as a reader may want them."""


class Database:
    """A database of rocprofv3, or the tables of one more process in it. The ids are not what they stand for."""

    def __init__(self, path: Path, trace: Trace, schema: int = 3, machine: str = "m1") -> None:
        self.pid = int(trace["api"]["process"].iloc[0])
        self._schema, self._suffix = schema, f"_0000{self.pid:04x}_8903"
        self._guid = f"0000{self.pid:04x}-8903-7903-9d42-1c0ffee5eed5"
        self._ids: dict[tuple[str, Any], int] = {}
        self._rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as self._file:
            self._file.execute("BEGIN")
            for table, columns in (_COMMON | _SCHEMAS[schema]).items():
                names = ", ".join(f'"{name}"' for name in columns.split(", "))
                stored = f"`rocpd_{table}{self._suffix}`"
                self._file.execute(
                    f"CREATE TABLE IF NOT EXISTS {stored} (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "
                    f'guid TEXT DEFAULT "{self._guid}" NOT NULL, {names})'
                )
                self._file.execute(f"CREATE VIEW IF NOT EXISTS rocpd_{table} AS SELECT * FROM {stored}")
            self._write(trace, machine)
            self._file.execute("COMMIT")

    def add(self, table: str, **values: Any) -> int:
        """A row; returns its id."""
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        sql = f"INSERT INTO `rocpd_{table}{self._suffix}` ({names}) VALUES ({marks})"
        return self._file.execute(sql, [*values.values()]).lastrowid or 0

    def _id(self, table: str, **values: Any) -> int:
        """The id of the only row with these values."""
        key = table, tuple(values.items())
        if key not in self._ids:
            self._ids[key] = self.add(table, **values)
        return self._ids[key]

    def _text(self, text: str) -> int:
        return self._id("string", string=text)

    def _event(self, category: str, correlation: int, message: str | None = None) -> int:
        its = self._text(category) if self._schema == 3 else self._id("info_category", name=category)
        extra = "{}" if message is None else json.dumps({"message": message})
        return self.add("event", category_id=its, stack_id=correlation, correlation_id=0, extdata=extra)

    def _placed(self, row: dict[str, Any], thread: int, **on_device: Any) -> dict[str, Any]:
        """Where and when a row is, in the schema's way."""
        where = {"nid": 1, "pid": self._process, "tid": self._id("info_thread", pid=self._process, tid=thread, name="")}
        if self._schema == 3:
            return {**where, **on_device, "start": row["start"], "end": row["end"]}
        track = self._id("track", **where, **on_device)
        start, end = (self.add("timestamp", value=row[which], track_id=track) for which in ("start", "end"))
        return {"track_id": track, "start_id": start, "end_id": end}

    def _write(self, trace: Trace, machine: str) -> None:
        for _ in range(2):  # so that ids differ from what they stand for
            self._text(f"unused {_}")
        self._process = self.add("info_process", nid=1, pid=self.pid, command="/opt/bin/llama-server -m model.gguf")
        self.add("info_node", machine_id=machine, hostname="node")
        agents = {MISSING: self.add("info_agent", type="CPU", absolute_index=0, type_index=0, extdata="{}")}
        for row in records(trace, "devices"):
            number, extra = row["device"], json.dumps({"cu_count": row["sm_count"], "name": "gfx942"})
            agents[number] = self.add(
                "info_agent", type="GPU", absolute_index=CPUS + number, type_index=number, product_name=row["name"],
                extdata=extra,
            )  # fmt: skip
        for row in records(trace, "kernels"):
            kernel = self._id("info_kernel_symbol", display_name=row["name"], arch_vgpr_count=row["registers"])
            sizes = {f"workgroup_size_{axis}": row[f"block_{axis}"] for axis in "xyz"}
            sizes |= {f"grid_size_{axis}": row[f"grid_{axis}"] * row[f"block_{axis}"] for axis in "xyz"}
            self.add(
                "kernel_dispatch", kernel_id=kernel, group_segment_size=row["dynamic_shared"], **sizes,
                event_id=self._event("KERNEL_DISPATCH", row["correlation"]),
                **self._placed(row, THREAD, agent_id=agents[row["device"]], queue_id=1, stream_id=row["stream"]),
            )  # fmt: skip
        words = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}
        for row in records(trace, "memcpys"):
            self.add(
                "memory_copy", size=row["bytes"], event_id=self._event("MEMORY_COPY", row["correlation"]),
                name_id=self._text(f"MEMORY_COPY_{words[row['kind']]}"), src_agent_id=agents[row["src_device"]],
                dst_agent_id=agents[row["dst_device"]], **self._placed(row, THREAD, stream_id=row["stream"]),
            )  # fmt: skip
        for row in records(trace, "api"):
            kind = "HIP_RUNTIME_API_EXT" if row["layer"] == "runtime" else "HSA_CORE_API"
            event = self._event(kind, row["correlation"])
            self.add("region", name_id=self._text(row["name"]), event_id=event, **self._placed(row, row["thread"]))
        for number, row in enumerate(records(trace, "nvtx")):
            event = self._event("MARKER_CORE_RANGE_API", 10**6 + number, row["text"])
            if row["start"] < row["end"]:
                name = self._text("roctxThreadRangeA")
                self.add("region", name_id=name, event_id=event, **self._placed(row, row["thread"]))
            else:
                self._sample(row, event)

    def _sample(self, row: dict[str, Any], event: int) -> None:
        place = self._placed(row, row["thread"])
        if self._schema == 3:
            track = self._id("track", nid=1, pid=place["pid"], tid=place["tid"], name_id=0)
            self.add("sample", track_id=track, timestamp=row["start"], event_id=event)
        else:
            self.add(
                "sample", track_id=place["track_id"], timestamp_id=place["start_id"], event_id=event,
                name_id=self._text("roctxMarkA"),
            )  # fmt: skip


def same_tables(found: Trace, expected: Trace, *ignored: str) -> None:
    """Assert that the tables are equal but for these columns and tables."""
    for name, frame in expected.tables.items():
        for column in frame:
            if not {column, name} & {*ignored} and f"{name}.{column}" not in ignored:
                own, theirs = (each[name][column].astype(object).tolist() for each in (found, expected))
                assert np.array_equal(own, theirs) or str(own) == str(theirs), (name, column, own[:5], theirs[:5])
