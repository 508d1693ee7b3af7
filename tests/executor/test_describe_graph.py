"""graph.json: it says what the passes made of a step, and is read back as it was written."""

import pytest

from executor.graph import Flag
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.allocator import ALLOCATORS
from executor.planning.concurrency import all_regions
from executor.planning.devices import Device, Placement
from executor.planning.plans import Record, Wait
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_graph, write_run
from tracer import formats
from tracer.model.graph_json import GRAPH_FILE, read_graph, write_graph


def prepared(model="tiny", concurrency="branches", allocator=None, fused=False, on_device=False):
    step = MODELS[model](batch=1, on_device=on_device, history=8, keep_logits=False)
    return prepare(fuse(step) if fused else step, "cpu", concurrency, allocator)


@pytest.mark.parametrize("concurrency", ["sequential", "branches", "subgraphs"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_it_holds_the_plan_and_survives_the_file(tmp_path, concurrency, fused, on_device):
    passes = prepared(concurrency=concurrency, fused=fused, on_device=on_device)
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


@pytest.mark.parametrize("concurrency", ["branches", "subgraphs"])
def test_every_wait_of_the_plan_is_an_edge_between_its_kernels(concurrency):
    passes = prepared(concurrency=concurrency)
    graph, plan = run_graph(passes), passes.splits[0].plan
    assert len(graph.waits) == sum(isinstance(i, Wait) for i in plan.instructions)
    recorded = {i.event: i.stream for i in plan.instructions if isinstance(i, Record)}
    for wait in graph.waits:
        assert wait.source_stream == recorded[wait.event] == graph.nodes[wait.source].stream
        assert wait.target_stream == graph.nodes[wait.target].stream
    joins = [wait for wait in graph.waits if graph.nodes[wait.target].name == "blk.0.attn"]
    assert {graph.nodes[wait.source].name for wait in joins} == {"blk.0.cache_k (set)", "blk.0.cache_v (set)"}


def test_memory_is_that_of_every_allocator_with_its_hazards():
    passes = prepared()
    memory = {m.allocator: m for m in run_graph(passes).memory}
    assert list(memory) == list(ALLOCATORS)
    assert memory["stream_aware"].peak_bytes == passes.splits[0].memory.peak_bytes
    assert memory["stream_aware"].hazards == memory["no_alloc_free"].hazards == 0
    assert memory["sequential"].hazards > memory["interleaved"].hazards > 0
    assert memory["no_alloc_free"].peak_bytes > memory["stream_aware"].peak_bytes
    assert all(m.peak_live_bytes <= m.peak_bytes for m in memory.values())


def test_a_run_directory_has_it(tmp_path):
    (result,) = execute([Configuration(concurrency="branches", tokens=2, repeats=1, warmup=0)])
    path = write_run(result, tmp_path)
    assert read_graph(path / GRAPH_FILE) == run_graph(result.prepared)
    assert len(formats.read(path)["kernels"]) == 2 * len(result.prepared.splits[0].plan.launches)


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
