"""The CPU backend is really asynchronous: calls return before the work is done, syncs wait, events order."""

import threading

import numpy as np
import pytest

from executor.backends.cpu.backend import CpuBackend
from executor.backends.interface import Backend
from executor.graph import Flag, Graph, ops
from executor.planning.plans import Plan, Wait
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.launchers import LAUNCHERS
from tests.executor.handmade import PATIENCE_S, Gate, backend_with, fan_out_graph, place, plan_of, regions_of
from tracer.errors import ExecutionError
from tracer.recorders.host import HostRecorder

ONES = np.ones(4, np.float32)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def backend(gate):
    backend = backend_with(gate=gate)
    yield backend
    gate.open()
    backend.close()


@pytest.fixture
def recorder(backend):
    recorder = HostRecorder()
    recorder.start()
    backend.report_to(recorder)
    return recorder


def gated_graph():
    """x -> a (stands at the gate) -> b."""
    graph = Graph()
    x = graph.leaf("x", (4,), flags=Flag.INPUT)
    a = graph.node("a", "gate", (4,), "float32", (x,))
    graph.node("b", "copy", (4,), "float32", (a,), flags=Flag.OUTPUT)
    return graph, x


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_copy_on_the_device_waits_its_turn_and_is_recorded(backend, gate, recorder):
    """The default, through the host, leaves the same."""
    graph, x = gated_graph()
    arrays, kernels = place(backend, graph)
    a, b = graph.nodes
    backend.load(arrays[x], ONES)
    backend.launch(kernels[a], 0)
    backend.copy_on_device(b, arrays[b], arrays[a], 0)
    assert not arrays[b].any()
    gate.open()
    backend.synchronize(0)
    assert np.array_equal(arrays[b], ONES)
    Backend.copy_on_device(backend, b, arrays[b], 3 * arrays[x], 0)
    assert np.array_equal(arrays[b], 3 * ONES)
    recorder.stop()
    copies = recorder.trace["memcpys"].astype({"kind": str, "src_kind": str, "dst_kind": str})
    (copy,) = copies.query("kind == 'DtoD'").itertuples()
    assert (copy.bytes, copy.src_kind, copy.dst_kind) == (16, "device", "device")


@pytest.mark.parametrize("launch", sorted(LAUNCHERS))
def test_calls_return_before_the_work_is_done_and_a_sync_waits(backend, gate, recorder, launch):
    graph, x = gated_graph()
    arrays, kernels = place(backend, graph)
    result = np.zeros(4, np.float32)
    launcher = LAUNCHERS[launch](backend, plan_of(graph.nodes), kernels)

    backend.copy_to_device(arrays[x], ONES, 0)
    launcher.launch()
    backend.copy_to_host(result, arrays[graph.nodes[-1]], 0)
    assert gate.reached.wait(PATIENCE_S)
    assert not result.any()  # every call above has returned, but the kernel still stands

    waiting = in_thread(backend.synchronize, 0)
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.open()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert np.array_equal(result, ONES)

    trace = recorder.trace
    api, kernels_seen = trace["api"], trace["kernels"]
    eager, graph = ["launchKernel"] * 2, ["graphLaunch"]
    calls = {"graph": graph, "rebuild": ["graphExecUpdate", *graph], "eager": eager}[launch]
    assert [*api["name"]] == ["memcpyAsync", *calls, "memcpyAsync", "streamSynchronize"]
    gated = kernels_seen[kernels_seen["name"] == "gate(a)"].iloc[0]
    assert gated["short_name"] == "gate"
    assert gated["end"] > api["end"].iloc[-2]  # the kernel ended after the asynchronous calls had returned
    assert gated["end"] < api["end"].iloc[-1]  # and before the sync did


def test_sources_of_asynchronous_copies_may_be_overwritten_at_once(gate):
    backend = backend_with(gate=gate)
    graph, x = gated_graph()
    _arrays, kernels = place(backend, graph)
    backend.launch(kernels[graph.nodes[0]], 0)  # holds up everything behind it
    source, target = np.empty(4, np.float32), backend.alloc(16 * 20)
    copies = [backend.array(target, 16 * i, x) for i in range(20)]
    for i, destination in enumerate(copies):
        source[:] = i
        backend.copy_to_device(destination, source, 0)
    source[:] = -1
    gate.open()
    backend.synchronize(0)
    assert [c[0] for c in copies] == list(range(20))
    backend.close()


