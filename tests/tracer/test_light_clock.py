"""The alignment of the device's clock with the host's, against a known difference."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracer.recorders.light_clock import Alignment, ClockBounds, align

AHEAD, DRIFT, WINDOW = -7_000_000_000, 3e-5, 500_000_000  # ns, ns per ns, ns
LAUNCH, RETURN = 8_000, 12_000  # ns: from a launch to its start on an idle device, from an end to the wait's return
Lag = Callable[[int, np.random.Generator], int]


def truth(at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Host time - device time at device times."""
    return np.asarray(AHEAD + np.rint(DRIFT * at).astype(np.int64))


def aligned(late_launch: Lag, late_return: Lag, windows: int = 40) -> tuple[Alignment, NDArray[np.int64]]:
    """The alignment of launches and waits that are later than `LAUNCH` and `RETURN` by these times, given the window;
    and the error in the middle of each window, if the middle between both bounds were the truth."""
    draw = np.random.default_rng(3)
    at = np.sort(draw.integers(0, windows * WINDOW, 20 * windows)).astype(np.int64)
    late = np.array([[lag(int(each // WINDOW), draw) for each in at] for lag in (late_launch, late_return)])
    found = align(ClockBounds(at, truth(at) - LAUNCH - late[0]), ClockBounds(at, truth(at) + RETURN + late[1]))
    assert found is not None
    middles = WINDOW * np.arange(windows) + WINDOW // 2
    return found, found.to_host(middles) - middles - truth(middles) - (RETURN - LAUNCH) // 2


def on_time(_: int, draw: np.random.Generator) -> int:
    return int(draw.integers(0, 300))


def late(_: int, draw: np.random.Generator) -> int:
    return int(draw.integers(100_000, 3_000_000))


def rarely(window: int, draw: np.random.Generator) -> int:
    return on_time(window, draw) if window % 7 == 2 else late(window, draw)


def test_both_bounds_are_reached() -> None:
    found, apart = aligned(on_time, on_time)
    assert np.abs(apart).max() < 1_000
    assert found.error_ns is not None
    assert (LAUNCH + RETURN) / 2 <= found.error_ns <= (LAUNCH + RETURN) / 2 + 300


@pytest.mark.parametrize(("launch", "wait"), [(on_time, rarely), (rarely, on_time)])
def test_windows_with_one_close_bound_follow_those_with_two(launch: Lag, wait: Lag) -> None:
    """A host that rarely waits for the device, or a device that is rarely idle."""
    found, apart = aligned(launch, wait)
    assert np.abs(apart).max() < 3_000
    assert found.error_ns is not None
    assert found.error_ns < 15_000


def soon(_: int, draw: np.random.Generator) -> int:
    return int(draw.integers(60_000, 200_000))


def seldom(window: int, draw: np.random.Generator) -> int:
    return on_time(window, draw) if window % 19 == 7 else soon(window, draw)


@pytest.mark.parametrize(("launch", "wait"), [(on_time, seldom), (seldom, on_time)])
def test_between_two_windows_with_close_bounds_the_steady_bound_is_followed(launch: Lag, wait: Lag) -> None:
    """A slow host: two windows in 20 s have close bounds, and the clocks could have drifted to either bound since."""
    found, apart = aligned(launch, wait)
    assert np.abs(apart).max() < 4_000
    assert found.error_ns is not None
    assert found.error_ns < 20_000


def loading(of: Lag) -> Lag:
    """An engine that loads for 8 s, in which only the fourth window has close bounds, and then decodes."""
    return lambda window, draw: of(window, draw) if window >= 16 else (on_time if window == 3 else late)(window, draw)


@pytest.mark.parametrize(("launch", "wait"), [(on_time, soon), (soon, on_time)])
def test_an_engine_that_loads_and_then_reaches_one_bound(launch: Lag, wait: Lag) -> None:
    """The other bound comes within 70 µs here and there, which seems close, but its middle is not the truth."""
    found, apart = aligned(loading(launch), loading(wait))
    assert np.abs(apart[16:]).max() < 5_000
    assert found.error_ns is not None
    assert found.error_ns > 30_000  # the clocks may have drifted to the other bound since


@pytest.mark.parametrize("since", [8, 30])
def test_a_steady_bound_that_moved_from_where_it_was_reached_is_not_followed(since: int) -> None:
    """Launches are 40 µs late, and steadily so, but in the windows with close bounds: `since` of them later."""
    close = (7, 26)
    found, apart = aligned(
        lambda window, draw: on_time(window, draw) + 40_000 * (window not in close and window >= since), seldom
    )
    assert found.error_ns is not None
    assert np.abs(apart).max() <= found.error_ns + LAUNCH


@pytest.mark.parametrize(("launch", "wait"), [(on_time, late), (late, on_time)])
def test_the_steady_bound_tells_if_no_window_has_two_close_ones(launch: Lag, wait: Lag) -> None:
    found, apart = aligned(launch, wait)
    assert np.abs(apart).max() < 10_000
    assert found.error_ns is not None
    assert found.error_ns > 100_000  # it may also be the other one


def test_a_steady_bound_beside_a_steady_one_tells_nothing() -> None:
    """A device that is always as far behind, and a host that polls: the launches are late, and steadily so."""
    found, apart = aligned(lambda *_: 5_000_000, lambda _, draw: int(draw.integers(12_000, 112_000)))
    assert found.error_ns is not None
    assert np.abs(apart).max() <= found.error_ns


def test_long_after_close_bounds_the_error_is_that_of_both() -> None:
    """Launches are late since the tenth second, and the clocks' drift changes: either bound may be reached."""
    at = np.arange(0, 90 * WINDOW, WINDOW // 20).astype(np.int64)
    moved = truth(at) + np.rint(8e-6 * np.maximum(at - 20 * WINDOW, 0)).astype(np.int64)
    late = np.where(at < 20 * WINDOW, LAUNCH, 300_000)
    found = align(ClockBounds(at, moved - late), ClockBounds(at, moved + RETURN))
    assert found is not None
    assert found.error_ns is not None
    assert np.abs(found.to_host(at) - at - moved).max() <= found.error_ns + RETURN


@pytest.mark.parametrize("bend", [0, 2e-6, 8e-6])
@pytest.mark.parametrize(
    ("pairs", "apart", "within"), [(3, 60, 10_001), (20, 60, 10_001), (50, 10, 10_001), (3, 1, 516_001)]
)
def test_rare_bounds_tell_each_their_own_time(pairs: int, apart: int, within: int, bend: float) -> None:
    """A launch and a wait for it every minute, while the drift of the clocks changes."""
    at = apart * 2 * WINDOW * np.arange(pairs).astype(np.int64)
    moved = truth(at) + np.rint(bend * np.maximum(at - at[pairs // 2], 0)).astype(np.int64)
    found = align(ClockBounds(at, moved - LAUNCH), ClockBounds(at, moved + RETURN))
    assert found is not None
    assert found.error_ns is not None
    assert np.abs(found.to_host(at) - at - moved).max() <= found.error_ns <= within


def test_the_error_grows_with_the_time_between_waits() -> None:
    """Launches all the time, waits every minute: between these the clocks may have drifted by as much as they may."""
    at = np.arange(0, 600 * WINDOW, WINDOW // 5).astype(np.int64)
    moved = truth(at) + np.rint(4e-6 * np.maximum(at - 250 * WINDOW, 0)).astype(np.int64)
    waits = at[::600]
    found = align(ClockBounds(at, moved - LAUNCH), ClockBounds(waits, moved[::600] + RETURN))
    assert found is not None
    assert found.error_ns is not None
    apart = np.abs(found.to_host(at) - at - moved).max()
    assert (LAUNCH + RETURN) / 2 < apart <= found.error_ns < 700_000


def test_without_waits_the_clock_drifts_and_no_work_starts_before_its_launch() -> None:
    at = np.arange(0, 120 * WINDOW, WINDOW // 10).astype(np.int64)
    lower = ClockBounds(at, truth(at) - LAUNCH)
    found = align(lower, ClockBounds(at[:0], at[:0]))
    assert found is not None
    assert found.error_ns is None
    assert np.abs(found.to_host(at) - at - lower.ns).max() < 1_000


def test_without_a_close_bound_the_error_is_half_their_distance() -> None:
    found, apart = aligned(late, late)
    assert found.error_ns is not None
    assert found.error_ns > 100_000
    assert np.abs(apart).max() < 2 * found.error_ns


@given(st.lists(st.tuples(st.integers(0, 20 * WINDOW), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1))
@settings(max_examples=8)
def test_no_estimate_contradicts_a_bound(bounds: list[tuple[int, int, int]]) -> None:
    at, launch, wait = np.array(sorted(bounds), np.int64).T
    lower, upper = ClockBounds(at, truth(at) - launch), ClockBounds(at, truth(at) + wait)
    found = align(lower, upper)
    assert found is not None
    here = np.interp(at, found.at, found.ns)
    drifted = 1e-3 * 20 * WINDOW  # what drift can be taken for, if only a few bounds show it
    assert (here >= truth(at).min() - launch.max() - drifted).all()
    assert (here <= truth(at).max() + wait.max() + drifted).all()
