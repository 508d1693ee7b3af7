"""The node pass placed in the steps of the light pass, to the ns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis import node_kernels
from tracer.analysis.node_kernels import place_kernels
from tracer.analysis.tokens import find_steps

LIGHT, NODE = 10_000, 20_000  # ns of a step in either pass


def light_pass(steps: int, length: int = 4000) -> Trace:
    """Steps of a copy to the device, a graph from 2000 on, and a copy back, whose times on the device are unknown."""
    script = Script()
    for at in range(0, steps * LIGHT, LIGHT):
        script.range("token", at, at + LIGHT)
        script.copy((at + 100, at + 200), (at + 100, at + 100))
        script.graph((at + 300, at + 400), (at + 2000, at + 2000 + length), stream=13)
        script.copy((at + 500, at + 600), (at + 2000 + length,) * 2, kind="DtoH", stream=13)
        script.sync(at + 700, at + 9000, stream=13)
    return replace_source(script.trace, "light")


def node_pass(steps: int, kernels: tuple[tuple[int, int], ...], names: str = "abcdef") -> Trace:
    """The same steps of another process under CUPTI: the graph's kernels, from 3000 on, and copies of 50 and 80 ns."""
    script = Script()
    for at in range(0, steps * NODE, NODE):
        script.range("token", at, at + NODE)
        script.copy((at + 100, at + 200), (at + 250, at + 300))
        call = script.call("cudaGraphLaunch_v10000", at + 400, at + 900)
        for name, (start, end) in zip(names, kernels, strict=False):
            script.kernel(at + 3000 + start, at + 3000 + end, call, name=name)
        last = at + 3000 + max(end for _, end in kernels)
        script.copy((at + 1000, at + 1100), (last + 20, last + 100), kind="DtoH")
        script.sync(at + 1200, at + NODE - 1000)
    trace = replace_source(script.trace, "cupti")
    moved = {name: table.assign(process=7) for name, table in trace.tables.items() if "process" in table}
    return Trace({**trace.tables, **moved}, trace.metadata)


def replace_source(trace: Trace, source: str) -> Trace:
    return Trace(trace.tables, {"source": source})


KERNELS = ((0, 1000), (1500, 5000), (5500, 8000))