def test_a_staging_slot_is_reused_only_after_its_copy(gate):
    """With two slots the third copy waits until the first is done."""
    backend = CpuBackend(kernels={"gate": gate, "copy": lambda out, x: None}, staging_slots=2)
    graph, x = gated_graph()
    _arrays, kernels = place(backend, graph)
    copies = [backend.array(backend.alloc(16), 0, x) for _ in range(3)]
    backend.launch(kernels[graph.nodes[0]], 0)
    for i in range(2):
        backend.copy_to_device(copies[i], ONES * i, 0)
    third = in_thread(backend.copy_to_device, copies[2], ONES * 2, 0)
    third.join(0.05)
    assert third.is_alive()
    gate.open()
    third.join(PATIENCE_S)
    backend.synchronize(0)
    assert [c[0] for c in copies] == [0, 1, 2]
    backend.close()


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("launch", sorted(LAUNCHERS))
def test_three_branches_run_at_the_same_time(launch, cut):
    """Each branch waits for the two others inside its kernel: only possible if all three are in flight."""
    barrier = threading.Barrier(3, timeout=PATIENCE_S)

    def meet(out, x):
        barrier.wait()
        out[...] = x

    backend, recorder = backend_with(meet=meet), HostRecorder()
    backend.report_to(recorder)
    graph = fan_out_graph(op="meet")
    arrays, kernels = place(backend, graph)
    backend.load(arrays[graph.inputs[0]], ONES)
    recorder.start()
    launcher = LAUNCHERS[launch](backend, plan_of(graph.nodes, regions_of(graph.nodes), cut), kernels)
    for _ in range(3):
        launcher.launch()
    backend.synchronize(0)
    backend.close()
    assert np.array_equal(arrays[graph.nodes[-1]], 3 * ONES)

    k = recorder.trace["kernels"].set_index("name")
    for i in range(3):
        forked, joined = k.loc["copy(fork)"].iloc[i], k.loc["sum(join)"].iloc[i]
        branches = [k.loc[f"meet(b{b}.0)"].iloc[i] for b in range(3)]
        assert [b["stream"] for b in branches] == [0, 1, 2]
        assert min(b["start"] for b in branches) >= forked["end"]
        assert max(b["start"] for b in branches) < min(b["end"] for b in branches)
        assert joined["start"] >= max(k.loc[f"copy(b{b}.1)"].iloc[i]["end"] for b in range(3))
        assert (forked["stream"], joined["stream"]) == (0, 0)


def test_an_event_orders_two_streams(backend, gate, recorder):
    graph, x = gated_graph()
    arrays, kernels = place(backend, graph)
    backend.load(arrays[x], ONES)
    a, b = graph.nodes
    event = backend.event()
    backend.launch(kernels[a], 0)
    backend.event_record(event, 0)
    backend.event_wait(event, 1)
    backend.launch(kernels[b], 1)
    gate.open()
    backend.synchronize(1)
    assert np.array_equal(arrays[b], ONES)
    trace = recorder.trace
    assert [*trace["api"]["name"]] == [
        "memcpy", "launchKernel", "eventRecord", "streamWaitEvent", "launchKernel", "streamSynchronize"
    ]  # fmt: skip
    assert [*trace["cuda_events"]["stream"]] == [0]
    assert [*trace["syncs"]["type"]] == ["stream wait", "stream"]
    assert [*trace["syncs"]["stream"]] == [1, 1]
    assert trace["syncs"]["event"].iloc[0] == trace["cuda_events"]["event"].iloc[0]


def test_a_wait_refers_to_the_last_record_issued_before_it(backend, gate):
    graph, _ = gated_graph()
    _, kernels = place(backend, graph)
    event = backend.event()
    backend.event_record(event, 1)
    backend.event_wait(event, 0)
    backend.launch(kernels[graph.nodes[0]], 1)
    backend.event_record(event, 1)  # later than the wait, and held up
    backend.synchronize(0)


def test_every_activity_names_the_call_that_caused_it(backend, recorder):
    graph = fan_out_graph()
    arrays, kernels = place(backend, graph)
    launcher = LAUNCHERS["graph"](backend, plan_of(graph.nodes, regions_of(graph.nodes)), kernels)
    for _ in range(2):
        backend.copy_to_device(arrays[graph.inputs[0]], ONES, 0)
        launcher.launch()
        backend.synchronize(0)
    trace = recorder.trace
    api = trace["api"].set_index("correlation")["name"].astype(str)
    assert api.index.is_unique
    assert set(api[trace["kernels"]["correlation"]]) == {"graphLaunch"}
    assert set(api[trace["memcpys"]["correlation"]]) == {"memcpyAsync"}
    assert set(api[trace["syncs"]["correlation"]]) == {"streamSynchronize"}
    assert trace["kernels"]["graph"].nunique() == 1
    assert (trace["kernels"].groupby("name", observed=True)["graph_node"].nunique() == 1).all()
    assert trace["kernels"]["graph_node"].nunique() == 9
    copy = trace["memcpys"].iloc[0]
    assert (copy["kind"], copy["bytes"], copy["src_kind"], copy["dst_kind"]) == ("HtoD", 16, "pinned", "device")


