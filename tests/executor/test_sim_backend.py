"""The simulated backend: exact times on profiles made by hand, and what holds for every profile."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from executor.backends.sim.backend import SimBackend
from executor.backends.sim.device import moved_bytes
from executor.backends.sim.profiles import Batch, CopyCost, GraphCost, KernelCost
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.covering import each_value
from tests.executor.handmade import summing_step
from tests.executor.profiles import handmade
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.errors import ExecutionError

TOKENS = 5


def simulate(profile=None, most_kernels=20_000, inputs=None, **options):
    """The result of one run; of a graph of that many inputs and one kernel, if `inputs` is given."""
    if inputs is not None:
        options |= {"model": "sum"}
    configuration = Configuration("sim", tokens=TOKENS, repeats=2, warmup=1, **options)
    models = MODELS if inputs is None else {"sum": partial(summing_step, inputs)}
    (result,) = execute(
        [configuration], models=models, open_backend=lambda _: SimBackend(profile or handmade(), most_kernels)
    )
    return result


def gap_of(result):
    """The gap and its causes, us."""
    report = gap_report(result.trace, find_steps(result.trace))
    assert report.gap_us["p50"] == report.gap_us["p90"]  # every token is like the others
    return report.gap_us["p50"], {name: value for name, value in report.causes_us.items() if value}


def test_a_token_of_known_cost():
    """sccc with two inputs, in ns from the end of compute on:

    3000 copy of the logits, 500 until the host wakes; 100 and 1000 the first sync, which need not wait;
    twice 100 + 1000 the call of a copy, 2000 the copy itself, 500 until the host wakes;
    100 + 1000 the launch, 2000 until the kernel starts.
    """
    gap, causes = gap_of(simulate(inputs=2, strategy="sccc"))
    assert gap == (3000 + 500 + 1100 + 2 * 3600 + 1100 + 2000) / 1e3
    assert causes == {
        "copy": pytest.approx((3000 + 2 * 3000) / 1e3),
        "sync": pytest.approx((500 + 1000 + 2 * 500) / 1e3),
        "launch": pytest.approx(3000 / 1e3),
        "host": pytest.approx(400 / 1e3),
    }


def test_asynchronous_copies_follow_each_other():
    """saaas: calls of copies at 1100 each; the second's 2000 begin when the first is done."""
    gap, _ = gap_of(simulate(inputs=2, strategy="saaas"))
    assert gap == (3000 + 500 + 1100 + 1100 + 2 * 2000 + 500 + 1100 + 2000) / 1e3


def test_a_graph_on_the_device_waits_for_the_copies():
    """aaag: three copies end 2000 + 1100 + 3 * 2000 after the fetch; the launch is past long before."""
    gap, _ = gap_of(simulate(handmade(launch_latency_ns=0), inputs=3, strategy="aaag"))
    assert gap == (3000 + 500 + 1100 + 3 * 2000) / 1e3


def test_ggg_has_a_gap_of_the_graph_alone():
    gap, _ = gap_of(simulate(handmade(graph=GraphCost(start_ns=700)), strategy="ggg"))
    assert gap == 0.7


LAYERS = 4  # of the tiny model


@pytest.mark.parametrize("edge", [0, 1500])
def test_branches_overlap(edge):
    """Of Q, K and V, one kernel each when fused, one counts; K and V are an edge away from fork and join."""
    result = simulate(handmade(edge_ns=edge), concurrency="branches")
    launches = result.trace["kernels"].groupby("correlation")
    length = (launches["end"].max() - launches["start"].min()).tolist()
    kernels = len(result.prepared.splits[0].plan.launches)
    assert length == [(kernels - 2 * LAYERS) * 10_000 + 2 * LAYERS * edge] * (2 * TOKENS + 1)
    assert set(result.trace["kernels"]["stream"]) == {0, 1, 2}


def test_batches_are_sent_when_the_host_waits():
    """aaag with one input: nothing starts before the sync behind the launch; its 100, and 700 to send."""
    sent = handmade(batch=Batch(64, 700))
    gap, _ = gap_of(simulate(sent, inputs=1, strategy="aaag"))
    assert gap == (3000 + 500 + 3 * 1100 + 100 + 700 + max(2000, 2000)) / 1e3


