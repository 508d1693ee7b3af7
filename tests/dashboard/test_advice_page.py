"""The advice page: the command's advice, links to its what-ifs, and call sites with their lines."""

import json
import shutil
import threading
import time

import pandas as pd
import pytest
from click.testing import CliRunner
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dashboard.pages import advice, parts
from dashboard.pages.advice import changes_of, host_of, in_words, nothing_to_show, pieces_of, tables_of, waited_lines
from dashboard.pages.whatif import WhatIfView, edits_for
from dashboard.reading.background import known
from dashboard.reading.predictions import Sites, advice_of, sites_of
from dashboard.reading.store import RunStore
from dashboard.view import View
from tests.dashboard.conftest import alter, faults, load, served, until
from tests.dashboard.filled import open_filled
from tests.recordings import LLAMA, SAMPLES
from tests.tracer.nsys_exports import GLOBAL_TID, export
from tests.tracer.test_sampled import STEPS, idle_places, recording
from tests.tracer.test_truths import SHARED
from tracer import formats
from tracer.analysis.call_sites import HostStep
from tracer.analysis.idle_sites import SAMPLED
from tracer.analysis.waited_for import GIL, HOW, RANGE, UNKNOWN
from tracer.analysis.whatif.edits import WithoutSyncs
from tracer.analysis.whatif.graph_edits import OneGraph
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.cli import main
from tracer.model.trace import Trace

TRACED = LLAMA["sccc", "graph"]
VLLM = SHARED / "vllm" / "torch-stack-b1.json.gz"


def command(*arguments):
    return json.loads(CliRunner().invoke(main, [*map(str, arguments), "--json"]).stdout)


def texts(element):
    """The texts of all cells, row by row."""
    table, head_of = element.children[1], lambda row: row.children[0].children.children
    return [[head_of(row), *(cell.children for cell in row.children[1:])] for row in table.children]


def test_the_advice_is_that_of_the_command_with_links_to_its_what_ifs():
    store = RunStore([TRACED])
    (run,) = store.runs()
    table, said, notes = in_words(run, advice_of(store, run).result(60), "light")
    facts = command("advise", TRACED)
    shown = texts(table)
    assert [row[0] for row in shown] == [one["edit"] for one in facts["advice"]]
    assert shown[0][1] in said
    assert [row[4] for row in shown] == ["; ".join(one["sites"]) or "–" for one in facts["advice"]]
    assert shown[0][5] == "; and ".join(facts["advice"][0]["conditions"])
    assert [row[6] for row in shown] == [one["effort"] for one in facts["advice"]]
    assert any("ggml-backend.cpp (ggml 0.25.3)" in row[7] for row in shown)
    assert any(note.startswith("the device idles for ") for note in notes)
    assert notes[0].startswith("call sites are unknown")
    addresses = [row.children[0].children.href for row in table.children[1].children]
    assert all(address.startswith("../whatif/?run=llama1b-sccc-graph&") for address in addresses)
    assert [a.rpartition("&")[2] for a in addresses] == [
        "sync=ggg",
        "sync=aaag",
        "without=all",
        "sync=aaas",
        "sync=saaas",
    ]


@pytest.mark.parametrize(
    "edit", [FollowStrategy("aaag"), WithoutSyncs(), WithoutSyncs((3,)), OneGraph(), OneGraph(early=True)]
)
def test_the_link_of_an_edit_makes_it(edit):
    view = WhatIfView.parse(WhatIfView(View(runs=("a",)), **changes_of(edit)).query())
    assert edits_for(view) == [edit]


def test_without_a_rate_there_are_only_call_sites(tmp_path):
    shutil.copytree(TRACED, tmp_path / "a")
    (tmp_path / "a" / "run.json").unlink()
    store = RunStore([tmp_path / "a"])
    (run,) = store.runs()
    table, said, notes = in_words(run, advice_of(store, run).result(60), "light")
    assert (table, notes) == (None, [])
    assert said.startswith("No advice: without the engine's own rate")
    assert said.endswith("Enter untraced steps/s above.")
    idle, calls, of_sites = tables_of(sites_of(store, run).result(60))
    assert (idle, calls) == ([], [])
    assert all("have no call site" in note for note in of_sites)


