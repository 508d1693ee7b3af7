"""The advice page: the command's advice, links to its what-ifs, and call sites with their lines."""

import json
import shutil
import threading
import time

import pytest
from click.testing import CliRunner
from selenium.webdriver.common.by import By

from dashboard.pages import advice, parts
from dashboard.pages.advice import host_of, in_words, pieces_of, tables_of, waited_lines
from dashboard.reading.answers import Sites, advice_of, sites_of
from dashboard.reading.store import RunStore, known
from tests.dashboard.conftest import alter, faults, load, served, until
from tests.recordings import LLAMA, SAMPLES
from tests.tracer.nsys_exports import GLOBAL_TID, export
from tests.tracer.test_sampled import STEPS, idle_places, recording
from tests.tracer.test_truths import SHARED
from tracer.analysis.idle_sites import SAMPLED
from tracer.analysis.waited_for import GIL, HOW, RANGE, UNKNOWN
from tracer.cli import main

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
