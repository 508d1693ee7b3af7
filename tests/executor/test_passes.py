"""Splits, and the passes together on the models."""

import pytest

from executor.graph import Flag, Graph
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.concurrency import all_regions
from executor.planning.devices import HOST, Device, Placement, assign_devices, split_graph
from executor.planning.plans import Subplan
from tests.executor.handmade import fan_out_graph
from tracer.errors import UnsafePlanError, UsageError

A, B = Device("a"), Device("b")


def test_a_split_ends_where_the_device_changes():
    """What another device computed is an input, what the same device computed before is not copied."""
    graph = fan_out_graph(branches=1)  # x -> fork -> b0.0 -> b0.1 -> join -> end
    splits = split_graph(graph, dict(zip(graph.nodes, [A, A, B, B, A], strict=True)))
    found = [(s.device, [n.name for n in s.nodes], [t.name for t in s.inputs]) for s in splits]
    assert found == [(A, ["fork", "b0.0"], ["x"]), (B, ["b0.1", "join"], ["b0.0"]), (A, ["end"], ["join"])]
    assert [s.nodes[-1].flags for s in splits] == [Flag.OUTPUT] * 3
    (origin,) = splits[1].origins.values()
    assert (origin.split, origin.node) == (0, splits[0].nodes[-1])


def test_what_a_device_has_got_is_not_sent_again():
    """Neither inputs of the step nor results of other devices."""
    graph = Graph()
    x = graph.leaf("x", (4,), flags=Flag.INPUT)
    a = graph.node("a", "copy", (4,), "float32", (x,))
    b = graph.node("b", "copy", (4,), "float32", (a, x))
    c = graph.node("c", "copy", (4,), "float32", (b, x))
    d = graph.node("d", "copy", (4,), "float32", (c, a))
    splits = split_graph(graph, dict(zip((a, b, c, d), [A, B, A, B], strict=True)))
    assert [[t.name for t in s.inputs] for s in splits] == [["x"], ["x", "a"], ["b"], ["c"]]
    assert [[(t.name, o.split) for t, o in s.origins.items()] for s in splits] == [
        [], [("a", 0)], [("b", 1), ("x", 0)], [("c", 2), ("a", 1)],
    ]  # fmt: skip


def layer_of(name):
    return int(name.split(".")[1]) if name.startswith("blk.") else None


@pytest.mark.parametrize("model", ["tiny", "qwen3-tiny", "moe-tiny", "gdn-tiny"])
@pytest.mark.parametrize("gpu_layers", [0, 1, 2, 100])
def test_the_last_layers_go_to_the_device(model, gpu_layers):
    graph = MODELS[model]().graph
    layers = 1 + max(layer for node in graph.nodes if (layer := layer_of(node.name)) is not None)
    assigned = assign_devices(graph, Placement((A,), gpu_layers))
    on_device = {layer_of(node.name) for node, device in assigned.items() if device == A} - {None}
    assert on_device == set(range(max(layers + 1 - gpu_layers, 0), layers))
    assert assigned[graph.nodes[0]] == HOST  # the embedding
    assert assigned[graph.nodes[-1]] == (A if gpu_layers else HOST)  # the output counts as a layer


def test_devices_share_the_layers():
    graph = MODELS["tiny"]().graph
    assigned = assign_devices(graph, Placement((A, B)))
    assert {layer_of(n.name) for n, d in assigned.items() if d == A} == {None, 0, 1, 2}
    assert {layer_of(n.name) for n, d in assigned.items() if d == B} == {None, 3}
    assert len(split_graph(graph, assigned)) == 2


def test_experts_stay_on_the_host():
    graph = MODELS["moe-tiny"]().graph
    assigned = assign_devices(graph, Placement((A,), experts="cpu"))
    moved = {node.name.split(".")[-1] for node, device in assigned.items() if device == HOST}
    assert moved == {"ffn_gate_exps", "ffn_up_exps", "ffn_moe_swiglu", "ffn_down_exps"}
    assert [s.device for s in split_graph(graph, assigned)] == [A, HOST] * 3 + [A]
    with pytest.raises(UsageError, match="the model has none"):
        assign_devices(MODELS["tiny"]().graph, Placement((A,), experts="cpu"))


def named(prepared):
    """fork, join and the first kernels of the branches of every region."""
    nodes = prepared.splits[0].split.nodes
    return [
        (nodes[r.fork].name, nodes[r.join].name, [nodes[b.nodes[0]].name for b in r.branches])
        for r in all_regions(prepared.splits[0].regions)
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
    first = prepared.splits[0].regions[0]
    ops = [[prepared.splits[0].split.nodes[i].op for i in b.nodes] for b in first.branches]
    assert ops == [["mul_mat", "rope"], ["mul_mat", "rope", "set_rows"], ["mul_mat", "set_rows"]]
    assert (prepared.splits[0].plan.streams, prepared.splits[0].plan.events) == (3, 4 * (3 + 2))


def test_subgraphs_launch_every_branch_by_itself():
    prepared = prepare(MODELS["tiny"](), "cpu", "subgraphs")
    whole = prepare(MODELS["tiny"](), "cpu", "branches").splits[0].plan
    parts = [part for part in prepared.splits[0].plan.parts if isinstance(part, Subplan)]
    assert [len(part.plan.launches) for part in parts[:4]] == [3, 2, 3, 2]  # embedding and norm; Q, K, V
    assert [part.stream for part in parts[:4]] == [0, 0, 1, 2]
    assert len(parts) == 4 * 7 + 1
    assert sum(len(part.plan.launches) for part in parts) == len(whole.launches)
    assert [part.plan for part in whole.parts] == [whole]


def test_a_plan_with_hazards_is_refused_unless_allowed():
    step = MODELS["tiny"](batch=4)
    message = (
        r"'branches' with allocator 'sequential' has data races \(48\): "
        r"blk\.0\.attn_q \(stream 0\) writes blk\.0\.attn_q and blk\.0\.attn_k \(stream 1\) writes blk\.0\.attn_k "
        r"in bytes \d+-\d+ of the arena: needs an edge from .* Choose allocator 'stream_aware', which has none"
    )
    with pytest.raises(UnsafePlanError, match=message):
        prepare(step, "cpu", "branches", "sequential")
    assert len(prepare(step, "cpu", "branches", "sequential", allow_hazards=True).hazards) == 48
    assert prepare(step, "cpu", "sequential", "no_alloc_free").hazards == []


@pytest.mark.parametrize(
    ("kind", "names", "meant"),
    [("concurrency mode", ("branchs", None), "branches"), ("allocator", ("branches", "no_aloc"), "no_alloc_free")],
)
def test_unknown_names_are_named_with_what_was_meant(kind, names, meant):
    with pytest.raises(UsageError, match=f"unknown {kind}.*Did you mean '{meant}'"):
        prepare(MODELS["tiny"](), "cpu", *names)
