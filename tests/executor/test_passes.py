"""Split, concurrency, stream mapping and plan: exact results on small graphs and on the model."""

import pytest

from executor import ops
from executor.allocator import ALLOCATORS, allocate
from executor.concurrency import MODES, Region, find_branches, map_streams
from executor.graph import Flag, Graph
from executor.models import MODELS
from executor.plans import Launch, Record, Wait, make_plan
from executor.scheduler import prepare
from executor.splits import assign_backends, split_graph
from tests.executor.handmade import as_step, fan_out_graph
from tracer.errors import UnsafePlanError, UsageError


def test_one_backend_makes_one_split_that_lists_its_inputs():
    graph = MODELS["tiny"]().graph
    (split,) = split_graph(graph, assign_backends(graph, "cpu"))
    assert (split.backend, list(split.nodes), list(split.inputs)) == ("cpu", graph.nodes, graph.inputs)


def test_a_split_ends_where_the_backend_changes():
    graph = fan_out_graph(branches=1)
    names = dict(zip(graph.nodes, ["a", "a", "b", "b", "a"], strict=True))
    splits = split_graph(graph, names)
    assert [(s.backend, len(s.nodes), len(s.inputs)) for s in splits] == [("a", 2, 1), ("b", 2, 0), ("a", 1, 0)]


def test_an_input_that_nobody_reads_is_not_sent():
    graph = fan_out_graph()
    graph.leaf("unread", (1,), flags=Flag.INPUT)
    (split,) = split_graph(graph, assign_backends(graph, "cpu"))
    assert [t.name for t in split.inputs] == ["x"]


@pytest.mark.parametrize("on_device", [False, True])
def test_the_model_has_three_branches_per_layer(on_device):
    nodes = MODELS["tiny"](batch=2, on_device=on_device, history=4, keep_logits=True).graph.nodes
    regions = find_branches(nodes)
    assert len(regions) == 4
    for layer, region in enumerate(regions):
        blk = f"blk.{layer}."
        assert nodes[region.fork].name == blk + "attn_norm"
        assert nodes[region.join].name == blk + "attn"
        assert [nodes[b[0]].name for b in region.branches] == [blk + "attn_q", blk + "attn_k", blk + "attn_v"]
        kernels = [[nodes[i].op for i in b if nodes[i].has_kernel] for b in region.branches]
        assert kernels == [["mul_mat", "rope"], ["mul_mat", "rope", "set_rows"], ["mul_mat", "set_rows"]]


def test_only_a_fan_out_of_three_is_taken():
    assert find_branches(fan_out_graph(branches=2).nodes) == []
    assert find_branches(fan_out_graph(branches=4).nodes) == []
    assert find_branches(fan_out_graph().nodes) == [Region(0, 7, ((1, 2), (3, 4), (5, 6)))]


def test_a_branch_that_leaks_or_shares_is_no_branch():
    """A second reader of a branch outside it, an edge between branches, or a conflict over memory."""
    for build in (_leaking, _crossing, _conflicting):
        assert find_branches(build().nodes) == [], build.__name__


def _forked():
    graph = Graph()
    x = graph.leaf("x", (4,), flags=Flag.INPUT)
    fork = ops.add(graph, x, x, name="fork")
    return graph, [ops.mul(graph, fork, x, name=f"b{i}") for i in range(3)]


def _leaking():
    graph, (a, b, c) = _forked()
    ops.add(graph, a, a, name="leak", flags=Flag.OUTPUT)
    graph.node("join", "sum", (4,), "float32", (a, b, c))
    return graph


def _crossing():
    graph, (a, b, c) = _forked()
    graph.node("join", "sum", (4,), "float32", (ops.add(graph, a, b, name="cross"), b, c))
    return graph


def _conflicting():
    graph = Graph()
    x, state = graph.leaf("x", (4,), flags=Flag.INPUT), graph.leaf("state", (4,))
    fork = ops.add(graph, x, x, name="fork")
    reader = ops.add(graph, fork, state, name="reader")
    writer = ops.cpy(graph, fork, state, name="writer")
    third = ops.mul(graph, fork, x, name="third")
    graph.node("join", "sum", (4,), "float32", (reader, writer, third))
    return graph


def test_streams_and_events_of_a_fork():
    nodes = fan_out_graph().nodes
    regions = find_branches(nodes)
    assert map_streams(nodes, regions) == [0, 1, 1, 2, 2, 3, 3, 0, 0]
    plan = make_plan(nodes, regions)
    fork, q0, q1, k0, k1, v0, v1, join, end = nodes
    assert list(plan.instructions) == [
        Launch(0, fork), Record(0, 0), Wait(1, 0), Wait(2, 0), Wait(3, 0),
        Launch(1, q0), Launch(1, q1), Launch(2, k0), Launch(2, k1), Launch(3, v0), Launch(3, v1),
        Record(1, 1), Wait(0, 1), Record(2, 2), Wait(0, 2), Record(3, 3), Wait(0, 3),
        Launch(0, join), Launch(0, end),
    ]  # fmt: skip
    assert (plan.streams, plan.events, len(plan.launches)) == (4, 4, 9)
    assert plan.on_stream(2) == [Wait(2, 0), Launch(2, k0), Launch(2, k1), Record(2, 2)]


def test_sequential_needs_one_stream_and_no_events():
    plan = make_plan(fan_out_graph().nodes, [])
    assert (plan.streams, plan.events, len(plan.instructions)) == (1, 0, 9)


def test_reshapes_are_not_launched():
    prepared = prepare(MODELS["tiny"](), "cpu", "branches")
    assert all(launch.node.has_kernel for launch in prepared.plan.launches)
    assert prepared.plan.streams == 4
    assert prepared.plan.events == 4 * 4


def test_branches_with_recycling_in_graph_order_are_refused():
    with pytest.raises(UnsafePlanError, match=r"'branches' with allocator 'sequential' is a race.*no_alloc_free"):
        prepare(MODELS["tiny"](), "cpu", "branches", "sequential")
    assert prepare(MODELS["tiny"](), "cpu", "sequential", "no_alloc_free").plan.streams == 1


def test_a_mode_brings_the_allocator_that_it_needs():
    for mode in MODES.values():
        assert prepare(as_step(fan_out_graph()), "cpu", mode.name).memory.allocator == mode.allocator


def test_without_a_region_any_allocator_holds():
    graph = fan_out_graph(branches=2)
    (split,) = split_graph(graph, assign_backends(graph, "cpu"))
    assert allocate(split, find_branches(split.nodes), ALLOCATORS["sequential"], "branches").peak_bytes > 0


@pytest.mark.parametrize(
    ("kind", "names", "meant"),
    [("concurrency mode", ("branchs", None), "branches"), ("allocator", ("branches", "no_aloc"), "no_alloc_free")],
)
def test_unknown_names_are_named_with_what_was_meant(kind, names, meant):
    with pytest.raises(UsageError, match=f"unknown {kind}.*Did you mean '{meant}'"):
        prepare(MODELS["tiny"](), "cpu", *names)
