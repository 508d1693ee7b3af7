"""The engines' own rates on the page: in the table of runs, in links, and in every figure, as the commands have it."""

import csv
import gc
import io
import json
import re
import shutil
import time
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from dashboard.app import create_app
from dashboard.pages.graph import GraphView
from dashboard.pages.whatif import WhatIfView
from dashboard.reading.answers import gain_without
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.view import MOST_RATES, NoRate, Rate, View, rate_of, text_of, with_rate
from tests.dashboard.conftest import click_on, faults, served, until
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.recordings import SAMPLES
from tracer import formats
from tracer.analysis.bounds import RATES
from tracer.cli import main

VLLM, LLAMA, OTHER = "vllm-b8-graph", "llama1b-sccc-graph", "llama1b-saaas-graph"
GIVEN = {VLLM: 528.11, LLAMA: 748.7, OTHER: 759.5}
SCREEN = {"scheme": "light", "width": 1200}


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
    client = create_app([runs]).server.test_client()
    while not _table(client, "")["response"]["reading"]["disabled"]:
        time.sleep(0.05)
    return client


def _ask(client, page, output, values, changed=None):
    callback = next(one for one in callbacks_of(client, page) if output in one["output"])
    return post(client, page, asked(callback, values, changed))


def _table(client, search):
    return _ask(client, "", "runs.rowData", {"url.search": search}).get_json()


def _rows(client, search):
    return {row["key"]: row for row in _table(client, search)["response"]["runs"]["rowData"]}


def _settled(client, page, output, values):
    """What a callback says once it does not ask again."""
    while True:
        response = _ask(client, page, output, values).get_json()["response"]
        poll = next(part for key, part in response.items() if key.endswith("poll"))
        if poll["disabled"]:
            return response
        time.sleep(0.05)


def _command(*arguments):
    answer = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def _link(*names):
    return View(runs=names, rates=tuple(Rate(name, GIVEN[name]) for name in names)).query()


@pytest.mark.parametrize("name", [VLLM, LLAMA])
def test_a_link_with_a_rate_gives_the_figures_of_the_command_with_it(client, runs, name):
    facts = _command("gaps", runs / name, "--untraced-steps-per-s", GIVEN[name])
    bare, row = _rows(client, "")[name], _rows(client, _link(name))[name]
    assert (bare["untraced_idle"], bare["untraced_gap"], bare["distortion"]) == (None, None, None)
    assert row["untraced_idle"] == facts["untraced_idle_us"]["p50"]
    assert row["untraced_gap"] == (facts["untraced_gap_us"] or {"p50": None})["p50"]
    assert row["distortion"] == facts["distortion"]
    assert row["rate"] == str(GIVEN[name])
    view = {"view.data": View.parse(_link(name)).data() | {"scale": "typical"}, "screen.data": SCREEN}
    shown = _ask(client, "gap/", "made-of.rowData", view).get_json()["response"]["made-of"]["rowData"]
    causes = {part["cause"]: part["untraced"] for part in shown[1:] if not part["part"]}
    assert causes == (facts["causes_us"] if facts["untraced_gap_us"] else dict.fromkeys(facts["causes_us"]))
    exported = client.get(f"/download/causes.json{_link(name)}").get_json()
    assert {part["cause"]: part["untraced_us"] for part in exported} == pytest.approx(causes)
    (line,) = [
        line
        for line in csv.DictReader(io.StringIO(client.get(f"/download/runs.csv{_link(name)}").text))
        if line["run"] == name
    ]
    assert float(line["untraced_idle_us"]) == facts["untraced_idle_us"]["p50"]
    assert float(line["untraced_steps_per_s"]) == GIVEN[name]
    report = client.get(f"/download/report.html{_link(name)}").text
    assert f"untraced rate given, {GIVEN[name]} steps/s" in report
    assert f"{facts['untraced_idle_us']['p50']:.1f}"[:5] in report


