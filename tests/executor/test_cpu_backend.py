"""The CPU backend is really asynchronous: calls return before the work is done, syncs wait, events order; and what a
device's library raises reaches the user as one line."""

import threading

import numpy as np
import pytest
from click.testing import CliRunner

from executor.backends import BACKENDS
from executor.backends.cpu.backend import CpuBackend
from executor.backends.interface import Backend
from executor.graph import Flag, Graph
from executor.planning.plans import Plan, Wait
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.launchers import LAUNCHERS
from tests.executor.handmade import PATIENCE_S, Gate, backend_with, fan_out_graph, place, plan_of, regions_of
from tracer.cli import main
from tracer.errors import ExecutionError
from tracer.recorders.host import HostRecorder

ONES = np.ones(4, np.float32)


class Gated:
    """On a backend that is recorded: x -> a, a kernel that stands at the gate -> b."""

    def __init__(self, **options):
        self.gate = Gate()
        copy = {"copy": lambda out, x: np.copyto(out, x)}
        self.backend = CpuBackend(kernels={"gate": self.gate, **copy}, **options)
        self.recorder = HostRecorder()
        self.recorder.start()
        self.backend.report_to(self.recorder)
        graph = Graph()
        self.x = graph.leaf("x", (4,), flags=Flag.INPUT)
        self.a = graph.node("a", "gate", (4,), "float32", (self.x,))
        self.b = graph.node("b", "copy", (4,), "float32", (self.a,), flags=Flag.OUTPUT)
        self.arrays, self.kernels = place(self.backend, graph)
        self.plan = plan_of(graph.nodes)

    def copies(self, count):
        """As many arrays for copies of x."""
        return [self.backend.array(self.backend.alloc(16), 0, self.x) for _ in range(count)]


@pytest.fixture
def gated():
    gated = Gated(staging_slots=32)
    yield gated
    gated.gate.open()
    gated.backend.close()


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()  # it waits
    return thread


def test_a_copy_on_the_device_waits_its_turn_and_is_recorded(gated):
    """The default, through the host, leaves the same."""
    backend, a, b = gated.backend, gated.arrays[gated.a], gated.arrays[gated.b]
    backend.load(gated.arrays[gated.x], ONES)
    backend.launch(gated.kernels[gated.a], 0)
    backend.copy_on_device(gated.b, b, a, 0)
    assert not b.any()
    gated.gate.open()
    backend.synchronize(0)
    assert np.array_equal(b, ONES)
    Backend.copy_on_device(backend, gated.b, b, 3 * gated.arrays[gated.x], 0)
    assert np.array_equal(b, 3 * ONES)
    gated.recorder.stop()
    copies = gated.recorder.trace["memcpys"].astype({"kind": str, "src_kind": str, "dst_kind": str})
    (copy,) = copies.query("kind == 'DtoD'").itertuples()
    assert (copy.bytes, copy.src_kind, copy.dst_kind) == (16, "device", "device")


@pytest.mark.parametrize("launch", sorted(LAUNCHERS))
def test_calls_return_before_the_work_is_done_and_a_sync_waits(gated, launch):
    backend, result = gated.backend, np.zeros(4, np.float32)
    backend.copy_to_device(gated.arrays[gated.x], ONES, 0)
    LAUNCHERS[launch](backend, gated.plan, gated.kernels).launch()
    backend.copy_to_host(result, gated.arrays[gated.b], 0)
    assert gated.gate.reached.wait(PATIENCE_S)
    assert not result.any()  # every call above has returned, but the kernel still stands
    waiting = in_thread(backend.synchronize, 0)
    gated.gate.open()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert np.array_equal(result, ONES)

    api, kernels = gated.recorder.trace["api"], gated.recorder.trace["kernels"]
    calls = {"graph": ["graphLaunch"], "rebuild": ["graphExecUpdate", "graphLaunch"], "eager": ["launchKernel"] * 2}
    assert [*api["name"]] == ["memcpyAsync", *calls[launch], "memcpyAsync", "streamSynchronize"]
    kernel = kernels[kernels["name"] == "gate(a)"].iloc[0]
    assert kernel["short_name"] == "gate"
    assert api["end"].iloc[-2] < kernel["end"] < api["end"].iloc[-1]  # after the asynchronous calls, before the sync


def test_sources_of_asynchronous_copies_may_be_overwritten_at_once(gated):
    gated.backend.launch(gated.kernels[gated.a], 0)  # holds up everything behind it
    source, copies = np.empty(4, np.float32), gated.copies(20)
    for i, destination in enumerate(copies):
        source[:] = i
        gated.backend.copy_to_device(destination, source, 0)
    source[:] = -1
    gated.gate.open()
    gated.backend.synchronize(0)
    assert [copy[0] for copy in copies] == list(range(20))


