"""The page in a real Chromium: choose two runs, zoom with the mouse, follow a link, switch the theme."""

from types import SimpleNamespace

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import click_on, load, served, unfold, until, visit
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import formats

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.hacked=1"><b>k</b>(T*)'


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=40, kernel=HOSTILE), runs / "short-gap")
    formats.write(decode(tokens=30, gap=2 * GAP), runs / "wide-gap")
    for name in ("broken", *(f"y{number:02}" for number in range(19))):  # a table longer than the window, read soon
        (runs / f"{name}.sqlite").write_bytes(b"SQLite format 3\x00 but not really")
    formats.write(decode(tokens=3), runs / "zrun")
    with served(runs) as address:
        yield address


DRAWN = """
const gd = document.querySelector('#timeline .js-plotly-plot');
if (!gd || !gd._fullLayout || !gd._fullLayout.xaxis) return null;
const marks = {};
for (const t of gd.data) marks[t.name] = (marks[t.name] || 0) + gd.calcdata[gd.data.indexOf(t)].length;
return {
  range: gd._fullLayout.xaxis.range.map(x => Math.round(x * 1e9)),
  rows: gd._fullLayout.yaxis.ticktext || [],
  headings: (gd.layout.annotations || []).filter(a => a.name === 'heading').map(a => a.text),
  gaps: (gd.layout.annotations || []).filter(a => a.name === 'gap').map(a => a.text),
  marks: marks,
  painted: document.querySelectorAll('#timeline .barlayer path').length,
  hovers: gd.data.filter(t => t.name === 'kernel').flatMap(
    t => [t.hovertext].flat().map(text => t.hovertemplate.replace('%{hovertext}', () => text))),
  ink: gd._fullLayout.font.color,
};
"""


PLACE = """
const gd = document.querySelector('#timeline .js-plotly-plot'), {xaxis, yaxis} = gd._fullLayout;
for (const t of gd._fullData.filter(t => t.name === arguments[0]))
  for (let i = 0; i < t.x.length; i++) {
    const x = xaxis.l2p(t.base[i] + t.x[i] / 2);
    if (x > 5 && x < xaxis._length - 5) return [x, yaxis.l2p(t.y[i])];
  }
"""


class Page:
    """What a reader does with the page, and what it then shows."""

    def __init__(self, browser):
        self.browser = browser

    def until(self, condition, what):
        return until(self.browser, condition, what)

    def drawn(self):
        found = self.browser.execute_script(DRAWN)
        return SimpleNamespace(**found) if found else None

    def shows(self, condition, what):
        return self.until(lambda: (d := self.drawn()) and condition(d) and d, what)

    def open(self, url, by=visit):
        by(self.browser, url)
        unfold(self.browser)
        self.until(
            lambda: self.browser.find_elements(By.CSS_SELECTOR, "#runs .ag-center-cols-container [row-id]"), "a table"
        )

    def select(self, key):
        box = f'#runs .ag-row[row-id="{key}"] .ag-checkbox-input'
        click_on(self.browser, box)

    def drag(self, left, right):
        """Drag with shift over a part of the plot's width, 0..1, which zooms to it."""
        plot = self.browser.find_element(By.CSS_SELECTOR, "#timeline .nsewdrag")
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
        width, (a, b) = plot.size["width"], (left - 0.5, right - 0.5)
        actions = ActionChains(self.browser, duration=50)
        actions.move_to_element_with_offset(plot, int(a * width), 0).key_down(Keys.SHIFT).click_and_hold()
        actions.move_by_offset(int((b - a) * width / 2), 0).move_by_offset(
            int((b - a) * width / 2), 0
        ).release().key_up(Keys.SHIFT).perform()

    def hover(self, name):
        """Point at the first bar of this name in view, again if the page moves it, and read its card."""
        plot = self.browser.find_element(By.CSS_SELECTOR, "#timeline .nsewdrag")

        def shows():
            x, y = self.browser.execute_script(PLACE, name)
            where = int(x - plot.size["width"] / 2), int(y - plot.size["height"] / 2)
            actions = ActionChains(self.browser, duration=50).move_to_element_with_offset(plot, where[0] - 2, where[1])
            actions.move_to_element_with_offset(plot, *where).pause(0.5).perform()
            return self.browser.find_elements(By.CSS_SELECTOR, "#card.seen")

        return self.until(shows, "a card")[0].text

    def errors(self):
        return [entry for entry in self.browser.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]


