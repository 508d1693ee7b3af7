"""A journey through each page in a real Chromium, by mouse and keyboard; hostile names, failures and the login."""

import logging
import re
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from dashboard.pages import advice, gap, parts
from dashboard.reading.readers import Readers
from dashboard.reading.store import known
from dashboard.serving import Serving
from dashboard.serving.guard import LOOPBACK
from dashboard.view import View
from tests.dashboard.conftest import copied, served
from tests.dashboard.filled import FILLED, HOSTILE, TINY, TRACED
from tests.dashboard.page import BARS
from tests.dashboard.planted import plant
from tests.dashboard.traces import GAP, PERIOD, decode
from tests.recordings import LLAMA, SAMPLES, unrated
from tests.tracer.handmade import Loop, loops
from tracer import formats

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("all_resamples")]

OURS = "llama-1.1b-sccc-sequential-cuda"


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    runs = copied(tmp_path_factory.mktemp("runs"), TRACED, LLAMA["saaas", "graph"].name, OURS)
    formats.write(decode(tokens=8, kernel=HOSTILE), runs / HOSTILE)
    with served(runs) as address:
        yield address


def test_the_gap_its_longest_and_their_place_in_the_timeline(page, samples):
    page.visit(f"{samples}gap/?run={TRACED}&run={OURS}&theme=light")
    for key, words in (("figures", "78.2 µs"), ("figures", "2.3"), ("made-of", "inside a launch call")):
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
    page.alter("formula")
    page.enter("#download")
    first = page.until(lambda: page.run("return window.saved"), "a file").splitlines()[1]
    assert '"\'=1+1"' in first
    assert '"−4.88"' in first, "numbers as shown"
    page.follow("#syncs a[href*='without=1']")
    page.linked("whatif/")
    page.says("figures", "without sync 1")
    page.browser.back()
    page.follow("#syncs [row-id='3'] [col-id='show'] a")
    page.linked("event=")
    page.says("cost", "Row 3 of the syncs")


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
    page.visit(f"{samples}whatif/?run={TRACED}&without=2")
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
    page.click(*page.spot("kernel", words="mul_mat(blk.0.attn_k)"))
    page.says("picked", "blk.0.attn_k mul_mat · stream 1")
    page.click_on("#picked .to-graph")
    page.says("panel", "event 0 of stream 0, after blk.0.attn_norm")
    page.visit(f"{filled}graph/?run=hostile&node=blk.0.attn")
    page.says("panel", f"op\n{HOSTILE}")
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
        page.visit(f"{filled}?run={TINY}", BARS)
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
        for place, key in (("gap/", "figures"), ("whatif/", "timeline"), ("graph/", "nothing")):
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


IMAGE = "<img src=x onerror=window.hacked=1>"
WAYS = [f"llama-1.1b-{way}-sequential-cuda" for way in ("sccc", "saaas", "aaas", "aga", "aaeg", "ggg")]
LLAMA_TWO = [LLAMA[way, "graph"].name for way in ("sccc", "saaas")]
VLLM_TWO = ["vllm-b8-graph-nvtx", "vllm-b8-graph"]


def link(runs):
    return "?" + "&".join(f"run={run}" for run in runs)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    with served(copied(tmp_path_factory.mktemp("bundled"), *WAYS, *LLAMA_TWO, *VLLM_TWO)) as address:
        yield address


def shown(page, condition, what):
    """What the timeline shows, once it is so."""

    def shows():
        found = page.run("view")
        return found and condition(view := SimpleNamespace(**found)) and view

    return page.until(shows, what)


