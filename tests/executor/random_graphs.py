"""Hypothesis strategies: graphs of nodes with one to three sources, some outputs, in-place writes and reshapes."""

from hypothesis import strategies as st

from executor.graph import Flag, Graph


@st.composite
def graphs(draw, most=25, size=300):
    graph = Graph()
    tensors = [graph.leaf(f"in{i}", (draw(st.integers(1, size)),), "int8", Flag.INPUT) for i in range(2)]
    tensors.append(graph.leaf("state", (draw(st.integers(1, size)),), "int8"))
    for i in range(draw(st.integers(1, most))):
        src = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        view = draw(st.sampled_from([None, None, None, src[0]]))
        op = draw(st.sampled_from(["any", "any", "reshape"])) if view else "any"
        shape = view.shape if view else (draw(st.integers(1, size)),)
        flags = draw(st.sampled_from([Flag.NONE, Flag.NONE, Flag.OUTPUT]))
        tensors.append(graph.node(f"n{i}", op, shape, "int8", src, view_src=view, flags=flags))
    return graph


def stream_maps(graph, streams=3):
    """A stream for every node."""
    return st.lists(
        st.integers(0, streams - 1), min_size=len(graph.nodes), max_size=len(graph.nodes)
    )  # fmt: skip
