"""The other pages in a real Chromium: a journey through each, by keyboard; hostile names, failures and the login."""

import logging
import re
import threading
import time

import pytest
from selenium.webdriver import Keys

from dashboard.pages import advice, gap, parts
from dashboard.reading.store import known
from dashboard.serving import Serving
from dashboard.serving.guard import LOOPBACK
from dashboard.view import View
from tests.dashboard.conftest import copied, served
from tests.dashboard.filled import FILLED, HOSTILE, TINY, TRACED
from tests.dashboard.page import BARS
from tests.dashboard.traces import decode
from tests.recordings import LLAMA
from tracer import formats

pytestmark = pytest.mark.browser

OURS = "llama-1.1b-sccc-sequential-cuda"


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    runs = copied(tmp_path_factory.mktemp("runs"), TRACED, LLAMA["saaas", "graph"].name, OURS)
    formats.write(decode(tokens=8, kernel=HOSTILE), runs / HOSTILE)
    with served(runs) as address:
        yield address


def test_the_gap_its_longest_and_their_place_in_the_timeline(page, samples):
    page.visit(f"{samples}gap/?run={TRACED}&run={OURS}&theme=light")
    for key, words in (("figures", "78.1 µs"), ("figures", "1.05"), ("made-of", "inside a launch call")):
        page.says(key, words)
    page.until(lambda: {"sync", "launch", "host"} <= {*page.run("traces", "steps")}, "causes")
    page.until(lambda: page.run("traces", "distribution"), "a distribution")
    page.one('#scale input[value="all"]').send_keys(Keys.SPACE)
    page.linked("scale=all")
    page.enter("#theme")
    page.linked("theme=dark")
    page.follow("#longest a[href*='token=44']")
    page.linked("token=44")
    page.shows(BARS)


def test_the_syncs_fill_with_predictions_lead_to_a_what_if_and_are_saved_without_formulas(page, samples):
    page.visit(f"{samples}syncs/?run={TRACED}")
    for key, words in (
        ("said-of-all", "14 syncs a token (class sccc"), ("said-of-all", "tokens/s [model margin"),
        ("syncs", "cudaStreamSynchronize"), ("syncs", "sync 13 cannot be removed"), ("syncs", "not needed"),
    ):  # fmt: skip
        page.says(key, words)
    page.until(lambda: "…" not in page.text("syncs"), "all answers")
    page.follow("#syncs a[href*='without=1']")
    page.linked("whatif/")
    page.says("figures", "without sync 1")
    page.browser.back()
    page.follow("#syncs [row-id='3'] [col-id='show'] a")
    page.linked("event=")
    page.says("cost", "Row 3 of the syncs")
    page.visit(f"{samples}syncs/?run={TRACED}")
    page.says("said-of-all", "tokens/s [model margin")
    page.until(lambda: "…" not in page.text("syncs"), "all answers")
    page.alter("formula")
    page.enter("#download")
    first = page.until(lambda: page.run("return window.saved"), "a file").splitlines()[1]
    assert '"\'=1+1"' in first
    assert '"−4.88"' in first, "numbers as shown"


def test_a_what_if_by_keyboard_and_by_its_link(page, samples):
    page.visit(f"{samples}whatif/?run={TRACED}&theme=light")
    page.says("nothing", "Choose a change above")
    page.enter("#sync")  # a list, in which one types what is searched for, and takes the first that is left
    page.shows(".dash-dropdown-search")
    search = page.one(".dash-dropdown-search")
    search.send_keys("aaag")
    options = ".dash-dropdown-content .dash-options-list-option"
    page.until(lambda: len(page.all(options)) == 1, "only aaag")
    search.send_keys(Keys.ARROW_DOWN)
    page.until(lambda: page.browser.switch_to.active_element != search, "the focus on it")
    page.press(Keys.SPACE)
    page.linked("sync=aaag")
    page.says("figures", "41.5 µs")
    page.says("timeline", "aaag")
    page.enter("#host", "0.5", Keys.ENTER)
    page.linked("host=0.5")
    page.says("figures", "host code × 0.5")
    page.enter("#show-gap")
    page.linked("range=")
    figures = page.text("figures")
    page.load(page.browser.current_url)
    page.until(lambda: page.text("figures") == figures, "the same figures")
    page.enter("#latency", "much", Keys.ENTER)
    page.until(lambda: page.one("#latency").get_attribute("value") == "", "no number, no field")
    page.enter("#reset")
    page.unlinked("sync=")
    page.load(f"{samples}whatif/?run={TRACED}&without=2")
    page.says("without", ", waits for ")
    page.until(lambda: page.run("cut", "#without .dash-dropdown-value") == [], "its whole text")


