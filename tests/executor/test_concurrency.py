"""Dependencies and regions: exact on graphs made by hand, against networkx on random ones."""

import json
from itertools import combinations
from pathlib import Path

import networkx as nx
from hypothesis import given

from executor.graph import Flag, Graph, memory_order, ops
from executor.planning.concurrency import all_regions, bits, find_dependencies, find_regions, map_streams
from tests.executor.handmade import graph_of, regions_of
from tests.executor.random_graphs import graphs


def outline(graph, regions=None):
    """Regions by name: (fork, join, [(nodes of a branch, its inner regions), ...])."""
    names = [node.name for node in graph.nodes]
    regions = regions_of(graph.nodes) if regions is None else regions
    branches = [[(" ".join(names[i] for i in b.nodes), outline(graph, b.inner)) for b in r.branches] for r in regions]
    return [(names[r.fork], names[r.join], inside) for r, inside in zip(regions, branches, strict=True)]


def kernel_order(graph):
    """Kernels and what must run before them, reshapes looked through, as networkx sees it."""
    order = nx.DiGraph()
    order.add_nodes_from(range(len(graph.nodes)))
    order.add_edges_from((b, i) for i, before in enumerate(memory_order(graph.nodes)) for b in before)
    closure = nx.transitive_closure_dag(order)
    return closure.subgraph(i for i, node in enumerate(graph.nodes) if node.has_kernel)


@given(graphs())
def test_closure_and_reduction_are_those_of_networkx(graph):
    found, expected = find_dependencies(graph.nodes, tie=False), kernel_order(graph)
    reduced = nx.transitive_reduction(expected)
    assert set(bits(found.kernels)) == set(expected)
    for i in expected:
        assert set(bits(found.before[i])) == set(expected.predecessors(i))
        assert set(bits(found.after[i])) == set(expected.successors(i))
        assert set(bits(found.needs[i])) == set(reduced.predecessors(i))


@given(graphs())
def test_branches_need_nothing_of_each_other_and_are_closed(graph):
    """Between the branches there is no path; all of them lie after the fork and before the join."""
    order = kernel_order(graph)
    tied = find_dependencies(graph.nodes)
    regions = regions_of(graph.nodes)
    streams = map_streams(graph.nodes, regions)
    for region, _level in all_regions(regions):
        assert len(region.branches) > 1
        for branch in region.branches:
            for i in branch.nodes:
                assert tied.before[i] >> region.fork & 1
                assert tied.after[i] >> region.join & 1
            for inner in branch.inner:
                assert {i for b in inner.branches for i in b.nodes} <= set(branch.nodes)
        for one, other in combinations(region.branches, 2):
            assert one.nodes
            assert not any(order.has_edge(a, b) or order.has_edge(b, a) for a in one.nodes for b in other.nodes)
            assert not {streams[i] for i in one.nodes} & {streams[i] for i in other.nodes}


def test_a_residual_is_no_branch():
    """An edge with a small kernel on it is not worth a stream."""
    small = {"f": ["x"], "rows": ["f"], "n": ["f"], "q": ["n"], "k": ["n"], "at": ["q", "k"], "j": ["at", "rows"]}
    graph = graph_of(small)
    worth = {"q", "k"}
    found = find_regions(
        graph.nodes, find_dependencies(graph.nodes), worth=lambda kernels: any(n.name in worth for n in kernels)
    )
    assert outline(graph, found) == [("n", "at", [("q", []), ("k", [])])]


def test_what_is_not_worth_a_stream_stays_with_the_heaviest_branch():
    graph = graph_of({"f": ["x"], "a": ["f"], "small": ["f"], "b": ["f"], "j": ["a", "small", "b"]})
    weights = {"a": 1, "b": 2, "small": 0}
    found = find_regions(
        graph.nodes, find_dependencies(graph.nodes),
        worth=lambda kernels: kernels[0].name != "small", weight=lambda kernels: weights[kernels[0].name],
    )  # fmt: skip
    assert outline(graph, found) == [("f", "j", [("small b", []), ("a", [])])]
    assert map_streams(graph.nodes, found) == [0, 1, 0, 0, 0]


def test_an_update_of_state_stays_in_its_branch():
    """Nobody reads the new state in this step; it must neither hide the regions nor outlive the join."""
    graph = Graph()
    x, state = graph.leaf("x", (4,), flags=Flag.INPUT), graph.leaf("state", (4,))
    fork = ops.add(graph, x, x, name="fork")
    a = ops.add(graph, fork, state, name="a")
    ops.cpy(graph, a, state, name="state (next)")
    b = ops.mul(graph, fork, x, name="b")
    join = ops.add(graph, a, b, name="join")
    for layer in range(2):
        c, d = (ops.mul(graph, join, x, name=f"{name}{layer}") for name in "cd")
        join = ops.add(graph, c, d, name=f"join{layer}")
    assert outline(graph) == [
        ("fork", "join", [("a state (next)", []), ("b", [])]),
        ("join", "join0", [("c0", []), ("d0", [])]),
        ("join0", "join1", [("c1", []), ("d1", [])]),
    ]


def test_branches_that_share_memory_are_no_branches():
    graph = Graph()
    x, state = graph.leaf("x", (4,), flags=Flag.INPUT), graph.leaf("state", (4,))
    fork = ops.add(graph, x, x, name="fork")
    reader = ops.add(graph, fork, state, name="reader")
    writer = ops.cpy(graph, fork, state, name="writer")
    third = ops.mul(graph, fork, x, name="third")
    graph.node("join", "sum", (4,), "float32", (reader, writer, third))
    assert outline(graph) == [("fork", "join", [("reader writer", []), ("third", [])])]


def test_regions_of_known_graphs():
    for name, known in json.loads(
        (Path(__file__).parent / "data" / "regions.json").read_text(encoding="utf-8")
    ).items():
        graph = graph_of(known["edges"])
        assert json.loads(json.dumps(outline(graph))) == known["regions"], name
        assert 1 + max(map_streams(graph.nodes, regions_of(graph.nodes))) == known["streams"], name
