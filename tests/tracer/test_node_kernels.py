"""The node pass placed in the steps of the light pass, to the ns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tests.tracer.truths import as_found, rows
from tracer import Trace
from tracer.analysis import node_kernels
from tracer.analysis.node_kernels import PlacedKernels, place_kernels

LIGHT, NODE = 10_000, 20_000  # ns of a step in either pass
KERNELS = ((0, 1000), (1500, 5000), (5500, 8000))


def sourced(script: Script, source: str) -> Trace:
    return Trace(script.trace.tables, {"source": source})


def light_pass(steps: int, length: int = 4000, source: str = "light") -> Trace:
    """Steps of a copy to the device, a graph from 2000 on, and a copy back, whose times on the device are unknown."""
    script = Script()
    for at in range(0, steps * LIGHT, LIGHT):
        script.range("token", at, at + LIGHT)
        script.copy((at + 100, at + 200), (at + 100, at + 100))
        script.graph((at + 300, at + 400), (at + 2000, at + 2000 + length), stream=13)
        script.copy((at + 500, at + 600), (at + 2000 + length,) * 2, kind="DtoH", stream=13)
        script.sync(at + 700, at + 9000, stream=13)
    return sourced(script, source)


def node_pass(steps: int, kernels: tuple[tuple[int, int], ...] = KERNELS, numbered: bool = False) -> Trace:
    """The same steps of another process under CUPTI: the graph's kernels, from 3000 on, and copies of 50 and 80 ns."""
    script = Script()
    for step in range(steps):
        at = step * NODE
        script.range("token", at, at + NODE)
        script.copy((at + 100, at + 200), (at + 250, at + 300))
        call = script.call("cudaGraphLaunch_v10000", at + 400, at + 900)
        for name, (start, end) in zip("abcdef", kernels, strict=False):
            script.kernel(at + 3000 + start, at + 3000 + end, call, name=f"{name}{step}" if numbered else name)
        last = at + 3000 + max(end for _, end in kernels)
        script.copy((at + 1000, at + 1100), (last + 20, last + 100), kind="DtoH")
        script.sync(at + 1200, at + NODE - 1000)
    return sourced(script, "cupti").map_tables(
        lambda _, table: table.assign(process=7) if "process" in table else table
    )


def placed(light: Trace, node: Trace) -> PlacedKernels | None:
    return place_kernels(light, as_found(light).steps, node)


def test_kernels_lie_between_the_edges_of_their_graph_in_proportion() -> None:
    """And copies 150 ns behind their call and 20 ns behind the graph, as in the node pass."""
    light = light_pass(3)
    found = placed(light, node_pass(3))
    assert found is not None
    kernels, starts = found.trace["kernels"], (0, LIGHT, 2 * LIGHT)
    expected = [[name, at + 2000 + start // 2, at + 2000 + end // 2] for at in starts
                for name, (start, end) in zip("abc", KERNELS, strict=True)]  # fmt: skip
    assert rows(kernels, "name", "start", "end") == expected
    launches = [row for row in rows(light["graph_launches"], "correlation", "process") for _ in KERNELS]
    assert rows(kernels, "correlation", "process", "stream", "graph") == [[*row, 13, 1] for row in launches]
    assert len(found.trace["graph_launches"]) == 0
    assert (found.graphs, found.placed, found.factor, found.copies) == (3, 3, 0.5, 6)
    copies = [[at + start, at + end] for at in starts for start, end in ((250, 300), (6020, 6100))]
    assert rows(found.trace["memcpys"], "start", "end") == copies
    assert "in 3 of 3 graphs of the light pass\nthey are placed in proportion" in found.note
    assert "(times 0.500)" in found.note
    assert rows(found.kernels(), "name", "us") == [["b", 1.75], ["c", 1.25], ["a", 0.5]]


def test_eager_launches_of_the_light_pass_are_not_kernels_of_a_step() -> None:
    """A light recording has kernels of its own, of eager launches: here the warm-up, long before the first step."""
    light, script = light_pass(3), Script()
    script.kernel(-9000, -1000, script.call("cuLaunchKernel", -9500, -9400), name="warm-up")
    warmed = Trace({**light.tables, "kernels": script.trace["kernels"]}, light.metadata)
    found = place_kernels(warmed, as_found(light).steps, node_pass(3))
    assert found is not None
    assert len(found.trace["kernels"]) == 10
    assert rows(found.kernels(), "us") == [1.75, 1.25, 0.5]


def test_steps_behind_the_node_pass_get_its_last_step() -> None:
    """Where attention grows, that is the nearest one."""
    found = placed(light_pass(5), node_pass(2, numbered=True))
    assert found is not None
    assert rows(found.trace["kernels"], "name")[::3] == ["a0", "a1", "a1", "a1", "a1"]


def test_what_does_not_fit_stays_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    light, node = light_pass(3), node_pass(3)
    assert placed(light_pass(3, source="host"), node) is None
    assert placed(light, Trace({})) is None
    launch = node["api"].assign(name="cudaGraphLaunch_v10000")  # more graphs than a step of the light pass has
    assert placed(light, Trace({**node.tables, "api": launch}, node.metadata)) is None
    monkeypatch.setattr(node_kernels, "MOST_ROWS", 7)
    found = placed(light, node)
    assert found is not None
    assert (found.graphs, found.placed, len(found.trace["graph_launches"])) == (3, 2, 1)


@settings(max_examples=6)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 3000)), min_size=1, max_size=5), st.integers(1, 7000))
def test_order_and_edges_hold_for_any_lengths(parts: list[tuple[int, int]], length: int) -> None:
    edges = np.cumsum([ns for part in parts for ns in part]) - parts[0][0]
    kernels = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    found = placed(light_pass(2, length), node_pass(2, kernels))
    assert found is not None
    of_first = [edge for row in rows(found.trace["kernels"], "start", "end")[: len(parts)] for edge in row]
    assert (of_first[0], of_first[-1]) == (2000, 2000 + length)
    assert of_first == sorted(of_first)
