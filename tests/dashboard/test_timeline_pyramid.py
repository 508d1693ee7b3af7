"""The pyramid says of every view what `detail` says, whichever way it answers."""

from dataclasses import fields
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.timeline import pyramid
from dashboard.timeline.pyramid import FEW, Detail, Pyramid, detail, in_view
from tracer.model.intervals import covered

EVENTS = st.lists(st.tuples(st.integers(-500, 1500), st.integers(0, 300)), min_size=1, max_size=150)
VIEW = st.tuples(st.integers(-3000, 900), st.integers(1, 6000))


def _arrays(events):
    start, length = np.array(sorted(events), dtype=np.int64).T.copy()
    return start, start + length


def _reference(start, end, low, high, bins):
    """What `detail` says of the view, widened to whole bins of a power of two."""
    width = 1
    while width * bins < high - low:
        width *= 2
    low, high = low // width * width, -(-high // width) * width
    chosen = in_view(start, np.maximum.accumulate(end), end, low, high)
    return detail(start, end, chosen, low, high, (high - low) // width)


def _same(found, wanted):
    for column in fields(Detail):
        np.testing.assert_array_equal(getattr(found, column.name), getattr(wanted, column.name), column.name)
        assert getattr(found, column.name).dtype == np.int64


@given(EVENTS, VIEW, st.integers(1, 12), st.sampled_from([1, 2, 4, 1000]))
@example([(0, 300), *((n, 0) for n in range(100))], (40, 30), 12, 1)
@example([(0, 0)] * 9, (-1, 58), 8, 1)
def test_small_rows_with_levels_and_without(events, view, bins, sparing):
    start, end = _arrays(events)
    with mock.patch.multiple(pyramid, FEW=4, _SPARING=sparing):
        _same(Pyramid.of(start, end).detail(view[0], sum(view), bins), _reference(start, end, view[0], sum(view), bins))


@given(EVENTS, VIEW, st.integers(1, 12), st.sampled_from([1, 2, 4, 1000]))
def test_a_bin_stands_for_the_events_that_it_counts(events, view, bins, sparing):
    start, end = _arrays(events)
    with mock.patch.multiple(pyramid, FEW=4, _SPARING=sparing):
        levels = Pyramid.of(start, end)
        drawn = levels.detail(view[0], sum(view), bins)
        for low, high, count, busy, longest in zip(
            drawn.start, drawn.end, drawn.count, drawn.busy, drawn.longest, strict=True
        ):
            merged = levels.merged(low, high)
            assert len(merged) == count
            assert covered(start[merged], end[merged], [low], [high]) == busy
            assert merged[np.argmax(end[merged] - start[merged])] == longest


BURST = 100_000


def _row(kind, count=300_000):
    draw = np.random.default_rng(0)
    gap = np.full(count, 1_500)
    if kind == "burst":
        gap[BURST : BURST + 2 * FEW] = 20
    start = np.cumsum(gap) + draw.integers(0, 10, count)
    length = draw.integers(1, 1_400, count)
    length[:: count // 7] = 40_000_000  # some that reach over many views
    length[10] = 10**9
    order = np.argsort(start, kind="stable")
    return start[order], (start + length)[order]


@pytest.fixture(scope="module", params=["steady", "burst"])
def row(request):
    start, end = _row(request.param)
    return start, end, Pyramid.of(start, end)


def test_every_way_of_answering_is_taken(row):
    """So that the tests above test them all: few events, a level, and many events where no level is narrow enough."""
    start, end, levels = row
    burst = start[BURST + 99] - start[BURST] < 10_000
    with (
        mock.patch.object(pyramid, "detail", wraps=detail) as few,
        mock.patch.object(pyramid, "_level", wraps=pyramid._level) as level,
    ):
        levels.detail(int(start[100]), int(start[110]), 900)
        assert (few.call_count, level.call_count) == (1, 0)
        levels.detail(int(start[0]), int(end.max()), 900)
        assert (few.call_count, level.call_count) == (1, 0)
        levels.detail(int(start[BURST]), int(start[BURST] + 1_000_000), 900)
        assert (few.call_count, level.call_count) == ((1, 1) if burst else (2, 0))
