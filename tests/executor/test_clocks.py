"""Clock alignment against clocks whose true relation is known."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from executor.clocks import Alignment, Offset

DELAYS = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=50)


def samples(delays, offset, start=0):
    """The device answers `there` ns after the question; the answer is back after `back` ns more."""
    rows, now = [], start
    for there, back in delays:
        rows.append((now, now + there - offset, now + there + back))
        now += there + back + 1
    return rows


@given(DELAYS, st.integers(-(10**12), 10**12))
def test_the_true_offset_lies_within_the_error(delays, offset):
    found = Offset.of(samples(delays, offset))
    assert abs(found.ns - offset) <= found.error_ns
    assert found.error_ns <= min(there + back for there, back in delays)


def test_more_samples_never_make_the_error_larger():
    delays = [(900, 800), (300, 700), (800, 200)]
    errors = [Offset.of(samples(delays[:n], 50)).error_ns for n in (1, 2, 3)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 250  # at most 300 there, at most 200 back


def test_drift_is_followed_between_the_calibrations():
    first, last = Offset(0, 1000, 5), Offset(1_000_000_000, 21_000, 9)
    alignment = Alignment(first, last)
    assert alignment.error_ns == 9
    assert alignment.drift_ppm == 20.0
    assert alignment.to_host(np.array([0, 500_000_000, 1_000_000_000])).tolist() == [1000, 500_011_000, 1_000_021_000]


def test_contradicting_samples_show_in_the_error():
    assert Offset.of([(0, 0, 10), (1000, 0, 1010)]).error_ns >= 495
