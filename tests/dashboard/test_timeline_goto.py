"""Where a text leads on the timeline, and what is said of it."""

import pandas as pd
import pytest

from dashboard.pages.overview.actions import after_request, gone
from dashboard.reading.store import RunStore
from dashboard.scene import limits_of, panels_of, timeline_of, whole_of
from dashboard.view import View
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import formats

TOKENS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(TOKENS), directory / "a")
    formats.write(decode(TOKENS, gap=2 * GAP), directory / "b")
    return RunStore([directory]).chosen(["a", "b"])


VIEW = View(runs=("a", "b"), token=2, range=(0, PERIOD))


@pytest.mark.parametrize(("text", "time"), [("1.5 ms", 1_500_000), ("-300us", -300_000), ("−300 µs", -300_000),
                                            ("0 s", 0), ("+250000 ns", 250_000)])  # fmt: skip
def test_a_time_is_on_the_axis_and_goes_to_the_middle(runs, text, time):
    assert gone(VIEW, runs, text).view.range == (time - PERIOD // 2, time + PERIOD // 2)


def test_the_next_gap_longer_than_so_much_in_time_of_all_runs(runs):
    first = gone(VIEW, runs, "> 150 us")
    low, high = first.view.range
    assert high - low == PERIOD, "as wide as it was, where the gap fits"
    assert (low + high) / 2 == PERIOD + GAP, "the middle of run b's gap after token 3; that after token 2 is passed"
    assert first.said == "Gap 4 of 5 longer than 150 µs: 200 µs after token 3 of b."
    again = gone(gone(first.view, runs, "gap > 0.15 ms").view, runs, ">150us")
    assert again.said == "Gap 1 of 5 longer than 150 µs: 200 µs after token 0 of b. Continued from the start."
    back = gone(again.view, runs, "> 150 µs", -1)
    assert back.said == "Gap 5 of 5 longer than 150 µs: 200 µs after token 4 of b. Continued from the end."
    anyone = gone(VIEW, runs, "")
    assert anyone.said.startswith("Gap 7 of 10: 100 µs after token 3 of a.")
    assert gone(View(runs=("a",), token=2, range=(0, 30)), runs[:1], ">").view.range == (-GAP, 2 * GAP)


def test_a_double_click_shows_the_token_under_it(runs):
    panel = panels_of(runs, VIEW)[1]
    shown = after_request(VIEW, {"what": "token", "x": (PERIOD + 300_000) / 1e9, "y": panel.top + 5}, runs)
    low, high = shown.range
    start = PERIOD + 2 * GAP  # of token 4's compute in b, from the end of token 2's
    assert low < start < high - PERIOD
    assert high - low == pytest.approx(1.16 * PERIOD, rel=0.01)
    assert shown.token == VIEW.token
    assert after_request(VIEW, {"what": "token", "x": 1e300, "y": -1}, runs).range is not None


def test_the_ruler_numbers_the_tokens_in_view_as_many_as_have_room(runs):
    plot, _ = timeline_of(runs, View(runs=("a", "b"), token=2, range=(-PERIOD, 2 * PERIOD)), "light", 1200)
    (ruler,) = [trace for trace in plot["data"] if trace["name"] == "token"]
    of_a = [(text, x) for text, x, y in zip(ruler["text"], ruler["x"], ruler["y"], strict=True) if y == ruler["y"][0]]
    assert [text for text, _ in of_a] == ["2", "3", "4", "5"]
    assert [x * 1e9 for _, x in of_a] == pytest.approx([GAP - PERIOD, GAP, PERIOD + GAP, 2 * PERIOD + GAP])
    few, _ = timeline_of(runs[:1], View(runs=("a",), token=2, range=(-40 * PERIOD, 40 * PERIOD)), "light", 450)
    (ruler,) = [trace for trace in few["data"] if trace["name"] == "token"]
    assert ruler["text"] == ["0"], "six tokens on 45 px have room for one number"


def test_the_whole_recording_is_more_than_its_steps(tmp_path):
    trace = decode(TOKENS)
    api = trace["api"]
    early = api.head(1).assign(start=-40 * PERIOD, end=-39 * PERIOD)
    calls = pd.concat([early, api], ignore_index=True)
    formats.write(trace.map_tables(lambda name, frame: calls if name == "api" else frame), tmp_path / "a")
    runs = RunStore([tmp_path]).chosen(["a"])
    view = View(runs=("a",), token=0)
    low, high = whole_of(runs, view)
    assert (low, high) == (-41 * PERIOD, (TOKENS - 1) * PERIOD)
    assert runs[0].phases_beside["what"].tolist() == ["before the first step"]
    assert limits_of(runs, view)[0] > -PERIOD
