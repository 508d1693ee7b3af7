import pytest

from executor.graph import Flag, Graph, memory_order, ops


def test_roots_and_flags():
    graph = Graph()
    cache = graph.leaf("cache", (4, 2))
    row, index = graph.leaf("row", (1, 2), flags=Flag.INPUT), graph.leaf("i", (1,), "int64", Flag.INPUT)
    written = ops.set_rows(graph, cache, row, index, name="set")
    flat = ops.reshape(graph, written, (8,), name="flat")
    assert flat.root is cache
    assert (written.writes_view, flat.writes_view, flat.has_kernel) == (True, False, False)
    assert [t.name for t in graph.state] == ["cache"]
    assert [t.name for t in graph.inputs] == ["row", "i"]
    assert cache.nbytes == 32


def test_a_graph_refuses_equal_names_and_foreign_sources():
    graph, other = Graph(), Graph()
    x = graph.leaf("x", (4,))
    with pytest.raises(ValueError, match="two tensors are named x"):
        graph.leaf("x", (4,))
    with pytest.raises(ValueError, match="y: source x is not in the graph"):
        other.node("y", "add", (4,), "float32", (x, x))
    other.leaf("x", (4,))
    with pytest.raises(ValueError, match="z: source x is not in the graph"):
        other.node("z", "add", (4,), "float32", (x, x))


def heads_of(graph, n=2):
    return graph.leaf(f"heads of {n}", (n, 2, 4))


def state_of(graph, n=3):
    return graph.leaf(f"state of {n}", (n, 2, 4, 4))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, a, b: ops.mul_mat(g, a, b, name="y"), "y: mul_mat needs equal last dimensions"),
        (lambda g, a, b: ops.reshape(g, a, (5,), name="y"), r"cannot reshape to \(5,\)"),
        (lambda g, a, b: ops.swiglu(g, a, b, name="y"), "swiglu needs equal shapes"),
        (lambda g, a, b: ops.cpy(g, a, b, name="y"), "cpy needs equal shapes"),
        (lambda g, a, b: ops.set_rows(g, a, b, b, name="y"), "set_rows needs equal rows"),
        (lambda g, a, b: ops.get_rows(g, a, b, name="y"), "get_rows needs a vector"),
        (lambda g, a, b: ops.rope(g, a, b, base=1.0, mode="nox", name="y"), "rope needs a known mode"),
        (lambda g, a, b: ops.top_k(g, a, k=4, name="y"), "top_k cannot choose 4 columns"),
        (lambda g, a, b: ops.mul_mat_id(g, heads_of(g), heads_of(g, 3), a, name="y"), "mul_mat_id needs an input"),
        (lambda g, a, b: ops.moe_expert_reduce(g, heads_of(g), a, name="y"), "needs a weight per expert"),
        (lambda g, a, b: ops.ssm_conv(g, a, b, heads_of(g), name="y"), "ssm_conv needs a kernel per channel"),
        (
            lambda g, a, b: ops.gated_delta_net(g, *[heads_of(g, i) for i in range(5)], state_of(g), scale=1, name="y"),
            "gated_delta_net needs heads that fit",
        ),
        (
            lambda g, a, b: ops.flash_attn_ext(g, heads_of(g), state_of(g), state_of(g, 5), a, scale=1, name="y"),
            "heads do not fit",
        ),
    ],
)
def test_ops_check_shapes(build, message):
    graph = Graph()
    with pytest.raises(ValueError, match=message):
        build(graph, graph.leaf("a", (2, 3)), graph.leaf("b", (2, 4)))


def test_memory_order_keeps_writers_behind_readers():
    """read(state); write(state); read(state): the sources alone would not order the first two."""
    graph = Graph()
    state, one = graph.leaf("state", (2,)), graph.leaf("one", (2,))
    ops.add(graph, state, one, name="early reader")
    ops.add_inplace(graph, state, one, name="writer")
    ops.add(graph, state, one, name="late reader")
    assert memory_order(graph.nodes) == [set(), {0}, {1}]
