"""The new timeline of a what-if with several streams: every kernel where the simulation has it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, Script
from tests.tracer.test_whatif import predicted
from tests.tracer.test_whatif_streams import graph_of
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.streams import stream_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.overlap import Overlap
from tracer.analysis.whatif.streams import Concurrent, Learned, lowest_free
from tracer.errors import UsageError
from tracer.model.graph_json import Node
from tracer.model.schema import TABLES
from tracer.model.trace import conform

TOKENS, PERIOD = 5, 13_000
NAMES = ("a", "b", "c", "d")
ENDS = (0, 1000, 3000, 5000, 6000)
FORK = graph_of(
    Node("a", "mul_mat", (8,), "float32", 32, 0, weight_bytes=10**6),
    Node("b", "mul", (8,), "float32", 32, 0, (0,)),
    Node("c", "mul", (8,), "float32", 32, 0, (0,)),
    Node("d", "add", (8,), "float32", 32, 0, (1, 2)),
)
EXACT = Learned(Overlap(edge_ns=100, prologue_ns=0, latency_ns=0), 0.0, 20, "exact")


def run(every_kernel: bool, warmup: bool = False) -> Trace:
    """Tokens of one graph launch: 12 µs of compute as a whole, or 6 µs of four kernels of half the device each."""
    script = Script()
    for token in range(TOKENS):
        t = token * PERIOD
        script.range("warmup" if warmup and token == 0 else "token", t, t + PERIOD - 100)
        if every_kernel:
            spans = [(t + 50 + start, t + 50 + end) for start, end in pairwise(ENDS)]
            script.launch((t, t + 10), *spans, api="cudaGraphLaunch_v10000")
        else:
            script.graph((t, t + 10), (t + 50, t + 12_050))
        script.sync(t + 20, t + (6060 if every_kernel else 12_060))
    trace = script.trace
    trace.metadata["source"] = "host"  # no profiler, whose cost would be taken off
    names = {"name": list(NAMES) * TOKENS, "short_name": list(NAMES) * TOKENS}
    if every_kernel:
        kernels = trace["kernels"].assign(**names, grid_x=50, grid_y=1, grid_z=1, graph_node=3)
        trace.tables["kernels"] = conform(kernels, TABLES["kernels"])
    streams = pd.DataFrame({"process": [PROCESS], "context": [1], "stream": [7], "priority": [5], "flag": [1]})
    trace.tables["streams"] = conform(streams, TABLES["streams"])
    trace.tables["devices"] = conform(pd.DataFrame({"device": [0], "sm_count": [100]}), TABLES["devices"])
    return trace


def edit(**different: object) -> Concurrent:
    node = run(every_kernel=True)
    return replace(Concurrent(FORK, node, find_steps(node), learned=EXACT), **different)


def placed(trace: Trace, step: int, start: int) -> list[tuple[str, int, int, int]]:
    """Name, stream, start and end of a step's kernels, from the start of its compute."""
    rows = trace["kernels"].sort_values(["start", "stream"]).iloc[4 * step : 4 * step + 4]
    return [
        (str(r.name_), r.stream, r.start - start, r.end - start)
        for r in rows.rename(columns={"name": "name_"}).itertuples()
    ]


def test_each_kernel_is_where_the_simulation_has_it() -> None:
    """a 1000; b beside c, which starts 100 later, 2000 both; d 1000 behind c: 4100 of 6000, at twice the time."""
    found = predicted(run(every_kernel=False), edit())
    assert len(found.trace["graph_launches"]) == 0
    assert len(found.trace["kernels"]) == 4 * TOKENS
    new = PERIOD - 12_000 + 8200
    expected = [("a", 7, 0, 2000), ("b", 7, 2000, 6000), ("c", 8, 2200, 6200), ("d", 7, 6200, 8200)]
    for step in range(TOKENS):
        assert placed(found.trace, step, step * new + 50) == expected
    assert found.predicted.period_us * 1e3 == new
    assert found.speedup.estimate == pytest.approx(PERIOD / new)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1))
def test_as_few_streams_as_kernels_run_at_once(spans: list[tuple[int, int]]) -> None:
    start, took = np.array(spans, dtype=float).T
    end = start + took
    streams = lowest_free(start, end)
    for stream in set(streams):
        mine = np.flatnonzero(streams == stream)
        mine = mine[np.lexsort((end[mine], start[mine]))]
        assert (start[mine][1:] >= end[mine][:-1]).all()
    most = max(int(((start <= time) & (time < end)).sum()) for time in start)
    assert len(set(streams)) <= max(most, 1) + int((took == 0).any())


