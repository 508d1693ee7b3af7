"""The what-if page: its predictions against the command, refusals, links and the predicted timeline."""

import json
import shutil
from concurrent.futures import wait
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from dashboard.pages.parts import Action
from dashboard.pages.parts import after_move as moved
from dashboard.pages.runs import lead
from dashboard.pages.whatif import (
    ALL,
    WhatIfView,
    after,
    answer_of,
    edits_for,
    kernel_names,
    lines_of,
    notes_of,
)
from dashboard.reading.answers import what_if
from dashboard.reading.store import RunStore
from dashboard.scene import timeline
from dashboard.view import View
from tests.dashboard.traces import decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats
from tracer.cli import main
from tracer.errors import UsageError

TRACED = LLAMA["sccc", "graph"]
OURS = SAMPLES / "llama-1.1b-sccc-sequential-cuda"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    eager = tmp_path_factory.mktemp("eager") / "eager"
    formats.write(decode(tokens=12, kernel="void k<float>(T*)"), eager)
    return RunStore([TRACED, OURS, eager])


def predicted(store, view):
    """The answer, once it is there."""
    run = lead(view.shared, store)
    wait([what_if(store, run, view.asked, lambda: edits_for(view))], 60)
    return answer_of(store, view)


@pytest.mark.parametrize(
    ("path", "arguments", "fields"),
    [
        (TRACED, ["--sync", "aaag"], {"sync": "aaag"}),
        (TRACED, ["--without-syncs", "--scale-host", "0.5"], {"without": (ALL,), "host": 0.5}),
        (TRACED, ["--without-sync", "2,4", "--sync-latency-us", "-0.5"], {"without": ("2", "4"), "latency": -0.5}),
        (OURS, ["--sync", "saaas", "--scale-host", "2"], {"sync": "saaas", "host": 2.0}),
        (TRACED, ["--scale-kernels", "=0.9"], {"times": 0.9}),
    ],
)  # fmt: skip
def test_a_prediction_is_that_of_the_command(store, path, arguments, fields):
    facts = json.loads(CliRunner().invoke(main, ["whatif", str(path), *arguments, "--json"]).stdout)
    answer = predicted(store, WhatIfView(View(runs=(path.name,)), **fields))
    found = answer.found
    assert found.predicted.gap_us == pytest.approx(facts["gap_us"])
    assert asdict(found.speedup) == facts["speedup"]
    rates, *_, speedup, margin = lines_of(found)
    assert rates[facts["edit"]] == f"{facts['tokens_per_s']:,.1f}"
    assert rates["as recorded"] == f"{facts['recorded']['tokens_per_s']:,.1f}"
    assert ("corrected" in rates) == (path is TRACED) == (facts["corrected"] is not None)
    assert speedup[facts["edit"]] == f"{facts['speedup']['estimate']:.4f}"
    known = facts["speedup"]["low"] is not None
    assert margin[facts["edit"]] == (f"{found.speedup.low:.3f} to {found.speedup.high:.3f}" if known else "–")
    assert [note.children for note in notes_of(answer)] == facts["assumptions"]


def test_both_timelines_have_the_gaps_of_the_figures(store):
    view = WhatIfView(View(runs=(TRACED.name,)), sync="aaag")
    answer = predicted(store, view)
    base, new = answer.runs
    assert base.gaps.gap_us["p50"] == pytest.approx(answer.found.corrected.gap_us["p50"], rel=0.01)
    assert new.gaps.gap_us["p50"] == pytest.approx(answer.found.predicted.gap_us["p50"], rel=0.02)
    assert base.name.endswith("without its profiler")
    assert not base.inflated
    figure, _ = timeline(answer.runs, moved(view.shared, Action("show-gap"), answer.runs), "light", 1200)
    headings = [a.text for a in figure.layout.annotations if a.name == "heading"]
    assert len(headings) == 2
    assert "aaag" in headings[1]
    assert len(figure.to_json()) < 300_000


