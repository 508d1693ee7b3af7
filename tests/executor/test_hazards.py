"""The hazard checker: against a search through all interleavings, and against what delays really do to the numbers."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.graph import Flag
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.allocator import ALLOCATORS, Schedule, allocate
from executor.planning.concurrency import MODES, Region, find_dependencies, map_streams
from executor.planning.hazards import Sync, Transfer, find_hazards, happens_before, unordered
from executor.planning.plans import Launch, Record, Wait, make_plan
from executor.run import execute
from executor.run.configuration import Configuration
from tests.covering import covering
from tests.executor.handmade import SlowBackend, graph_of, regions_of, split_of
from tests.executor.random_graphs import graphs, stream_maps

SAFE = ["no_alloc_free", "stream_aware"]


def laid_out(graph, regions, streams, allocator):
    """The split, its plan, and where tensors lie."""
    split = split_of(graph)
    plan = make_plan(split.nodes, find_dependencies(split.nodes), streams)
    return split, plan, allocate(Schedule(split, regions, streams, plan), allocator).offsets


# The search: the host and the streams take steps in every possible order


def possible_orders(program):
    """All (a, b) of indices of work in the program such that a may run before b."""
    streams = sorted({item.stream for item in program})
    queues = {
        s: [i for i, item in enumerate(program) if item.stream == s and not isinstance(item, Sync)] for s in streams
    }
    awaited, recorded = {}, {}
    for i, item in enumerate(program):
        if isinstance(item, Record):
            recorded[item.event] = i
        elif isinstance(item, Wait):
            awaited[i] = recorded[item.event]
    work = [i for i, item in enumerate(program) if isinstance(item, Launch | Transfer)]
    found, seen, todo = set(), set(), [(0, (0,) * len(streams))]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        host, positions = state
        ran = {i for s, n in zip(streams, positions, strict=True) for i in queues[s][:n]}
        found |= {(a, b) for a in work if a in ran for b in work if b not in ran}
        if host < len(program):
            waits_for = queues[program[host].stream] if isinstance(program[host], Sync) else []
            if all(i in ran for i in waits_for if i < host):
                todo.append((host + 1, positions))
        for k, (s, n) in enumerate(zip(streams, positions, strict=True)):
            if n < len(queues[s]) and queues[s][n] < host and awaited.get(queues[s][n]) in (*ran, None):
                todo.append((host, (*positions[:k], n + 1, *positions[k + 1 :])))
    return found


def bytes_of(item, offsets):
    """(bytes read, bytes written), a byte being (owner of the buffer, number)."""

    def places(tensor):
        start = offsets.get(tensor.root)
        buffer, start = (tensor.root, 0) if start is None else ("arena", start)
        return {(buffer, start + i) for i in range(tensor.nbytes)}

    if isinstance(item, Transfer):
        return (set(), places(item.tensor)) if item.to_device else (places(item.tensor), set())
    return set().union(*map(places, item.node.src)), places(item.node)


def searched(program, offsets):
    """The pairs of work that touch a common byte, one of them writing it, and that may run in either order."""
    orders = possible_orders(program)
    touched = {i: bytes_of(item, offsets) for i, item in enumerate(program) if isinstance(item, Launch | Transfer)}
    return {
        frozenset((name(program[a]), name(program[b])))
        for a, b in combinations(touched, 2)
        if (a, b) in orders and (b, a) in orders
        and (touched[a][1] & set().union(*touched[b]) or touched[b][1] & touched[a][0])
    }  # fmt: skip


def name(item):
    return item.node.name if isinstance(item, Launch) else f"copy of {item.tensor.name}"


def names(hazards):
    return {frozenset((hazard.first.name, hazard.second.name)) for hazard in hazards}


@given(st.data())
def test_the_checker_finds_exactly_what_the_search_finds(data):
    """Any allocator, random streams, some waits left out and some syncs put in."""
    graph = data.draw(graphs(most=6, size=130))
    regions, streams = data.draw(
        st.sampled_from([(regions_of(graph.nodes), None), ([], data.draw(stream_maps(graph)))])
    )  # fmt: skip
    streams = map_streams(graph.nodes, regions) if streams is None else streams
    split, plan, offsets = laid_out(graph, regions, streams, data.draw(st.sampled_from(sorted(ALLOCATORS))))
    program = [Transfer(0, tensor, to_device=True) for tensor in split.inputs]
    for instruction in plan.instructions:
        if not isinstance(instruction, Wait) or data.draw(st.integers(0, 3)):
            program.append(instruction)
        if data.draw(st.integers(0, 9)) == 0:
            program.append(Sync(data.draw(st.integers(0, plan.streams - 1))))
    found = unordered(happens_before(program), offsets)
    assert names(found) == searched(program, offsets)


@given(st.data())
def test_between_steps_it_finds_what_the_search_finds_in_two(data):
    """The plan without the waits of its end: the next step's copies and kernels may come too early."""
    graph = data.draw(graphs(most=4, size=130))
    split, plan, offsets = laid_out(graph, [], data.draw(stream_maps(graph, 2)), data.draw(st.sampled_from(SAFE[1:])))
    kept = list(plan.instructions)
    while kept and isinstance(kept[-1], Wait):
        kept.pop()
    program = [
        *(Transfer(0, tensor, to_device=True) for tensor in split.inputs), *kept,
        *(Transfer(0, node, to_device=False) for node in split.nodes if node.flags & Flag.OUTPUT),
    ]  # fmt: skip
    found = find_hazards(split, replace(plan, instructions=tuple(kept)), offsets)
    assert names(found) == searched([*program, *program], offsets)


