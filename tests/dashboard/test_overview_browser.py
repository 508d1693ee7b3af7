"""The page of runs in a real Chromium: choosing, comparing, uploading, typing a rate, and taking away."""

import json
import re
import shutil
from contextlib import closing
from types import SimpleNamespace

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from dashboard.reading.readers import Readers
from dashboard.serving import Serving
from tests.dashboard.conftest import copied, served
from tests.dashboard.page import BARS
from tests.dashboard.planted import plant
from tests.dashboard.traces import GAP, PERIOD, decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("all_resamples")]

HOSTILE = "<img src=x onerror=window.hacked=1>"
OURS = [f"llama-1.1b-{way}-sequential-cuda" for way in ("sccc", "saaas", "aaas", "aga", "aaeg", "ggg")]
LLAMA_TWO = [LLAMA[way, "graph"].name for way in ("sccc", "saaas")]
VLLM_TWO = ["vllm-b8-graph-nvtx", "vllm-b8-graph"]


def link(runs):
    return "?" + "&".join(f"run={run}" for run in runs)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    with served(copied(tmp_path_factory.mktemp("samples"), *OURS, *LLAMA_TWO, *VLLM_TWO)) as address:
        yield address


def shown(page, condition, what):
    """What the timeline shows, once it is so."""

    def shows():
        found = page.run("view")
        return found and condition(view := SimpleNamespace(**found)) and view

    return page.until(shows, what)


def test_choosing_two_runs_zooming_down_to_single_kernels_and_coming_back_by_link(page, tmp_path):
    formats.write(decode(tokens=40, kernel=f"{HOSTILE}<b>k</b>(T*)"), tmp_path / "short-gap")
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


def test_why_one_run_is_faster_where_its_figures_stand_and_tokens_worth_a_look(page, samples):
    sccc, saaas = OURS[:2]
    page.visit(f"{samples}{link(OURS[:2])}&token=5&theme=light", BARS)
    page.says("compare-words", f"{saaas} is faster than {sccc}: gap from 73.4 to 51.7 µs (−30 %; untraced)")
    page.says("compare-figures", "+3.0 % [+2.4, +3.7]")
    page.enter("#compare-words a.figure")
    assert page.one(".figures tr:has(td:target)").text.startswith("Gap p50, µs 73.4 51.7")
    page.enter("#tokens-open")
    for key, gap in (("worst", "115 µs"), ("median", "73.4 µs")):
        page.enter(f"#token-{key}")
        page.says("timeline", f"gap after it {gap}")
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
    assert page.one("#chips li").text.startswith("llama-1.1b-saaas")


def test_the_first_screen_needs_no_scrolling_and_answers_of_search_and_go_to_move_nothing(page, samples):
    with page.screen(1440, 900):
        for runs in (LLAMA_TWO[:1], VLLM_TWO, LLAMA_TWO):
            page.visit(f"{samples}{link(runs)}")
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
        page.visit(f"{samples}{link(OURS)}")
        page.until(lambda: page.run("places"), "the answer")
        assert [len(page.all(each)) for each in ("#compare-words p", "#chips li")] == [5, 6]
        heads = page.all("#compare-figures thead th")
        assert len({head.text for head in heads}) == 7, "names that stay different"
        assert [head.get_attribute("title") for head in heads[1:]] == OURS
        gap = next(row for row in page.all("#compare-figures tbody tr") if row.text.startswith("Gap p50"))
        lit = [cell.text for cell in gap.find_elements(By.CSS_SELECTOR, ".largest")]
        assert lit == ["−71.3 [−72.9, −69.2]"]
        assert page.run("cut", "#compare-figures, #chips li, .tools") == []
        tops = [part.rect["y"] for part in page.all("#compare-figures, .ladder, #timeline")]
        assert tops == sorted(tops)
        assert len(tops) == 3
        assert tops[-1] < 900, "the top of the timeline is on the first screen"


def test_a_link_to_what_is_not_there_says_which(page, samples):
    for place in ("", "whatif/"):  # two kinds of view, one callback
        page.visit(f"{samples}{place}?run=no-such-run&run={OURS[1]}&theme=light")
        page.says("missing", "The link names no-such-run, which is not among the 10 recordings here.")
        page.linked("no-such-run")
    page.visit(f"{samples}graph/?run=no-such-run")
    page.says("content", "There is no run 'no-such-run'")


def test_a_folder_of_54_recordings_shows_the_pair_of_a_link_and_reads_the_rest_behind(page, tmp_path):
    """3 s on an idle machine (benchmarks/many_recordings.py); here reading the rest takes without end."""
    for number in range(52):
        (tmp_path / f"slow-{number:02}.sqlite").write_bytes(b"SQLite format 3\x00")
    for name in ("z0", "z1"):
        formats.write(decode(), tmp_path / f"{name}.sqlite")
    with closing(Readers(prepare=plant)) as readers, served(tmp_path, Serving(readers=readers)) as address:
        page.load(f"{address}{link(('z0', 'z1'))}")
        shown(page, lambda d: len(d.headings) == 2, "the pair")
        assert len(page.all("#chips b")) == 2
        said = re.compile(r"2 of 54 recordings read; 52 left, now slow-\d\d")  # once the page has drawn
        page.until(lambda: said.match(page.text("reading-said")), "what is read")
        page.leave()


def test_files_that_are_chosen_dropped_or_come_are_read_or_say_in_place_why_not(page, tmp_path):
    for name in ("inbox", "runs"):
        (tmp_path / name).mkdir()
    formats.write(decode(kernel=HOSTILE), tmp_path / "x.json")
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
        name, text = f"{HOSTILE}\u202e😀.json", (tmp_path / "x.json").read_text()
        page.run("drop", [[f"{name}.png", 9, ""], ["big.sqlite", 3_000_001, ""], ["empty.json", 0, ""],
                          ["n" * 10_000 + ".zip", 5, "PK\3\4!"], [name, 0, text]])  # fmt: skip
        page.until(lambda: len(said()) == 7 and "in the table" in said()[-1], "seven answers")
        for line, words in zip(said()[2:], ("not a recording", "limit is 3,000,000", "is empty", "truncated zip"),
                               strict=False):  # fmt: skip
            assert words in line
        assert said()[2].startswith(HOSTILE)
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert [fault for fault in page.faults() if "413" not in fault and "422" not in fault] == []
        page.one("#uploads button").click()
        assert len(said()) == 6
        broken = b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 4301 + b"}]}"
        (tmp_path / "runs" / "broken.json").write_bytes(broken)
        why = "contains a number with more than 100 digits, so it is not a trace"
        page.until(lambda: page.run("unread", "broken") == ["broken", why], "the reason, whole")
        page.browser.find_elements(By.LINK_TEXT, "Show it")[1].click()
        page.shows(BARS)
        page.until(lambda: page.browser.current_url.endswith("?run=large"), "that one")
        page.leave()


def test_a_rate_is_typed_into_the_table_goes_into_the_link_and_is_printed(page, tmp_path):
    run = VLLM_TWO[1]
    shutil.copytree(SAMPLES / run, tmp_path / run)
    told = json.loads((tmp_path / run / "run.json").read_text())
    del told["measured"]
    (tmp_path / run / "run.json").write_text(json.dumps(told))
    rate, idle = (f'.ag-row[row-id="{run}"] .ag-cell[col-id="{column}"]' for column in ("rate", "untraced_idle"))
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
        page.until(lambda: page.one(idle).text == "561.9", "the corrected idle time")
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
