"""Allocators: no two tensors that are in use together share a byte, and how much each takes."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from executor.graph import Graph
from executor.planning.allocator import (
    ALIGNMENT,
    ALLOCATORS,
    Lifetime,
    Schedule,
    becomes_visible_at,
    find_uses,
    place,
)
from executor.planning.concurrency import Region, find_dependencies, map_streams
from executor.planning.hazards import happens_before
from executor.planning.plans import make_plan
from tests.executor.handmade import graph_of, regions_of, split_of
from tests.executor.random_graphs import graphs, stream_maps


def scheduled(graph, regions=(), streams=None):
    split = split_of(graph)
    streams = map_streams(split.nodes, regions) if streams is None else streams
    return Schedule(split, regions, streams, make_plan(split.nodes, find_dependencies(split.nodes), streams))


def everything(graph):
    """One region over the whole graph, for streams that follow no regions."""
    return [Region(-1, len(graph.nodes), ())]


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


def free_from(allocator, graph):
    """Tensor -> position from which the main stream may write its bytes."""
    schedule = scheduled(graph, regions_of(graph.nodes))
    lifetimes = ALLOCATORS[allocator].lifetimes(find_uses(schedule.split), schedule)
    return {lifetime.tensor.name: lifetime.free_at for lifetime in lifetimes if lifetime.tensor.name != "x"}


def test_when_bytes_become_free():
    """fork 0 -> a0 1 -> a1 2 on the main stream, b0 3 -> b1 4 on the other one -> join 5 -> end 6."""
    graph = graph_of(
        {
            "fork": ["x"],
            "a0": ["fork"],
            "a1": ["a0"],
            "b0": ["fork"],
            "b1": ["b0"],
            "join": ["a1", "b1"],
            "end": ["join"],
        }
    )
    assert free_from("sequential", graph) == {
        "fork": (4, 4), "a0": (3, 3), "a1": (6, 6), "b0": (5, 5), "b1": (6, 6), "join": (7, 7), "end": (8, 8)
    }  # fmt: skip
    interleaved = free_from("interleaved", graph)  # fork, a0, b0, a1, b1, join
    assert (interleaved["fork"], interleaved["a0"], interleaved["b0"]) == ((3, 3), (4, 4), (5, 5))
    pinned = free_from("no_alloc_free", graph)
    assert {name for name, free in pinned.items() if free == (6, 6)} == {"fork", "a0", "a1", "b0", "b1"}
    aware = free_from("stream_aware", graph)
    assert aware == {
        "fork": (5, 7), "a0": (5, 7), "a1": (6, 7), "b0": (5, 7), "b1": (6, 7), "join": (7, 7), "end": (8, 8)
    }  # fmt: skip


@given(st.data())
def test_visible_means_happens_before(data):
    """The first kernel of a stream that comes after another one, against the order that the checker finds."""
    graph = data.draw(graphs())
    plan = scheduled(graph, streams=data.draw(stream_maps(graph))).plan
    visible, order = becomes_visible_at(graph.nodes, plan), happens_before(plan.instructions, plan.streams)
    index = {node: i for i, node in enumerate(graph.nodes)}
    for k, launch in enumerate(plan.launches):
        for stream in range(plan.streams):
            later = [
                index[other.node] for m, other in enumerate(plan.launches)
                if other.stream == stream and order.before[m] >> k & 1
            ]  # fmt: skip
            assert visible[index[launch.node]][stream] == min(later, default=len(graph.nodes))
