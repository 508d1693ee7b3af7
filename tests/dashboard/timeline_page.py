"""The timeline in a browser, as its tests see it."""

import re
import time

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import faults, until, visit


class Page:
    def __init__(self, browser):
        self.browser = browser

    def open(self, url, by=visit):
        by(self.browser, url)
        until(
            self.browser, lambda: self.browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline"
        )

    def press(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def linked(self, *words):
        """Wait until the link has these words."""
        until(self.browser, lambda: all(word in self.browser.current_url for word in words), words)

    def range(self):
        found = re.search(r"range=(-?\d+)\.\.(-?\d+)", self.browser.current_url)
        return found and tuple(map(int, found.groups()))

    def width(self):
        low, high = self.range() or (0, 0)
        return high - low

    def moves(self, *keys):
        """Press keys, wait until the range is another and drawn, and say which."""
        before = self.range()
        self.press(*keys)
        until(self.browser, lambda: self.range() not in (None, before), f"another range than {before}")
        until(self.browser, lambda: self.drawn_range() == pytest.approx(self.range(), abs=2), "it drawn")
        return self.range()

    def drawn_range(self):
        axis = "document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis"
        return self.browser.execute_script(f"return {axis}.range.map((x) => x * 1e9)")

    def focused(self):
        return self.browser.execute_script("return document.activeElement.id")


@pytest.fixture
def page(browser):
    faults(browser)
    yield Page(browser)
    assert faults(browser) == []


def text(page, key):
    return page.browser.find_element(By.ID, key).text


def says(page, key, words):
    until(page.browser, lambda: words in text(page, key), f"{words!r} in {key}, not {text(page, key)!r}")


def labels(page):
    plot = "return document.querySelector('#timeline .js-plotly-plot')._fullLayout"
    return page.browser.execute_script(f"{plot}.yaxis.ticktext")


def drawn(page, name):
    """How many shapes and annotations of this name there are."""
    script = """const {shapes, annotations} = document.querySelector('#timeline .js-plotly-plot')._fullLayout;
                return [...shapes, ...annotations].filter((mark) => mark.name === arguments[0]).length"""
    return page.browser.execute_script(script, name)


MIDDLE = """
const plot = document.querySelector('#' + arguments[0] + ' .js-plotly-plot'), {xaxis, yaxis} = plot._fullLayout;
plot.scrollIntoView({block: 'center'});
const box = plot.getBoundingClientRect();
const origin = box.left + xaxis._offset;
if (arguments[0] === 'minimap') return [origin + xaxis._length * arguments[1], box.top + box.height / 2];
const bar = plot.calcdata[plot.data.findIndex((trace) => trace.name === 'kernel')][arguments[1]];
return [origin + xaxis.l2p(bar.b + bar.s * arguments[2]), box.top + yaxis._offset + yaxis.l2p(bar.p)];
"""


def spot(page, *where):
    """Where to point at, px, once nothing above moves it any more."""
    seen = []

    def rests():
        seen.append([round(each) for each in page.browser.execute_script(MIDDLE, *where)])
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

    until(page.browser, rests, "it at rest")
    return seen[-1]


def point(page, x, y):
    actions = ActionChains(page.browser, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(round(x) - 2, round(y)).move_to_location(round(x), round(y))
    actions.perform()


def click(page, x, y, shift=False):
    time.sleep(0.4)  # two within 0.3 s are a double click to Plotly
    actions = ActionChains(page.browser, duration=30)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    if shift:
        actions.key_down(Keys.SHIFT)
    actions.click()
    if shift:
        actions.key_up(Keys.SHIFT)
    actions.perform()