def test_a_staging_slot_is_reused_only_after_its_copy():
    """With two slots the third copy waits until the first is done."""
    gated = Gated(staging_slots=2)
    first, second, third = gated.copies(3)
    gated.backend.launch(gated.kernels[gated.a], 0)
    gated.backend.copy_to_device(first, ONES, 0)
    gated.backend.copy_to_device(second, 2 * ONES, 0)
    waiting = in_thread(gated.backend.copy_to_device, third, 3 * ONES, 0)
    gated.gate.open()
    waiting.join(PATIENCE_S)
    gated.backend.synchronize(0)
    assert [copy[0] for copy in (first, second, third)] == [1, 2, 3]
    gated.backend.close()


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("launch", sorted(LAUNCHERS))
@pytest.mark.parametrize("branches", [2, 5])
def test_branches_run_at_the_same_time_between_fork_and_join(launch, cut, branches):
    """Each waits for the others inside its kernel: only possible if all are in flight."""
    barrier = threading.Barrier(branches, timeout=PATIENCE_S)

    def meet(out, x):
        barrier.wait()
        out[...] = x

    backend, recorder = backend_with(meet=meet), HostRecorder()
    backend.report_to(recorder)
    graph = fan_out_graph(branches, op="meet")
    arrays, kernels = place(backend, graph)
    backend.load(arrays[graph.inputs[0]], ONES)
    recorder.start()
    launcher = LAUNCHERS[launch](backend, plan_of(graph.nodes, regions_of(graph.nodes), cut), kernels)
    for _ in range(3):
        launcher.launch()
    backend.synchronize(0)
    backend.close()
    assert np.array_equal(arrays[graph.nodes[-1]], branches * ONES)

    seen = recorder.trace["kernels"].set_index("name")
    for i in range(3):
        forked, joined = seen.loc["copy(fork)"].iloc[i], seen.loc["sum(join)"].iloc[i]
        inside = [seen.loc[f"meet(b{b}.0)"].iloc[i] for b in range(branches)]
        assert [kernel["stream"] for kernel in inside] == list(range(branches))
        assert min(kernel["start"] for kernel in inside) >= forked["end"]
        assert max(kernel["start"] for kernel in inside) < min(kernel["end"] for kernel in inside)
        assert joined["start"] >= max(seen.loc[f"copy(b{b}.1)"].iloc[i]["end"] for b in range(branches))
        assert (forked["stream"], joined["stream"]) == (0, 0)


def test_an_event_orders_two_streams(gated):
    backend, event = gated.backend, gated.backend.event()
    backend.load(gated.arrays[gated.x], ONES)
    backend.launch(gated.kernels[gated.a], 0)
    backend.event_record(event, 0)
    backend.event_wait(event, 1)
    backend.launch(gated.kernels[gated.b], 1)
    gated.gate.open()
    backend.synchronize(1)
    assert np.array_equal(gated.arrays[gated.b], ONES)
    trace = gated.recorder.trace
    assert [*trace["api"]["name"]] == [
        "memcpy", "launchKernel", "eventRecord", "streamWaitEvent", "launchKernel", "streamSynchronize"
    ]  # fmt: skip
    assert [*trace["cuda_events"]["stream"]] == [0]
    assert [*zip(trace["syncs"]["type"], trace["syncs"]["stream"], strict=True)] == [("stream wait", 1), ("stream", 1)]
    assert trace["syncs"]["event"].iloc[0] == trace["cuda_events"]["event"].iloc[0]


def test_a_wait_refers_to_the_last_record_issued_before_it(gated):
    backend, event = gated.backend, gated.backend.event()
    backend.event_record(event, 1)
    backend.event_wait(event, 0)
    backend.launch(gated.kernels[gated.a], 1)
    backend.event_record(event, 1)  # later than the wait, and held up
    backend.synchronize(0)


def test_every_activity_names_the_call_that_caused_it_on_its_device():
    run = Configuration(strategy="aaag", concurrency="branches", devices=2, tokens=3, repeats=1, warmup=0)
    (result,) = execute([run])
    trace = result.trace
    calls = trace["api"].set_index("correlation")["name"].astype(str)
    assert calls.index.is_unique
    for table, name in (("kernels", "graphLaunch"), ("memcpys", "memcpyAsync")):
        for device, rows in trace[table].groupby("device"):
            assert set(calls[rows["correlation"]]) <= {name, "memcpyPeerAsync"}, device
    host_syncs = trace["syncs"][trace["syncs"]["type"] == "stream"]
    assert set(calls[host_syncs["correlation"]]) == {"streamSynchronize"}
    assert (trace["kernels"].groupby(["name", "graph"], observed=True)["graph_node"].nunique() == 1).all()
    for table, number in (("kernels", "graph"), ("cuda_events", "event")):
        first, second = trace[table].groupby("device")[number].unique()
        assert not set(first) & set(second), number


