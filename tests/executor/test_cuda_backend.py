"""The CUDA backend keeps the interface's promises on a real GPU."""

import ctypes

import numpy as np
import pytest

from executor.backends import open_backend
from executor.backends.cuda.backend import MADE_ON_DEVICE, SLOTS, TAKEN_BY_DRIVER, CudaBackend
from executor.backends.cuda.library import KernelCall, load_cuda
from executor.graph import Flag, Graph, ops
from executor.graph.models import MODELS
from executor.planning.plans import Plan, Wait
from tests.programs import PROGRAMS
from tracer.errors import ExecutionError

pytestmark = pytest.mark.gpu


@pytest.fixture
def backend():
    backend = CudaBackend()
    yield backend
    backend.close()


def hold_up(backend, stream, ms):
    """Work that keeps a stream busy."""
    function = backend._cuda.cupy.RawKernel(PROGRAMS["spins"], "spin").kernel.ptr
    ns = ctypes.c_uint64(ms * 1_000_000)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    KernelCall(function, (1, 1), 1, 0, ctypes.addressof(arguments), None, ()).issue(
        backend._cuda, backend._streams[stream]
    )


def leaf(shape, dtype="float32", flags=Flag.INPUT):
    return Graph().leaf("x", shape, dtype, flags)


@pytest.mark.parametrize("width", [4, TAKEN_BY_DRIVER])
def test_calls_return_at_once_and_sources_may_be_overwritten(backend, width):
    x = leaf((width,))
    copies = [backend.array(backend.alloc(x.nbytes), 0, x) for _ in range(20)]
    source, result = np.empty(width, np.float32), backend.host_array((width,), "float32")
    hold_up(backend, 0, 200)
    for i, destination in enumerate(copies):
        source[:] = i
        backend.copy_to_device(destination, source, 0)
    source[:] = -1
    backend.copy_to_host(result, copies[7], 0)
    assert not result.any()  # the stream is still held up
    backend.synchronize(0)
    assert np.array_equal(result, np.full(width, 7))
    for i, destination in enumerate(copies):
        backend.copy_to_host(result, destination, 0)
        backend.synchronize(0)
        assert np.array_equal(result, np.full(width, i))


def test_a_staging_slot_is_reused_only_after_its_copy(backend):
    """More copies to one input than it has slots, without a sync between: a table that keeps them sees each value."""
    n, width = 3 * SLOTS, TAKEN_BY_DRIVER
    graph = Graph()
    x = graph.leaf("x", (1, width), flags=Flag.INPUT)
    rows, table = graph.leaf("rows", (1,), "int64", Flag.INPUT), graph.leaf("table", (n, width))
    node = ops.set_rows(graph, table, x, rows, name="keep")
    arrays = {t: backend.array(backend.alloc(t.nbytes), 0, t) for t in (x, rows, table)}
    kernel = backend.kernel(node, arrays[table], [arrays[x], arrays[rows], arrays[table]])
    hold_up(backend, 0, 50)
    for i in range(n):
        backend.copy_to_device(arrays[x], np.full((1, width), i, np.float32), 0)
        backend.copy_to_device(arrays[rows], np.full(1, i, np.int64), 0)
        backend.launch(kernel, 0)
    kept = backend.host_array((n, width), "float32")
    backend.copy_to_host(kept, arrays[table], 0)
    backend.synchronize(0)
    assert (kept == np.arange(n)[:, None]).all()


def test_an_event_orders_two_streams(backend):
    x = leaf((4,))
    array = backend.array(backend.alloc(16), 0, x)
    result, event = backend.host_array((4,), "float32"), backend.event()
    backend.event_wait(event, 1)  # never recorded: no wait
    backend.synchronize(1)
    hold_up(backend, 0, 50)
    backend.copy_to_device(array, np.ones(4, np.float32), 0)
    backend.event_record(event, 0)
    backend.event_wait(event, 1)
    backend.copy_to_host(result, array, 1)
    backend.synchronize(1)
    assert np.array_equal(result, np.ones(4))


def test_memory_is_zero_and_aligned(backend):
    for nbytes in (1, 1000, 1 << 20):
        memory = backend.alloc(nbytes)
        assert memory % 64 == 0
        array = backend.array(memory, 0, leaf((nbytes,), "uint8"))
        values = backend.host_array((nbytes,), "uint8")
        backend.copy_to_host(values, array, 0)
        backend.synchronize(0)
        assert not values.any()


def test_what_does_not_fit_is_one_line(backend):
    with pytest.raises(ExecutionError, match=r"cannot hold \d+ MiB more: \d+ of \d+ MiB are free") as caught:
        backend.alloc(1 << 45)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_done_is_refused_at_the_call(backend):
    graph = Graph()
    x = graph.leaf("x", (4,))
    unknown = graph.node("z", "fft", (4,), "float32", (x,))
    array = backend.array(backend.alloc(16), 0, x)
    with pytest.raises(ExecutionError, match="no kernel for op 'fft' of node z"):
        backend.kernel(unknown, array, [array])
    with pytest.raises(ExecutionError, match=r"cannot copy float64\[4\] to float32\[4\]"):
        backend.copy_to_device(array, np.ones(4), 0)
    with pytest.raises(ExecutionError, match="waited for before it is recorded"):
        backend.instantiate(Plan((Wait(0, 0),), 1, 1), {})


@pytest.mark.parametrize("weights", ["f32", "f16", "q8_0"])
def test_large_weights_are_made_on_the_gpu_and_are_normal(backend, weights):
    """As if made on the host: mean 0, deviation 1 / sqrt(row length), the same for one seed, other for another."""
    step = MODELS["llama-1.1b"](weights=weights)
    weight = next(w for w in step.graph.weights if w.name == "blk.0.attn_q.weight")
    array = backend.array(backend.alloc(weight.nbytes), 0, weight)
    assert array.size > MADE_ON_DEVICE
    seen = []
    for seed in (0, 0, 1):
        backend.load_random(array, weight, seed)
        raw = backend.array(array.ptr, 0, leaf((weight.nbytes,), "uint8"))
        values = backend.host_array((weight.nbytes,), "uint8")
        backend.copy_to_host(values, raw, 0)
        backend.synchronize(0)
        seen.append(values.copy())
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])
    size = array.size
    if weights == "q8_0":
        scales = seen[0][size:].view(np.float16).astype(np.float32)
        numbers = seen[0][:size].view(np.int8).reshape(-1, 32) * scales[:, None]
    else:
        numbers = seen[0].view({"f32": np.float32, "f16": np.float16}[weights]).astype(np.float32)
    scaled = numbers.ravel() * np.sqrt(2048)
    assert abs(scaled.mean()) < 5e-3
    assert scaled.std() == pytest.approx(1, abs=5e-3)
    assert 4 < np.abs(scaled).max() < 7


def test_a_closed_backend_holds_no_memory():
    """Whatever still refers to its arrays. Other processes may take and give back some meanwhile."""
    runtime = load_cuda().runtime
    backend = open_backend("cuda")
    before = runtime.memGetInfo()[0]
    kept = [backend.alloc(2 << 30) for _ in range(2)]
    assert before - runtime.memGetInfo()[0] >= 3 << 30
    backend.close()
    assert runtime.memGetInfo()[0] >= before - (1 << 30), kept
