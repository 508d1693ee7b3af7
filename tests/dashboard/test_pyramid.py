"""Level of detail: nothing in view is lost, bins cover exactly the busy time, and a pyramid says what a scan says."""

from dataclasses import fields
from unittest import mock

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.timeline import pyramid
from dashboard.timeline.pyramid import FEW, Detail, Pyramid, detail, in_view
from tracer.model.intervals import covered, total

EVENTS = st.lists(st.tuples(st.integers(-500, 1500), st.integers(0, 300)), min_size=1, max_size=150)
VIEW = st.tuples(st.integers(-3000, 900), st.integers(1, 6000))


def _arrays(events):
    start, length = np.array(sorted(events), dtype=np.int64).T.copy()
    return start, start + length


@given(EVENTS, VIEW, st.integers(1, 40))
def test_every_event_is_drawn_or_counted_and_busy_time_is_exact(events, view, bins):
    start, end = _arrays(events)
    low, high = view[0], view[0] + view[1]
    chosen = in_view(start, np.maximum.accumulate(end), end, low, high)
    drawn = detail(start, end, chosen, low, high, bins)
    merged = np.setdiff1d(chosen, drawn.exact)
    if len(chosen) <= bins:
        assert len(merged) == 0
    assert drawn.busy.sum() == total(np.clip(start[merged], low, high), np.clip(end[merged], low, high))
    seen = set()
    for a, b, busy, count, longest in zip(drawn.start, drawn.end, drawn.busy, drawn.count, drawn.longest, strict=True):
        inside = [i for i in merged if start[i] < b and (end[i] > a or start[i] >= a)]
        assert count == len(inside) > 0
        assert busy <= b - a
        assert longest in inside
        assert end[longest] - start[longest] == max(end[i] - start[i] for i in inside)
        seen |= {*inside}
    assert (drawn.start[1:] >= drawn.end[:-1]).all()
    assert seen == {*merged}, "none is without a bin"


def test_long_events_stay_exact_among_many_short_ones():
    start = np.concatenate((np.arange(0, 1000, 2), [1000])).astype(np.int64)
    drawn = detail(start, np.append(start[:-1] + 1, 2000), np.arange(len(start)), 0, 2000, 100)
    assert (drawn.exact.tolist(), drawn.count.sum()) == ([500], 500)


def _reference(start, end, low, high, bins):
    """What `detail` says of the view, widened to whole bins of a power of two."""
    width = 1
    while width * bins < high - low:
        width *= 2
    low, high = low // width * width, -(-high // width) * width
    chosen = in_view(start, np.maximum.accumulate(end), end, low, high)
    return detail(start, end, chosen, low, high, (high - low) // width)


@given(EVENTS, VIEW, st.integers(1, 12), st.sampled_from([1, 2, 4, 1000]))
@example([(0, 300), *((n, 0) for n in range(100))], (40, 30), 12, 1)
@example([(0, 0)] * 9, (-1, 58), 8, 1)
def test_a_pyramid_says_what_detail_says_with_levels_and_without(events, view, bins, sparing):
    start, end = _arrays(events)
    with mock.patch.multiple(pyramid, FEW=4, _SPARING=sparing):
        levels = Pyramid.of(start, end)
        drawn, wanted = levels.detail(view[0], sum(view), bins), _reference(start, end, view[0], sum(view), bins)
        for column in fields(Detail):
            found = getattr(drawn, column.name)
            np.testing.assert_array_equal(found, getattr(wanted, column.name), column.name)
            assert found.dtype == np.int64
        for low, high, count, busy, longest in zip(
            drawn.start, drawn.end, drawn.count, drawn.busy, drawn.longest, strict=True
        ):
            merged = levels.merged(low, high)
            assert len(merged) == count
            assert covered(start[merged], end[merged], [low], [high]) == busy
            assert merged[np.argmax(end[merged] - start[merged])] == longest


def test_every_way_of_answering_is_taken():
    """So that the test above tests them all: few events, a level, and many events where no level is narrow enough."""
    count, burst, draw = 300_000, 100_000, np.random.default_rng(0)
    gap = np.full(count, 1_500)
    gap[burst : burst + 2 * FEW] = 20
    start = np.cumsum(gap)
    length = draw.integers(1, 1_400, count)
    length[:: count // 7] = 40_000_000  # some that reach over many views
    levels = Pyramid.of(start, start + length)
    with (
        mock.patch.object(pyramid, "detail", wraps=detail) as few,
        mock.patch.object(pyramid, "_level", wraps=pyramid._level) as level,
    ):
        for first, width, calls in ((100, 15_000, (1, 0)), (0, 10**9, (1, 0)), (burst, 10**6, (1, 1))):
            levels.detail(int(start[first]), int(start[first]) + width, 900)
            assert (few.call_count, level.call_count) == calls
