"""The ladder of strategies: only runs that are alike stand on one."""

import pytest

from dashboard.pages.overview.ladder import (
    ladder_figure,
    ladder_for,
    ladder_height,
    ladder_line,
    ladders_of,
    rung_text,
    with_clicked,
)
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.view import View
from tests.recordings import SAMPLES
from tracer.analysis.summary import Summary

ALIKE = {"model": "m", "gpu": "H200", "concurrency": "sequential", "batch": "1"}


def run(strategy, rate, spread=None, *, key=None, traced=None, **conditions):
    facts = {"tokens_per_s": rate, "tokens_per_s_spread": spread, "traced_tokens_per_s": traced}
    known = {name: value for name, value in (ALIKE | conditions).items() if value}
    summary = Summary(strategy, configured=strategy, conditions=known, **facts, traced=traced is not None)
    return Run(key or strategy, key or strategy, summary)


def test_the_fastest_is_on_top_with_the_spread_of_its_repeats():
    (ladder,) = ladders_of([run("sccc", 1228.0, (1222.0, 1231.0)), run("ggg", 1328.0), run("saaas", 1265.0)])
    assert [rung.strategy for rung in ladder.rungs] == ["ggg", "saaas", "sccc"]
    assert ladder.title == "H200 · m · sequential"
    assert rung_text(ladder.rungs[2]) == "sccc: 1,228.0 tokens/s (1,222.0 to 1,231.0 in its repeats) · sccc"
    rates = "tokens/s: ggg 1,328 › saaas 1,265 › sccc 1,228"
    assert ladder_line(ladder, ["another", "saaas"]) == f"Ladder of strategies, {rates}"
    assert ladder_line(ladder, ["another"]) == f"Ladder of strategies of other runs (H200 · m · sequential), {rates}"
    figure = ladder_figure(ladder, ["saaas"], "light")
    points = figure.data[0]
    assert (points.x, points.customdata) == ((1328, 1265, 1228), ("ggg", "saaas", "sccc"))
    assert (points.error_x.array, points.error_x.arrayminus) == ((0, 0, 3), (0, 0, 6))
    assert figure.layout.yaxis.ticktext == ("ggg", "<b>saaas</b>", "sccc")
    assert figure.layout.xaxis.range[0] < 1222
    assert ladder_height(ladder) > 100


@pytest.mark.parametrize(
    "unlike",
    [{"model": "n"}, {"gpu": "B200"}, {"concurrency": "branches"}, {"batch": "8"}, {"prompt": "2048"},
     {"gpu_layers": "13"}, {"devices": "2"}, {"launch": "eager"}, {"model": None}],
)  # fmt: skip
def test_unlike_runs_are_never_on_one_ladder(unlike):
    assert ladders_of([run("sccc", 1.0), run("saaas", 2.0, **unlike)]) == []


def test_one_strategy_makes_no_ladder_and_recordings_of_one_stand_beside_others():
    twice = [run("aaag", 1.0), run("aaag", 1.1, key="again")]
    assert ladders_of(twice) == []
    (ladder,) = ladders_of([*twice, run("sccc", 0.9)])
    assert [rung.strategy for rung in ladder.rungs] == ["aaag", "aaag", "sccc"]


def test_rates_of_traced_recordings_stand_apart_and_hollow():
    runs = [run("sccc", 10.0), run("saaas", 11.0), run("a", None, traced=7.0), run("b", None, traced=8.0)]
    untraced, traced = ladders_of([*runs, run("c", None)])
    assert (len(untraced.rungs), len(traced.rungs)) == (2, 2)
    assert traced.title.endswith("rates as recorded")
    assert ladder_figure(traced, [], "dark").data[0].marker.symbol == ("circle-open",) * 2
    assert "as traced" in rung_text(traced.rungs[0])
    assert "a 7 ▲" in ladder_line(traced, [])


def test_which_ladder_is_shown():
    one, two = ladders_of(
        [run("sccc", 1.0), run("saaas", 2.0), run("sccc", 3.0, key="x", model="n"), run("ggg", 4.0, key="y", model="n"),
         run("aaag", 5.0, key="z", model="n")]
    )  # fmt: skip
    assert ladder_for([one, two], [], None) is two  # the longest
    assert ladder_for([one, two], ["saaas"], None) is one
    assert ladder_for([one, two], ["saaas"], two.key) is two
    assert ladder_for([one, two], ["saaas"], "gone") is one
    assert ladder_for([], [], None) is None
    assert "intertoken run --sync" in ladder_line(None, [])


def test_a_click_adds_the_run_and_six_are_enough():
    click = {"points": [{"customdata": "new"}]}
    assert with_clicked(View(runs=("a",)), click).runs == ("a", "new")
    assert with_clicked(View(), click).runs == ("new",)
    assert with_clicked(View(runs=tuple("abcdef")), click).runs == (*"abcde", "new")
    for nothing in (None, {"points": []}, {"points": [{"customdata": "a"}]}, {"points": [{"customdata": 3}]}):
        assert with_clicked(View(runs=("a",)), nothing).runs == ("a",)


def test_hostile_names_are_text():
    names = ['<img src=x onerror="x">', "\u202e" + "n" * 500]
    (ladder,) = ladders_of([run(name, 1.0) for name in names])
    assert all("<img" not in text for text in ladder_figure(ladder, [], "light").layout.yaxis.ticktext)
    assert all("<img" not in text for text in ladder_figure(ladder, [], "light").data[0].hovertext)
    assert "n" * 100 not in ladder_line(ladder, [])


def test_our_own_ladder_on_the_h200():
    paths = [SAMPLES / f"llama-1.1b-{s}-sequential-cuda" for s in ("sccc", "saaas", "aaag", "ggg")]
    (ladder,) = ladders_of(RunStore([*paths, SAMPLES / "llama-1.1b-sccc-sequential-cuda-ngl13"]).runs())
    assert [rung.strategy for rung in ladder.rungs] == [
        "ggg",
        "aaag",
        "saaas",
        "sccc",
    ]  # and their passes are not on it
    assert all(rung.spread[0] <= rung.rate <= rung.spread[1] for rung in ladder.rungs)
