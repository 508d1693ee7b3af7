"""Independent kernels on several streams, on kernels made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import examples
from tracer.analysis.fits import Overlap, fits_of
from tracer.analysis.whatif.overlap import Kernel, StepKernels, assign, simulate
from tracer.analysis.whatif.recorded_step import RecordedStep, held_blocks
from tracer.errors import UsageError
from tracer.model.graph_json import Leaf, Node, RunGraph

FITS = fits_of("NVIDIA H200")


def makespan(kernels: list[Kernel], streams: list[int]) -> float:
    return float(simulate(kernels, streams, FITS.room.crowded)[1].max())


def graph_of(*nodes: Node, leaves: tuple[Leaf, ...] = (), streams: int = 1) -> RunGraph:
    launches = tuple(i for i, node in enumerate(nodes) if node.stream is not None)
    return RunGraph(nodes, leaves, (), launches, (), streams, 0, 0, (), "sequential")


def test_kernels_together_share_the_device() -> None:
    """Two kernels of 100 ns latency and 100 ns of work: those that each need all of the device follow each other."""

    def kernel(demand: float, *after: int, late: float = 0) -> Kernel:
        return Kernel(100, 100, demand, late, after)

    whole, half = kernel(1), kernel(0.5)
    assert makespan([whole, whole], [0, 0]) == pytest.approx(400)
    assert makespan([whole, whole], [0, 1]) == pytest.approx(100 + 200)
    assert makespan([half, half], [0, 1]) == pytest.approx(200)
    assert makespan([whole, whole, kernel(1, 0, 1, late=30)], [0, 1, 0]) == pytest.approx(300 + 30 + 200)
    assert makespan([whole, kernel(1, 0, late=30)], [0, 0]) == pytest.approx(400)


def test_when_each_kernel_starts_and_ends() -> None:
    """The first is read by one on its stream and one on another, which the last waits for."""
    kernels = [Kernel(10, 90, 0.5, 5, ()), Kernel(10, 20, 0.5, 5, (0,)), Kernel(10, 40, 0.5, 5, (0,))]
    start, end = simulate([*kernels, Kernel(0, 10, 1, 7, (1, 2))], [0, 0, 1, 0], FITS.room.crowded)
    assert start == pytest.approx([0, 100, 105, 162])
    assert end == pytest.approx([100, 130, 155, 172])


def test_a_kernel_waits_for_room() -> None:
    """Kernels of 100 ns latency and no need of the device but for their blocks' room; a small one goes beside a big."""

    def kernel(room: float, *after: int) -> Kernel:
        return Kernel(100, 0, 0.1, 0, after, 0, room)

    big, small = kernel(1), kernel(0.85)
    assert makespan([big, big], [0, 1]) == pytest.approx(200)
    assert makespan([big, small], [0, 1]) == pytest.approx(100)
    assert makespan([small] * 3, [0, 1, 2]) == pytest.approx(200)
    assert makespan([kernel(0.4)] * 4, [0, 1, 2, 3]) == pytest.approx(100)
    start, _ = simulate([big, big, small], [0, 1, 2], FITS.room.crowded)
    assert start == pytest.approx([0, 100, 0])


def test_who_waits_for_another_stream_is_not_early_on_its_own_either() -> None:
    kernels = [Kernel(10, 0, 1, 0, ()), Kernel(90, 0, 1, 0, ()), Kernel(10, 0, 1, 7, (0, 1), 5)]
    start, end = simulate(kernels, [1, 0, 0], FITS.room.crowded)
    assert start == pytest.approx([0, 0, 95])
    assert simulate(kernels, [0, 0, 0], FITS.room.crowded)[0] == pytest.approx([0, 10, 100])
    assert end.max() == pytest.approx(105)


def test_how_many_blocks_a_multiprocessor_holds() -> None:
    """By CUDA's occupancy calculator for compute capability 9.0."""
    kernels = pd.DataFrame(
        [(256, 1, 1, 122, 0, 0), (512, 1, 1, 128, 0, 0), (32, 1, 1, 16, 0, 0), (64, 4, 1, 32, 0, 100_000),
         (1024, 1, 1, 255, 0, 0), (1024, 1, 1, -1, 0, 0), (96, 1, 1, 40, 40_000, 8_000)],
        columns=["block_x", "block_y", "block_z", "registers", "static_shared", "dynamic_shared"],
    )  # fmt: skip
    assert held_blocks(kernels, FITS.multiprocessor).tolist() == [2, 1, 32, 2, 1, 2, 4]


def test_branches_get_streams_and_joins_give_them_back() -> None:
    """Two layers of norm -> q, k, v -> attention."""
    layer = [(), (0,), (0,), (0,), (1, 2, 3), (4,), (5,), (5,), (5,)]
    found = assign((*layer, (6, 7, 8)), 4)
    assert len(set(found)) == 3
    assert len({found[i] for i in (1, 2, 3)}) == len({found[i] for i in (6, 7, 8)}) == 3
    assert set(assign((*layer, (6, 7, 8)), 2)) == {0, 1}
    assert set(assign(tuple(layer), 1)) == {0}


