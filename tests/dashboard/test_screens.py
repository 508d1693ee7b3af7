"""Pages on a phone and on a 4K screen, in a real Chromium."""

import pytest

from tests.dashboard.conftest import screen_of, until
from tests.dashboard.filled import FILLED, open_filled

pytestmark = pytest.mark.browser

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


@pytest.mark.parametrize("place", FILLED)
def test_a_phone_has_no_need_to_scroll_sideways(browser, filled, place):
    with screen_of(browser, 390, 844):
        open_filled(browser, filled, place)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        assert browser.execute_script(BEYOND) == []
        top = "return ['copy-link', 'theme'].map((id) => document.getElementById(id).getBoundingClientRect().bottom)"
        title = browser.execute_script("return document.querySelector('h1').getBoundingClientRect().bottom")
        assert all(abs(bottom - title) < 15 for bottom in browser.execute_script(top)), "one line with the title"


@pytest.mark.parametrize("place", FILLED)
def test_on_4k_type_is_larger_and_lines_are_no_longer_than_readable(browser, filled, place):
    with screen_of(browser, 3840, 2160):
        open_filled(browser, filled, place)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 3840
        assert browser.execute_script(SMALL, 15) == []
        assert browser.execute_script(LONG, 62) == []


def test_type_is_of_one_scale(browser, filled):
    with screen_of(browser, 1440, 1100):
        open_filled(browser, filled, "")
        until(browser, lambda: browser.execute_script(SMALL, 12) == [], "nothing below the smallest size")
