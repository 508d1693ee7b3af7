"""What a recorder writes of a machine: Nsight Systems at graph or node level, PyTorch's profiler, or the light one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.engines.machine import Call, Machine, Ran
from tracer import Trace
from tracer.model.schema import MISSING
from tracer.model.trace import LIGHT

GRAPH, NODE, KINETO, OLD_KINETO = "graph", "node", "kineto", "kineto without graphs and syncs"
KINETOS = (KINETO, OLD_KINETO)
PROFILERS = (GRAPH, NODE, *KINETOS)
EVERY = (*PROFILERS, LIGHT)
SOURCES = {
    GRAPH: "nsys 2025.3.2.0", NODE: "nsys 2025.3.2.0", KINETO: "PyTorch profiler",
    OLD_KINETO: "PyTorch profiler", LIGHT: LIGHT,
}  # fmt: skip
NAMES = {
    "launch": ("cudaLaunchKernel_v7000", "cuLaunchKernel"),
    "launch ex": ("cudaLaunchKernelExC_v11060", "cuLaunchKernelEx"),
    "graph": ("cudaGraphLaunch_v10000", "cuGraphLaunch"),
    "copy": ("cudaMemcpyAsync_v3020", "cuMemcpy{}Async_v2"),
    "blocking copy": ("cudaMemcpy_v3020", "cuMemcpy{}_v2"),
    "sync": ("cudaStreamSynchronize_v3020", "cuStreamSynchronize"),
    "device sync": ("cudaDeviceSynchronize_v3020", "cuCtxSynchronize"),
    "event sync": ("cudaEventSynchronize_v3020", "cuEventSynchronize"),
    "record": ("cudaEventRecord_v3020", "cuEventRecord"),
    "wait": ("cudaStreamWaitEvent_v3020", "cuStreamWaitEvent"),
    "query": ("cudaEventQuery_v3020", "cuEventQuery"),
    "begin capture": ("cudaStreamBeginCapture_v10000", "cuStreamBeginCapture_v2"),
    "end capture": ("cudaStreamEndCapture_v10000", "cuStreamEndCapture"),
    "instantiate": ("cudaGraphInstantiate_v12000", "cuGraphInstantiateWithFlags"),
    "host function": ("cudaLaunchHostFunc_v10000", "cuLaunchHostFunc"),
}
"""What a call is named by the runtime, and by the driver."""


def trace_of(machine: Machine, level: str, processes: dict[int, str] | None = None) -> Trace:
    """The recording of a machine at one of the levels; `processes` are their names."""
    row: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in machine.calls:
        rows["api"].append(_call(call, level))
        if call.type and level != OLD_KINETO:
            rows["syncs"].append(_sync(call))
        if call.what == "record" and level not in KINETOS:
            row = {"device": call.device, "context": 1, "stream": call.stream, "event": call.event}
            rows["cuda_events"].append(row | {"process": call.process, "correlation": call.number})
    for table, ran in _seen(machine.ran, level):
        rows[table].append(_ran(ran, table, level))
    for text, start, end, process, thread in machine.marks:
        row = {"text": text, "start": start, "end": end, "process": process, "thread": thread, "kind": "push/pop"}
        rows["nvtx"].append(row)
    for process, name in (processes or {}).items():
        rows["processes"].append({"process": process, "name": name})
    if not any(row["return_value"] for row in rows["api"]):
        for row in rows["api"]:
            del row["return_value"]
    columns = {table: {key: [row[key] for row in of] for key in of[0]} for table, of in rows.items() if of}
    return Trace.from_columns(metadata={"source": SOURCES[level]}, **columns)


def without(trace: Trace, *tables: str) -> Trace:
    """The recording without these tables."""
    return trace.map_tables(lambda name, frame: frame.iloc[:0] if name in tables else frame)


def _call(call: Call, level: str) -> dict[str, Any]:
    runtime, driver = NAMES[call.what]
    name = driver.format(call.kind) if level == LIGHT else runtime
    name = name.rsplit("_v", 1)[0] if level in KINETOS else name
    return {
        "name": name, "start": call.start, "end": call.end, "process": call.process, "thread": call.thread,
        "correlation": call.number, "return_value": call.answer,
    }  # fmt: skip


def _sync(call: Call) -> dict[str, Any]:
    return {
        "start": call.start, "end": call.end, "type": call.type, "device": call.device, "context": 1,
        "stream": call.stream, "event": call.event, "correlation": call.number, "process": call.process,
    }  # fmt: skip


def _seen(every: Iterable[Ran], level: str) -> Iterator[tuple[str, Ran]]:
    """The rows of device tables: graphs whole or as their nodes, and eager launches one by one or as a run."""
    run: list[Ran] = []
    for ran in [*every, None]:
        goes_on = ran is not None and ran.what == "kernel" and bool(run) and ran.call.number == run[-1].call.number + 1
        if run and not goes_on:
            first = run[0]
            end = max(each.end for each in run)
            yield "graph_launches", Ran("graph", first.start, end, first.device, first.stream, first.call, first.step)
            run = []
        if ran is None:
            return
        if ran.what == "copy":
            yield "memcpys", ran
        elif ran.what == "kernel" and level == LIGHT:
            run.append(ran)
        elif ran.what == "kernel":
            yield "kernels", ran
        elif level in (GRAPH, LIGHT):
            yield "graph_launches", ran
        else:
            yield from (("kernels", node) for node in ran.nodes)


def _ran(ran: Ran, table: str, level: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "start": ran.start, "end": ran.end, "device": ran.device, "context": 1, "stream": ran.stream,
        "correlation": ran.call.number, "process": ran.call.process,
    }  # fmt: skip
    if table == "memcpys":
        start = ran.end if level == LIGHT else ran.start  # it does not tell how long a copy takes
        return row | {"start": start, "kind": ran.kind, "bytes": ran.bytes}
    if table == "graph_launches":
        return row | {"graph": ran.graph}
    short = ran.name.split("<")[0].split("(")[0].split("::")[-1].removeprefix("void ")
    sizes = {"grid_x": ran.blocks, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    node, graph = (MISSING, MISSING) if level == OLD_KINETO else (ran.node, ran.graph)
    return row | sizes | {"name": ran.name, "short_name": short, "graph_node": node, "graph": graph}