def test_answers_of_the_advice_page_that_are_slower_than_its_polls_or_fail_are_drawn(page, samples, monkeypatch):
    """Dash drops the answer of a callback that was triggered again meanwhile."""
    in_words = advice.in_words
    with monkeypatch.context() as slow:
        slow.setattr(advice, "in_words", lambda *given: time.sleep(2) or in_words(*given))
        page.load(f"{samples}advice/?run={TRACED}")
        page.says("advice", "+")
    is_known = threading.Event()
    monkeypatch.setattr(parts, "_PAUSED_MS", 2000)
    monkeypatch.setattr(advice, "known", lambda answer: known(answer) if is_known.is_set() else None)
    page.load(f"{samples}advice/?run={TRACED}")
    page.until(lambda: page.all("#nothing") and page.text("nothing") == "", "an answer that makes it poll")
    page.alter("unheard")
    page.until(lambda: page.run("return window.unheard") >= 2, "polls that fail")
    is_known.set()
    page.run("window.heard = true")
    page.says("advice", "+")
    assert page.faults(), "those of the requests that failed"


def test_from_the_table_to_a_node_to_its_kernel_in_the_timeline_and_back(page, filled):
    def tap(name):
        seen = [None]

        def at_rest():
            seen.append(page.run("node", name))
            return seen[-1] == seen[-2] and seen[-1]

        x, y = page.until(at_rest, f"the node {name}")
        page.run("document.getElementById('canvas-holder').scrollTop = arguments[0] - 100", y)
        left, top = page.run("corner", "canvas-holder", "#canvas")
        page.click(left + x, top + y)

    page.visit(f"{filled}?run={TINY}", BARS)
    page.unfold()
    page.click_on(f'#runs .ag-row[row-id="{TINY}"] a')
    page.says("panel", "82 of 102 nodes")
    tap("blk.0.attn_k")
    page.says("panel", "event 0 of stream 0, after blk.0.attn_norm")
    page.linked("node=blk.0.attn_k")
    page.click_on("#to-timeline")
    page.says("compare-words", "steps/s")  # which stands above and moves it
    page.linked("range=", "token=")
    page.shows(BARS)
    page.click(*page.spot("kernel"))
    page.says("picked", "blk.0.attn_k mul_mat · stream 1")
    page.click_on("#picked .to-graph")
    page.says("panel", "event 0 of stream 0, after blk.0.attn_norm")
    for link, key, words in (
        ("broken", "nothing", "missing required field `nodes`"), ("gone", "nothing", "no run 'gone'"),
        ("hostile&node=blk.0.attn", "panel", f"op\n{HOSTILE}"),
    ):  # fmt: skip
        page.visit(f"{filled}graph/?run={link}")
        page.says(key, words)
    tap(HOSTILE)
    page.says("panel", HOSTILE)


def test_by_keyboard_from_page_to_page_with_the_chosen_run_token_and_theme(page, filled):
    page.load(f"{filled}?run={TINY}&token=2&theme=dark", BARS)
    order = []
    for _ in range(9):
        page.press(Keys.TAB)
        order.append(page.focused())
    pages = [f"page-{name}" for name in ("runs", "gap", "syncs", "advice", "what-if", "graph")]
    assert order == ["Skip to the content", *pages, "copy-link", "theme"]
    assert [entry.text for entry in page.all("nav [aria-current=page]")] == ["Runs"]
    page.enter("#page-graph")
    page.says("panel", "82 of 102")
    assert page.browser.current_url.startswith(f"{filled}graph/?run={TINY}&token=2&theme=dark")
    assert page.browser.title == "Graph · intertoken"
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.enter("#page-runs")
    page.shows(BARS)
    page.linked("token=2")
    page.run("document.querySelector('.skip').focus()")  # outside of the window until then
    page.press(Keys.ENTER)
    assert page.run("return document.activeElement.id") == "content"
    with page.screen(390, 844, mobile=False):  # a scroll bar takes some; a phone would show all of a wider page
        page.load(f"{filled}?run={TINY}", BARS)
        page.run("document.querySelectorAll('details').forEach((folded) => (folded.open = true))")
        page.shows("#row-list li li")
        widths = "const e = document.documentElement; return [e.scrollWidth - e.clientWidth, innerWidth]"
        page.until(lambda: page.run(widths) == [0, 390], "nothing to scroll to")


