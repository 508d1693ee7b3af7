"""Tracks of viewers: nothing is dropped from one, because what crosses goes to another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tracer.formats.tracks import Ints, lanes, slice_order, tracks_of

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
