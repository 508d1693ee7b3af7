"""Level of detail: nothing in view is lost, and bins cover exactly the busy time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dashboard.timeline.pyramid import detail, in_view
from tracer.model.intervals import total, union

EVENTS = st.lists(st.tuples(st.integers(-500, 1500), st.integers(0, 300)), min_size=1, max_size=120)
VIEW = st.tuples(st.integers(-300, 900), st.integers(1, 700))


def _arrays(events):
    start = np.array(sorted(s for s, _ in events), dtype=np.int64)
    length = np.array([n for _, n in sorted(events)], dtype=np.int64)
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
    clipped = np.clip(start[merged], low, high), np.clip(end[merged], low, high)
    assert drawn.busy.sum() == total(*clipped)
    for a, b, busy, count, longest in zip(drawn.start, drawn.end, drawn.busy, drawn.count, drawn.longest, strict=True):
        inside = [i for i in merged if start[i] < b and (end[i] > a or (a <= start[i] or a == low))]
        touching = [i for i in inside if end[i] > a or start[i] >= a]
        assert count == len(touching) > 0
        assert busy <= b - a
        assert longest in touching
        assert end[longest] - start[longest] == max(end[i] - start[i] for i in touching)
    assert (drawn.start[1:] >= drawn.end[:-1]).all()
    for i in merged:  # none is without a bin
        assert any(start[i] < b and (end[i] > a or start[i] >= a) for a, b in zip(drawn.start, drawn.end, strict=True))


def test_long_events_stay_exact_among_many_short_ones():
    start = np.concatenate((np.arange(0, 1000, 2), [1000])).astype(np.int64)
    end = np.append(start[:-1] + 1, 2000)
    drawn = detail(start, end, np.arange(len(start)), 0, 2000, 100)
    assert drawn.exact.tolist() == [500]
    assert drawn.count.sum() == 500
    assert union(drawn.start, drawn.end)[1].tolist() == [1000]
