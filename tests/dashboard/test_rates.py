"""The engines' own rates on the page: in the table of runs, in links, and in every figure, as the commands have it."""

import csv
import gc
import io
import json
import shutil
import time

import pytest

from dashboard.reading.answers import gain_without
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.view import Rate, View
from tests.dashboard.conftest import as_json, client_of
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.recordings import SAMPLES
from tracer import formats

VLLM, LLAMA = "vllm-b8-graph", "llama1b-sccc-graph"
GIVEN = {VLLM: 528.11, LLAMA: 748.7}
SCREEN = {"screen.data": {"scheme": "light", "width": 1200}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Recordings without the rates that they were made with, and one that was not traced."""
    folder = tmp_path_factory.mktemp("rates")
    for name in GIVEN:
        shutil.copytree(SAMPLES / name, folder / name)
        told = json.loads((folder / name / "run.json").read_text())
        del told["measured"]
        (folder / name / "run.json").write_text(json.dumps(told))
    formats.write(decode(), folder / "light")
    return folder


@pytest.fixture(scope="module")
def client(runs):
    return client_of(runs)


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


def test_a_link_with_a_rate_gives_the_figures_of_the_command_with_it(client, runs):
    bare = rows(client)
    for name, rate in GIVEN.items():
        link = View(runs=(name,), rates=(Rate(name, rate),)).query()
        facts, row = as_json("gaps", runs / name, "--untraced-steps-per-s", rate), rows(client, link)[name]
        gap = (facts["untraced_gap_us"] or {"p50": None})["p50"]
        figures = "untraced_idle", "untraced_gap", "distortion", "rate"
        assert [bare[name][key] for key in figures[:3]] == [None] * 3
        idle = facts["untraced_idle_us"]["p50"]
        assert [row[key] for key in figures] == [idle, gap, facts["distortion"], str(rate)]
        view = {"view.data": View.parse(link).data() | {"scale": "typical"}, **SCREEN}
        parts = ask(client, "gap/", "made-of.rowData", view)["made-of"]["rowData"]
        causes = {part["cause"]: part["untraced"] for part in parts[1:] if not part["part"]}
        assert causes == (facts["causes_us"] if facts["untraced_gap_us"] else dict.fromkeys(facts["causes_us"]))
        exported = client.get(f"/download/causes.json{link}").get_json()
        assert {part["cause"]: part["untraced_us"] for part in exported} == pytest.approx(causes)
        lines = csv.DictReader(io.StringIO(client.get(f"/download/runs.csv{link}").text))
        (line,) = [line for line in lines if line["run"] == name]
        assert [float(line[key]) for key in ("untraced_idle_us", "untraced_steps_per_s")] == [idle, rate]
        assert f"untraced rate given, {rate} steps/s" in client.get(f"/download/report.html{link}").text


def test_a_rate_of_another_run_is_said_beside_it_and_counts_for_nothing(client):
    view = View(runs=(VLLM, "light")).rated(VLLM, 5.0).rated("light", 700.0)
    rated, bare, apart = rows(client, view.query()), rows(client), {"rate", "rate_note", "rate_fails", "graph"}
    for key in view.runs:
        assert {name for name in bare[key] if rated[key][name] != bare[key][name]} <= apart
    assert "5 steps/s, ignored" in rated[VLLM]["rate_note"]
    assert "that rate is from another run" in rated[VLLM]["rate_note"]
    assert rated["light"]["rate_note"].endswith("ignored: the recording is untraced, so the rate changes nothing")
    values = {"view.data": view.data(), "revision.data": 1, **SCREEN}
    assert json.dumps(ask(client, "", "rates-said.children", values)["rates-said"]).count("ignored") == 2
    assert "ignored: " in json.dumps(ask(client, "whatif/", "figures.children", values))
    assert "ignored: " in client.get(f"/download/report.html{view.query()}").text


def test_answers_by_other_rates_are_kept_apart_and_not_without_end(runs):
    store = RunStore([runs / LLAMA])
    run = store.runs()[0]
    one, other = run.at(748.7), run.at(740.0)
    assert one.gaps.untraced_idle_us["p50"] < other.gaps.untraced_idle_us["p50"]
    assert run.gaps.untraced_idle_us is None
    assert run.at(748.7) is one
    assert (one.rows, one.tokens) == (run.rows, run.tokens)
    first, second, third = (gain_without(store, each, None).result(60).corrected for each in (one, other, run))
    assert (first.steps_per_s, second.steps_per_s, third) == (748.7, 740.0, None)
    for rate in range(730, 740):
        run.at(float(rate))
    gc.collect()
    assert sum(type(each) is Run and each.without_rate is run for each in gc.get_objects()) <= 6
