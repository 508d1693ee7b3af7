"""Chrome JSON of JAX's profiler: devices, streams, launches and copies are those of its rows."""

import pytest

from tests.tracer import kineto
from tests.tracer.kineto import rows
from tracer import formats
from tracer.analysis.tokens import find_steps
from tracer.errors import FormatError
from tracer.model.schema import MISSING

HOST, DEVICE = 701, 3
KERNEL = "regs:18 static_shared:8 dynamic_shared:4 grid:8,2,1 block:128,1,1 occ_pct:100"
COPY = "kind_src:device kind_dst:pinned size:64 dest:0 async:{}"


def names(pid, name, threads):
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    for tid, thread in threads.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}


def event(pid, tid, name, ts, dur, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur} | ({"args": args} if args else {})


def launched(correlation, name, call, ran, tid=14, **args):
    """What a host launches, and the same on the device."""
    of_host = {"correlation_id": str(correlation), "device_id": "0", **args}
    yield event(HOST, 11, name, *call, **{key: value for key, value in of_host.items() if key != "kernel_details"})
    yield event(DEVICE, tid, name, *ran, correlation_id=str(correlation), **args)


def jax(steps=4):
    threads = {14: "Stream #14(Compute)", 17: "Stream #17(MemcpyD2H)", 90: "XLA Ops"}
    events = [*names(DEVICE, "/device:GPU:1", threads), *names(HOST, "/host:CPU", {11: "python3"})]
    for step in range(steps):
        at, first = 1000 * step, 10 * step
        events += [
            event(HOST, 11, "PjitFunction(s)", at, 300), event(HOST, 11, "$array.py:293 __float__", at + 1, 2),
            event(HOST, 11, "$builtins len", at + 1, 1), event(HOST, 11, "cuLaunchHostFunc", at + 500.25, 1),
            *launched(first + 1, "loop_fusion", (at + 10, 5), (at + 20.5, 100), kernel_details=KERNEL),
            *launched(first + 2, "cuGraphLaunch", (at + 30, 5), (at + 130, 50), cuda_graph_id="7"),
            *launched(first + 3, "MemcpyD2H", (at + 40, 5), (at + 190, 2), 17, memcpy_details=COPY.format(1)),
            *launched(first + 4, "MemcpyP2P", (at + 50, 5), (at + 200, 2), 17, memcpy_details=COPY.format(0)),
            *launched(first + 5, "Memset", (at + 60, 5), (at + 210, 2), memset_details="kind:device num_bytes:8"),
            event(DEVICE, 90, "loop_fusion", at + 20.5, 100, hlo_op="loop_fusion"),
        ]  # fmt: skip
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}


def test_every_row_of_jax_has_its_place(tmp_path):
    trace = kineto.read(tmp_path, jax(1))
    assert trace.metadata["source"] == "JAX profiler"
    assert trace.notes == ["2 python_function events are left out"]
    assert rows(trace, "kernels", "start", "end", "device", "stream", "correlation", "process", "name") == [
        [20_500, 120_500, 1, 14, 1, HOST, "loop_fusion"], [130_000, 180_000, 1, 14, 2, HOST, "cuGraphLaunch"],
    ]  # fmt: skip
    sizes = ("grid_x", "grid_y", "block_x", "registers", "dynamic_shared", "graph")
    assert rows(trace, "kernels", *sizes) == [[8, 2, 128, 18, 12, MISSING], [MISSING] * 5 + [7]]
    assert rows(trace, "memcpys", "stream", "kind", "bytes", "src_kind", "dst_kind", "correlation") == [
        [17, "DtoH", 64, "device", "pinned", 3], [17, "PtoP", 64, "device", "pinned", 4],
    ]  # fmt: skip
    assert rows(trace, "memsets", "stream", "bytes", "mem_kind", "correlation") == [[14, 8, "device", 5]]
    assert rows(trace, "api", "name", "correlation", "thread", "layer") == [
        ["cuLaunchKernel", 1, 11, "driver"], ["cuGraphLaunch", 2, 11, "driver"],
        ["cuMemcpyDtoHAsync", 3, 11, "driver"], ["cuMemcpy", 4, 11, "driver"], ["cuMemsetD8Async", 5, 11, "driver"],
        ["cuLaunchHostFunc", MISSING, 11, "driver"],
    ]  # fmt: skip
    assert rows(trace, "nvtx", "text", "domain") == [["PjitFunction(s)", ""], ["loop_fusion", "gpu_user_annotation"]]
    functions = formats.read(tmp_path / "trace.json", python_functions=True)["nvtx"].query("domain.str.len() == 15")
    assert functions["text"].tolist() == ["array.py(293): __float__", "builtins: len"]


def test_steps_of_jax_by_name(tmp_path):
    steps = find_steps(kineto.read(tmp_path, jax()), pattern="PjitFunction")
    assert (len(steps), steps.source) == (4, "nvtx")


def test_an_xplane_is_named(tmp_path):
    (path := tmp_path / "host.xplane.pb").write_bytes(b"\n\x07/device")
    with pytest.raises(FormatError, match=r"an xplane of JAX's profiler is not read; give the \.trace\.json\.gz"):
        formats.read(path)


@pytest.mark.parametrize("args", [{"correlation_id": 7, "device_id": {}, "memcpy_details": 3},
                                  {"correlation_id": "x", "kernel_details": "grid:a,b block:1 regs:9999999999999999"},
                                  {"correlation_id": None, "memset_details": "kind: num_bytes:-"}])  # fmt: skip
def test_details_that_cannot_be(tmp_path, args):
    events = [*names(DEVICE, "/device:GPU:1", {14: "Stream #14(Compute)"}), event(HOST, 1, "f", 1, 1, **args)]
    trace = kineto.read(tmp_path, [*events, event(DEVICE, 14, "MemcpyX", 1, 1, **args)])
    assert sum(len(trace[table]) for table in ("kernels", "memcpys", "memsets")) == 1