def test_settings_that_are_off_are_told_without_a_rate(tmp_path):
    shutil.copytree(SAMPLES / "transformers-eager", tmp_path / "a")
    (tmp_path / "a" / "run.json").unlink()
    store = RunStore([tmp_path / "a"])
    (run,) = store.runs()
    table, said, notes = in_words(run, advice_of(store, run).result(60), "light")
    assert table is None
    assert said.startswith("No advice")
    assert [note.partition(", which")[0] for note in notes] == ["PyTorch offers one graph launch per step"]
    done = CliRunner().invoke(main, ["advise", str(tmp_path / "a")])
    assert "PyTorch offers one graph launch per step" in " ".join(done.stdout.split())


@pytest.mark.skipif(not VLLM.exists(), reason="the recording is not here")
def test_call_sites_have_the_lines_of_the_program():
    """The reader leaves Python functions out; here they are read again."""
    store = RunStore([VLLM])
    (run,) = store.runs()
    found = sites_of(store, run).result(120)
    idle, calls, _ = tables_of(found)
    facts = command("syncs", VLLM, "--call-sites")["call_sites"]
    assert [row["site"] for row in calls] == [site["site"] or "–" for site in facts]
    assert calls[0]["site"].endswith("async_utils.py(48): get_output")
    gaps = command("gaps", VLLM, "--call-sites")["idle_sites"]
    assert [row["idle_us"] for row in idle] == pytest.approx([site["idle_us"] for site in gaps][: len(idle)])


def test_nothing_to_show_says_what_to_do(tmp_path):
    assert nothing_to_show(RunStore([tmp_path]), None).startswith("No recordings yet")
    formats.write(Trace({}), tmp_path / "empty")
    store = RunStore([tmp_path])
    (run,) = store.runs()
    assert nothing_to_show(store, None) == "Select a run above."
    assert "no CUDA calls inside token steps" in nothing_to_show(store, run)
    assert tables_of(Sites(None, None, [])) == ([], [], [])
    assert tables_of("it failed") == ([], [], ["it failed"])


@pytest.mark.browser
def test_the_rate_is_given_on_the_page(browser, tmp_path):
    shutil.copytree(TRACED, tmp_path / "a", ignore=shutil.ignore_patterns("node"))
    (tmp_path / "a" / "run.json").unlink()
    with served(tmp_path) as address:
        browser.get(f"{address}advice/?run=a")
        said = lambda: browser.find_element(By.ID, "said-of-advice").text  # noqa: E731
        until(browser, lambda: "Enter untraced steps/s above" in said(), "what to give")
        browser.find_element(By.CSS_SELECTOR, "#rate-field input").send_keys("no", Keys.ENTER)
        until(browser, lambda: "is not a rate" in browser.find_element(By.ID, "rate-refused").text, "why not")
        field = browser.find_element(By.CSS_SELECTOR, "#rate-field input")
        field.send_keys(Keys.BACKSPACE * 2, "748.7", Keys.ENTER)
        until(browser, lambda: "Largest predicted gain" in said(), "advice")
        assert "748.7" in browser.current_url


@pytest.mark.browser
def test_answers_slower_than_the_poll_are_drawn(browser, filled, monkeypatch):
    """Dash drops the answer of a callback that was triggered again meanwhile."""

    def slowly(*arguments):
        time.sleep(2)
        return in_words(*arguments)

    monkeypatch.setattr(advice, "in_words", slowly)
    load(browser, f"{filled}advice/?run={TRACED.name}")
    until(browser, lambda: "+" in browser.find_element(By.ID, "advice").text, "the advice", seconds=30)


UNHEARD = """
const fetched = window.fetch;
window.unheard = 0;
window.fetch = (...what) => {
  if (window.heard || !String(what[1]?.body).includes('"id":"poll"')) return fetched(...what);
  window.unheard++;
  return Promise.reject(new TypeError("no network"));
};
"""


