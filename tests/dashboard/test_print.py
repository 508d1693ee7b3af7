"""Pages on paper, printed by a real Chromium."""

import base64
import re

import pytest

from tests.dashboard.conftest import until
from tests.dashboard.filled import FILLED, TRACED, open_filled

pytestmark = pytest.mark.browser

KEPT = """
window.addEventListener("beforeprint", () => {
  const text = (rows) => [...rows].map((row) => row.innerText);
  window.paper = {
    tables: [...document.querySelectorAll("table.printed")].map((table) => table.tBodies[0].rows.length),
    links: [...document.querySelectorAll("table.printed td")].some((cell) => /\\]\\(/.test(cell.innerText)),
    widths: [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.checkVisibility())
      .map((plot) => plot._fullLayout.width),
    address: document.querySelector(".printed-address").innerText,
  };
});
"""
SEEN = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.innerText)"
CONTROLS = "nav, button:not(.dash-dropdown), .downloads, .ag-root-wrapper, .dash-slider-root, .skip"
DARK = """
return [...document.querySelectorAll(".gridlayer path, .shapelayer path, text:not(.bartext)")]
  .filter((e) => e.checkVisibility() && e.closest(".js-plotly-plot")).map((e) => [e.tagName, getComputedStyle(e)])
  .map(([tag, style]) => [style.fill, tag === "path" ? style.stroke : ""].join())
  .filter((colours) => /rgb\\((54, 64, 77|29, 36, 46|22, 27, 34|230, 234, 240)\\)/.test(colours))
"""


@pytest.mark.parametrize("place", FILLED)
def test_a_dark_page_prints_whole_light_and_without_controls(browser, filled, place):
    open_filled(browser, filled, place, "dark")
    browser.execute_script(KEPT)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        surface = "return getComputedStyle(document.querySelector('section')).backgroundColor"
        assert browser.execute_script(surface) == "rgb(255, 255, 255)"
        assert browser.execute_script(DARK) == []
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        assert browser.execute_script(SEEN, CONTROLS) == []
        paper = browser.execute_script("return window.paper")
        wide = "const edge = document.querySelector('#page').getBoundingClientRect().right; return innerWidth - edge"
        assert browser.execute_script(wide) >= 0
        browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert all(width == 940 for width in paper["widths"])
    assert not paper["links"]
    assert place in paper["address"]
    assert len(paper["tables"]) == {"gap/": 2, "graph/": 0, "record/": 0, "whatif/": 0}.get(place, 1)
    left = "return document.querySelectorAll('.printed, .printed-address, .unprinted').length"
    assert browser.execute_script(left) == 0
    wide = "return [...document.querySelectorAll('.js-plotly-plot')].every((plot) => plot._fullLayout.width !== 940)"
    until(browser, lambda: browser.execute_script(wide), "figures as wide as the screen again")


def test_a_printed_table_has_rows_that_the_screen_does_not_show(browser, filled):
    open_filled(browser, filled, "gap/")
    browser.execute_script(KEPT)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    made_of = browser.execute_script("return window.paper.tables")[-1]
    assert made_of == browser.execute_script("return dash_ag_grid.getApi('made-of').getDisplayedRowCount()")
    assert re.findall(rb"/MediaBox ?\[0 0 (\d+)[\d.]* (\d+)", pdf)[0] > (b"700", b"600"), "a lying page"
    assert 1 < len(re.findall(rb"/Type ?/Page\b", pdf)) < 8
    assert TRACED in browser.execute_script("return document.querySelector('#figures').innerText")


def test_a_tall_figure_stands_on_one_sheet(browser, filled):
    open_filled(browser, filled, "")
    plot = "const plot = document.querySelector('#timeline .js-plotly-plot');"
    browser.execute_script("document.querySelector('#timeline').style.height = '1200px'")
    until(browser, lambda: browser.execute_script(f"{plot} return plot.offsetHeight") == 1200, "a tall figure")
    height = f"{plot} return plot.getBoundingClientRect().height"
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert 600 < browser.execute_script(height) <= 690
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(height) == 1200