def test_gap_period_and_overlap_are_those_of_the_prediction() -> None:
    found = predicted(run(every_kernel=False), edit())
    steps = find_steps(found.trace)
    gaps = gap_report(found.trace, steps)
    assert gaps.gap_us == pytest.approx(found.predicted.gap_us)
    assert gaps.gap_us["p50"] == 1
    assert gaps.period_us == pytest.approx(found.predicted.period_us)
    report = stream_report(found.trace, steps)
    assert report.devices.loc[0, ["streams", "busy_us", "overlap_us"]].tolist() == [2, 8.2 * TOKENS, 3.8 * TOKENS]
    assert report.streams["compute_us"].tolist() == [8 * TOKENS, 4 * TOKENS]
    again = predicted(found.trace)
    assert again.before.gap_us == pytest.approx(found.predicted.gap_us)
    assert again.before.period_us == pytest.approx(found.predicted.period_us)


def test_kernels_are_linked_to_their_launch_and_streams_described() -> None:
    found = predicted(run(every_kernel=False), edit())
    kernels, api = found.trace["kernels"], found.trace["api"]
    launches = api[api["name"].astype("str").str.startswith("cudaGraphLaunch")]
    counts = kernels["correlation"].value_counts()
    assert set(counts.index) == set(launches["correlation"])
    assert (counts == 4).all()
    assert (kernels["graph"] == 1).all()
    assert found.trace["streams"][["stream", "priority", "flag"]].to_numpy().tolist() == [[7, 5, 1], [8, 5, 1]]


def test_from_a_recording_with_every_kernel() -> None:
    found = predicted(run(every_kernel=True), edit())
    assert len(found.trace["kernels"]) == 4 * TOKENS
    rows = placed(found.trace, 0, 50)
    assert [row[:2] for row in rows] == [("a", 7), ("b", 7), ("c", 8), ("d", 7)]
    expected = [(0, 1000), (1000, 3000), (1100, 3100), (3100, 4100)]
    assert np.array([row[2:] for row in rows]) == pytest.approx(np.array(expected), abs=2)  # whole ns per kernel
    assert found.predicted.period_us * 1e3 == pytest.approx(PERIOD - 6000 + 4100, abs=2)


def test_what_is_of_no_step_stays() -> None:
    """The first launch is of no token."""
    found = predicted(run(every_kernel=False, warmup=True), edit())
    assert found.trace["graph_launches"][["start", "end"]].to_numpy().tolist() == [[50, 12_050]]
    assert len(found.trace["kernels"]) == 4 * (TOKENS - 1)


def test_both_kernels_of_a_split_product_share_its_time() -> None:
    """d as a product in two kernels: both behind each other where d was."""
    node = run(every_kernel=True)
    kernels = node["kernels"].copy()
    last = kernels["name"] == "d"
    halves = kernels[last].assign(start=kernels["start"] + 700, name="splitKreduce_kernel")
    kernels.loc[last, "end"] -= 300
    node.tables["kernels"] = conform(pd.concat([kernels, halves]).astype({"name": "str"}), TABLES["kernels"])
    found = predicted(run(every_kernel=False), edit(node=node, node_steps=find_steps(node)))
    rows = found.trace["kernels"].iloc[3:5]
    assert rows["name"].astype("str").tolist() == ["d", "splitKreduce_kernel"]
    assert (rows[["start", "end"]].to_numpy() - 50).tolist() == [[6200, 7600], [7600, 8200]]


def test_new_streams_have_numbers_of_their_own() -> None:
    """Streams that only syncs and copies name are counted as well."""
    trace = run(every_kernel=False)
    trace.tables["syncs"] = trace["syncs"].assign(stream=np.where(np.arange(TOKENS) == 1, 40, 7))
    assert set(predicted(trace, edit()).trace["kernels"]["stream"]) == {7, 41}


def test_a_recording_of_whole_graphs_has_no_kernels_to_place() -> None:
    whole = run(every_kernel=False)
    with pytest.raises(UsageError, match="no kernels, only whole graphs"):
        predicted(whole, edit(node=whole, node_steps=find_steps(whole)))


def test_kernels_launched_one_by_one_are_refused() -> None:
    script = Script()
    for token in range(TOKENS):
        t = token * PERIOD
        script.range("token", t, t + PERIOD - 100)
        for i in range(4):
            script.launch((t + 20 * i, t + 20 * i + 10), (t + 50 + 100 * i, t + 150 + 100 * i))
        script.sync(t + 100, t + 460)
    with pytest.raises(UsageError, match="launches its kernels in 4 calls"):
        predicted(script.trace, edit())