def _texts(children):
    """All texts of components, or of the trees of a `Markup`."""
    match children:
        case str():
            return [children]
        case {"props": {"trees": trees}}:
            return _texts(trees)
        case {"props": props}:
            return _texts(props.get("children", ""))
        case [str(), dict(), *inner] | inner:
            return [text for child in inner for text in _texts(child)]


def _give(client, run, value, view=None):
    change = [{"rowId": run, "value": value, "colId": "rate", "data": {"key": run}, "timestamp": 1.0}]
    values = {"runs.cellValueChanged": change, "view.data": (view or View(runs=(run,))).data()}
    return _ask(client, "", "rate-refused.children", values)


def test_what_is_written_into_the_table_goes_into_the_link_with_all_its_digits(client):
    answer = _give(client, VLLM, " 528.1123456789 ").get_json()["response"]
    assert View.parse(answer["followed"]["data"]).rate_of(VLLM) == 528.1123456789
    assert answer["rate-refused"]["children"] == ""
    taken = _give(client, VLLM, "", View.parse(answer["followed"]["data"])).get_json()["response"]
    assert taken["followed"]["data"] == f"?run={VLLM}"


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "fast", "1e99", "0.0001", "5_0", "٥", "1,5", "x" * 900])
def test_what_is_no_rate_is_refused_in_a_line_and_changes_nothing(client, text):
    answer = _give(client, VLLM, text).get_json()["response"]
    assert "followed" not in answer
    (row,) = answer["runs"]["rowTransaction"]["update"]
    assert row["rate"] == ""
    said = answer["rate-refused"]["children"]
    assert "is not a rate: enter the engine's steps per second" in said
    assert "\n" not in said
    assert len(said) < 250
    with pytest.raises(NoRate):
        rate_of(text)


def test_a_rate_of_another_run_is_said_beside_it_and_counts_for_nothing(client):
    view = View(runs=(VLLM, "light")).rated(VLLM, 5.0).rated("light", 700.0)
    rows, bare = _rows(client, view.query()), _rows(client, "")
    apart = {"rate", "rate_note", "rate_fails", "graph"}
    for key in (VLLM, "light"):
        assert {k: v for k, v in rows[key].items() if k not in apart} == {
            k: v for k, v in bare[key].items() if k not in apart
        }
    assert "5 steps/s, ignored" in rows[VLLM]["rate_note"]
    assert "that rate is from another run" in rows[VLLM]["rate_note"]
    assert rows["light"]["rate_note"].endswith("ignored: the recording is untraced, so the rate changes nothing")
    values = {"view.data": view.data(), "screen.data": SCREEN, "revision.data": 1}
    lines = _ask(client, "", "rates-said.children", values).get_json()["response"]["rates-said"]["children"]
    assert len(_texts(lines)) == 4  # a name and what is said of it, twice
    told = json.dumps(
        _settled(client, "whatif/", "figures.children", {"view.data": view.data(), "screen.data": SCREEN})
    )
    assert "ignored: " in told
    assert "ignored: " in client.get(f"/download/report.html{view.query()}").text


def test_all_pages_keep_the_rates(client):
    rates = (Rate("a:b~c", 1 / 3), Rate("ä b", 1e9), Rate("x", 0.001))
    view = View(runs=("x",), rates=rates)
    assert View.parse(view.query()) == view
    assert GraphView.parse(GraphView("x", rates=rates).query()) == GraphView("x", rates=rates)
    assert WhatIfView.parse(WhatIfView(view, host=0.5).query()) == WhatIfView(view, host=0.5)
    reduced = _ask(client, "whatif/", "rate-refused.children", {"url.search": _link(VLLM)}, ["url.search"])
    assert reduced.get_json()["response"]["rate"]["value"] == "528.11"


def parsed(texts):
    return View.parse("?" + urlencode([("rate", text) for text in texts])).rates


