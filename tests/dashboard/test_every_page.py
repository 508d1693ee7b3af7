"""Every page in a real Chromium: on a phone, on a desk and at 4K, light and dark, on paper, and to axe-core.

A page is visited once, and goes from one screen to the next.
"""

import pytest
from axe_core_python.base import AXE_SCRIPT

from dashboard.palette import THEMES
from tests.dashboard.conftest import alter, screen_of, until
from tests.dashboard.filled import FILLED, open_filled

pytestmark = pytest.mark.browser

PHONE, BIG = (390, 844), (3840, 2160)
BEYOND = """
const INSIDE = ".ag-root-wrapper, .scrolls, .canvas, .downloads, svg, .js-plotly-plot, .unseen, .skip";
return [...document.querySelectorAll("#page *")].filter((e) => !e.closest(INSIDE) && e.checkVisibility())
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.id || e.className || e.tagName)
"""
SMALL = """
const has = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
return [...document.querySelectorAll("#page *")]
  .filter((e) => has(e) && !e.closest("svg, .unseen") && e.checkVisibility())
  .filter((e) => parseFloat(getComputedStyle(e).fontSize) < arguments[0]).map((e) => e.id || e.className || e.tagName)
"""
LONG = """
return [...document.querySelectorAll(".hint, .answer, .notes li, .empty p")].filter((e) => e.checkVisibility())
  .filter((e) => e.clientWidth > arguments[0] * parseFloat(getComputedStyle(e).fontSize)).map((e) => e.innerText)
"""
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


AXE = """
const [options, done] = arguments, full = document.createElement("style");
full.textContent = "[data-dash-is-loading] { animation: none !important; }";  // what is asked for meanwhile is not pale
document.head.append(full);
axe.run(options).finally(() => full.remove()).then(done);
"""


def faults_of(browser):
    """Serious and critical ones of a page that has loaded: rule, where, and what is wrong."""
    loading = "return document.querySelector('[data-dash-is-loading=true]') === null"
    until(browser, lambda: browser.execute_script(loading), "a page that has loaded")
    if not browser.execute_script("return Boolean(window.axe)"):
        browser.execute_script(AXE_SCRIPT)
    found = browser.execute_async_script(AXE, {"resultTypes": ["violations"]})
    return [
        (fault["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("place", FILLED)
def test_a_page_on_every_screen_light_and_dark_and_on_paper(browser, filled, place):
    """In one visit: each screen is a drawing of all figures."""
    with screen_of(browser, *PHONE):
        open_filled(browser, filled, place)
        check_on_phone(browser)
    check_at_4k(browser)
    if not place:  # light is checked on a phone, the desk when it is dark: of one page also both
        assert faults_of(browser) == []
    darken(browser)
    assert faults_of(browser) == []
    check_on_paper(browser, place)


def check_on_phone(browser):
    """Nothing asks for scrolling sideways, and type is of one scale."""
    until(browser, lambda: browser.execute_script(BEYOND) == [], "nothing beyond the edge")
    wide = "return document.documentElement.scrollWidth"  # figures follow a moment later
    until(browser, lambda: browser.execute_script(wide) == PHONE[0], "nothing to scroll to")
    top = "return ['copy-link', 'theme'].map((id) => document.getElementById(id).getBoundingClientRect().bottom)"
    title = browser.execute_script("return document.querySelector('h1').getBoundingClientRect().bottom")
    assert all(abs(bottom - title) < 15 for bottom in browser.execute_script(top)), "one line with the title"
    until(browser, lambda: browser.execute_script(SMALL, 12) == [], "nothing below the smallest size")
    assert faults_of(browser) == []


def check_at_4k(browser):
    """Type is larger, and lines are no longer than readable."""
    with screen_of(browser, *BIG):
        assert browser.execute_script("return document.documentElement.scrollWidth") <= BIG[0]
        assert browser.execute_script(SMALL, 15) == []
        assert browser.execute_script(LONG, 62) == []
    until(browser, lambda: browser.execute_script(SMALL, 12) == [], "nothing below the smallest size")


def darken(browser):
    """Make the page dark, if it is not, and wait until its figures are."""
    dark = "return document.documentElement.dataset.theme === 'dark'"
    if not browser.execute_script(dark):
        browser.execute_script("document.getElementById('theme').click()")
    figures = """return [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.checkVisibility())
                   .every((plot) => plot._fullLayout.font.color.toLowerCase() !== arguments[0])"""
    light = THEMES["light"].ink.lower()
    until(browser, lambda: browser.execute_script(dark) and browser.execute_script(figures, light), "a dark page")


def check_on_paper(browser, place):
    """A dark page prints whole, light and without controls."""
    alter(browser, KEPT)
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
    assert len(paper["tables"]) == {"gap/": 2, "syncs/": 1, "advice/": 1}.get(place, 0)
    left = "return document.querySelectorAll('.printed, .printed-address, .unprinted').length"
    assert browser.execute_script(left) == 0
    wide = "return [...document.querySelectorAll('.js-plotly-plot')].every((plot) => plot._fullLayout.width !== 940)"
    until(browser, lambda: browser.execute_script(wide), "figures as wide as the screen again")


def test_axe_sees_a_fault(browser):
    alter(browser, "document.documentElement.removeAttribute('lang')")
    assert [rule for rule, _, _ in faults_of(browser)] == ["html-has-lang"]
