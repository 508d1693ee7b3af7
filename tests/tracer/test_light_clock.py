"""The alignment of the device's clock with the host's, against a known difference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer.recorders.light_clock import ClockBounds, align

AHEAD, DRIFT, WINDOW = -7_000_000_000, 3e-5, 500_000_000  # ns, ns per ns, ns
LAUNCH, RETURN = 8_000, 12_000  # ns: from a launch to its start on an idle device, from an end to the wait's return

ON_TIME, SOON, LATE = (0, 300), (60_000, 200_000), (100_000, 3_000_000)
LAGS = {  # how much later than `LAUNCH` or `RETURN`, ns, by the number of the window of half a second
    "on time": lambda window: ON_TIME,
    "late": lambda window: LATE,
    "soon": lambda window: SOON,
    "rarely on time": lambda window: ON_TIME if window % 7 == 2 else LATE,
    "seldom on time": lambda window: ON_TIME if window % 19 == 7 else SOON,
    # an engine that loads for 8 s, in which only the fourth window has close bounds, and then decodes
    "loading, then on time": lambda window: ON_TIME if window >= 16 or window == 3 else LATE,
    "loading, then soon": lambda window: SOON if window >= 16 else ON_TIME if window == 3 else LATE,
    "40 µs late from 8": lambda window: (40_000, 40_300) if window >= 8 and window != 26 else ON_TIME,
    "40 µs late from 30": lambda window: (40_000, 40_300) if window >= 30 else ON_TIME,
    "always 5 ms": lambda window: (5_000_000, 5_000_001),
    "polls": lambda window: (12_000, 112_000),
}
CASES = [  # launches and waits, or the other way; since which window; by how much it may be off, and says it is, ns
    ("on time", "on time", 0, 1_000, (10_000, 10_300)),
    # a host that rarely waits for the device, or a device that is rarely idle
    ("on time", "rarely on time", 0, 3_000, (0, 15_000)),
    # a slow host: two windows in 20 s have close bounds, and the clocks could have drifted to either bound since
    ("on time", "seldom on time", 0, 4_000, (0, 20_000)),
    # the other bound comes within 70 µs here and there, which seems close, but its middle is not the truth
    ("loading, then on time", "loading, then soon", 16, 5_000, (30_000, 10**9)),
    # no window has two close bounds: the steady one tells, but it may also be the other
    ("on time", "late", 0, 10_000, (100_000, 10**9)),
]


def truth(at):
    """Host time - device time at device times."""
    return np.asarray(AHEAD + np.rint(DRIFT * at).astype(np.int64))


def aligned(launch, wait, windows=40):
    """The stated error of launches and waits that are so late, and by how much the middle of each window is off, if the
    middle between both bounds were the truth."""
    draw = np.random.default_rng(3)
    at = np.sort(draw.integers(0, windows * WINDOW, 20 * windows)).astype(np.int64)
    late = np.array([[draw.integers(*LAGS[lag](int(each // WINDOW))) for each in at] for lag in (launch, wait)])
    found = align(ClockBounds(at, truth(at) - LAUNCH - late[0]), ClockBounds(at, truth(at) + RETURN + late[1]))
    middles = WINDOW * np.arange(windows) + WINDOW // 2
    return found.error_ns, np.abs(found.to_host(middles) - middles - truth(middles) - (RETURN - LAUNCH) // 2)


@pytest.mark.parametrize(("launch", "wait", "since", "within", "error"), CASES)
def test_close_and_steady_bounds_are_followed(launch, wait, since, within, error):
    for one, other in {(launch, wait), (wait, launch)}:
        stated, apart = aligned(one, other)
        assert apart[since:].max() < within, one
        assert error[0] <= stated <= error[1], one


def test_the_stated_error_holds_where_no_bound_tells():
    for launch, wait, more, factor in (
        # a steady bound that moved from where it was reached: launches are late, steadily, but with close bounds
        ("40 µs late from 8", "seldom on time", LAUNCH, 1),
        ("40 µs late from 30", "seldom on time", LAUNCH, 1),
        # a device that is always as far behind, and a host that polls: the launches are late, and steadily so
        ("always 5 ms", "polls", 0, 1),
        ("late", "late", 0, 2),  # half of the bounds' distance
    ):
        error, apart = aligned(launch, wait)
        assert apart.max() <= factor * error + more, launch
        assert error > 100_000 or launch != "late"


def drifting(at, bend, since, late=LAUNCH, every=1):
    """The largest error of a clock whose drift changes by so much since then, and the stated one."""
    moved = truth(at) + np.rint(bend * np.maximum(at - since, 0)).astype(np.int64)
    found = align(ClockBounds(at, moved - late), ClockBounds(at[::every], moved[::every] + RETURN))
    return float(np.abs(found.to_host(at) - at - moved).max()), found.error_ns


def test_long_after_close_bounds_the_error_is_that_of_both():
    """Launches are late since the tenth second, and the clocks' drift changes: either bound may be reached."""
    at = np.arange(0, 90 * WINDOW, WINDOW // 20).astype(np.int64)
    apart, error = drifting(at, 8e-6, 20 * WINDOW, np.where(at < 20 * WINDOW, LAUNCH, 300_000))
    assert apart <= error + RETURN


def test_rare_bounds_tell_each_their_own_time():
    """A launch and a wait for it every minute, while the drift of the clocks changes."""
    for bend in (0, 2e-6, 8e-6):
        for pairs, apart_s, within in ((3, 60, 10_001), (20, 60, 10_001), (50, 10, 10_001), (3, 1, 516_001)):
            at = apart_s * 2 * WINDOW * np.arange(pairs).astype(np.int64)
            apart, error = drifting(at, bend, int(at[pairs // 2]))
            assert apart <= error <= within, (bend, pairs)


def test_the_error_grows_with_the_time_between_waits():
    """Launches all the time, waits every minute: between these the clocks may have drifted by as much as they may."""
    at = np.arange(0, 600 * WINDOW, WINDOW // 5).astype(np.int64)
    apart, error = drifting(at, 4e-6, 250 * WINDOW, every=600)
    assert (LAUNCH + RETURN) / 2 < apart <= error < 700_000


def test_without_waits_the_clock_drifts_and_no_work_starts_before_its_launch():
    at = np.arange(0, 120 * WINDOW, WINDOW // 10).astype(np.int64)
    lower = ClockBounds(at, truth(at) - LAUNCH)
    found = align(lower, ClockBounds(at[:0], at[:0]))
    assert found.error_ns is None
    assert np.abs(found.to_host(at) - at - lower.ns).max() < 1_000


@given(st.lists(st.tuples(st.integers(0, 20 * WINDOW), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1))
@settings(max_examples=8)
def test_no_estimate_contradicts_a_bound(bounds):
    at, launch, wait = np.array(sorted(bounds), np.int64).T
    lower, upper = ClockBounds(at, truth(at) - launch), ClockBounds(at, truth(at) + wait)
    found = align(lower, upper)
    here = np.interp(at, found.at, found.ns)
    drifted = 1e-3 * 20 * WINDOW  # what drift can be taken for, if only a few bounds show it
    assert (here >= truth(at).min() - launch.max() - drifted).all()
    assert (here <= truth(at).max() + wait.max() + drifted).all()