def test_rates_are_bounded():
    many = [f"{n + 1}:run{n}" for n in range(99)]
    assert len(parsed(many)) == MOST_RATES
    with pytest.raises(NoRate, match="remove one first"):
        with_rate(parsed(many), "another", 5.0)
    assert with_rate(parsed(many), "run0", 7.0)[-1] == Rate("run0", 7.0)
    for rates in ([["a", -1.0]], [["a", float("nan")]], [["a", 2 * RATES[1]]], [[f"r{n}", 1.0] for n in range(25)]):
        with pytest.raises(ValueError, match="rates"):
            View.from_data({"rates": rates})
    assert parsed(["5", "x:a", "5:", "-1:a", "nan:a", "5:a", "6:a"]) == (Rate("a", 6.0),)
    assert [text_of(rate) for rate in (0.1, 1e9, 528.11, None)] == ["0.1", "1000000000", "528.11", ""]


def test_answers_by_other_rates_are_kept_apart_and_not_without_end(runs):
    store = RunStore([runs / LLAMA])
    run = store.runs()[0]
    one, other = run.at(748.7), run.at(740.0)
    assert one.gaps.untraced_idle_us["p50"] < other.gaps.untraced_idle_us["p50"]
    assert run.gaps.untraced_idle_us is None
    assert run.at(748.7) is one
    assert one.rows is run.rows
    assert one.tokens is run.tokens
    first, second, third = (gain_without(store, each, None).result(60).corrected for each in (one, other, run))
    assert (first.steps_per_s, second.steps_per_s, third) == (748.7, 740.0, None)
    for rate in range(690, 740):
        run.at(float(rate))
    gc.collect()
    assert sum(type(each) is Run and each.without_rate is run for each in gc.get_objects()) <= 6


@pytest.mark.browser
def test_a_rate_is_typed_into_the_table(browser, runs):
    with served(runs) as address:
        browser.get(f"{address}?run={VLLM}")
        click_on(browser, "#chips [data-rate]")  # which opens the table at the field
        until(browser, lambda: browser.switch_to.active_element.tag_name == "input", "an editor")
        cell = f'.ag-row[row-id="{VLLM}"] .ag-cell[col-id="rate"]'
        editor = f"{cell} input"  # which the table may draw anew between finding it and leaving it
        until(browser, lambda: browser.find_element("css selector", editor).send_keys("\ue00c") or True, "it left")
        until(browser, lambda: browser.find_element("css selector", cell).text == "give it", "the field")
        idle = f'.ag-row[row-id="{VLLM}"] .ag-cell[col-id="untraced_idle"]'

        def typed(text):
            browser.execute_script("arguments[0].scrollIntoView()", browser.find_element("css selector", cell))
            browser.execute_script(
                "const api = dash_ag_grid.getApi('runs'); api.ensureColumnVisible('rate');"
                f"api.setFocusedCell(api.getRowNode('{VLLM}').rowIndex, 'rate');"
            )
            browser.switch_to.active_element.send_keys("\ue007")
            field = until(browser, lambda: browser.find_element("css selector", editor), "an editor")
            assert field.get_attribute("aria-label") == "Untraced steps/s"
            field.send_keys("\ue009a\ue000", text, "\ue007")

        def printed():
            browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
            heads = [head.get_attribute("textContent") for head in browser.find_elements("css selector", ".printed th")]
            browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
            return heads

        assert "Idle p50, µs" in printed()
        assert "Untraced steps/s" not in printed()
        typed("528.11")
        until(browser, lambda: f"rate=528.11%3A{VLLM}" in browser.current_url, "the rate in the address")
        until(browser, lambda: browser.find_element("css selector", idle).text == "561.9", "the corrected idle time")
        said = until(browser, lambda: browser.find_element("id", "rates-said").text, "what the rate does")
        assert "4,224.9 tokens/s" in said
        carried = until(browser, lambda: browser.find_element("id", "page-gap").get_attribute("href"), "a link")
        assert "rate=528.11" in carried
        assert "Untraced steps/s" in printed()
        typed("fast")
        refused = until(browser, lambda: browser.find_element("id", "rate-refused").text, "why it is none")
        assert re.match("“fast” is not a rate", refused)
        until(browser, lambda: browser.find_element("css selector", cell).text == "528.11", "the rate as it was")
        assert f"rate=528.11%3A{VLLM}" in browser.current_url
        assert not faults(browser)
