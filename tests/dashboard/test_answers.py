"""The pages' answers, asked once, in the background: those of the commands, in words, with links, also at a rate."""

import csv
import gc
import io
import json
import threading
import time
from concurrent.futures import wait
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from dashboard.pages.advice import host_of, in_words, pieces_of, tables_of
from dashboard.pages.gap import GapPanel, binned, distribution_figure, limit_of, panels_of, steps_figure
from dashboard.pages.parts import Action
from dashboard.pages.parts import after_move as moved
from dashboard.pages.runs import lead
from dashboard.pages.syncs import dearest, rows_of, warning_of
from dashboard.pages.syncs import in_words as syncs_in_words
from dashboard.pages.whatif import WhatIfView, answer_of, edits_for, kernel_names, lines_of, notes_of
from dashboard.reading.answers import Sites, advice_of, gain_without, inventory_of, site_of, sites_of, slack_of, what_if
from dashboard.reading.run import Run
from dashboard.reading.store import Background, RunStore
from dashboard.scene import timeline
from dashboard.view import Rate, View
from tests.dashboard.conftest import as_json, client_of
from tests.dashboard.traces import GAP, decode
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.recordings import LLAMA, SAMPLES, unrated, untold
from tracer import formats
from tracer.analysis.causes import CAUSES
from tracer.analysis.path.paths import BESIDE_SYNC
from tracer.model.calls import plain as plain_call

TRACED, OURS = LLAMA["sccc", "graph"], SAMPLES / "llama-1.1b-sccc-sequential-cuda"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    eager = tmp_path_factory.mktemp("eager") / "eager"
    formats.write(decode(tokens=12), eager)
    return RunStore([TRACED, OURS, SAMPLES / "sync-beside", eager])


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return RunStore([unrated(TRACED, tmp_path_factory.mktemp("bare") / "bare")])