@pytest.mark.browser
def test_polls_go_on_after_requests_that_failed(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_PAUSED_MS", 2000)
    is_known = threading.Event()
    monkeypatch.setattr(advice, "known", lambda answer: known(answer) if is_known.is_set() else None)
    shutil.copytree(TRACED, tmp_path / "a", ignore=shutil.ignore_patterns("node"))
    with served(tmp_path) as address:
        load(browser, f"{address}advice/?run=a")
        until(browser, lambda: browser.find_element(By.ID, "nothing").text == "", "an answer that makes it poll")
        alter(browser, UNHEARD)
        until(browser, lambda: browser.execute_script("return window.unheard") >= 2, "polls that fail")
        is_known.set()
        browser.execute_script("window.heard = true")
        until(browser, lambda: "+" in browser.find_element(By.ID, "advice").text, "the advice")
        browser.get("about:blank")  # before the server is gone
    assert faults(browser), "those of the requests that failed"


@pytest.mark.browser
def test_from_advice_to_its_what_if(browser, filled):
    open_filled(browser, filled, "advice/")
    edge = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.execute_script(edge)
    until(browser, lambda: browser.find_element(By.LINK_TEXT, "aaag").click() or True, "a link")
    until(browser, lambda: "/whatif/" in browser.current_url and "sync=aaag" in browser.current_url, "the what-if")
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#figures td"), "its figures")


def test_the_flame_graph_has_the_pieces_of_both_steps_inside_one_another():
    store = RunStore([SAMPLES / "vllm-b8-torch"])
    (run,) = store.runs()
    sites = sites_of(store, run).result(120)
    hosts = sites.hosts
    pieces = pieces_of(hosts)
    roots = pieces[pieces["parent"] == ""]
    assert [path.partition(" (")[0] for path in roots["path"]] == ["median step", "slow step"]
    assert roots["ns"].tolist() == [step.length_ns for step in hosts]
    inner = pieces[pieces["parent"] != ""]
    sums = inner.groupby("parent")["ns"].sum()
    assert (sums <= pieces.set_index("path")["ns"].reindex(sums.index)).all()
    for theme in ("light", "dark"):
        figure, size, said, note, rows, *_ = host_of(sites, theme)
        assert not note
        assert len(figure.data[0].ids) == len(pieces)
        assert said.startswith("median step")
        assert int(size["height"].removesuffix("px")) > 60
        assert {row["step"] for row in rows} == {"median step", "slow step"}
        assert sum(float(row["share"].rstrip("%")) for row in rows if row["step"] == "median step") > 95
    assert host_of(Sites(None, None, []), "light")[4] == []


def test_samples_of_an_export_are_on_the_page_with_their_intervals(tmp_path):
    """60 of 100 samples are in `sample_token`; the reader leaves samples out, and here they are read again."""
    strings = [*recording([])["StringIds"], {"id": 300, "value": "token 0"}]
    rows = recording(idle_places()) | {"StringIds": strings, "NVTX_EVENTS": [
        {"start": 9_950 + 1000 * step, "end": 10_940 + 1000 * step, "eventType": 59, "text": f"token {step}",
         "globalTid": GLOBAL_TID, "domainId": 0} for step in range(STEPS)]}  # fmt: skip
    store = RunStore([export(tmp_path / "in.sqlite", rows)])
    (run,) = store.runs()
    assert not len(run.trace["samples"])
    sites = sites_of(store, run).result(120)
    _, _, said, note, rows, *_ = host_of(sites, "light")
    assert said.endswith("device idle, sampled 100 times: 700 ns")
    assert note.startswith("100 samples")
    first = next(row for row in rows if row["step"] == SAMPLED)
    assert (first["function"], first["share"]) == ("sample_token (libllama.so)", "60.0% [50.2%, 69.1%]")


def test_the_threads_that_the_host_waits_for_are_told():
    threads = [
        {"process": 1, "thread": 7, "name": "output", "runs": "a.py(3): send", "how": HOW[GIL], "idle_us": 114.8},
        {"process": 1, "thread": -1, "name": "", "runs": "", "how": HOW[UNKNOWN], "idle_us": 4.5},
        {"process": 1, "thread": 8, "name": "", "runs": "", "how": HOW[RANGE], "idle_us": 0.01},
    ]
    assert waited_lines(threads) == [
        f"114.8 µs a step for thread 7 (output, a.py(3): send): {HOW[GIL]}", f"4.5 µs a step: {HOW[UNKNOWN]}",
    ]  # fmt: skip


def test_outer_functions_in_which_all_lies_are_left_out_of_the_flame_graph():
    def step(name, *stacks):
        return HostStep(name, 3, pd.DataFrame(stacks, columns=["stack", "ns"]))

    pieces = pieces_of([step("median step", ("main;loop;a", 600), ("main;loop;b;c", 380), ("main", 20))])
    assert pieces.set_index("path")["ns"].to_dict() == {
        "median step (3)": 1000, "median step (3);loop": 980, "median step (3);loop;a": 600,
        "median step (3);loop;b": 380, "median step (3);loop;b;c": 380, "median step (3);main": 20,
    }  # fmt: skip
