"""The comparison above the timeline, the ladder of strategies, the pair of a page without a link; and notebooks."""

import json
import re
from html import unescape
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dashboard.figures import causes_of, places_of
from dashboard.pages.gap import figures_of
from dashboard.pages.overview.compare import (
    ladder_figure,
    ladder_line,
    ladders_of,
    rung_text,
    section,
    table_of,
    words_of,
)
from dashboard.pages.overview.table import chips
from dashboard.pages.runs import extremes
from dashboard.reading.answers import against_base, cautions_of, comparison_table, methods_of
from dashboard.reading.run import Run, told
from dashboard.reading.store import RunStore
from dashboard.scene import timeline
from dashboard.view import View
from tests.dashboard.conftest import as_json
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, untold
from tracer import formats
from tracer.analysis.summary import Summary
from tracer.extensions import VIEWS
from tracer.files.bounded import tomllib
from tracer.notebook import comparison_html, trace_html
from tracer.reporting.compare import matrix
from tracer.reporting.headline import sentence

pytestmark = pytest.mark.usefixtures("all_resamples")

HOSTILE = '<img src=x onerror="window.hacked=1">\u202e'


def text(part):
    """What a part of the page reads."""
    if isinstance(part, list | tuple):
        return "".join(map(text, part))
    return part if isinstance(part, str) else text(getattr(part, "children", None) or "")


def runs_at(*paths):
    return RunStore(paths, passes=False).runs()


def test_cautions_are_those_of_the_command_and_without_a_verdict_no_difference_is_stated(tmp_path):
    paths = [LLAMA["sccc", "node"], LLAMA["saaas", "graph"]]
    found = cautions_of(against_base(runs_at(*paths)))
    assert found == as_json("compare", *paths)["runs"][1]["cautions"]
    assert len(found) >= 3
    places = [part.id for part in section().children[2].children if getattr(part, "id", "")]
    assert places.index("compare-words") + 1 == places.index("compare-cautions")
    sccc, saaas = runs_at(*(untold(LLAMA[strategy, "node"], tmp_path / strategy) for strategy in ("sccc", "saaas")))
    (one,) = against_base([sccc, saaas])
    assert text(words_of([one])).startswith("saaas against sccc: no verdict: tracing adds time to every call")
    assert methods_of([one]) == ""
    rows = {text(row.children[0]): [text(cell) for cell in row.children[1:]]
            for row in table_of([one]).children[1].children}  # fmt: skip
    assert rows["Steps/s"] == ["606.3", "623.7", ""]
    assert rows["Syncs per token"][-1] == "−9.0"
    frame = comparison_table([sccc, saaas]).set_index("figure")
    assert frame.loc["gap_us p50", ["estimate", "low", "high"]].isna().all()


def test_runs_that_cannot_be_compared_say_why_and_hostile_names_are_text(tmp_path):
    for name, model in (("a", "one"), ("b", "two"), ("c", "one")):
        formats.write(decode(tokens=8), tmp_path / name)
        (tmp_path / name / "run.json").write_text(json.dumps({"configuration": {"model": model}}))
    formats.write(decode(tokens=1), tmp_path / "short")
    runs = {run.key: run for run in runs_at(tmp_path)}
    unlike, alike, short = against_base([runs[key] for key in ("a", "b", "c", "short")])
    assert unlike.problem == "a and b are not comparable: model one against two"
    assert text(words_of([unlike])).startswith("b: a and b are not comparable")
    assert (alike.comparison.verdict, table_of([unlike])) == ("no difference shown", None)
    frame = comparison_table([runs["a"], runs["b"], runs["c"]]).set_index("run")
    assert (frame.loc["b", "problem"], frame.loc["b", "figure"]) == (unlike.problem, "")
    assert set(frame.loc["c", "problem"]) == {""}
    assert [one.problem for one in against_base([runs["short"], runs["a"]])] == [short.problem] != [None]
    for name, gap in ((HOSTILE.replace("/", ""), GAP), ("n" * 200, 2 * GAP)):
        formats.write(decode(tokens=8, gap=gap), tmp_path / "hostile" / name)
    found = against_base(runs_at(tmp_path / "hostile"))
    said = text(words_of(found))
    assert "<img src=x" in said  # Dash escapes what is text
    assert "\\u202e" in said
    assert "n" * 61 not in said + text(table_of(found))