def test_graphs_of_several_streams_can_be_dear():
    dear = handmade(graph=GraphCost(host_stream_ns=5000, host_node_ns=10))
    result = simulate(dear, concurrency="branches")
    api = result.trace["api"]
    launches = api[api["name"].astype(str) == "graphLaunch"]
    assert set(launches["end"] - launches["start"]) == {
        1000 + 2 * 5000 + 10 * len(result.prepared.splits[0].plan.launches)
    }


def test_one_queue_serialises_the_branches():
    one = simulate(handmade(streams=1), concurrency="branches")
    assert one.seconds == simulate(concurrency="sequential").seconds


@pytest.mark.parametrize(
    ("strategy", "concurrency", "launch"),
    each_value(product(STRATEGIES, ["sequential", "branches", "subgraphs"], ["graph", "eager"])),
)
def test_runs_are_the_same_to_the_ns(strategy, concurrency, launch):
    options = {"strategy": strategy, "concurrency": concurrency, "launch": launch}
    a, b = (
        simulate(handmade(kernels={"other": KernelCost(900, 0.01)}, bytes_per_ns=123.4, edge_ns=300), **options)
        for _ in range(2)
    )
    assert a.seconds == b.seconds
    assert a.seconds[0] == a.seconds[1]
    for table, frame in a.trace.tables.items():
        assert_frame_equal(frame, b.trace[table])


def test_whole_graphs_and_their_kernels_are_two_views_of_one_run():
    kernels, graphs = simulate(concurrency="branches"), simulate(concurrency="branches", most_kernels=0)
    assert graphs.seconds == kernels.seconds
    assert len(graphs.trace["kernels"]) == 0
    per_launch = kernels.trace["kernels"].groupby("correlation")
    launches = graphs.trace["graph_launches"].set_index("correlation")
    assert launches["start"].tolist() == per_launch["start"].min().tolist()
    assert launches["end"].tolist() == per_launch["end"].max().tolist()


@given(
    st.sampled_from(sorted(STRATEGIES)), st.sampled_from(["sequential", "branches", "subgraphs"]),
    st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 9000), st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 4),
)  # fmt: skip
def test_a_sync_never_returns_before_its_work(strategy, concurrency, wake_up, latency, copy, batch, streams):
    profile = handmade(
        wake_up_ns=wake_up, launch_latency_ns=latency, copy_in=CopyCost(copy, 1e18), streams=streams,
        kernels={"other": KernelCost(500, 0.001)}, batch=batch and Batch(batch, 300),
    )  # fmt: skip
    trace = simulate(profile, strategy=strategy, concurrency=concurrency).trace
    syncs = trace["syncs"][trace["syncs"]["type"].astype(str) == "stream"]
    for table in ("kernels", "memcpys"):
        work = trace[table][trace[table]["stream"] == 0]
        issued = trace["api"].set_index("correlation").loc[work["correlation"], "end"].to_numpy()
        assert (work["start"].to_numpy() >= issued).all()
        for _, sync in syncs.iterrows():
            before = work[issued <= sync["start"]]
            assert (before["end"] <= sync["end"]).all()


def test_kernels_move_what_their_shapes_say():
    step = MODELS["tiny"]()
    by_name = {node.name: node for node in step.graph.nodes}
    q = by_name["blk.0.attn_q"]
    assert moved_bytes(q) == sum(s.nbytes for s in q.src) + q.nbytes
    rows = by_name["inp_embd"]
    assert moved_bytes(rows) == 2 * rows.nbytes + rows.src[1].nbytes
    cache = by_name["blk.0.cache_k (set)"]
    assert moved_bytes(cache) == 2 * cache.src[0].nbytes + cache.src[1].nbytes
    fused = fuse(step).graph.nodes
    of_fused, of_single = (sum(moved_bytes(n) for n in nodes if n.has_kernel) for nodes in (fused, step.graph.nodes))
    assert of_fused < of_single


def test_copies_that_do_not_fit():
    backend = SimBackend(handmade())
    leaf = summing_step(1).graph.inputs[0]
    with pytest.raises(ExecutionError, match="cannot copy"):
        backend.copy_to_device(backend.array(backend.alloc(64), 0, leaf), np.zeros((3, 3), np.float64), 0)