@pytest.mark.parametrize("launch", sorted(LAUNCHERS))
@pytest.mark.parametrize("failing", ["fork", "b1.0", "end"])
def test_a_failing_kernel_surfaces_at_the_next_sync_and_nothing_hangs(launch, failing):
    def work(out, x, *, who):
        if who == failing:
            raise FloatingPointError("on purpose")
        out[...] = x

    backend = backend_with(work=work)
    graph = Graph()
    x = graph.leaf("x", (4,))
    fork = graph.node("fork", "work", (4,), "float32", (x,), who="fork")
    ends = [graph.node(f"b{i}.0", "work", (4,), "float32", (fork,), who=f"b{i}.0") for i in range(3)]
    join = graph.node("join", "sum", (4,), "float32", ends)
    graph.node("end", "work", (4,), "float32", (join,), who="end")
    _, kernels = place(backend, graph)
    launcher = LAUNCHERS[launch](backend, plan_of(graph.nodes, regions_of(graph.nodes)), kernels)
    launcher.launch()
    launcher.launch()
    with pytest.raises(ExecutionError, match=rf"kernel work\({failing}\) on stream .*on purpose") as caught:
        backend.synchronize(0)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    with pytest.raises(ExecutionError):
        backend.synchronize(1)
    backend.close()


def test_a_failure_frees_the_staging_ring(gate):
    def fail(out, x):
        raise ValueError("on purpose")

    backend = CpuBackend(kernels={"gate": fail, "copy": fail}, staging_slots=1)
    graph, x = gated_graph()
    arrays, kernels = place(backend, graph)
    backend.launch(kernels[graph.nodes[0]], 0)
    for _ in range(3):
        backend.copy_to_device(arrays[x], ONES, 0)
    with pytest.raises(ExecutionError, match="on purpose"):
        backend.synchronize(0)
    backend.close()


def test_closing_ends_the_threads_and_may_be_repeated():
    backend = backend_with()
    graph = fan_out_graph()
    _, kernels = place(backend, graph)
    LAUNCHERS["graph"](backend, plan_of(graph.nodes, regions_of(graph.nodes)), kernels).launch()
    assert sum(t.name.startswith("cpu stream") for t in threading.enumerate()) == 3
    backend.close()
    backend.close()
    assert not any(t.name.startswith("cpu stream") for t in threading.enumerate())
    with pytest.raises(ExecutionError, match="closed"):
        backend.synchronize(0)


def test_what_cannot_be_done_is_refused_at_the_call(backend):
    graph = Graph()
    x = graph.leaf("x", (4,))
    ops.add(graph, x, x, name="y")
    unknown = graph.node("z", "fft", (4,), "float32", (x,))
    with pytest.raises(ExecutionError, match="no kernel for op 'fft' of node z"):
        backend.kernel(unknown, ONES, [ONES])
    array = backend.array(backend.alloc(16), 0, x)
    with pytest.raises(ExecutionError, match=r"cannot copy float64\[4\] to float32\[4\]"):
        backend.copy_to_device(array, np.ones(4), 0)
    with pytest.raises(ExecutionError, match="waited for before it is recorded"):
        backend.instantiate(Plan((Wait(0, 0),), 1, 1), {})


def test_ids_are_told_apart_between_the_devices_of_a_recording():
    (result,) = execute([Configuration(strategy="aaag", devices=2, tokens=3, repeats=1, warmup=0)])
    trace = result.trace
    calls = trace["api"]["correlation"]
    assert calls.is_unique
    launches = trace["api"].set_index("correlation")["name"].astype(str)
    for device, kernels in trace["kernels"].groupby("device"):
        assert set(launches[kernels["correlation"]]) == {"graphLaunch"}, device
    graphs = trace["kernels"].groupby("device")["graph"].unique()
    assert not set(graphs[0]) & set(graphs[1])
    events = trace["cuda_events"].groupby("device")["event"].unique()
    assert not set(events[0]) & set(events[1])