@given(st.data())
def test_safe_allocators_never_have_a_hazard(data):
    graph, allocator = data.draw(graphs()), data.draw(st.sampled_from(SAFE))
    regions = regions_of(graph.nodes)
    assert find_hazards(*laid_out(graph, regions, map_streams(graph.nodes, regions), allocator)) == []
    in_order = data.draw(st.sampled_from(sorted(ALLOCATORS)))  # on one stream all of them are safe
    assert find_hazards(*laid_out(graph, [], [0] * len(graph.nodes), in_order)) == []
    everything = [Region(-1, len(graph.nodes), ())]
    assert find_hazards(*laid_out(graph, everything, data.draw(stream_maps(graph)), allocator)) == []


@pytest.mark.parametrize(
    ("model", "mode", "allocator", "size", "fused"),
    covering(product(MODELS, MODES, SAFE, [(1, False), (4, True)], (False, True))), ids=str,
)  # fmt: skip
def test_safe_allocators_have_none_on_the_models(model, mode, allocator, size, fused):
    batch, on_device = size
    step = MODELS[model](batch=batch, on_device=on_device, history=4)
    assert prepare(fuse(step) if fused else step, "cpu", mode, allocator).hazards == []


def test_a_hazard_says_who_where_and_which_edge_is_missing():
    graph = graph_of({"f": ["x"], "a": ["f"], "a2": ["a"], "b": ["f"], "b2": ["b"], "j": ["a2", "b2"]}, size=16)
    regions = regions_of(graph.nodes)
    found = find_hazards(*laid_out(graph, regions, map_streams(graph.nodes, regions), "sequential"))
    assert str(found[0]) == (
        "a (stream 0) writes a and b (stream 1) writes b in bytes 128-191 of the arena: "
        "needs an edge from a (stream 0) to b (stream 1)"
    )
    assert {"a2", "b"} in names(found)


def logits(slow=(), seconds=0.1, **options):
    configuration = Configuration(batch=4, tokens=2, repeats=1, warmup=0, strategy="aaag", **options)
    (result,) = execute([configuration], keep_logits=True, open_backend=lambda *_: SlowBackend(slow, seconds))
    return result.logits


@pytest.mark.parametrize(("mode", "allocator"), [("branches", "sequential"), ("subgraphs", "interleaved")])
def test_recycling_in_graph_order_would_compute_nonsense(mode, allocator):
    """At batch 4: in some race the kernel that must come first is late."""
    racing = prepare(MODELS["tiny"](batch=4), "cpu", mode, allocator, allow_hazards=True)
    late = sorted({hazard.first.name for hazard in racing.hazards if "blk.0." in hazard.first.name})
    expected = logits(concurrency="sequential")
    assert any(
        np.abs(logits([name], concurrency=mode, allocator=allocator, allow_hazards=True) - expected).max() > 0.1
        for name in late
    )
    for safe in SAFE:
        assert np.array_equal(logits(late[:3], concurrency=mode, allocator=safe), expected)
