"""The first screen in a real Chromium: what stands on it, how the table of runs folds, six runs, links to nothing."""

import re
import shutil
from contextlib import closing

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from dashboard.reading.readers import Readers
from dashboard.serving import Serving
from tests.dashboard.conftest import faults, load, screen_of, served, until, visit
from tests.dashboard.planted import plant
from tests.dashboard.traces import decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("all_resamples")]

OURS = [f"llama-1.1b-{way}-sequential-cuda" for way in ("sccc", "saaas", "aaas", "aga", "aaeg", "ggg")]
LLAMA_TWO = [LLAMA[way, "graph"].name for way in ("sccc", "saaas")]
VLLM_TWO = ["vllm-b8-graph-nvtx", "vllm-b8-graph"]
TOP = 160
"""px of the timeline that are seen at least."""
PLACES = """
const at = (e) => e && e.checkVisibility() ? e.getBoundingClientRect() : null;
const lasting = ["#chips", "#compare-words .answer", "#compare-figures table", "#timeline"]
  .map((selector) => at(document.querySelector(selector)));
const rests = !document.querySelector(".skeleton") && document.querySelector("#timeline .barlayer path");
return lasting.every(Boolean) && rests
  ? lasting.map(({ top, bottom }) => [top, bottom]) : null;
"""
ROW = """
const boxes = [...document.querySelectorAll(".tools button, .tools select, .tools input")]
  .filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect());
const middles = boxes.map((box) => Math.round((box.top + box.bottom) / 2));
return { middles, right: Math.max(...boxes.map((box) => box.right)) };
"""
CUT = """
return [...document.querySelectorAll(arguments[0])]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)
"""

DRAWN = """
const headings = (document.querySelector("#timeline .js-plotly-plot")?.layout?.annotations || [])
  .filter((a) => a.name === "heading").length;
return headings === 2 && document.querySelectorAll("#chips b").length === 2;
"""


def link(runs):
    return "?" + "&".join(f"run={run}" for run in runs)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for name in (*OURS, *LLAMA_TWO, *VLLM_TWO):
        shutil.copytree(SAMPLES / name, runs / name, ignore=shutil.ignore_patterns("node"))
    with served(runs) as address:
        yield address


@pytest.fixture
def page(browser):
    faults(browser)
    yield browser
    assert faults(browser) == []


@pytest.mark.parametrize(
    "runs",
    [LLAMA_TWO[:1], VLLM_TWO],
    ids=" ".join,
)
def test_the_sentence_the_figures_and_the_top_of_the_timeline_need_no_scrolling(page, address, runs):
    with screen_of(page, 1440, 900):
        visit(page, f"{address}{link(runs)}")
        chips, sentence, figures, timeline = until(page, lambda: page.execute_script(PLACES), "all of them")
        assert page.execute_script("return scrollY") == 0
        assert chips[1] < sentence[1] < 900
        assert figures[1] < timeline[0] < 900 - TOP
        row = page.execute_script(ROW)
        assert max(row["middles"]) - min(row["middles"]) <= 4, "the toolbar in one row"
        assert row["right"] <= 1440


TOLD = """
const told = [...document.querySelectorAll(".replies > span")];
const { top } = document.querySelector("#timeline").getBoundingClientRect();
const title = document.querySelector("#timeline .g-xtitle").getBoundingClientRect();
return {
  texts: told.map((e) => e.innerText), titles: told.map((e) => e.firstChild?.title), top: top + scrollY,
  apart: told[0].getBoundingClientRect().right < title.left && title.right < told[1].getBoundingClientRect().left,
};
"""


