"""Interval arithmetic against a brute-force count of nanoseconds."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.model.intervals import covered, overlap, total, uncovered, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def cells(spans: list[tuple[int, int]]) -> np.ndarray:
    """How many spans cover each of the cells 0..99."""
    count = np.zeros(100, dtype=int)
    for start, end in spans:
        count[start:end] += 1
    return count


def split(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [s for s, _ in spans], [e for _, e in spans]


def test_union_merges_what_touches_and_drops_what_is_empty() -> None:
    starts, ends = union([20, 0, 5, 12, 40, 50], [30, 10, 12, 12, 40, 45])
    assert starts.tolist() == [0, 20]
    assert ends.tolist() == [12, 30]


@given(SPANS)
def test_union_total_and_overlap_count_each_nanosecond_once(spans: list[tuple[int, int]]) -> None:
    starts, ends = union(*split(spans))
    assert (cells(list(zip(starts, ends, strict=True))) == (cells(spans) > 0)).all()
    assert (starts[1:] > ends[:-1]).all()
    assert total(*split(spans)) == (cells(spans) > 0).sum()
    assert overlap(*split(spans)) == (cells(spans) > 1).sum()


@given(SPANS, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=5))
def test_covered_is_what_the_union_covers_of_each_window(
    spans: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    found = covered(*split(spans), *split(windows))
    assert found.tolist() == [int((cells(spans)[a:b] > 0).sum()) for a, b in windows]


@given(SPANS, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=5))
def test_uncovered_is_what_the_union_leaves_of_each_window(
    spans: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    starts, ends, of = uncovered(*split(spans), *split(windows))
    assert (ends > starts).all()
    assert (np.diff(of) >= 0).all()
    free = cells(spans) == 0
    for number, (low, high) in enumerate(windows):
        mine = list(zip(starts[of == number].tolist(), ends[of == number].tolist(), strict=True))
        assert all(before[1] < after[0] for before, after in pairwise(mine))
        inside = np.arange(100)[low:high] if high > low else np.arange(0)
        assert [at for a, b in mine for at in range(a, b)] == inside[free[inside]].tolist()