def test_every_gap_is_a_bar_of_its_causes_on_its_device(pair):
    figure = steps_figure(panels_of(pair), "typical", "light")
    of_a = [trace for trace in figure.data if trace.type == "bar" and trace.xaxis == "x"]
    assert np.sum([trace.y for trace in of_a], axis=0) == pytest.approx([GAP / 1e3] * 5)
    assert not any(len(trace.x) for trace in figure.data if trace.name == "longest")
    assert [list(place) for place in of_a[0].customdata[:2]] == [[0, 0], [0, 1]]
    (run,) = RunStore([SAMPLES / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2"], passes=False).runs()
    panels = panels_of([run])
    assert [panel.name.split(" · ")[-1] for panel in panels] == ["GPU 0", "GPU 1"]
    assert sum(len(panel.table) for panel in panels) == len(run.gaps.table)


def gaps_of(us):
    """A panel with gaps of these µs, a quarter of each in a sync, the rest host code."""
    ns = (np.asarray(us) * 1e3).astype("int64")
    table = pd.DataFrame({"step": range(len(ns)), "gap": ns, **dict.fromkeys(CAUSES, 0)})
    return GapPanel("run", "", table.assign(sync=ns // 4, host=ns - ns // 4))


def test_many_gaps_are_drawn_as_means_and_no_longer_gap_is_lost():
    us = np.full(200_000, 100.0)
    us[123_456] = 5000
    panel = gaps_of(us)
    bars = binned(panel.table, 1000)
    assert (len(bars), bars["first"].iloc[0], bars["last"].iloc[-1]) == (1000, 0, 199_999)
    assert bars[list(CAUSES)].to_numpy().sum(axis=1).mean() == pytest.approx(us.mean())
    figure = steps_figure([panel] * 6, "typical", "dark")
    assert len(figure.to_json()) < 300_000
    assert (limit_of([panel], "typical"), limit_of([panel], "all")) == pytest.approx((150, 5250))
    (marker,) = [trace for trace in steps_figure([panel], "typical", "dark").data if trace.name == "longest"]
    assert list(marker.hovertext) == ["longest 5.00 ms"]
    assert 123_300 < marker.x[0] < 123_600


def test_the_histogram_holds_every_gap_and_marks_the_percentiles():
    figure = distribution_figure([gaps_of([10] * 60 + [20] * 35 + [400] * 5)], "typical", "light")
    assert sum(figure.data[0].y) == pytest.approx(0.95)
    said = {note.name: note.text for note in figure.layout.annotations}
    assert (said["p50"], said["p90"], said["beyond"]) == ("p50 10.0 µs", "p90 20.0 µs", "5 longer ▸")
    assert [shape.x0 for shape in figure.layout.shapes] == [10, 20]
    assert sum(distribution_figure([gaps_of([0.0, 0.0])], "all", "light").data[0].y) == 1


def complete(store, run):
    """The rows of the syncs page once every answer is there."""
    for row in rows_of(store, run, "light"):
        wait([slack_of(store, run), gain_without(store, run, (row["position"],)), gain_without(store, run, None)], 60)
    wait([site_of(store, run, place.call) for place in inventory_of(store, run)], 60)
    return rows_of(store, run, "light")


def test_the_syncs_are_those_of_the_commands_and_lead_to_the_timeline_and_to_a_what_if(store):
    (run,) = store.chosen([TRACED.name])
    rows = complete(store, run)
    assert not any(row["pending"] for row in rows)
    syncs = as_json("syncs", TRACED)["inventory"]
    for key in ("position", "name", "steps", "waits_for", "stream"):
        own = [plain_call(row[key]) if key == "name" else row[key] for row in syncs]
        assert [row[key] for row in rows] == own, key
    for key in ("median_us", "max_us", "waiting_share"):
        assert [row[key] for row in rows] == pytest.approx([row[key] for row in syncs]), key
    path = {call["sync"]: call for call in as_json("path", TRACED)["calls"] if call["sync"] > 0}
    for key in ("on_path_us", "slack_us"):
        assert [row[key] for row in rows] == pytest.approx([path[row["position"]][key] for row in rows]), key
    facts, row = as_json("whatif", TRACED, "--without-sync", 14), rows[13]
    found = {"estimate": row["gain"] + 1, "low": row["low"] + 1, "high": row["high"] + 1}
    assert found == pytest.approx(facts["speedup"])
    assert row["gap_us"] == pytest.approx(facts["gap_us"]["p50"] - facts["corrected"]["gap_us"]["p50"])
    view = View.parse(rows[3]["show"].split("](../")[1].removesuffix(")"))
    low, high = (time + run.tokens.anchor(view.token, "end") for time in view.range)
    calls = run.syncs.calls[run.syncs.calls["letter"] == "s"]
    fourth = calls[(calls.groupby("step").cumcount() == 3) & (calls["step"] == run.tokens.step[view.token])]
    assert low < fourth["start"].item() < fourth["end"].item() < high
    assert rows[3]["try"] == f"[what if](../whatif/?run={run.key}&theme=light&without=4)"
    dear = max((row for row in rows if row["gain"] is not None), key=lambda row: row["gain"])
    assert dearest(rows).startswith(f"Most expensive: sync {dear['position']}, {dear['name']}: {dear['gain_text']} tok")
    assert dearest(rows).endswith(f"{dear['margin']}, predicted, and may be none. "), "its interval holds 0"
    assert dearest([dear | {"low": 0.01}]).endswith("], predicted. ")


def test_without_a_rate_no_gain_is_stated_and_what_costs_nothing_is_said_all_the_same(store, bare):
    (beside,) = store.chosen(["sync-beside"])
    rows = complete(store, beside)
    assert rows[0]["verdict"] == BESIDE_SYNC
    assert rows[0]["slack_us"] > 10
    assert "1 of them cost nothing" in syncs_in_words(beside, rows, None, "light")[0]
    (run,) = bare.runs()
    rows = complete(bare, run)
    assert [row["gain"] for row in rows] == [row["gap_us"] for row in rows] == [None] * 14
    assert rows[0]["verdict"] == "not needed; enter the engine's own rate to predict the gain"
    assert rows[12]["verdict"].startswith("sync 13 cannot be removed")
    together = gain_without(bare, run, None).result(60)
    said = syncs_in_words(run, rows, together, "dark")[-1]
    assert said == ": the gain is unknown: enter the engine's own rate."
    assert warning_of(run).endswith("Predictions need the engine's own rate.")


def test_a_question_is_answered_once_and_in_the_background():
    background, asked, may = Background(), [], threading.Event()

    def work():
        asked.append(threading.current_thread().name)
        may.wait(20)
        return 42

    assert len({id(background.ask("lane", "question", work)) for _ in range(20)}) == 1
    assert background.ask("other lane", "quick", lambda: "done").result(20) == "done"
    may.set()
    assert background.ask("lane", "question", work).result(20) == 42
    assert asked == ["background lane"]
    assert background.ask("lane", "bad", lambda: 1 // 0).exception(20).args
    made = []

    def slow():
        time.sleep(0.05)
        made.append(1)
        return "shared"

    answers = [background.ask(str(i), i, lambda: background.now("base", slow, len)) for i in range(4)]
    assert [answer.result(20) for answer in answers] == ["shared"] * 4
    assert made == [1]


def test_of_answers_those_asked_for_longest_ago_are_forgotten(monkeypatch):
    """So many together, so many of a lane, and a sixteenth of the memory."""
    monkeypatch.setattr("dashboard.reading.store.half_of_memory", lambda: 8 * 10**9)

    def kept(background):
        return [number for number in range(9) if number in background._asked]

    few, large, lane = Background(most=10), Background(), Background()
    for number in range(5):
        few.ask("lane", number, lambda: None, lambda _: 4).result(20)
    assert kept(few) == [2, 3, 4], "for the next one, 2 goes too"
    for number in range(3):
        large.ask("lane", number, lambda: None, lambda _: 8_000_000).result(20)
    large.ask("lane", 3, lambda: None).result(20)
    assert kept(large) == [2, 3]
    lane.ask("other lane", "other", lambda: None).result(20)
    lane.now("base", lambda: None, lambda _: 1)
    for number in range(9):
        lane.ask("lane", number, lambda: None, most=3).result(20)
    assert list(lane._asked) == ["other", "base", 5, 6, 7, 8]


def texts(table):
    """The texts of all cells, row by row."""
    return [[row.children[0].children.children, *(cell.children for cell in row.children[1:])]
            for row in table.children[1].children]  # fmt: skip


def test_the_advice_is_that_of_the_command_with_links_to_its_what_ifs(store):
    (run,) = store.chosen([TRACED.name])
    table, said, notes = in_words(run, advice_of(store, run).result(60), "light")
    facts, shown = as_json("advise", TRACED)["advice"], texts(table)
    for at, key in ((0, "edit"), (6, "effort")):
        assert [row[at] for row in shown] == [one[key] for one in facts]
    assert shown[0][1] in said
    assert [row[4] for row in shown] == ["; ".join(one["sites"]) or "–" for one in facts]
    assert shown[0][5] == "; and ".join(facts[0]["conditions"])
    assert any("ggml-backend.cpp (ggml 0.25.3)" in row[7] for row in shown)
    assert notes[0].startswith("call sites are unknown")
    addresses = [row.children[0].children.href for row in table.children[1].children]
    assert {address.partition("&")[0] for address in addresses} == {f"../whatif/?run={run.key}"}
    edits = ["sync=ggg", "sync=aaag", "without=all", "sync=aaas", "sync=saaas"]
    assert [address.rpartition("&")[2] for address in addresses] == edits


def test_without_a_rate_there_are_only_call_sites_and_settings_that_are_off(bare, tmp_path):
    (run,) = bare.runs()
    table, said, notes = in_words(run, advice_of(bare, run).result(60), "light")
    assert (table, notes) == (None, [])
    assert said.startswith("No advice: without the engine's own rate")
    idle, calls, of_sites = tables_of(sites_of(bare, run).result(60))
    assert (idle, calls) == ([], [])
    assert all("have no call site" in note for note in of_sites)
    store = RunStore([untold(SAMPLES / "transformers-eager", tmp_path / "a")])
    (run,) = store.runs()
    table, _, notes = in_words(run, advice_of(store, run).result(60), "light")
    assert table is None
    assert [note.partition(", which")[0] for note in notes] == ["PyTorch offers one graph launch per step"]


def test_call_sites_and_the_flame_graph_have_the_functions_of_both_steps_inside_one_another():
    path = SAMPLES / "vllm-b8-torch"
    store = RunStore([path])
    (run,) = store.runs()
    sites = sites_of(store, run).result(120)
    idle, calls, _ = tables_of(sites)
    assert [row["site"] for row in calls] == [
        site["site"] or "–" for site in as_json("syncs", path, "--call-sites")["call_sites"]
    ]
    gaps = as_json("gaps", path, "--call-sites")["idle_sites"]
    assert [row["idle_us"] for row in idle] == pytest.approx([site["idle_us"] for site in gaps][: len(idle)])
    pieces = pieces_of(sites.hosts)
    roots, inner = pieces[pieces["parent"] == ""], pieces[pieces["parent"] != ""]
    assert [path.partition(" (")[0] for path in roots["path"]] == ["median step", "slow step"]
    assert roots["ns"].tolist() == [step.length_ns for step in sites.hosts]
    sums = inner.groupby("parent")["ns"].sum()
    assert (sums <= pieces.set_index("path")["ns"].reindex(sums.index)).all()
    figure, _, said, note, rows, *_ = host_of(sites, "dark")
    assert (note, len(figure.data[0].ids)) == ("", len(pieces))
    assert said.startswith("median step")
    assert sum(float(row["share"].rstrip("%")) for row in rows if row["step"] == "median step") > 95
    assert host_of(Sites(None, None, []), "light")[4] == []


def predicted(store, view):
    """The answer to a what-if, once it is there."""
    wait([what_if(store, lead(view.shared, store), view.asked, lambda: edits_for(view))], 60)
    return answer_of(store, view)


@pytest.mark.parametrize(
    ("path", "arguments", "fields"),
    [
        (TRACED, ["--without-sync", "2,4", "--sync-latency-us", "-0.5"], {"without": ("2", "4"), "latency": -0.5}),
        (OURS, ["--sync", "saaas", "--scale-host", "2"], {"sync": "saaas", "host": 2.0}),
    ],
)
def test_a_prediction_is_that_of_the_command(store, path, arguments, fields):
    facts = as_json("whatif", path, *arguments)
    answer = predicted(store, WhatIfView(View(runs=(path.name,)), **fields))
    found = answer.prediction
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


def test_both_timelines_of_a_prediction_have_the_gaps_of_the_figures(store, bare):
    answer = predicted(store, view := WhatIfView(View(runs=(TRACED.name,)), sync="aaag"))
    base, new = answer.runs
    assert base.gaps.gap_us["p50"] == pytest.approx(answer.prediction.corrected.gap_us["p50"], rel=0.01)
    assert new.gaps.gap_us["p50"] == pytest.approx(answer.prediction.predicted.gap_us["p50"], rel=0.02)
    assert base.name.endswith("without its profiler")
    assert not base.inflated
    figure, _ = timeline(answer.runs, moved(view.shared, Action("show-gap"), answer.runs), "light", 1200)
    headings = [note.text for note in figure.layout.annotations if note.name == "heading"]
    assert [("aaag" in heading) for heading in headings] == [False, True]
    light = predicted(store, WhatIfView(View(runs=(OURS.name,)), sync="ggg"))
    assert light.runs[0] is store.chosen([OURS.name])[0], "a light pass stands there as it is"
    without = predicted(bare, view := WhatIfView(View(runs=("bare",)), sync="aaag"))
    assert without.runs[0] is bare.chosen(["bare"])[0]
    assert without.runs[1].name.endswith("aaag, still under its profiler")
    *_, speedup, margin = lines_of(without.prediction)
    label = "aaag, still under the profiler"
    assert (speedup[label], margin[label]) == ("withheld", "–")
    assert "includes tracing overhead" in notes_of(without)[-1].children
    rated = predicted(bare, WhatIfView(view.shared.rated("bare", 748.7), sync="aaag"))
    assert lines_of(rated.prediction)[0]["corrected"] == "748.7"
    assert rated.runs[0].name.endswith("without its profiler")


def test_what_cannot_be_is_said_in_one_line_and_kernels_are_named(store):
    for fields, words in (
        ({"without": ("13",)}, "sync 13 cannot be removed: the host reads the result of the copy"),
        ({"without": ("99",)}, "no step has a sync 99; they have 14 at most"),
        ({"graph": "plain"}, "no step launches kernels one by one"),
        ({"kernels": ("graph 1",)}, "enter the factor"),
        ({"kernels": ("gone",), "times": 0.5}, "no names of the kernels inside the CUDA graphs"),
    ):
        said = predicted(store, WhatIfView(View(runs=(TRACED.name,)), **fields))
        assert words in said
        assert "\n" not in said
    (run, eager) = store.chosen([TRACED.name, "eager"])
    assert (kernel_names(store, run)[0], kernel_names(store, eager)) == ("graph 1", ["k"])
    faster = predicted(store, WhatIfView(View(runs=(run.key,)), kernels=("graph 1",), times=0.5))
    assert faster.prediction.label == "kernels graph 1 × 0.5"
    assert faster.prediction.speedup.estimate > 1.5


VLLM = "vllm-b8-graph"
GIVEN = {VLLM: 528.11, TRACED.name: 748.7}
SCREEN = {"screen.data": {"scheme": "light", "width": 1200}}


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """Recordings without the rates that they were made with, and one that was not traced."""
    folder = tmp_path_factory.mktemp("rates")
    for name in GIVEN:
        unrated(SAMPLES / name, folder / name)
    formats.write(decode(), folder / "light")
    return folder


@pytest.fixture(scope="module")
def client(rated):
    return client_of(rated)


def ask(client, page, output, values, changed=None):
    """What a callback says once it does not ask again."""
    callback = next(one for one in callbacks_of(client, page) if output in one["output"])
    while True:
        response = post(client, page, asked(callback, values, changed)).get_json()["response"]
        polls = [part["disabled"] for part in response.values() if "disabled" in part]
        if all(polls):
            return response
        time.sleep(0.05)


def rows(client, search=""):
    return {row["key"]: row for row in ask(client, "", "runs.rowData", {"url.search": search})["runs"]["rowData"]}


def test_a_link_with_a_rate_gives_the_figures_of_the_command_with_it(client, rated):
    bare = rows(client)
    for name, rate in GIVEN.items():
        link = View(runs=(name,), rates=(Rate(name, rate),)).query()
        facts, row = as_json("gaps", rated / name, "--untraced-steps-per-s", rate), rows(client, link)[name]
        gap = (facts["untraced_gap_us"] or {"p50": None})["p50"]
        figures = "untraced_idle", "untraced_gap", "rate"
        assert [bare[name][key] for key in ("distortion", *figures[:2])] == [None] * 3
        idle = facts["untraced_idle_us"]["p50"]
        assert [row[key] for key in figures] == [idle, gap, str(rate)]
        view = {"view.data": View.parse(link).data() | {"scale": "typical"}, **SCREEN}
        parts = ask(client, "gap/", "made-of.rowData", view)["made-of"]["rowData"]
        causes = {part["cause"]: part["untraced"] for part in parts[1:] if not part["part"]}
        assert causes == (facts["causes_us"] if facts["untraced_gap_us"] else dict.fromkeys(facts["causes_us"]))
        exported = client.get(f"/download/causes.json{link}").get_json()
        assert {part["cause"]: part["untraced_us"] for part in exported} == pytest.approx(causes)
        lines = csv.DictReader(io.StringIO(client.get(f"/download/runs.csv{link}").text))
        (line,) = [line for line in lines if line["run"] == name]
        of_rate = [float(line[key] or "nan") for key in ("untraced_idle_mean_us", "untraced_steps_per_s")]
        assert of_rate == pytest.approx([facts["untraced_idle_us"]["mean"] or float("nan"), rate], nan_ok=True)
        assert f"untraced rate given, {rate} steps/s" in client.get(f"/download/report.html{link}").text


def test_a_rate_of_another_run_is_said_beside_it_and_counts_for_nothing(client):
    view = View(runs=(VLLM, "light")).rated(VLLM, 5.0).rated("light", 700.0)
    with_rates, bare, apart = rows(client, view.query()), rows(client), {"rate", "rate_note", "rate_fails", "graph"}
    for key in view.runs:
        assert {name for name in bare[key] if with_rates[key][name] != bare[key][name]} <= apart
    assert "5 steps/s, ignored" in with_rates[VLLM]["rate_note"]
    assert "that rate is from another run" in with_rates[VLLM]["rate_note"]
    assert with_rates["light"]["rate_note"].endswith("ignored: the recording is untraced, so the rate changes nothing")
    values = {"view.data": view.data(), "revision.data": 1, **SCREEN}
    assert json.dumps(ask(client, "", "rates-said.children", values)["rates-said"]).count("ignored") == 2
    assert "ignored: " in json.dumps(ask(client, "whatif/", "figures.children", values))
    assert "ignored: " in client.get(f"/download/report.html{view.query()}").text


def test_answers_by_other_rates_are_kept_apart_and_not_without_end(rated):
    store = RunStore([rated / TRACED.name])
    run = store.runs()[0]
    one, other = run.at(748.7), run.at(740.0)
    assert one.gaps.untraced_idle_us["mean"] < other.gaps.untraced_idle_us["mean"]
    assert run.gaps.untraced_idle_us is None
    assert run.at(748.7) is one
    assert (one.rows, one.tokens) == (run.rows, run.tokens)
    first, second, third = (gain_without(store, each, None).result(60).corrected for each in (one, other, run))
    assert (first.steps_per_s, second.steps_per_s, third) == (748.7, 740.0, None)
    for rate in range(730, 740):
        run.at(float(rate))
    gc.collect()
    assert sum(type(each) is Run and each.without_rate is run for each in gc.get_objects()) <= 6