def test_a_traced_run_is_answered_with_a_rate(tmp_path):
    """Without one the page says that the answer is about the profiler, and draws the run as recorded; the rate is a
    field, and part of the link."""
    name = tmp_path / "bare"
    shutil.copytree(TRACED, name)
    told = json.loads((name / "run.json").read_text())
    del told["measured"]
    (name / "run.json").write_text(json.dumps(told))
    store = RunStore([name])
    view = WhatIfView(View(runs=("bare",)), sync="aaag")
    without = predicted(store, view)
    assert without.runs[0] is store.chosen(["bare"])[0]
    assert without.runs[1].name.endswith("aaag, still under its profiler")
    *_, speedup, margin = lines_of(without.found)
    label = "aaag, still under the profiler"
    assert (speedup[label], margin[label]) == ("withheld", "–")
    assert "includes tracing overhead" in notes_of(without)[-1].children
    given = WhatIfView(view.shared.rated("bare", 748.7), sync="aaag")
    assert WhatIfView.parse(given.query()) == given
    answer = predicted(store, given)
    assert answer.found.corrected.tokens_per_s == 748.7
    assert answer.runs[0].name.endswith("without its profiler")
    assert lines_of(answer.found)[0]["corrected"] == "748.7"
    assert after(given, "reset", 1, [], "") == WhatIfView(given.shared)
    assert not WhatIfView(View().rated("bare", 5.0)).is_different


def test_a_light_pass_stands_beside_its_prediction_as_it_is(store):
    answer = predicted(store, WhatIfView(View(runs=(OURS.name,)), sync="ggg"))
    assert answer.runs[0] is store.chosen([OURS.name])[0]
    assert answer.runs[1].tokens is not None


@pytest.mark.parametrize(
    ("key", "fields", "words"),
    [
        (TRACED.name, {"without": ("13",)}, "sync 13 cannot be removed: the host reads the result of the copy"),
        (TRACED.name, {"without": ("99",)}, "no step has a sync 99; they have 14 at most"),
        (TRACED.name, {"graph": "plain"}, "no step launches kernels one by one"),
        (TRACED.name, {"kernels": ("graph 1",)}, "enter the factor"),
        (TRACED.name, {"kernels": ("gone",), "times": 0.5}, "no kernel matches"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(store, key, fields, words):
    answer = predicted(store, WhatIfView(View(runs=(key,)), **fields))
    assert words in answer
    assert "\n" not in answer


def test_kernels_are_named_not_matched(store):
    run = store.chosen([TRACED.name])[0]
    assert kernel_names(store, run)[0] == "graph 1"
    assert kernel_names(store, store.chosen(["eager"])[0]) == ["k"]
    faster = predicted(store, WhatIfView(View(runs=(run.key,)), kernels=("graph 1",), times=0.5))
    assert faster.found.label == "kernels graph 1 × 0.5"
    assert faster.found.speedup.estimate > 1.5
    (edit,) = edits_for(WhatIfView(View(), kernels=("a(b", "(x+)+$"), times=2.0))
    assert edit.pattern == r"\A(?:a\(b|\(x\+\)\+\$)\Z"
    with pytest.raises(UsageError, match="factor"):
        edits_for(WhatIfView(View(), kernels=("k",)))


def test_senseless_links_change_nothing():
    assert WhatIfView.parse("?sync=x&graph=y&without=-1&host=nan&times=1e9&latency=b") == WhatIfView(View())
    assert not WhatIfView(View()).is_different
    assert WhatIfView(View(), kernels=("k",)).is_different
    view = WhatIfView(View(), times=2.0)
    assert view.having("times", "inf").times is None
    assert view.having("without", ["3", ALL]).without == (ALL,)
    assert view.having("without", [ALL, "12", "3", "0"]).without == ("3", "12")
    assert view.having("without", [1]) == view
