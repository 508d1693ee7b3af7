"""Allocators: no two tensors that are in use together share a byte, and how much each takes."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from executor.graph import Graph
from executor.planning.allocator import ALIGNMENT, Lifetime, Schedule, becomes_visible_at, place
from executor.planning.concurrency import find_dependencies, map_streams
from executor.planning.hazards import happens_before
from executor.planning.plans import make_plan
from tests.executor.handmade import split_of
from tests.executor.random_graphs import graphs, stream_maps


def scheduled(graph, regions=(), streams=None):
    split = split_of(graph)
    streams = map_streams(split.nodes, regions) if streams is None else streams
    return Schedule(split, regions, streams, make_plan(split.nodes, find_dependencies(split.nodes), streams))


def padded(tensor):
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


@st.composite
def random_lifetimes(draw):
    """On two streams; the bytes become free for the other stream later, or never."""
    graph = Graph()
    spans = draw(
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 2000), st.booleans()), max_size=30)
    )
    lifetimes = []
    for i, (first, length, size, second) in enumerate(spans):
        free = [first + length, first + length + draw(st.integers(0, 20))]
        tensor = graph.leaf(f"t{i}", (size,), "int8")
        lifetimes.append(Lifetime(tensor, int(second), first, tuple(free[::-1] if second else free)))
    return lifetimes


def must_be_apart(a, b):
    if a.first == b.first:
        return True
    a, b = sorted((a, b), key=lambda lifetime: lifetime.first)
    return b.first < a.free_at[b.stream]


@given(random_lifetimes())
def test_what_must_be_apart_is_apart(lifetimes):
    plan = place(lifetimes, "any")
    for a, b in combinations(lifetimes, 2):
        if must_be_apart(a, b):
            (start, one), (next_start, _) = sorted(
                ((plan.offsets[x.tensor], x.tensor) for x in (a, b)), key=lambda p: (p[0], p[1].name)
            )
            assert start + one.nbytes <= next_start, (a, b)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())
    assert plan.peak_bytes == max((plan.offsets[x.tensor] + padded(x.tensor) for x in lifetimes), default=0)
    assert plan.peak_live_bytes <= plan.peak_bytes <= plan.tensor_bytes


@given(random_lifetimes().map(lambda lifetimes: lifetimes[:9]))
def test_peak_live_is_the_heaviest_set_that_shares_nothing(lifetimes):
    """Against all subsets."""
    sets = [chosen for size in range(len(lifetimes) + 1) for chosen in combinations(lifetimes, size)
            if all(must_be_apart(a, b) for a, b in combinations(chosen, 2))]  # fmt: skip
    heaviest = max(sum(padded(each.tensor) for each in chosen) for chosen in sets)
    assert place(lifetimes, "any").peak_live_bytes == heaviest


@given(st.data())
def test_visible_means_happens_before(data):
    """The first kernel of a stream that comes after another one, against the order that the checker finds."""
    graph = data.draw(graphs())
    plan = scheduled(graph, streams=data.draw(stream_maps(graph))).plan
    visible, order = becomes_visible_at(graph.nodes, plan), happens_before(plan.instructions)
    index = {node: i for i, node in enumerate(graph.nodes)}
    for k, launch in enumerate(plan.launches):
        for stream in range(plan.streams):
            later = [
                index[other.node] for m, other in enumerate(plan.launches)
                if other.stream == stream and order.before(k, m)
            ]  # fmt: skip
            assert visible[index[launch.node]][stream] == min(later, default=len(graph.nodes))