def rung(strategy, rate, spread=None, *, key=None, **conditions):
    known = {"model": "m", "gpu": "H200", "concurrency": "sequential", "batch": "1"} | conditions
    known = {name: value for name, value in known.items() if value}
    facts = {"tokens_per_s": rate, "tokens_per_s_spread": spread, "traced_tokens_per_s": None, "traced": False}
    return Run(key or strategy, key or strategy, Summary(strategy, configured=strategy, conditions=known, **facts))


def test_the_fastest_is_on_top_of_the_ladder_with_the_spread_of_its_repeats():
    (ladder,) = ladders_of([rung("sccc", 1228.0, (1222.0, 1231.0)), rung("ggg", 1328.0), rung("saaas", 1265.0)])
    assert [rung.strategy for rung in ladder.rungs] == ["ggg", "saaas", "sccc"]
    assert rung_text(ladder.rungs[2]) == "sccc: 1,228.0 tokens/s (1,222.0 to 1,231.0 in its repeats) · sccc"
    rates = "tokens/s: ggg 1,328 › saaas 1,265 › sccc 1,228"
    assert ladder_line(ladder, ["another", "saaas"]) == f"Ladder of strategies, {rates}"
    assert ladder_line(ladder, ["another"]) == f"Ladder of strategies of other runs (H200 · m · sequential), {rates}"
    figure = ladder_figure(ladder, ["saaas"], "light")
    points = figure.data[0]
    assert (points.x, points.customdata) == ((1328, 1265, 1228), ("ggg", "saaas", "sccc"))
    assert (points.error_x.array, points.error_x.arrayminus) == ((0, 0, 3), (0, 0, 6))
    assert figure.layout.yaxis.ticktext == ("ggg", "<b>saaas</b>", "sccc")


def test_unlike_runs_are_never_on_one_ladder_and_hostile_names_are_text():
    for unlike in (
        {"model": "n"}, {"gpu": "B200"}, {"concurrency": "branches"}, {"batch": "8"}, {"prompt": "2048"},
        {"gpu_layers": "13"}, {"devices": "2"}, {"launch": "eager"}, {"model": None},
    ):  # fmt: skip
        assert ladders_of([rung("sccc", 1.0), rung("saaas", 2.0, **unlike)]) == [], unlike
    twice = [rung("aaag", 1.0), rung("aaag", 1.1, key="again")]
    assert ladders_of(twice) == []
    (ladder,) = ladders_of([*twice, rung("sccc", 0.9)])
    assert [rung.strategy for rung in ladder.rungs] == ["aaag", "aaag", "sccc"]
    (ladder,) = ladders_of([rung(name, 1.0) for name in (HOSTILE, "\u202e" + "n" * 500)])
    figure = ladder_figure(ladder, [], "light")
    assert not any("<img" in text for text in (*figure.layout.yaxis.ticktext, *figure.data[0].hovertext))
    assert "n" * 100 not in ladder_line(ladder, [])


def test_the_page_opens_on_the_longest_and_the_shortest_gap_of_one_model_that_can_be_compared():
    def run(key, gap, model="m", level="none", source="host", traced=False, rate=None, **conditions):
        facts = {"model": model, "graph_trace": level, "gap_p50_us": gap, "conditions": conditions, "source": source}
        warning = "recorded under a profiler" if traced else None
        return Run(key, key, Summary(key, **facts, tokens_per_s=rate, traced=traced, warning=warning))

    runs = [run("b", 20.0), run("none", None), run("a", 90.0), run("c", 5.0), run("x", 1.0, "n"),
            run("y", 1.0, "m", "node"), run("z", 100.0, gpu_layers="13")]  # fmt: skip
    traced = [run(key, gap, traced=True, source="nsys 2025") for key, gap in (("s", 300.0), ("t", 200.0))]
    rated = [run(key, gap, traced=True, source="nsys 2025", rate=9.0) for key, gap in (("u", 300.0), ("v", 200.0))]
    for shown, opened in (
        (runs, ["a", "c"]), (runs[:2], ["b"]), ([], []), (runs[4:5] + runs[:4], ["a", "c"]), (runs[4:6], ["x"]),
        ([*traced, *runs], ["a", "c"]), (traced, ["s"]), ([*traced, *rated], ["u", "v"]),
        ([rated[0], run("w", 9.0, traced=True, source="PyTorch profiler", rate=9.0)], ["u"]),
    ):  # fmt: skip
        assert extremes(shown) == opened