def test_hostile_names_are_shown_on_every_page_and_the_policy_stops_what_would_get_through(page, tmp_path):
    names = ["a\u202egnp.exe\u202c", "[x](javascript:window.hacked=1)", "x" * 240,
             "'\"&$x^2$<script>window.hacked=1<!--", HOSTILE]  # fmt: skip
    kernels = ["\u202eevil\x00", "k" * 10_000, "😀<b onclick=window.hacked=1>", HOSTILE,
               "<|script><script>window.hacked=1<|script>".replace("|", "/")]  # fmt: skip
    for name, kernel in zip(names, kernels, strict=True):
        formats.write(decode(tokens=8, kernel=kernel), tmp_path / name)
    with served(tmp_path) as address:
        page.load(f"{address}{View(runs=(*sorted(names),)).query()}", BARS)
        page.until(lambda: len(page.drawn("heading")) == len(names), "all drawn")
        page.until(lambda: len(page.all("#downloads-of-runs tr")) > 5, "links")
        executed = "#page img, #page b[onclick], #page a[href^=javascript]"
        assert page.all(executed) == []
        for place, key in (("gap/", "figures"), ("syncs/", "run"), ("whatif/", "timeline"), ("graph/", "nothing")):
            page.visit(f"{address}{place}{View(runs=(HOSTILE,)).query()}&host=0.5")
            page.says(key, "<img")
            assert page.all(executed) == []
        assert page.faults() == []
        page.run("violate")
        log = []
        page.until(lambda: log.extend(page.faults()) or len(log) >= 5, "violations")
        kinds = {kind for line in log for kind in re.findall("(script-src|img-src|connect-src|default-src)", line)}
        assert {"script-src", "img-src", "connect-src"} <= kinds
        page.leave()


def test_a_failure_is_said_in_place_and_goes_with_the_next_view(page, samples, monkeypatch, caplog):
    def fails(*_):
        raise ValueError("secret /etc/passwd")

    page.visit(f"{samples}gap/?run={TRACED}", FILLED["gap/"])
    said = "const box = document.getElementById('failure'); return box.checkVisibility() ? box.innerText : ''"
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR, "dashboard.pages"):
        broken.setattr(gap, "panels_of", fails)
        page.run("document.querySelector('#scale input[value=all]').click()")
        words = page.until(lambda: page.run(said), "what went wrong")
    number = re.search(r"failure ([0-9a-f]{6})", words)[1]
    assert number in caplog.text
    assert "secret" in caplog.text
    assert not re.search("secret|Traceback", page.browser.page_source)
    assert page.one("#failure").get_attribute("role") == "alert"
    assert TRACED in page.text("figures"), "what was shown still is"
    page.alter("window.copied = ''; navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click_on("#failure-copy")
    page.until(lambda: number in page.run("return window.copied"), "a copy")
    page.run("document.querySelector('#scale input[value=typical]').click()")
    page.until(lambda: not page.run(said), "no failure any more")


def test_behind_a_prefix_with_a_token_no_address_holds_it(page, runs):
    page.leave()
    page.browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    with served(runs, Serving(prefix="/lab/tool", hosts=LOOPBACK, token="a token & more")) as address:
        page.load(f"{address}gap/?run=a&theme=dark")
        assert page.one("[role=alert]").text.startswith("Enter the token of this dashboard")
        assert [fault for fault in page.faults() if "403" not in fault] == []
        page.one("[name=token]").send_keys("a token & more\n")
        page.says("figures", "100 µs")
        page.linked(f"{address}gap/", "theme=dark")
        page.click_on("#page-runs")
        page.shows(BARS)
        assert page.browser.current_url.startswith(f"{address}?run=a")
        assert "more" not in page.run("return location.href + document.cookie + document.referrer")
        page.leave()


def test_the_browser_makes_of_elements_without_a_component_what_it_makes_of_dashs_own(page, runs, monkeypatch):
    parts = ["keys", "chips", "downloads-of-runs", "row-list"]

    def shown():
        with served(runs) as address:
            page.load(f"{address}?run=a", BARS)
            drawn = "return arguments[0].map((id) => document.getElementById(id)?.innerHTML)"
            found = page.until(lambda: all(page.run(drawn, parts)) and page.run(drawn, parts), "all of it")
            page.leave()
            return found

    ours = shown()
    monkeypatch.setattr("dashboard.pages.with_markup", lambda layout: layout)
    monkeypatch.setattr("dashboard.pages.answering_markup", lambda function, several: function)
    assert ours == shown()