def test_kernels_lie_between_the_edges_of_their_graph_in_proportion() -> None:
    light = light_pass(3)
    found = place_kernels(light, find_steps(light), node_pass(3, KERNELS))
    assert found is not None
    kernels = found.trace["kernels"]
    half = [(2000 + start // 2, 2000 + end // 2) for start, end in KERNELS]
    assert kernels[["start", "end"]].to_numpy().tolist() == [
        [at + start, at + end] for at in (0, LIGHT, 2 * LIGHT) for start, end in half
    ]
    assert kernels["name"].astype(str).tolist() == ["a", "b", "c"] * 3
    assert (kernels["stream"] == 13).all()
    assert (kernels["graph"] == 1).all()
    launches = light["graph_launches"]
    assert kernels["correlation"].tolist() == np.repeat(launches["correlation"], 3).tolist()
    assert kernels["process"].tolist() == [launches["process"].iloc[0]] * 9
    assert not len(found.trace["graph_launches"])
    assert (found.graphs, found.placed, found.factor) == (3, 3, 0.5)
    assert "in 3 of 3 graphs of the light pass, placed in proportion" in found.note
    assert "(times 0.500)" in found.note
    assert found.kernels().reset_index().to_numpy().tolist() == [["b", 1.0, 1.75], ["c", 1.0, 1.25], ["a", 1.0, 0.5]]


def test_eager_launches_of_the_light_pass_are_not_kernels_of_a_step() -> None:
    """A light recording has kernels of its own, of eager launches: here the warm-up, long before the first step."""
    light = light_pass(3)
    script = Script()
    script.kernel(-9000, -1000, script.call("cuLaunchKernel", -9500, -9400), name="warm-up")
    warmed = Trace({**light.tables, "kernels": script.trace["kernels"]}, light.metadata)
    found = place_kernels(warmed, find_steps(light), node_pass(3, KERNELS))
    assert found is not None
    assert len(found.trace["kernels"]) == 10
    assert found.kernels()["us"].to_dict() == {"b": 1.75, "c": 1.25, "a": 0.5}


def test_copies_get_their_duration_behind_their_call_and_before_the_graph() -> None:
    """150 ns behind the call and 20 ns behind the graph, as in the node pass."""
    light = light_pass(2)
    found = place_kernels(light, find_steps(light), node_pass(2, KERNELS))
    assert found is not None
    assert found.copies == 4
    assert found.trace["memcpys"][["start", "end"]].to_numpy().tolist() == [
        [250, 300], [6020, 6100], [LIGHT + 250, LIGHT + 300], [LIGHT + 6020, LIGHT + 6100],
    ]  # fmt: skip


def test_copies_on_one_stream_follow_each_other() -> None:
    passes = []
    for device in (None, 400):
        script = Script()
        for at in (0, LIGHT):
            script.range("token", at, at + LIGHT)
            for n in range(3):
                start = at + 100 * n + (0 if device is None else 1000 + 300 * n)
                script.copy((at + 100 * n, at + 100 * n + 50), (start, start if device is None else start + device))
            script.launch((at + 400, at + 500), (at + 4000, at + 5000))
        passes.append(replace_source(script.trace, "cupti" if device else "light"))
    found = place_kernels(passes[0], find_steps(passes[0]), passes[1])
    assert found is not None
    copies = found.trace["memcpys"]
    assert copies["start"].tolist()[:3] == [1000, 1400, 1800]
    assert (copies["end"] - copies["start"] == 400).all()


def test_steps_behind_the_node_pass_get_its_last_step() -> None:
    """Where attention grows, that is the nearest one."""
    light, node = light_pass(5), node_pass(2, KERNELS)
    names = node["kernels"]["name"].astype(str) + (node["kernels"]["start"] // NODE).astype(str)
    node.tables["kernels"] = node["kernels"].assign(name=names.astype("category"))
    found = place_kernels(light, find_steps(light), node)
    assert found is not None
    assert found.trace["kernels"]["name"].astype(str).tolist()[::3] == ["a0", "a1", "a1", "a1", "a1"]


def test_what_does_not_fit_stays_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    light, node = light_pass(3), node_pass(3, KERNELS)
    steps = find_steps(light)
    assert place_kernels(replace_source(light, "host"), steps, node) is None
    assert place_kernels(light, steps, Trace({})) is None
    launch = node["api"].assign(name="cudaGraphLaunch_v10000")  # more graphs than a step of the light pass has
    assert place_kernels(light, steps, Trace({**node.tables, "api": launch}, node.metadata)) is None
    monkeypatch.setattr(node_kernels, "MOST_ROWS", 7)
    found = place_kernels(light, steps, node)
    assert found is not None
    assert (found.graphs, found.placed, len(found.trace["graph_launches"])) == (3, 2, 1)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 3000)), min_size=1, max_size=5), st.integers(1, 7000))
def test_order_and_edges_hold_for_any_lengths(parts: list[tuple[int, int]], length: int) -> None:
    kernels, at = [], 0
    for gap, duration in parts:
        start = at + (gap if kernels else 0)
        kernels.append((start, at := start + duration))
    light = light_pass(2, length)
    found = place_kernels(light, find_steps(light), node_pass(2, tuple(kernels)))
    assert found is not None
    placed = found.trace["kernels"].iloc[: len(kernels)]
    assert placed["start"].iloc[0] == 2000
    assert placed["end"].max() == 2000 + length
    assert (placed["end"] >= placed["start"]).all()
    assert (placed["start"].to_numpy()[1:] >= placed["end"].to_numpy()[:-1]).all()
