"""The ladder of strategies: only runs that are alike stand on one."""

import pytest

from dashboard.pages.overview.compare import ladder_figure, ladder_height, ladder_line, ladders_of, rung_text
from dashboard.reading.run import Run
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


def test_hostile_names_are_text():
    names = ['<img src=x onerror="x">', "\u202e" + "n" * 500]
    (ladder,) = ladders_of([run(name, 1.0) for name in names])
    assert all("<img" not in text for text in ladder_figure(ladder, [], "light").layout.yaxis.ticktext)
    assert all("<img" not in text for text in ladder_figure(ladder, [], "light").data[0].hovertext)
    assert "n" * 100 not in ladder_line(ladder, [])