def words(html):
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


@pytest.fixture
def notebook(monkeypatch):
    """Two runs, as if the package were installed with what pyproject.toml registers."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    views = [EntryPoint(name, target, VIEWS) for name, target in project["entry-points"][VIEWS].items()]
    monkeypatch.setattr("tracer.extensions.entry_points", lambda **of: [one for one in views if one.name == of["name"]])
    return runs_at(LLAMA["sccc", "graph"], LLAMA["saaas", "graph"])


def test_a_notebook_shows_what_the_page_shows(notebook):
    run = notebook[0]
    said = words(run.trace._repr_html_())
    (chip,) = chips([run])
    name, _, *figures, _ = [text(part) for part in chip.children]
    assert (name, len(figures)) == (run.name, 3)
    for figure in figures:
        assert " ".join(figure.split()[-2:]) in said
    source = run.trace.metadata["source"]
    assert sentence(run.summary, run.name).removeprefix(run.name) in said.replace(source, "", 1)
    assert run.summary.warning in said
    page, _ = timeline([run], View(runs=(run.key,), token=17), "light", 1100)
    drawn, again = (json.loads(run.trace.timeline(token=17, **given).to_json()) for given in ({}, {"show": "gap"}))

    def bars(figure):
        return {trace["name"]: trace["x"] for trace in figure["data"] if trace["type"] == "bar"}

    assert bars(json.loads(page.to_json())) == bars(drawn) != {}
    (low, high), (near, far) = (figure["layout"]["xaxis"]["range"] for figure in (drawn, again))
    assert [low, high] == list(page.layout.xaxis.range)
    assert far - near < high - low


def test_a_comparison_shows_the_matrix_of_the_page_and_names_are_text(notebook):
    (one,) = against_base(notebook)
    html = one.comparison._repr_html_()
    assert html == comparison_html([one.comparison])
    rows = re.findall('<tr><th scope="row">(.*?)</tr>', html)
    page = [" ".join(text(cell) for cell in row.children).split() for row in table_of([one]).children[1].children]
    assert [words(row).split() for row in rows][:-1] == page[:-1]
    assert page[-1][:5] == ["Tracing", "overhead", "on", "the", "gap,"], "of the period in the notebook"
    assert "−28.2 [−55.0, −1.5]</small></b>" in html
    assert "llama1b-saaas-graph is faster than llama1b-sccc-graph" in words(html)
    trace = notebook[0].trace
    hostile = type(trace)(dict(trace.tables), trace.metadata | {"source": "<img src=x onerror=alert(1)>\u202e"})
    html = trace_html(hostile)
    assert "<img" not in html
    assert "\\u202e" in html


@pytest.mark.usefixtures("all_resamples")
@pytest.mark.parametrize("times", ["untraced", "recorded"])
def test_one_gap_a_page(times):
    """The README's pair: sentence, matrix, chips, causes and the gap page say the same for one state of the switch."""
    paths = [LLAMA[way, "graph"] for way in ("sccc", "saaas")]
    runs = told(RunStore(paths).chosen([path.name for path in paths]), times)
    assert [run.summary.strategy for run in runs] == ["sccc", "saaas"]
    answers = against_base(runs)
    lines = {row.figure: (row.base, row.cells[0].text) for row in matrix([answers[0].comparison])}
    figures = [figures_of(run)["Mean gap"].removesuffix(" ▲") for run in runs]
    means = ("78.2", "58.5") if times == "untraced" else ("181.9", "133.8")
    assert lines["gap_us mean"] == means
    assert figures == [f"{us} µs" for us in means]
    assert [f"{causes.total_us:.1f}" for causes in causes_of(runs)] == list(means)
    assert [f"{causes.total_us:.1f}" for causes in places_of(runs)] == list(means)
    said = str(chips(runs)) + str(words_of(answers)) + str(table_of(answers))
    if times == "untraced":
        assert said.count("78.2") >= 4
        assert "median" not in str(chips(runs)).replace("the median", "").replace("Median", "")
        assert "tracing × 2.3 on the gap" in said
        assert all("tracing × 2.3 on the gap" in causes.note for causes in causes_of(runs))
    else:
        assert said.count("149.2") >= 3
        assert not re.search(r"78\.2|58\.5|40\.2", said)
    assert "1.08" not in said
    assert "as recorded" in timeline(runs, View(), "light", 1200)[0].to_json()
