"""Tracks of viewers: nothing is dropped from one, because what crosses goes to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.nsys_exports import export
from tracer import formats
from tracer.formats.tracks import Ints, arrows, lanes, slice_order, tracks_of
from tracer.model.schema import TABLES

INTERVALS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12)


def _arrays(intervals: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    starts, lengths = np.array(intervals, np.int64).reshape(-1, 2).T
    return starts, starts + lengths


def _cross(a: tuple[int, int], b: tuple[int, int]) -> bool:
    (a_start, a_end), (b_start, b_end) = sorted((a, b))
    return a_start < b_start < a_end < b_end


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    first, second = sorted((a, b))
    return second[0] < first[1]


@given(intervals=INTERVALS)
def test_slices_of_a_lane_nest_or_are_disjoint(intervals: list[tuple[int, int]]) -> None:
    starts, ends = _arrays(intervals)
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    for nest, forbidden in ((True, _cross), (False, _overlap)):
        lane = lanes(starts, ends, nest=nest).tolist()
        pairs = [(i, j) for i in range(len(spans)) for j in range(i)]
        assert not [(i, j) for i, j in pairs if lane[i] == lane[j] and forbidden(spans[i], spans[j])]
        if not any(forbidden(spans[i], spans[j]) for i, j in pairs):
            assert set(lane) <= {0}


@given(intervals=INTERVALS)
def test_slices_begin_and_end_like_brackets_in_the_order_of_time(intervals: list[tuple[int, int]]) -> None:
    starts, ends = _arrays(intervals)
    nested = lanes(starts, ends, nest=True) == 0
    starts, ends = starts[nested], ends[nested]
    which, begins = slice_order(starts, ends)
    times = np.where(begins, starts[which], ends[which])
    assert (np.diff(times) >= 0).all()
    stack: list[int] = []
    for at, begin in zip(which.tolist(), begins.tolist(), strict=True):
        if begin:
            stack.append(at)
        else:
            assert stack.pop() == at
    assert not stack
    assert sorted(which.tolist()) == sorted([*range(len(starts))] * 2)


def test_calls_stay_on_their_thread_and_ranges_that_cross_them_do_not() -> None:
    script = Script()
    script.range("holds a call", 0, 100)
    script.range("ends in a call", 10, 25)
    script.range("begins in a call", 25, 40)
    script.range("in a call", 22, 24)
    script.call("cudaMalloc", 20, 30)
    tracks = tracks_of(script.trace)
    lane = tracks.table["lane"].to_numpy()
    assert lane[tracks.of["api"]].tolist() == [0]
    lane_of = dict(zip(script.trace["nvtx"]["text"], lane[tracks.of["nvtx"]].tolist(), strict=True))
    assert lane_of == {"holds a call": 0, "ends in a call": 1, "in a call": 0, "begins in a call": 1}


def test_a_track_for_each_stream_and_one_for_what_was_waited_for() -> None:
    script = Script()
    script.launch((0, 5), (10, 30), (20, 40), stream=7)  # two kernels at once
    script.launch((5, 8), (12, 14), stream=8)
    script.sync(8, 40)
    tracks = tracks_of(script.trace)
    rows = tracks.table[["kind", "thread", "stream", "lane"]].to_numpy().tolist()
    assert rows == [
        ["thread", THREAD, -1, 0],
        ["stream", -1, 7, 0], ["stream", -1, 7, 1], ["stream", -1, 8, 0], ["syncs", -1, 7, 0],
    ]  # fmt: skip
    assert tracks.names() == ["", "stream 7", "stream 7", "stream 8", "stream 7 syncs"]
    assert tracks.of["kernels"].tolist() == [1, 3, 2]


def test_streams_of_several_processes_are_told_apart() -> None:
    script = Script()
    script.kernel(0, 10, process=PROCESS)
    script.kernel(0, 10, process=PROCESS + 1)
    assert tracks_of(script.trace).names() == ["stream 7, process 100", "stream 7, process 101"]


def test_a_graph_launch_has_an_arrow_to_each_node() -> None:
    script = Script()
    script.launch((10, 15), (30, 31), (32, 33))
    script.copy((0, 5), (20, 21))
    script.kernel(50, 51)  # of a call that was not recorded
    table = arrows(script.trace)
    assert table[["id", "call", "table", "row"]].to_numpy().tolist() == [
        [1, 0, "memcpys", 0], [2, 1, "kernels", 0], [3, 1, "kernels", 1],
    ]  # fmt: skip


@pytest.mark.parametrize("copy", ["b.json", "b.pftrace"])
def test_what_viewers_have_no_place_for_is_told(copy: str, tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite"))
    columns = sum(len(frame.columns) - len(TABLES[name].columns) for name, frame in trace.tables.items())
    counts = f"{len(trace.carried)} tables and {columns} columns and 1 samples"
    told = f"left out: {counts} that only nsys's own formats can hold"
    assert told in formats.write(trace, tmp_path / copy)
    bare = formats.read(tmp_path / "a.sqlite", whole=False)
    assert not [note for note in formats.write(bare, tmp_path / f"bare{copy}") if "left out" in note]