def test_answers_of_search_and_go_to_move_nothing(page, address):
    with screen_of(page, 1440, 900):
        load(page, f"{address}{link(LLAMA_TWO)}")
        until(page, lambda: page.execute_script(PLACES), "all of them")
        seen = "return document.getElementById('in-view').checkVisibility()"
        until(page, lambda: page.execute_script(seen), "the minimap")
        before = page.execute_script(TOLD)["top"]
        page.find_element(By.ID, "find").send_keys("kind:kernel", Keys.ENTER)
        until(page, lambda: " of " in page.execute_script(TOLD)["texts"][0], "the matches")
        page.find_element(By.ID, "go").send_keys("nowhere at all", Keys.ENTER)
        until(page, lambda: "is not a destination" in page.execute_script(TOLD)["texts"][1], "the answer")
        found, row = page.execute_script(TOLD), page.execute_script(ROW)
        assert max(row["middles"]) - min(row["middles"]) <= 4, "the toolbar in one row"
        assert found["top"] == before
        assert found["apart"], "on both sides of the axis's title"
        assert found["titles"][1].endswith("for the next gap longer than that."), "the whole answer"


def test_six_runs_have_one_matrix_and_a_sentence_each(page, address):
    with screen_of(page, 1440, 900):
        visit(page, f"{address}{link(OURS)}")
        until(page, lambda: page.execute_script(PLACES), "the answer")
        (table,) = page.find_elements(By.CSS_SELECTOR, "#compare-figures table")
        assert len(page.find_elements(By.CSS_SELECTOR, "#compare-words p")) == 5
        assert len(page.find_elements(By.CSS_SELECTOR, "#chips li")) == 6
        heads = [head.text for head in table.find_elements(By.CSS_SELECTOR, "thead th")]
        assert len(set(heads)) == 7, "names that stay different"
        titles = [head.get_attribute("title") for head in table.find_elements(By.CSS_SELECTOR, "thead th")[1:]]
        assert titles == OURS
        gap = next(row for row in table.find_elements(By.CSS_SELECTOR, "tbody tr") if row.text.startswith("Gap p50"))
        assert [cell.text for cell in gap.find_elements(By.CSS_SELECTOR, ".largest")] == ["−71.3 [−72.9, −69.2]"]
        assert page.execute_script(CUT, "#compare-figures, #chips li, .tools") == []
        parts = page.find_elements(By.CSS_SELECTOR, "#compare-figures, .ladder, #timeline")
        tops = [part.rect["y"] for part in parts]
        assert tops == sorted(tops)
        assert len(tops) == 3
        assert tops[-1] < 900, "the top of the timeline is on the first screen"


def test_a_link_to_what_is_not_there_says_which(page, address):
    for place in ("", "whatif/"):  # two kinds of view, one callback
        visit(page, f"{address}{place}?run=no-such-run&run={OURS[1]}&theme=light")
        said = until(page, lambda: page.find_element(By.ID, "missing").text, "what is missing")
        assert said == "The link names no-such-run, which is not among the 10 recordings here."
        assert "no-such-run" in page.current_url
    visit(page, f"{address}graph/?run=no-such-run")
    until(page, lambda: "There is no run 'no-such-run'" in page.find_element(By.ID, "content").text, "which")


READING = r"2 of 54 recordings read; 52 left, now slow-\d\d"


def test_a_folder_of_54_recordings_shows_the_pair_of_a_link_and_reads_the_rest_behind(page, tmp_path):
    """3 s on an idle machine (benchmarks/many_recordings.py); here reading the rest takes without end."""
    for number in range(52):
        (tmp_path / f"slow-{number:02}.sqlite").write_bytes(b"SQLite format 3\x00")
    for name in ("z0", "z1"):
        formats.write(decode(), tmp_path / f"{name}.sqlite")
    with closing(Readers(prepare=plant)) as readers, served(tmp_path, Serving(readers=readers)) as address:
        load(page, f"{address}{link(('z0', 'z1'))}")
        until(page, lambda: page.execute_script(DRAWN), "the pair")
        said = page.find_element(By.ID, "reading-said")  # reading pauses for as long as the page draws
        until(page, lambda: re.match(READING, said.text), "what is read")
        page.get("about:blank")
