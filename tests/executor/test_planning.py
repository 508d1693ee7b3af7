"""Graphs, their splits and their plans: exact on small ones, the fewest events on random ones, and as graph.json."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.graph import Flag, Graph, memory_order, ops
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.allocator import ALLOCATORS
from executor.planning.concurrency import all_regions, bits, find_dependencies
from executor.planning.devices import HOST, Device, Placement, assign_devices, split_graph
from executor.planning.hazards import happens_before
from executor.planning.plans import Launch, Record, Wait, make_plan
from executor.run.directory import run_graph
from tests.executor.handmade import fan_out_graph, plan_of, regions_of
from tests.executor.random_graphs import graphs, stream_maps
from tracer.model.graph_json import GRAPH_FILE, read_graph, write_graph

A, B = Device("a"), Device("b")


def test_a_graph_refuses_equal_names_and_foreign_sources():
    graph, other = Graph(), Graph()
    x = graph.leaf("x", (4,))
    with pytest.raises(ValueError, match="two tensors are named x"):
        graph.leaf("x", (4,))
    other.leaf("x", (4,))
    with pytest.raises(ValueError, match="z: source x is not in the graph"):
        other.node("z", "add", (4,), "float32", (x, x))


def test_ops_check_shapes():
    told = json.loads((Path(__file__).parent / "data" / "bad_shapes.json").read_text(encoding="utf-8"))
    graph = Graph()
    leaves = {name: graph.leaf(name, tuple(shape)) for name, shape in told["leaves"].items()}
    for op, sources, params, said in told["refused"]:
        src = [leaves[each] if isinstance(each, str) else tuple(each) for each in sources]
        with pytest.raises(ValueError, match=said):
            getattr(ops, op)(graph, *src, **params, name="y")


def test_memory_order_keeps_writers_behind_readers():
    """read(state); write(state); read(state): the sources alone would not order the first two."""
    graph = Graph()
    state, one = graph.leaf("state", (2,)), graph.leaf("one", (2,))
    ops.add(graph, state, one, name="early reader")
    ops.add_inplace(graph, state, one, name="writer")
    ops.add(graph, state, one, name="late reader")
    assert memory_order(graph.nodes) == [set(), {0}, {1}]


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
def test_the_last_layers_go_to_the_device(model):
    graph = MODELS[model]().graph
    layers = 1 + max(layer for node in graph.nodes if (layer := layer_of(node.name)) is not None)
    for gpu_layers in (0, 1, 2, 100):
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


def named(prepared):
    """fork, join and the first kernels of the branches of every region."""
    nodes = prepared.splits[0].split.nodes
    return [
        (nodes[r.fork].name, nodes[r.join].name, [nodes[b.nodes[0]].name for b in r.branches])
        for r, _level in all_regions(prepared.splits[0].regions)
    ]


@pytest.mark.parametrize(("batch", "on_device"), [(1, True), (2, False)])
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


def test_streams_and_events_of_a_fork():
    nodes = fan_out_graph().nodes
    plan = plan_of(nodes, regions_of(nodes))
    fork, q0, q1, k0, k1, v0, v1, join, end = nodes
    assert list(plan.instructions) == [
        Launch(0, fork), Record(0, 0), Launch(0, q0), Launch(0, q1),
        Wait(1, 0), Launch(1, k0), Launch(1, k1), Record(1, 1),
        Wait(2, 0), Launch(2, v0), Launch(2, v1), Record(2, 2),
        Wait(0, 2), Wait(0, 1), Launch(0, join), Launch(0, end),
    ]  # fmt: skip
    assert (plan.streams, plan.events, len(plan.launches)) == (3, 3, 9)


def keeps_order(plan, graph):
    order = happens_before(plan.instructions)
    place = {launch.node: k for k, launch in enumerate(plan.launches)}
    needs = find_dependencies(graph.nodes, tie=False).needs
    pairs = [(place[node], place[graph.nodes[need]]) for node, mask in zip(graph.nodes, needs, strict=True)
             for need in bits(mask) if node in place]  # fmt: skip
    return order.closed and all(order.before(earlier, later) for later, earlier in pairs)


@given(st.data())
def test_no_event_and_no_wait_is_implied_by_the_others(data):
    graph = data.draw(graphs())
    streams = data.draw(stream_maps(graph))
    plan = make_plan(graph.nodes, find_dependencies(graph.nodes, tie=False), streams)
    assert keeps_order(plan, graph)
    waits = [i for i, instruction in enumerate(plan.instructions) if isinstance(instruction, Wait)]
    for i in waits:
        less = replace(plan, instructions=plan.instructions[:i] + plan.instructions[i + 1 :])
        assert not keeps_order(less, graph), plan.instructions[i]
    recorded = [i.event for i in plan.instructions if isinstance(i, Record)]
    assert sorted(recorded) == list(range(plan.events)) == sorted({plan.instructions[i].event for i in waits})


@pytest.mark.parametrize(
    ("concurrency", "fused", "on_device"),
    [("sequential", True, False), ("branches", False, True), ("subgraphs", True, True)],
)
def test_graph_json_holds_the_plan_and_survives_the_file(tmp_path, concurrency, fused, on_device):
    step = MODELS["tiny"](on_device=on_device, history=8)
    passes = prepare(fuse(step) if fused else step, "cpu", concurrency)
    graph = run_graph(passes)
    write_graph(graph, tmp_path / GRAPH_FILE)
    assert read_graph(tmp_path / GRAPH_FILE) == graph

    nodes, plan = passes.splits[0].split.nodes, passes.splits[0].plan
    assert {nodes[i].name: graph.nodes[i].stream for i in graph.launches} == {
        launch.node.name: launch.stream for launch in plan.launches
    }
    for node, tensor in zip(graph.nodes, nodes, strict=True):
        assert (node.name, node.op, node.shape, node.nbytes) == (tensor.name, tensor.op, tensor.shape, tensor.nbytes)
        read = [graph.nodes[i].name for i in node.src] + [graph.leaves[i].name for i in node.leaves]
        assert sorted(read) == sorted(s.name for s in tensor.src if not s.flags & Flag.WEIGHT)
    assert {leaf.name for leaf in graph.leaves if leaf.kind == "input"} == {t.name for t in passes.step.graph.inputs}
    assert len(graph.regions) == len(list(all_regions(passes.splits[0].regions)))


def test_memory_is_that_of_every_allocator_with_its_hazards():
    passes = prepare(MODELS["tiny"](), "cpu", "branches")
    memory = {m.allocator: m for m in run_graph(passes).memory}
    assert list(memory) == list(ALLOCATORS)
    assert memory["stream_aware"].peak_bytes == passes.splits[0].memory.peak_bytes
    assert memory["stream_aware"].hazards == memory["no_alloc_free"].hazards == 0
    assert memory["sequential"].hazards > memory["interleaved"].hazards > 0
    assert memory["no_alloc_free"].peak_bytes > memory["stream_aware"].peak_bytes
    assert all(m.peak_live_bytes <= m.peak_bytes for m in memory.values())


def test_splits_are_one_graph_whose_streams_belong_to_devices(tmp_path):
    placement = Placement((Device("cpu"), Device("cpu", 1)), gpu_layers=4)
    passes = prepare(MODELS["tiny"](), placement, "branches")
    graph = run_graph(passes)
    write_graph(graph, tmp_path / GRAPH_FILE)
    assert read_graph(tmp_path / GRAPH_FILE) == graph
    assert graph.devices == ("host", *("cpu",) * 3, *("cpu:1",) * 3)
    assert len(graph.launches) == len(set(graph.launches)) == 82
    assert [graph.stream_name(stream) for stream in (0, 1, 5)] == ["host stream 0", "cpu stream 0", "cpu:1 stream 1"]
    devices = {n.name: graph.devices[n.stream] for n in graph.nodes if n.stream is not None}
    assert [devices[n] for n in ("inp_embd", "blk.0.attn", "blk.1.attn_q", "blk.3.attn_k", "output")] == [
        "host", "host", "cpu", "cpu:1", "cpu:1",
    ]  # fmt: skip
    for wait in graph.waits:
        assert wait.target_stream == graph.nodes[wait.target].stream
        assert wait.source_stream == graph.nodes[wait.source].stream
    assert len({wait.event for wait in graph.waits}) == sum(part.plan.events for part in passes.splits)
    forks = {graph.nodes[region.fork].name for region in graph.regions}
    assert forks == {f"blk.{layer}.{norm}" for layer in (1, 2, 3) for norm in ("attn_norm", "ffn_norm")}