def test_choosing_two_runs_zooming_down_to_single_kernels_and_coming_back_by_link(page, tmp_path):
    formats.write(decode(tokens=40, kernel=f"{IMAGE}<b>k</b>(T*)"), tmp_path / "short-gap")
    formats.write(decode(tokens=30, gap=2 * GAP), tmp_path / "wide-gap")
    for number in range(20):  # a table longer than the window, read soon
        (tmp_path / f"y{number:02}.sqlite").write_bytes(b"SQLite format 3\x00 but not really")
    with served(tmp_path) as address:
        page.visit(f"{address}?run=")
        page.unfold()
        page.says("nothing", "Select one to six runs")
        for number, key in enumerate(("short-gap", "wide-gap"), 1):
            page.click_on(f'#runs .ag-row[row-id="{key}"] .ag-checkbox-input')
            both = shown(page, lambda d, number=number: len(d.headings) == number, f"{number} timelines")
        assert both.rows == ["NVTX", "API calls", "stream 13", "stream 14"] * 2
        assert [("100 µs" in both.headings[0]), ("200 µs" in both.headings[1])] == [True, True]
        assert any("&lt;img" in hover for hover in both.hovers)
        assert both.range[0] < 0 < PERIOD < both.range[1]
        page.run("document.querySelector('#timeline').scrollIntoView({block: 'center'})")
        left, right, y = page.run("over", 0, PERIOD // 3, "stream 14")
        page.drag((left, y), (right, y), Keys.SHIFT)
        zoomed = shown(
            page, lambda d: d.range[1] - d.range[0] < 0.4 * (both.range[1] - both.range[0]), "a narrower range"
        )
        page.linked("range=")
        zoomed = shown(page, lambda d: 0 < d.kernels < both.kernels, "only the kernels in view")
        page.load(page.browser.current_url, BARS)
        again = shown(page, lambda d: d.range == zoomed.range, "the same range")
        assert (again.rows, again.kernels, again.gaps) == (zoomed.rows, zoomed.kernels, zoomed.gaps)
        page.click_on("#show-all")
        shown(page, lambda d: d.range[1] - d.range[0] > 30 * PERIOD, "the whole run")
        page.click_on("#show-gap")
        gap = shown(page, lambda d: d.range[1] - d.range[0] < 4 * GAP, "the gap")
        assert gap.gaps == ["gap 100 µs", "gap 200 µs"]
        for _ in range(11):  # each press counts
            page.one("#zoom-in").click()
        shown(page, lambda d: d.range[1] - d.range[0] < 1_000, "a few ns")
        page.leave()


def test_why_one_run_is_faster_where_its_figures_stand_and_tokens_worth_a_look(page, bundled):
    sccc, saaas = WAYS[:2]
    page.visit(f"{bundled}{link(WAYS[:2])}&token=5&theme=light", BARS)
    page.says("compare-words", f"{saaas} is faster than {sccc}: gap from 73.4 to 51.7 µs (−30 %; untraced)")
    page.says("compare-figures", "+3.0 % [+2.4, +3.7]")
    page.enter("#compare-words a.figure")
    assert page.one(".figures tr:has(td:target)").text.startswith("Gap p50, µs 73.4 51.7")
    page.enter("#tokens-open")
    for key, us in (("worst", "115 µs"), ("median", "73.4 µs")):
        page.enter(f"#token-{key}")
        page.says("timeline", f"gap after it {us}")
    median = page.browser.current_url
    assert "theme=light" in median
    page.one("#percentile").send_keys(Keys.BACKSPACE * 2, "100", Keys.ENTER)
    page.says("timeline", "gap after it 115 µs")
    page.browser.back()
    page.until(lambda: page.browser.current_url == median, "the link before")
    page.one("#percentile").send_keys(Keys.BACKSPACE * 3, Keys.ENTER)  # no number, nothing to show
    page.says("timeline", "gap after it 73.4 µs")
    page.enter("#compare-words button")
    page.linked(f"?run={saaas}&run={sccc}")
    page.says("compare-words", f"{sccc} is slower than {saaas}")
    page.until(lambda: page.one("#chips .tag").text == "base", "the base on its chip")
    assert page.one("#chips li").text.startswith("saaas")


def test_the_first_screen_needs_no_scrolling_and_answers_of_search_and_go_to_move_nothing(page, bundled):
    with page.screen(1440, 900):
        for runs in (VLLM_TWO[:1], LLAMA_TWO):
            page.visit(f"{bundled}{link(runs)}")
            found = page.until(lambda: page.run("places"), "all of it")
            assert page.run("return scrollY") == 0
            (chips, sentence, figures, _), timeline = found["bottoms"], found["tops"][3]
            assert chips < sentence < 900
            assert figures < timeline < 900 - 160, "px of the timeline that are seen at least"
            assert found["tools"][0] <= 4, "the tools in one row"
            assert found["tools"][1] <= 1440
        page.until(lambda: page.run("return document.getElementById('in-view').checkVisibility()"), "the minimap")
        before = page.run("told")["top"]
        page.one("#find").send_keys("kind:kernel", Keys.ENTER)
        page.until(lambda: " of " in page.run("told")["texts"][0], "the matches")
        page.one("#go").send_keys("nowhere at all", Keys.ENTER)
        page.until(lambda: "is not a destination" in page.run("told")["texts"][1], "the answer")
        told = page.run("told")
        assert page.run("places")["tools"][0] <= 4
        assert told["top"] == before
        assert told["apart"], "on both sides of the axis's title"
        assert told["titles"][1].endswith("for the next gap longer than that."), "the whole answer"
        page.visit(f"{bundled}{link(WAYS)}")
        page.until(lambda: page.run("places"), "the answer")
        assert [len(page.all(each)) for each in ("#compare-words p", "#chips li")] == [5, 6]
        heads = page.all("#compare-figures thead th")
        assert len({head.text for head in heads}) == 7, "names that stay different"
        assert [head.get_attribute("title") for head in heads[1:]] == WAYS
        gap = next(row for row in page.all("#compare-figures tbody tr") if row.text.startswith("Gap p50"))
        lit = [cell.text for cell in gap.find_elements(By.CSS_SELECTOR, ".largest")]
        assert lit == ["−71.3 [−77.3, −65.3]"]
        assert page.run("cut", "#compare-figures, #chips li, .tools") == []
        tops = [part.rect["y"] for part in page.all("#compare-figures, .ladder, #timeline")]
        assert tops == sorted(tops)
        assert len(tops) == 3
        assert tops[-1] < 900, "the top of the timeline is on the first screen"


def test_a_link_to_what_is_not_there_says_which(page, bundled):
    for place in ("", "whatif/"):  # two kinds of view, one callback
        page.visit(f"{bundled}{place}?run=no-such-run&run={WAYS[1]}&theme=light")
        page.says("missing", "The link names no-such-run, which is not among the 10 recordings here.")
        page.linked("no-such-run")


def test_a_folder_of_54_recordings_shows_the_pair_of_a_link_and_reads_the_rest_behind(page, tmp_path):
    """3 s on an idle machine (benchmarks/many_recordings.py); here reading the rest takes without end."""
    for number in range(52):
        (tmp_path / f"slow-{number:02}.sqlite").write_bytes(b"SQLite format 3\x00")
    for name in ("z0", "z1"):
        formats.write(decode(), tmp_path / f"{name}.sqlite")
    with closing(Readers(prepare=plant)) as readers, served(tmp_path, Serving(readers=readers)) as address:
        page.load(f"{address}{link(('z0', 'z1'))}")
        shown(page, lambda d: len(d.headings) == 2, "the pair")
        page.until(lambda: len(page.all("#chips b")) == 2, "a chip for each of the pair")
        said = re.compile(r"2 of 54 recordings read; 52 left, now slow-\d\d")  # once the page has drawn
        page.until(lambda: said.match(page.text("reading-said")), "what is read")
        page.leave()


def test_files_that_are_chosen_dropped_or_come_are_read_or_say_in_place_why_not(page, tmp_path):
    for name in ("inbox", "runs"):
        (tmp_path / name).mkdir()
    formats.write(decode(kernel=IMAGE), tmp_path / "x.json")
    formats.write(decode(tokens=1200), tmp_path / "large.sqlite")
    assert (tmp_path / "large.sqlite").stat().st_size > 1_100_000  # several slices

    def rows():
        return {row.get_attribute("row-id") for row in page.all("#runs .ag-center-cols-container [row-id]")}

    def said():
        return [row.text for row in page.all("#uploads li")]

    serving = Serving(uploads=tmp_path / "inbox", upload_limit=3_000_000)
    with served(tmp_path / "runs", serving) as address:
        page.load(address)
        page.unfold()
        page.says("nothing", "No recordings yet")
        page.run("choose")
        page.one("#chosen").send_keys(f"{tmp_path / 'x.json'}\n{tmp_path / 'large.sqlite'}")
        page.until(lambda: rows() == {"x", "large"}, "both in the table")
        page.until(lambda: [text.split("\n")[1] for text in said()] == ["is in the table. Show it"] * 2, "said so")
        name, text = f"{IMAGE}\u202e😀.json", (tmp_path / "x.json").read_text()
        page.run("drop", [[f"{name}.png", 9, ""], ["big.sqlite", 3_000_001, ""], ["empty.json", 0, ""],
                          ["n" * 10_000 + ".zip", 5, "PK\3\4!"], [name, 0, text]])  # fmt: skip
        page.until(lambda: len(said()) == 7 and "in the table" in said()[-1], "seven answers")
        for line, words in zip(said()[2:], ("not a recording", "limit is 3,000,000", "is empty", "truncated zip"),
                               strict=False):  # fmt: skip
            assert words in line
        assert said()[2].startswith(IMAGE)
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert [fault for fault in page.faults() if "413" not in fault and "422" not in fault] == []
        page.one("#uploads button").click()
        assert len(said()) == 6
        broken = b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 4301 + b"}]}"
        (tmp_path / "runs" / "broken.json").write_bytes(broken)
        why = "contains a number with more than 100 digits, so it is not a trace"
        page.until(lambda: page.run("unread", "broken") == ["broken", why], "the reason, whole")
        page.browser.find_element(By.LINK_TEXT, "Show it").click()
        page.shows(BARS)
        page.until(lambda: page.browser.current_url.endswith("?run=large"), "that one")
        page.leave()


def test_a_rate_is_typed_into_the_table_goes_into_the_link_and_is_printed(page, tmp_path):
    run = VLLM_TWO[1]
    unrated(SAMPLES / run, tmp_path / run)
    rate = f'.ag-row[row-id="{run}"] .ag-cell[col-id="rate"]'
    focus = f"""const api = dash_ag_grid.getApi('runs'); api.ensureColumnVisible('rate');
                api.setFocusedCell(api.getRowNode('{run}').rowIndex, 'rate')"""

    def typed(text):
        page.run(focus)
        page.press(Keys.ENTER)
        page.until(lambda: page.one(f"{rate} input").get_attribute("aria-label") == "Untraced steps/s", "an editor")
        page.one(f"{rate} input").send_keys(Keys.CONTROL + "a", Keys.NULL, text, Keys.ENTER)

    def printed():
        page.run("window.dispatchEvent(new Event('beforeprint'))")
        heads = [head.get_attribute("textContent") for head in page.all(".printed th")]
        page.run("window.dispatchEvent(new Event('afterprint'))")
        return heads

    with served(tmp_path) as address:
        page.load(f"{address}?run={run}")
        page.click_on("#chips [data-rate]")  # which opens the table at the field
        page.until(lambda: page.one(f"{rate} input").send_keys(Keys.ESCAPE) or True, "an editor, and it left")
        page.until(lambda: page.one(rate).text == "give it", "the field")
        assert "Untraced steps/s" not in printed()
        typed("528.11")
        page.linked(f"rate=528.11%3A{run}")
        page.until(lambda: page.one(rate).text == "528.11", "the rate")
        page.says("rates-said", "4,224.9 tokens/s")
        page.until(lambda: "rate=528.11" in page.one("#page-gap").get_attribute("href"), "the other pages have it")
        assert "Untraced steps/s" in printed()
        typed("fast")
        page.says("rate-refused", "“fast” is not a rate")
        page.until(lambda: page.one(rate).text == "528.11", "the rate as it was")
        page.linked(f"rate=528.11%3A{run}")
        page.leave()


def test_figures_are_saved_by_the_browser_and_links_download(page, address, tmp_path):
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.visit(f"{address}?run=a&run=b&theme=dark", BARS)
    page.until(lambda: len(page.all("#downloads-of-runs tr")) == 10, "links")
    for key in ("timeline-svg", "timeline-png", "causes-svg", "causes-png"):
        page.run(f"document.getElementById('save-{key}').click()")
    for there in page.all("#downloads-of-runs tr:first-child a"):
        page.run("arguments[0].click()", there)
    figures = {f"{name}.{form}" for name in ("timeline", "causes") for form in ("svg", "png")}
    wanted = {f"intertoken-{name}" for name in figures | {"runs.csv", "runs.parquet", "runs.json"}}
    page.until(lambda: wanted == {path.name for path in tmp_path.iterdir()}, "seven files")
    drawing = (tmp_path / "intertoken-timeline.svg").read_text()
    assert "barlayer" in drawing
    assert "rgb(22, 27, 34)" in drawing  # dark ground below light words
    assert (tmp_path / "intertoken-timeline.png").read_bytes().startswith(b"\x89PNG")


def test_one_of_several_engines_is_chosen_by_keyboard_and_by_its_link(page, tmp_path):
    formats.write(loops(Loop(107_300, 600_000), Loop(68_600, 240_000, 80, thread=102, syncs=2)), tmp_path / "two")
    with served(tmp_path) as address:
        page.visit(f"{address}gap/")
        for words in ("two · process 100 thread 101 device 0", "two · process 100 thread 102 device 0", "107", "68.6"):
            page.says("figures", words)
        page.visit(f"{address}syncs/?run=two~process 100 thread 101 device 0")
        page.says("said-of-all", "1 sync a ")
        page.enter("#run")
        page.shows(".dash-dropdown-search")
        search = page.one(".dash-dropdown-search")
        search.send_keys("102")
        page.until(lambda: len(page.all(".dash-dropdown-content .dash-options-list-option")) == 1, "only one engine")
        search.send_keys(Keys.ENTER)
        page.linked("thread+102")
        page.says("said-of-all", "2 syncs a ")
        page.load(page.browser.current_url)
        page.says("said-of-all", "2 syncs a ")


def test_one_switch_for_the_gap_of_all_figures(page, bundled):
    page.visit(f"{bundled}{link(LLAMA_TWO)}&theme=light", BARS)
    page.says("compare-words", "mean gap from 78.2 to 58.5 µs")
    page.says("chips", "mean gap 78.2 µs")
    page.until(lambda: "78.2 µs" in page.text("causes"), "the mean in the figure")
    page.until(lambda: any("timeline: as recorded" in text for text in page.drawn("heading")), "what the timeline is")
    assert page.all(".matrix .change.unsure")
    page.run("document.querySelector('#basis input[value=recorded]').click()")
    page.linked("basis=recorded")
    page.says("chips", "gap 149.2 µs ▲")
    page.says("compare-words", "gaps of 149.2 and 117.8 µs")
    page.until(lambda: "182 µs" in page.text("causes"), "the mean in the figure")
    assert "78.2" not in page.run("return document.body.innerText")
    page.click_on("#page-gap")
    page.linked("gap/", "basis=recorded")
    page.says("figures", "181.9 µs ▲")
    page.run("document.querySelector('#basis input[value=untraced]').click()")
    page.says("figures", "78.2 µs")
    page.unlinked("basis=")


def test_a_saved_picture_has_a_legend_of_what_is_drawn(page, bundled):
    page.visit(f"{bundled}?run={VLLM_TWO[0]}&theme=light", BARS)
    page.says("compare-words", "a step idles")
    said = {}
    for figure in ("timeline", "causes"):
        page.alter("window.Plotly.downloadImage = async (made) => { window.made = made; }")
        page.run("window.made = null; document.getElementById(arguments[0]).click()", f"save-{figure}-svg")
        legend = "return window.made && window.made.data.filter((trace) => trace.showlegend).map((trace) => trace.name)"
        said[figure] = set(page.until(lambda: page.run(legend), "a picture"))  # noqa: B023
        assert page.run("return window.made.layout.showlegend")
    assert {"kernel", "CUDA graph", "copy", "inter-token gap", "idle before the graph"} <= said["timeline"]
    assert "idle between steps" not in said["timeline"]
    assert {"launch", "host code"} <= said["causes"]


def test_a_page_whose_token_is_old_says_so_and_keeps_its_view_over_the_log_in(page, runs):
    hosts = {"hosts": LOOPBACK}
    with served(runs, Serving(token="the one before", **hosts)) as address:
        page.load(f"{address}login?token=the+one+before&next=/%3Frun%3Da%26token%3D3", BARS)
        page.linked("token=3")
    with served(runs, Serving(token="the next one", **hosts)) as again:
        assert again == address
        page.until(lambda: page.one("#old").is_displayed(), "that it is old")
        page.rest(500)
        page.faults()  # the answers that say so
        page.one("#log-in").click()
        page.shows("input[name=token]")
        page.enter("input[name=token]", "the next one", Keys.ENTER)
        page.shows(BARS)
        page.linked("run=a", "token=3")
        assert not page.one("#old").is_displayed()
        page.faults()
        page.leave()


def test_a_first_visit_is_packed_and_the_next_one_fetches_only_what_is_new(page, runs):
    received = """
        const entries = ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind));
        return entries.reduce((sum, entry) => sum + (entry.name.endsWith("/revision") ? 0 : entry.transferSize), 0)
    """
    with served(runs, Serving(token="secret", hosts=LOOPBACK)) as address:
        page.browser.execute_cdp_cmd("Network.clearBrowserCache", {})
        page.load(f"{address}login?token=secret&next=/%3Frun%3Da", BARS)
        page.rest(1500)
        first = page.run(received)
        page.load(f"{address}?run=a", BARS)
        page.rest(1500)
        assert 1_000_000 < first < 2_600_000
        assert page.run(received) < 50_000
        page.leave()