def test_what_is_lost_behind_an_edge_is_what_was_early() -> None:
    """By 0, 300 and 900 ns early, and one that began 200 ns and one that began 2 µs after its predecessor's end."""
    gap = np.array([0.0, -300, -900, 200, 2000])
    ones = np.ones(5)
    step = StepKernels(ones * 100, gap, ones, ones, ones, ((),) * 5, FITS.room)
    late = [kernel.late_ns for kernel in step.under(Overlap(edge_ns=500, prologue_ns=600, latency_ns=40))]
    assert late == [500, 800, 1100, 300, 0]


def recorded(times: list[float], blocks: list[int], bandwidth: int = 10**9) -> RecordedStep:
    frame = pd.DataFrame({"time": times, "gap": 0.0, "blocks": blocks, "resident": 0.0, "kernel": range(len(times))})
    return RecordedStep(frame, frame, 100, bandwidth, FITS)


def test_bytes_are_those_of_the_rows_and_experts_that_are_used() -> None:
    """At 1 byte per ns; 2 of 8 experts, 3 of 1000 rows of a cache, 4 of 500 rows of an embedding."""
    cache = Leaf("cache", "state", (1000, 10), "float16", 20_000)
    rows = Leaf("rows", "input", (3,), "int64", 24)
    nodes = (
        Node("embedding", "get_rows", (4, 10), "float16", 80, 0, weight_bytes=10_000),
        Node("probabilities", "soft_max", (1, 8), "float32", 32, 0),
        Node("chosen", "top_k", (1, 2), "int32", 8, 0, (1,)),
        Node("experts", "mul_mat_id", (1, 2, 10), "float16", 40, 0, (0, 2), weight_bytes=8000),
        Node("set", "mul_mat+set_rows", (1000, 10), "float16", 20_000, 0, (0,), (0, 1), weight_bytes=500),
        Node("state", "ssm_conv", (4, 10), "float16", 80, 0, (0,), (0,)),
    )
    step = StepKernels.of(graph_of(*nodes, leaves=(cache, rows)), recorded([1e5] * 6, [1] * 6))
    expected = [80 + 80, 32, 8 + 32, 2000 + 40 + 80 + 8, 500 + 60 + 80 + 24, 80 + 80 + 20_000]
    assert step.moving / step.moving[0] == pytest.approx(np.array(expected) / expected[0])


def test_a_graph_that_does_not_fit_is_refused() -> None:
    node = Node("a", "mul", (1,), "float32", 4, 0)
    with pytest.raises(UsageError, match=r"graph\.json has 1 kernels, a recorded step 2"):
        StepKernels.of(graph_of(node), recorded([1, 1], [1, 1]))
    with pytest.raises(UsageError, match="the run used 2 streams already"):
        StepKernels.of(graph_of(node, streams=2), recorded([1], [1]))


@st.composite
def some_kernels(draw: st.DrawFn, late: int = 0) -> list[Kernel]:
    sizes, demands = st.integers(0, 1000), st.floats(0.01, 1)
    kernels = []
    for i in range(draw(st.integers(1, 12))):
        after = draw(st.sets(st.integers(0, i - 1))) if i else set()
        later = draw(st.integers(0, late))
        early, room = draw(st.integers(0, later)), draw(demands)
        kernels.append(Kernel(draw(sizes), draw(sizes), draw(demands), later, tuple(sorted(after)), early, room))
    return kernels


@given(some_kernels())
@examples(50)
def test_more_streams_without_costs_are_never_slower_than_one(kernels: list[Kernel]) -> None:
    alone = makespan(kernels, [0] * len(kernels))
    assert alone == pytest.approx(sum(k.latency_ns + k.work_ns for k in kernels), rel=1e-6)
    streams = assign(tuple(kernel.after for kernel in kernels), 4)
    assert makespan(kernels, streams) <= alone * (1 + 1e-6) + 1e-2


@given(some_kernels(late=500), st.integers(1, 5))
@examples(50)
def test_order_is_kept_and_the_device_does_no_more_than_it_can(kernels: list[Kernel], most: int) -> None:
    streams = assign(tuple(kernel.after for kernel in kernels), most)
    start, end = simulate(kernels, streams, FITS.room.crowded)
    latest: dict[int, float] = {}
    for i, kernel in enumerate(kernels):
        assert end[i] - start[i] >= kernel.latency_ns + kernel.work_ns - 1e-2
        for k in kernel.after:
            assert start[i] >= end[k] + kernel.late_ns * (streams[k] != streams[i]) - 1e-6
        others = any(streams[k] != streams[i] for k in kernel.after)
        if streams[i] in latest:
            assert start[i] >= latest[streams[i]] + kernel.early_ns * others - 1e-6
        latest[streams[i]] = end[i]
        beside = [k.room for k, s, e in zip(kernels, start, end, strict=True) if s <= start[i] < e - 1e-2]
        assert len(beside) < 2 or sum(beside) <= FITS.room.crowded + 1e-9
    assert end.max() >= sum(kernel.work_ns * kernel.demand for kernel in kernels) - 1e-1
