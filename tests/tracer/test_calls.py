"""Which calls count, and as what."""

import pandas as pd

from tests.tracer.handmade import THREAD, Script
from tracer.analysis.calls import host_calls
from tracer.model.rows import last_before


def test_a_driver_call_under_a_runtime_call_counts_once() -> None:
    script = Script()
    script.launch((0, 100), (120, 130))
    script.call("cuLaunchKernel", 10, 90)
    script.call("cuLaunchKernel", 110, 120)
    assert host_calls(script.trace)["name"].tolist() == ["cudaLaunchKernel_v7000", "cuLaunchKernel"]


def test_captured_launches_do_not_run() -> None:
    script = Script()
    script.call("cudaStreamBeginCapture_v10000", 0, 1)
    script.call("cudaLaunchKernel_v7000", 2, 3)
    script.call("cudaLaunchKernel_v7000", 2, 3, thread=THREAD + 1)
    script.call("cudaStreamEndCapture_v10000", 4, 5)
    script.call("cudaGraphLaunch_v10000", 6, 7)
    calls = host_calls(script.trace)
    assert calls[["thread", "letter"]].to_numpy().tolist() == [[THREAD, "g"], [THREAD + 1, "k"]]


def test_a_call_that_touches_the_end_of_another_is_not_inside_it() -> None:
    script = Script()
    script.copy((0, 10), (3, 4))
    script.sync(10, 10)
    script.call("cuLaunchKernel", 20, 30)
    script.call("cudaLaunchKernel_v7000", 20, 40)  # the outer call, listed after the inner one
    assert host_calls(script.trace)["name"].str.startswith("cuda").tolist() == [True, True, True]


def test_a_copy_between_devices_is_none_to_the_host() -> None:
    """Without peer access the driver stages it: one call, two copies. A batch may copy both ways by itself."""
    script = Script()
    for at, (name, kinds) in enumerate([
        ("cudaMemcpyPeerAsync_v4000", ["DtoH", "HtoD"]), ("cudaMemcpyPeerAsync_v4000", ["DtoH"]),
        ("cudaMemcpyAsync_v3020", ["DtoH", "HtoD"]), ("cudaMemcpyAsync_v3020", ["DtoH"]),
        ("cudaMemcpyBatchAsync_v12080", ["DtoH", "HtoD"]),
    ]):  # fmt: skip
        correlation = script.call(name, 10 * at, 10 * at + 5)
        for kind in kinds:
            script.copied((10 * at + 5, 10 * at + 9), kind, correlation)
    assert host_calls(script.trace)["kind"].tolist() == ["PtoP", "PtoP", "PtoP", "DtoH", "DtoH"]


def test_a_graph_that_copies_both_ways_stays_a_launch() -> None:
    script = Script()
    correlation = script.call("cudaGraphLaunch_v10000", 0, 5)
    for kind in ("DtoH", "HtoD"):
        script.copied((5, 9), kind, correlation)
    assert host_calls(script.trace)["kind"].tolist() == ["DtoH"]


def test_the_last_before_a_time_is_of_the_same_thread() -> None:
    others = pd.DataFrame({"process": [1, 1, 1, 2], "thread": [7, 8, 7, 7], "start": [10, 15, 20, 30]})
    asking = pd.DataFrame({"process": [1, 1, 1, 1, 2, 3], "thread": [7, 7, 7, 8, 7, 7]})
    assert last_before(asking, [9, 10, 25, 99, 29, 99], others).tolist() == [-1, 0, 2, 1, -1, -1]
