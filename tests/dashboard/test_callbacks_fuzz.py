"""Hostile requests to all callbacks of all pages; `tests/fuzz/callbacks.py` sends them for hours."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.dashboard.graph_runs import write_runs
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import PLACES, Fuzzed, callbacks_of, peak
from tests.fuzz.hostile import asked
from tracer import formats

MOST_MORE = 300 * 2**20


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    write_runs(runs)
    formats.write(decode(), runs / "a")
    return Fuzzed(runs)


def test_every_page_has_callbacks_to_be_fuzzed(fuzzed):
    assert {place: len(callbacks_of(fuzzed.client, place)) for place in PLACES} == {
        "": 23, "gap/": 6, "syncs/": 5, "advice/": 6, "whatif/": 4, "graph/": 4,
    }  # fmt: skip


def test_hostile_requests_are_answered_soon_or_refused_in_a_line(fuzzed):
    before = peak()

    @settings(max_examples=10, suppress_health_check=[*HealthCheck])
    @given(fuzzed.bodies)
    def requests(request):
        fuzzed.check(*request)

    requests()
    assert fuzzed.requests[200] > 0
    assert peak() - before < MOST_MORE


@pytest.mark.parametrize("hostile", [30_000_000, 10**9, -(2**53), 1e308, float("nan"), "(a+)+$" * 9, [[]] * 100_000])
def test_a_value_in_every_place_of_every_callback(fuzzed, hostile):
    for page, callback in fuzzed.callbacks:
        for name in [f"{one['id']}.{one['property']}" for one in (*callback["inputs"], *callback["state"])]:
            value = [hostile] if name.startswith("{") else hostile
            fuzzed.check(page, asked(callback, {name: value}))
