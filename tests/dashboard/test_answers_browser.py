"""Gap, syncs and what-if in a real Chromium, on recordings, by keyboard."""

import shutil
from contextlib import suppress

import pytest
from selenium.common.exceptions import ElementNotInteractableException
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import alter, faults, load, served, until, visit
from tests.dashboard.traces import decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.hacked=1">'
TRACED, OURS = LLAMA["sccc", "graph"].name, "llama-1.1b-sccc-sequential-cuda"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for name in (TRACED, LLAMA["saaas", "graph"].name, OURS):
        shutil.copytree(SAMPLES / name, runs / name, ignore=shutil.ignore_patterns("node"))
    formats.write(decode(tokens=8, kernel=HOSTILE), runs / HOSTILE.replace("/", ""))
    with served(runs) as address:
        yield address


class Page:
    """What a reader does with a page."""

    def __init__(self, browser):
        self.browser = browser

    def until(self, condition, what):
        return until(self.browser, condition, what)

    def open(self, address, by=visit):
        by(self.browser, address)

    def text(self, key):
        return self.browser.execute_script("return (document.getElementById(arguments[0]) || {}).innerText || ''", key)

    def says(self, key, words):
        self.until(lambda: words in self.text(key), f"{words!r} in {key}")

    def press(self, key, *keys):
        found = self.until(lambda: self.browser.find_elements(By.ID, key), key)[0]
        self.browser.execute_script("arguments[0].focus()", found)
        found.send_keys(*keys)

    def choose(self, key, words):
        """Open a list, type what is searched for, and take the first that is left."""
        self.press(key, Keys.ENTER)
        search = self.until(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".dash-dropdown-search"), "a search")[0]
        search.send_keys(words)
        options = ".dash-dropdown-content .dash-options-list-option"
        self.until(lambda: len(self.browser.find_elements(By.CSS_SELECTOR, options)) == 1, f"only {words}")
        search.send_keys(Keys.ARROW_DOWN)
        self.until(lambda: self.browser.switch_to.active_element != search, "the focus on it")
        self.browser.switch_to.active_element.send_keys(Keys.SPACE)

    def follow(self, link):
        """Press Enter in the table's cell that has this link, as one who came there by arrow keys."""
        self.until(lambda: self.browser.find_elements(By.CSS_SELECTOR, link), link)
        cell = "const cell = document.querySelector(arguments[0]).closest('.ag-cell'); cell.focus(); return cell"

        def press():
            with suppress(ElementNotInteractableException):  # the table is being filled anew
                self.browser.execute_script(cell, link).send_keys(Keys.ENTER)
                return True

        self.until(press, link)

    def drawn(self, key):
        """Names of the traces of a figure."""
        names = "const gd = document.querySelector(arguments[0]); return gd && gd.data ? gd.data.map(t => t.name) : []"
        return self.browser.execute_script(names, f"#{key} .js-plotly-plot")

    def linked(self, words):
        self.until(lambda: words in self.browser.current_url, f"{words} in the link")


@pytest.fixture
def page(browser):
    faults(browser)
    yield Page(browser)
    assert faults(browser) == []
    assert browser.execute_script("return window.hacked") is None


def test_the_gap_its_longest_and_their_place_in_the_timeline(page, address):
    page.open(f"{address}gap/?run={TRACED}&run={OURS}&theme=light")
    page.says("figures", "78.1 µs")
    page.says("figures", "1.05")
    page.until(lambda: {"sync", "launch", "host"} <= set(page.drawn("steps")), "causes")
    page.until(lambda: page.drawn("distribution"), "a distribution")
    page.says("made-of", "inside a launch call")
    page.browser.find_element(By.CSS_SELECTOR, '#scale input[value="all"]').send_keys(Keys.SPACE)
    page.linked("scale=all")
    page.press("theme", Keys.ENTER)
    page.linked("theme=dark")
    page.follow("#longest a[href*='token=44']")
    page.linked("token=44")
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "the timeline")


def test_the_syncs_fill_with_predictions_and_lead_to_a_what_if(page, address):
    page.open(f"{address}syncs/?run={TRACED}")
    page.says("syncs", "cudaStreamSynchronize")
    page.says("said-of-all", "14 syncs a token (class sccc")
    page.says("said-of-all", "tokens/s [model margin")
    page.says("syncs", "sync 13 cannot be removed")
    page.says("syncs", "not needed")
    page.until(lambda: "…" not in page.text("syncs"), "all answers")
    page.follow("#syncs a[href*='without=1']")
    page.linked("whatif/")
    page.says("figures", "without sync 1")
    page.open(f"{address}syncs/?run={TRACED}")
    page.follow("#syncs [row-id='3'] [col-id='show'] a")
    page.linked("event=")
    page.says("cost", "Row 3 of the syncs")


def test_a_what_if_by_keyboard_and_by_its_link(page, address):
    page.open(f"{address}whatif/?run={TRACED}&theme=light")
    page.says("nothing", "Choose a change above")
    page.choose("sync", "aaag")
    page.linked("sync=aaag")
    page.says("figures", "41.5 µs")
    page.until(lambda: "aaag" in page.text("timeline"), "the predicted timeline")
    page.press("host", "0.5", Keys.ENTER)
    page.linked("host=0.5")
    page.says("figures", "host code × 0.5")
    page.press("show-gap", Keys.ENTER)
    page.linked("range=")
    link, figures = page.browser.current_url, page.text("figures")
    page.open(link, load)
    page.until(lambda: page.text("figures") == figures, "the same figures")
    page.press("latency", "much", Keys.ENTER)
    page.until(lambda: page.browser.find_element(By.ID, "latency").get_attribute("value") == "", "no number, no field")
    page.press("reset", Keys.ENTER)
    page.until(lambda: "sync=" not in page.browser.current_url, "no changes")


def test_a_chosen_sync_says_what_it_waits_for(page, address):
    page.open(f"{address}whatif/?run={TRACED}&without=2", load)
    page.until(lambda: ", waits for " in page.text("without"), "the sync")
    cut = """const value = document.querySelector('#without .dash-dropdown-value');
             return value.scrollWidth - value.clientWidth"""
    page.until(lambda: page.browser.execute_script(cut) <= 1, "its whole text")


@pytest.mark.parametrize("place", ["gap/", "syncs/", "whatif/"])
def test_hostile_names(page, address, place):
    page.open(f"{address}{place}?run=%3Cimg+src%3Dx+onerror%3D%22window.hacked%3D1%22%3E&host=0.5")
    page.until(lambda: "<img" in page.text("figures") + page.text("run") + page.text("timeline"), "its name")


def test_a_downloaded_table_holds_no_formula_and_its_numbers_as_shown(page, address):
    page.open(f"{address}syncs/?run={TRACED}")
    page.says("said-of-all", "tokens/s [model margin")
    page.until(lambda: "…" not in page.text("syncs"), "all answers")
    row = """
    const api = dash_ag_grid.getApi("syncs");
    const row = { ...api.getDisplayedRowAtIndex(0).data, name: "=1+1", gap_text: "−4.88" };
    api.applyTransaction({ update: [row] });
    const made = URL.createObjectURL;
    URL.createObjectURL = (file) => { file.text().then((text) => (window.saved = text)); return made(file); };
    """
    alter(page.browser, row)
    page.press("download", Keys.ENTER)
    saved = page.until(lambda: page.browser.execute_script("return window.saved"), "a file")
    first = saved.splitlines()[1]
    assert '"\'=1+1"' in first
    assert '"−4.88"' in first
