"""The alignment of the device's clock with the host's, against a known difference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer.recorders.light_clock import ClockBounds, align
from tracer.recorders.light_ring import BRACKET

AHEAD, DRIFT, WINDOW, SECOND = -7_000_000_000, 3e-5, 500_000_000, 10**9  # ns, ns per ns, ns, ns
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


def truth(at, bend=0.0, since=0):
    """Host time - device time at device times, whose drift changes by `bend` at a time."""
    return np.asarray(AHEAD + np.rint(DRIFT * at + bend * np.maximum(at - since, 0)).astype(np.int64))


def brackets_at(times, widths, bend=0.0, since=0):
    """Readings at device times, of such widths; the device's is somewhere inside."""
    made, draw = np.zeros(len(times), BRACKET), np.random.default_rng(5)
    made["time"] = times
    host = times + truth(times, bend, since)
    made["before"] = host - np.rint(draw.random(len(times)) * widths).astype(np.int64)
    made["after"] = made["before"] + widths
    return made


def times_of(seconds, first=100_000_000):
    """When the recorder takes brackets: at once, then in intervals that double up to a second; and at the end."""
    found = [5]
    while found[-1] + first < seconds * SECOND:
        found.append(found[-1] + first)
        first = min(2 * first, SECOND)
    return np.array([*found, int(seconds * SECOND)], np.int64)


def program(launch, wait, windows=40, bend=0.0, since=0):
    """Bounds from launches and waits that are so late."""
    draw = np.random.default_rng(3)
    at = np.sort(draw.integers(0, windows * WINDOW, 20 * windows)).astype(np.int64)
    late = np.array([[draw.integers(*LAGS[lag](int(each // WINDOW))) for each in at] for lag in (launch, wait)])
    moved = truth(at, bend, since)
    return ClockBounds(at, moved - LAUNCH - late[0]), ClockBounds(at, moved + RETURN + late[1])


def apart(found, at, bend=0.0, since=0):
    """By how much host times are off, ns."""
    return np.abs(found.to_host(at) - at - truth(at, bend, since)).max()


@pytest.mark.parametrize("wait", [*LAGS, "never"])
@pytest.mark.parametrize("launch", ["on time", "late", "always 5 ms"])
def test_brackets_tell_the_clock_whatever_the_program_waits_for(launch, wait):
    lower, upper = program(launch, wait if wait in LAGS else "late")
    upper = upper if wait in LAGS else ClockBounds(upper.at[:0], upper.ns[:0])
    widths = np.random.default_rng(7).integers(2_000, 5_000, 24)
    widths[4::7] = 250_000  # the host did something else meanwhile
    found = align(lower, upper, brackets_at(times_of(20), widths))
    assert apart(found, lower.at) <= found.error_ns < 5_000
    assert (found.contradictions, found.brackets) == (0, 24)


def test_the_program_narrows_what_brackets_leave_open():
    wide = brackets_at(times_of(20), np.full(24, 0))
    wide["before"] -= 30_000
    wide["after"] += 30_000
    lower, upper = program("on time", "on time")
    alone, both = (align(lower, each, wide) for each in (ClockBounds(upper.at[:0], upper.ns[:0]), upper))
    assert alone.error_ns > 20_000
    assert apart(both, lower.at) <= both.error_ns < 15_000


def test_bounds_that_brackets_exclude_move_nothing_and_are_counted():
    """As where a wait is taken for one for work that it did not wait for."""
    own = brackets_at(times_of(20), np.full(24, 3_000))
    lower, upper = program("on time", "late")
    upper.ns[100] -= 4_000_000
    found = align(lower, upper, own)
    assert apart(found, lower.at) <= found.error_ns < 5_000
    assert found.contradictions == 1


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_stated_error_of_brackets_contains_the_truth(data):
    """Of recordings of any length, also where the drift changes, and where the first or the last is missing."""
    seconds = data.draw(st.floats(0.001, 30))
    times = times_of(seconds)
    times = times[data.draw(st.integers(0, 1)) : len(times) - data.draw(st.integers(0, 1))]
    if not len(times):
        return
    widths = np.array(data.draw(st.lists(st.integers(300, 90_000), min_size=len(times), max_size=len(times))))
    bend, since = data.draw(st.floats(-4e-7, 4e-7)), int(times[len(times) // 2])
    at = np.linspace(0, seconds * SECOND, 200).astype(np.int64)
    lower = ClockBounds(at, truth(at, bend, since) - 700_000)
    found = align(lower, ClockBounds(at[:0], at[:0]), brackets_at(times, widths, bend, since))
    assert apart(found, at, bend, since) <= found.error_ns
    assert found.error_ns <= widths.max() + 1e-4 * seconds * SECOND + 2_000


def test_a_clock_that_turns_is_followed_with_a_larger_error():
    """NTP slews the host's by 200 ppm for some seconds."""
    times = times_of(20)
    own = brackets_at(times, np.full(24, 3_000))
    turned = np.rint(2e-4 * np.clip(times - 8 * SECOND, 0, 3 * SECOND)).astype(np.int64)
    own["before"] += turned
    own["after"] += turned
    at = np.arange(0, 20 * SECOND, SECOND // 50)
    found = align(ClockBounds(at, truth(at) - 10**6), ClockBounds(at[:0], at[:0]), own)
    here = truth(at) + np.rint(2e-4 * np.clip(at - 8 * SECOND, 0, 3 * SECOND)).astype(np.int64)
    assert np.abs(found.to_host(at) - at - here).max() <= found.error_ns < 500_000


@pytest.mark.parametrize("launch", LAGS)
@pytest.mark.parametrize("wait", LAGS)
def test_without_brackets_the_error_is_half_of_what_the_program_leaves_open(launch, wait):
    lower, upper = program(launch, wait)
    found = align(lower, upper)
    assert apart(found, lower.at) <= found.error_ns
    assert found.error_ns < {"on time": 25_000}.get(launch if launch == wait else "", 10**7)
    assert (found.contradictions, found.brackets) == (0, 0)


@pytest.mark.parametrize("bend", [0, 2e-6, 8e-6])
@pytest.mark.parametrize(("pairs", "apart_s"), [(3, 60), (20, 60), (50, 10), (3, 1), (1, 1)])
def test_rare_bounds_tell_each_their_own_time(bend, pairs, apart_s):
    """A launch and a wait for it every minute, while the drift of the clocks changes."""
    at = apart_s * SECOND * np.arange(pairs).astype(np.int64)
    moved = truth(at, bend, int(at[pairs // 2]))
    found = align(ClockBounds(at, moved - LAUNCH), ClockBounds(at, moved + RETURN))
    assert apart(found, at, bend, int(at[pairs // 2])) <= found.error_ns
    assert found.error_ns < 15_000 + (1e-5 + 1e-4 * (pairs < 4)) * apart_s * SECOND


def test_a_short_recording_has_the_error_of_an_unknown_drift():
    at = np.arange(0, SECOND // 5, SECOND // 1000)
    late = np.where(at < SECOND // 10, 40_000, 0)  # the bounds are tight at one end alone
    found = align(ClockBounds(at, truth(at) - LAUNCH - late), ClockBounds(at, truth(at) + RETURN + late))
    assert apart(found, at) <= found.error_ns < 45_000


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
