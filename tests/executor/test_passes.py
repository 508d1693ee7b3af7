"""Splits, and the passes together on the models."""

import pytest

from executor.allocator import ALLOCATORS
from executor.concurrency import MODES, all_regions
from executor.fusion import fuse
from executor.graph import Flag
from executor.models import MODELS
from executor.plans import Part
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


def named(prepared):
    """fork, join and the first kernels of the branches of every region."""
    nodes = prepared.split.nodes
    return [
        (nodes[r.fork].name, nodes[r.join].name, [nodes[b.nodes[0]].name for b in r.branches])
        for r in all_regions(prepared.regions)
    ]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_layer_forks_into_q_k_v_and_into_gate_and_up(on_device, batch):
    """Neither the residual nor what advances the step makes a region."""
    prepared = prepare(MODELS["tiny"](batch=batch, on_device=on_device, history=4, keep_logits=True), "cpu", "branches")
    expected = []
    for blk in (f"blk.{layer}." for layer in range(4)):
        expected.append((f"{blk}attn_norm", f"{blk}attn", [f"{blk}attn_q", f"{blk}attn_k", f"{blk}attn_v"]))
        expected.append((f"{blk}ffn_norm", f"{blk}ffn_swiglu", [f"{blk}ffn_gate", f"{blk}ffn_up"]))
    assert named(prepared) == expected
    first = prepared.regions[0]
    ops = [[prepared.split.nodes[i].op for i in b.nodes] for b in first.branches]
    assert ops == [["mul_mat", "rope"], ["mul_mat", "rope", "set_rows"], ["mul_mat", "set_rows"]]
    assert (prepared.plan.streams, prepared.plan.events) == (3, 4 * (3 + 2))


@pytest.mark.parametrize("on_device", [False, True])
def test_fused_branches_fork_together(on_device):
    """Gate and up are one kernel; Q, K and V begin with fused ones, each on a stream of its own."""
    prepared = prepare(fuse(MODELS["tiny"](on_device=on_device, history=4)), "cpu", "branches")
    roots = ("attn_q_rope", "cache_k (set)", "cache_v (set)")
    assert named(prepared) == [
        (f"blk.{i}.attn_norm", f"blk.{i}.attn", [f"blk.{i}.{root}" for root in roots]) for i in range(4)
    ]


def test_reshapes_are_not_launched():
    prepared = prepare(MODELS["tiny"](), "cpu", "branches")
    assert len(prepared.plan.launches) == 82
    assert all(launch.node.has_kernel for launch in prepared.plan.launches)


def test_subgraphs_launch_every_branch_by_itself():
    prepared = prepare(MODELS["tiny"](), "cpu", "subgraphs")
    whole = prepare(MODELS["tiny"](), "cpu", "branches").plan
    parts = [part for part in prepared.plan.parts if isinstance(part, Part)]
    assert [len(part.plan.launches) for part in parts[:4]] == [3, 2, 3, 2]  # embedding and norm; Q, K, V
    assert [part.stream for part in parts[:4]] == [0, 0, 1, 2]
    assert len(parts) == 4 * 7 + 1
    assert sum(len(part.plan.launches) for part in parts) == len(whole.launches)
    assert [part.plan for part in whole.parts] == [whole]


def test_a_plan_with_hazards_is_refused_unless_allowed():
    step = MODELS["tiny"](batch=4)
    message = (
        r"'branches' with allocator 'sequential' is a race, 48 in all: "
        r"blk\.0\.attn_q \(stream 0\) writes blk\.0\.attn_q and blk\.0\.attn_k \(stream 1\) writes blk\.0\.attn_k "
        r"in bytes \d+-\d+ of the arena: needs an edge from .* Allocator 'stream_aware' has none"
    )
    with pytest.raises(UnsafePlanError, match=message):
        prepare(step, "cpu", "branches", "sequential")
    assert len(prepare(step, "cpu", "branches", "sequential", allow_hazards=True).hazards) == 48
    assert prepare(step, "cpu", "sequential", "no_alloc_free").hazards == []


def test_a_mode_brings_the_allocator_that_it_needs():
    for mode in MODES.values():
        assert prepare(as_step(fan_out_graph()), "cpu", mode.name).memory.allocator == mode.allocator


def test_without_a_region_any_allocator_is_safe():
    for allocator in ALLOCATORS:
        assert prepare(as_step(fan_out_graph(branches=1)), "cpu", "branches", allocator).plan.streams == 1


@pytest.mark.parametrize(
    ("kind", "names", "meant"),
    [("concurrency mode", ("branchs", None), "branches"), ("allocator", ("branches", "no_aloc"), "no_alloc_free")],
)
def test_unknown_names_are_named_with_what_was_meant(kind, names, meant):
    with pytest.raises(UsageError, match=f"unknown {kind}.*Did you mean '{meant}'"):
        prepare(MODELS["tiny"](), "cpu", *names)