@pytest.fixture
def page(browser):
    browser.get_log("browser")
    yield (page := Page(browser))
    assert page.errors() == []
    assert browser.execute_script("return window.hacked") is None


def test_choosing_two_runs_zooming_and_coming_back_by_link(page, address):
    page.open(f"{address}?run=")
    page.until(lambda: "Select one to six runs" in page.browser.find_element(By.ID, "nothing").text, "what to do")
    page.select("short-gap")
    page.shows(lambda d: len(d.headings) == 1, "one timeline")
    page.select("wide-gap")
    both = page.shows(lambda d: len(d.headings) == 2, "two timelines")
    assert both.rows == ["NVTX", "API calls", "stream 13", "stream 14"] * 2
    assert "100 µs" in both.headings[0]
    assert "200 µs" in both.headings[1]
    assert both.marks["gap"] >= 2
    assert both.painted > 20
    assert any("&lt;img" in hover for hover in both.hovers)

    before = both.range
    assert before[0] < 0 < PERIOD < before[1]
    page.drag(0.1, 0.4)
    zoomed = page.shows(lambda d: d.range[1] - d.range[0] < 0.4 * (before[1] - before[0]), "a narrower range")
    page.until(lambda: "range=" in page.browser.current_url, "a link that holds the range")
    zoomed = page.shows(lambda d: 0 < d.marks["kernel"] < both.marks["kernel"], "only the kernels in view")
    assert any(g.startswith("gap ") for g in zoomed.gaps)
    assert HOSTILE in page.hover("kernel")

    link = page.browser.current_url
    page.open(link, load)
    again = page.shows(lambda d: len(d.headings) == 2, "both runs again")
    page.shows(lambda d: d.range == zoomed.range, "the same range")
    assert again.rows == both.rows
    page.shows(lambda d: d.marks == zoomed.marks and d.gaps == zoomed.gaps, "the same marks")


def test_from_the_whole_run_down_to_single_kernels(page, address):
    page.open(f"{address}?run=short-gap&run=wide-gap")
    page.shows(lambda d: len(d.headings) == 2, "two timelines")
    page.browser.find_element(By.ID, "show-all").click()
    whole = page.shows(lambda d: d.range[1] - d.range[0] > 30 * PERIOD, "the whole run")
    assert whole.marks["kernel"] <= 40 * KERNELS + 30 * KERNELS
    page.browser.find_element(By.ID, "show-gap").click()
    gap = page.shows(lambda d: d.range[1] - d.range[0] < 4 * GAP, "the gap")
    assert gap.gaps == ["gap 100 µs", "gap 200 µs"]
    for _ in range(11):
        width = page.drawn().range[1] - page.drawn().range[0]
        page.browser.find_element(By.ID, "zoom-in").click()
        page.shows(lambda d, width=width: d.range[1] - d.range[0] < width, "closer")
    assert page.drawn().range[1] - page.drawn().range[0] < 1_000


def test_the_drawing_follows_the_window(page, address):
    page.open(f"{address}?run=short-gap")
    page.shows(lambda d: len(d.headings) == 1, "a timeline")
    screen = "return window.dash_clientside.intertoken.screen(window.dash_clientside.intertoken.latest.view).width"
    wide = page.browser.execute_script(screen)
    asked = "return performance.getEntriesByType('resource').filter(e => e.name.includes('_dash-update')).length"
    before = page.browser.execute_script(asked)
    page.browser.set_window_size(800, 1100)
    try:
        page.until(lambda: page.browser.execute_script(asked) > before, "a new drawing")
        assert page.browser.execute_script(screen) < wide - 400
        page.shows(lambda d: len(d.headings) == 1, "a timeline still")
    finally:
        page.browser.set_window_size(1440, 1100)


def test_on_paper_a_dark_page_is_light(page, address):
    page.open(f"{address}?run=short-gap&theme=dark")
    page.shows(lambda d: len(d.headings) == 1, "a timeline")
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        colour = "return getComputedStyle(document.querySelector('#runs .ag-root-wrapper')).backgroundColor"
        page.until(lambda: page.browser.execute_script(colour) == "rgb(255, 255, 255)", "white paper")
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
