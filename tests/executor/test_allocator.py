"""The allocator: no two tensors that are in use together share a byte."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.allocator import ALIGNMENT, ALLOCATORS, Lifetime, allocate, first_fit, lifetimes
from executor.concurrency import find_branches
from executor.graph import Flag, Graph
from executor.models import MODELS
from executor.splits import assign_backends, split_graph
from tests.executor.handmade import fan_out_graph


def split_of(graph):
    (split,) = split_graph(graph, assign_backends(graph, "cpu"))
    return split


def assert_disjoint(lifetimes, plan):
    for a, b in combinations(lifetimes, 2):
        if a.overlaps(b):
            a_start, b_start = plan.offsets[a.tensor], plan.offsets[b.tensor]
            apart = a_start + a.tensor.nbytes <= b_start or b_start + b.tensor.nbytes <= a_start
            assert apart, (a, a_start, b, b_start)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())
    assert plan.peak_bytes >= max((plan.offsets[x.tensor] + x.tensor.nbytes for x in lifetimes), default=0)


def most_in_use(lifetimes):
    """The bytes that no plan can do without."""
    times = {t for x in lifetimes for t in (x.first, x.last)}
    padded = {x: -(-x.tensor.nbytes // ALIGNMENT) * ALIGNMENT for x in lifetimes}
    return max((sum(padded[x] for x in lifetimes if x.first <= t <= x.last) for t in times), default=0)


@st.composite
def random_lifetimes(draw):
    graph = Graph()
    spans = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 2000)), max_size=30))
    return [
        Lifetime(graph.leaf(f"t{i}", (size,), "int8"), first, first + length)
        for i, (first, length, size) in enumerate(spans)
    ]


@given(random_lifetimes())
def test_first_fit_never_overlaps_what_is_in_use_together(lifetimes):
    plan = first_fit(lifetimes, "any")
    assert_disjoint(lifetimes, plan)
    assert plan.peak_bytes >= most_in_use(lifetimes)


@st.composite
def random_graphs(draw):
    """Graphs of nodes with one to three sources, some outputs, some in-place writes."""
    graph = Graph()
    tensors = [graph.leaf(f"in{i}", (draw(st.integers(1, 300)),), "int8", Flag.INPUT) for i in range(2)]
    for i in range(draw(st.integers(1, 25))):
        src = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        view = draw(st.sampled_from([None, None, None, src[0]]))
        size = view.shape if view else (draw(st.integers(1, 300)),)
        flags = draw(st.sampled_from([Flag.NONE, Flag.NONE, Flag.OUTPUT]))
        tensors.append(graph.node(f"n{i}", "any", size, "int8", src, view_src=view, flags=flags))
    return graph


@given(random_graphs(), st.sampled_from(sorted(ALLOCATORS)))
def test_running_in_graph_order_never_finds_a_source_overwritten(graph, allocator):
    """Replay: every node writes its tensor's name over its bytes and must find its sources' as last written."""
    plan = allocate(split_of(graph), [], ALLOCATORS[allocator], "sequential")
    arena = [""] * plan.peak_bytes
    written = {}

    def write(tensor):
        start = plan.offsets[tensor.root]
        arena[start : start + tensor.nbytes] = [tensor.name] * tensor.nbytes
        written[tensor.root] = tensor.name

    def check(tensor):
        if tensor.root in plan.offsets:
            start = plan.offsets[tensor.root]
            assert arena[start : start + tensor.nbytes] == [written[tensor.root]] * tensor.nbytes

    for leaf in split_of(graph).inputs:
        write(leaf)
    for node in graph.nodes:
        for source in node.src:
            check(source)
        if node.root in plan.offsets:
            write(node)
    for node in graph.nodes:
        if node.flags & Flag.OUTPUT:
            check(node)


def test_lifetimes_of_a_chain():
    graph = fan_out_graph(branches=1, length=1)  # x -> fork -> b0.0 -> join -> end
    found = {x.tensor.name: (x.first, x.last) for x in lifetimes(split_of(graph))}
    assert found == {"x": (-1, 4), "fork": (0, 1), "b0.0": (1, 2), "join": (2, 3), "end": (3, 4)}


def test_no_alloc_free_lasts_to_the_join():
    graph = fan_out_graph(length=2)
    split = split_of(graph)
    before = {x.tensor.name: x.last for x in lifetimes(split)}
    after = {
        x.tensor.name: x.last for x in ALLOCATORS["no_alloc_free"].extend(lifetimes(split), find_branches(split.nodes))
    }
    assert (before["fork"], before["b0.0"], before["b0.1"]) == (5, 2, 7)
    assert (after["fork"], after["b0.0"], after["b0.1"]) == (7, 7, 7)
    assert after["join"] == before["join"]


@pytest.mark.parametrize("batch", [1, 4])
def test_no_two_tensors_of_a_region_share_bytes(batch):
    """What branches may use at once: everything that is read or written between fork and join."""
    split = split_of(MODELS["tiny"](batch=batch).graph)
    regions = find_branches(split.nodes)
    plan = allocate(split, regions, ALLOCATORS["no_alloc_free"], "branches")
    for region in regions:
        inside = [split.nodes[i] for branch in region.branches for i in branch]
        used = {t.root for n in inside for t in (n, *n.src)} & set(plan.offsets)
        spans = sorted((plan.offsets[t], plan.offsets[t] + t.nbytes) for t in used)
        assert len(spans) > 6
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_sequential_recycling_would_be_a_race_in_the_model():
    """Why branches refuse it: some bytes are shared by two tensors of one region."""
    split = split_of(MODELS["tiny"](batch=4).graph)
    plan = allocate(split, [], ALLOCATORS["sequential"], "sequential")
    region = find_branches(split.nodes)[0]
    inside = {split.nodes[i].root for branch in region.branches for i in branch} & set(plan.offsets)
    spans = sorted((plan.offsets[t], plan.offsets[t] + t.nbytes) for t in inside)
    assert any(end > start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("allocator", ["sequential", "no_alloc_free"])
def test_the_models_plans_are_as_small_as_can_be(batch, allocator):
    split = split_of(MODELS["tiny"](batch=batch).graph)
    regions = find_branches(split.nodes) if allocator == "no_alloc_free" else []
    extended = ALLOCATORS[allocator].extend(lifetimes(split), regions)
    plan = first_fit(extended, allocator)
    assert_disjoint(extended, plan)
    assert plan.peak_bytes == most_in_use(extended)
