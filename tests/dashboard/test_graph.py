"""The graph page: parts, picture, kernel times, links to the timeline and back."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from dashboard.pages.graph import GraphView, draw, first_part, memory_figure, panel, part_of, parts_of, problem_of
from dashboard.pages.overview.table import row
from dashboard.reading.run import executions_of
from dashboard.reading.store import RunStore
from tests.dashboard.filled import eight_b, write_runs
from tracer import Trace


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {run.key: run for run in RunStore([write_runs(tmp_path_factory.mktemp("runs"))]).runs()}


@pytest.fixture(scope="module")
def run(runs):
    return runs["tiny-sccc-branches"]


def words(component):
    """All text in a component, its properties included."""
    return json.dumps([c.to_plotly_json() for c in component], default=lambda c: c.to_plotly_json())


def test_a_large_graph_falls_into_parts_that_hold_every_node_once_and_no_region_in_two():
    for concurrency in ("sequential", "branches"):
        graph = eight_b(concurrency)
        parts = parts_of(graph)
        assert [i for part in parts for i in part] == list(range(len(graph.nodes)))
        assert all(sum(graph.nodes[i].stream is not None for i in part) < 150 for part in parts)
        assert all(part_of(parts, i) == number for number, part in enumerate(parts) for i in part)
        assert first_part(graph, parts) == 0
    assert len(parts) == len(graph.regions)
    for region in graph.regions:
        inside = parts[part_of(parts, region.fork)]
        assert all(i in inside for i, node in enumerate(graph.nodes) if region.fork < i < region.join)


@pytest.mark.parametrize("number", [0, 30])
def test_the_picture_keeps_columns_order_and_every_edge(number):
    graph = eight_b()
    part = parts_of(graph)[number]
    picture = draw(graph, part)
    edges = [e for e in picture.elements if "source" in e["data"]]
    nodes = {e["data"]["id"]: e for e in picture.elements if "source" not in e["data"]}
    kernels = [i for i in part if graph.nodes[i].stream is not None]
    assert len({(nodes[f"n{i}"]["position"]["x"], nodes[f"n{i}"]["position"]["y"]) for i in part}) == len(part)
    for stream in range(graph.streams):
        places = [picture.places[i] for i in kernels if graph.nodes[i].stream == stream]
        assert len({x for x, _ in places}) <= 1
        assert [y for _, y in places] == sorted(y for _, y in places)
    for edge in edges:
        assert nodes[edge["data"]["source"]]["position"]["y"] < nodes[edge["data"]["target"]]["position"]["y"]
    drawn = {kind: [(e["data"]["source"], e["data"]["target"]) for e in edges if kind in e["classes"]]
             for kind in ("read", "event")}  # fmt: skip
    assert {*drawn["read"]} == {(f"n{source}", f"n{i}") for i in part for source in graph.nodes[i].src}
    waits = [(w.source, w.target) for w in graph.waits if w.source in part or w.target in part]
    assert drawn["event"] == [(f"n{source}", f"n{target}") for source, target in waits]
    assert all(0 < x < picture.width and 0 < y < picture.height for x, y in picture.places.values())
    outside = {key for key, node in nodes.items() if "outside" in node["classes"]}
    assert outside == nodes.keys() - {f"n{i}" for i in part}


def test_the_memory_chart_names_the_allocator_in_use_and_the_hazards(run):
    figure = memory_figure(run.graph.memory, run.graph.allocator, "light")
    bars = {bar.name: list(bar.x) for bar in figure.data}
    assert bars["allocated"] == [m.peak_bytes for m in run.graph.memory]
    assert bars["live"] == [m.peak_live_bytes for m in run.graph.memory]
    assert "<b>stream_aware, used</b>" in figure.layout.yaxis.ticktext
    assert ["hazard" in note.text for note in figure.layout.annotations] == [True, True, False, False]


def test_every_kernel_of_a_cpu_recording_is_its_node(run):
    found, graph, kernels = run.executions, run.graph, run.trace["kernels"]
    counts = found.durations["count"]
    assert found.problem == ""
    assert sorted(counts.index) == sorted(graph.launches)
    assert set(counts) == {3 * 4}  # repeats, tokens; the warm-up counts for nothing
    mine = kernels[kernels["name"] == "flash_attn_ext(blk.1.attn)"].iloc[-12:]
    last = mine.iloc[-1]
    assert graph.nodes[found.node_of(int(last["stream"]), int(last["start"]))].name == "blk.1.attn"
    assert found.node_of(int(last["stream"]), -5) is None
    median = found.durations["median"][graph.index["blk.1.attn"]]
    assert median == pytest.approx(np.median(mine["end"] - mine["start"]))


def test_numbers_of_a_cuda_graph_are_launches_where_they_are_as_many(run):
    launches = run.graph.launches

    def numbered(numbers):
        starts = np.arange(len(numbers)) * 10
        kernels = {"start": starts, "end": starts + np.arange(len(numbers)) + 1, "stream": [7] * len(numbers),
                   "name": ["k"] * len(numbers), "graph_node": numbers}  # fmt: skip
        steps = pd.DataFrame({"start": [0], "end": [10 * len(numbers)]})
        return executions_of(Trace.from_columns(kernels=kernels), steps, run.graph)

    numbers = [40 + 3 * i for i in range(len(launches))]
    found = numbered(numbers[::-1])  # they need not run in the order of their numbers
    assert found.table["node"].tolist() == list(launches)[::-1]
    assert found.durations["median"][launches[-1]] == 1
    fewer = numbered(numbers[1:])
    assert not len(fewer.table)
    assert f"{len(launches) - 1} graph nodes" in fewer.problem
    bare = executions_of(Trace.from_columns(), pd.DataFrame({"start": [0], "end": [9]}), run.graph)
    assert "no kernels" in bare.problem
    assert "no token steps" in executions_of(None, None, run.graph).problem


def test_the_panel_says_what_a_node_is_and_what_cannot_be_shown_says_why(run, runs):
    said = words(panel(run, GraphView(run.key), run.graph.index["blk.0.attn"]))
    for expected in (
        "flash_attn_ext",
        "1,024",
        "input kq_mask",
        "blk.0.cache_v (set)",
        "event 2 of stream 2",
        "median",
    ):
        assert expected in said
    assert "without a kernel" in words(panel(run, GraphView(run.key), run.graph.index["blk.0.attn_q (heads)"]))
    shown = words(panel(run, GraphView(run.key), None))
    assert "82 of 102 nodes" in shown
    assert re.search(r"1 created, \d+ reused", shown)
    assert "missing required field `nodes`" in problem_of(runs["broken"], GraphView("broken"))
    assert "has no graph.json" in problem_of(runs["imported"], GraphView("imported"))
    assert "no run 'gone'" in problem_of(None, GraphView("gone"))
    assert row(runs["imported"])["graph"] == ""
    assert row(runs["eight"])["graph"] == "[show](graph/?run=eight)"