@pytest.mark.parametrize(("launch", "failing"), [("eager", "fork"), ("graph", "b1.0"), ("rebuild", "end")])
def test_a_failing_kernel_surfaces_at_the_next_sync_and_nothing_hangs(launch, failing):
    def work(out, x, *, who):
        if who == failing:
            raise FloatingPointError("on purpose")
        out[...] = x

    backend, graph = backend_with(work=work), Graph()
    x = graph.leaf("x", (4,))
    fork = graph.node("fork", "work", (4,), "float32", (x,), who="fork")
    ends = [graph.node(f"b{i}.0", "work", (4,), "float32", (fork,), who=f"b{i}.0") for i in range(3)]
    join = graph.node("join", "sum", (4,), "float32", ends)
    graph.node("end", "work", (4,), "float32", (join,), who="end")
    launcher = LAUNCHERS[launch](backend, plan_of(graph.nodes, regions_of(graph.nodes)), place(backend, graph)[1])
    launcher.launch()
    launcher.launch()
    with pytest.raises(ExecutionError, match=rf"kernel work\({failing}\) on stream .*on purpose") as caught:
        backend.synchronize(0)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    with pytest.raises(ExecutionError):
        backend.synchronize(1)
    backend.close()


def test_a_failure_frees_the_staging_ring():
    gated = Gated(staging_slots=1)
    gated.gate.open()
    gated.backend.launch(gated.backend.kernel(gated.a, ONES[:2].copy(), [ONES]), 0)  # sizes that do not fit
    for _ in range(3):
        gated.backend.copy_to_device(gated.arrays[gated.x], ONES, 0)
    with pytest.raises(ExecutionError, match=r"kernel gate\(a\) on stream 0 failed"):
        gated.backend.synchronize(0)
    gated.backend.close()


def test_closing_ends_the_threads_and_may_be_repeated():
    backend, graph = backend_with(), fan_out_graph()
    kernels = place(backend, graph)[1]
    LAUNCHERS["graph"](backend, plan_of(graph.nodes, regions_of(graph.nodes)), kernels).launch()
    assert sum(t.name.startswith("cpu stream") for t in threading.enumerate()) == 3
    backend.close()
    backend.close()
    assert not any(t.name.startswith("cpu stream") for t in threading.enumerate())
    with pytest.raises(ExecutionError, match="closed"):
        backend.synchronize(0)


def test_what_cannot_be_done_is_refused_at_the_call(gated):
    unknown = Graph().node("z", "fft", (4,), "float32", ())
    with pytest.raises(ExecutionError, match="no kernel for op 'fft' of node z"):
        gated.backend.kernel(unknown, ONES, [])
    with pytest.raises(ExecutionError, match=r"cannot copy float64\[4\] to float32\[4\]"):
        gated.backend.copy_to_device(gated.arrays[gated.x], np.ones(4), 0)
    with pytest.raises(ExecutionError, match="waited for before it is recorded"):
        gated.backend.instantiate(Plan((Wait(0, 0),), 1, 1), {})


class LibraryError(RuntimeError):
    """As CuPy's errors: not in our tree."""


class BadCopies(CpuBackend):
    """Its copies to the device fail."""

    errors = (LibraryError,)

    def _copy_in(self, destination, source, stream, staged):
        raise LibraryError("errorInvalidValue: invalid argument\nand a second line")


class BadPeer(CpuBackend):
    """Device 1 cannot wait for device 0, and none can be closed."""

    errors = (LibraryError,)

    def event_wait(self, event, stream):
        if self._device == 1:
            raise LibraryError("errorInvalidResourceHandle")
        super().event_wait(event, stream)

    def close(self):
        super().close()
        raise LibraryError("sticky")


def test_on_the_command_line_a_failure_and_too_little_memory_are_one_line(monkeypatch, tmp_path):
    def plan_cache(*_, **__):
        raise MemoryError("Unable to allocate 21.5 GiB")

    monkeypatch.setitem(BACKENDS, "cpu", f"{__name__}:BadCopies")
    failed = "backend 'cpu', device 0: copy_to_device failed: LibraryError: errorInvalidValue: invalid argument"
    for said in (failed, "out of memory on the host: Unable to allocate 21.5 GiB"):
        result = CliRunner().invoke(main, ["run", "--sync", "aaag", "-o", str(tmp_path / "runs")])
        assert (result.exit_code, result.stderr) == (2, f"intertoken: {said}\n")
        assert not (tmp_path / "runs").exists()
        assert not any(t.name.startswith("cpu stream") for t in threading.enumerate())
        monkeypatch.setattr("executor.run.plan_cache", plan_cache)


def test_the_first_failure_is_told_with_its_device_and_cause_and_what_is_not_declared_passes(monkeypatch):
    """Not that of closing, and also if the second device cannot be opened."""

    def opened(device):
        if device.index:
            raise LibraryError("errorNoDevice")
        return BadCopies(device.index)

    both = [Configuration(strategy="aaag", devices=2)]
    with pytest.raises(ExecutionError, match=r"^backend 'cpu', device 1: event_wait failed") as raised:
        execute(both, open_backend=lambda device: BadPeer(device.index))
    assert isinstance(raised.value.__cause__, LibraryError)
    with pytest.raises(ExecutionError, match=r"^a device failed: LibraryError: errorNoDevice$"):
        execute(both, open_backend=opened)
    monkeypatch.setattr(BadCopies, "errors", ())
    with pytest.raises(LibraryError):
        execute([Configuration(strategy="aaag")], open_backend=lambda device: BadCopies(device.index))
