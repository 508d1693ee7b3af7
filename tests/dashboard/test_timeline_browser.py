"""The timeline's keys, search, rows, minimap, ruler and selection in a real Chromium, by keyboard."""

import re

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from dashboard.pages.overview.tools import KEYS
from tests.dashboard.conftest import faults, served, until
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import formats

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=30), runs / "a")
    formats.write(decode(tokens=30, gap=2 * GAP), runs / "b")
    with served(runs) as address:
        yield address


class Page:
    def __init__(self, browser):
        self.browser = browser

    def open(self, url):
        self.browser.get("about:blank")
        self.browser.get(url)
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

    def moves(self, *keys):
        """Press keys, wait until the range is another, and say which."""
        before = self.range()
        self.press(*keys)
        until(self.browser, lambda: self.range() not in (None, before), f"another range than {before}")
        return self.range()

    def focused(self):
        return self.browser.execute_script("return document.activeElement.id")


@pytest.fixture
def page(browser):
    faults(browser)
    yield (page := Page(browser))
    assert faults(browser) == []


def test_keys_press_the_buttons_but_not_while_one_types(page, address):
    page.open(f"{address}?run=a&token=5")
    low, high = page.moves("g")
    assert 0 < high - low < 3 * GAP
    near = page.moves("w")
    assert near[1] - near[0] == pytest.approx((high - low) / 2, abs=2)
    assert page.moves("d")[0] > near[0]
    assert page.moves(Keys.ARROW_LEFT) == pytest.approx(near, abs=3)
    whole = page.moves(Keys.HOME)
    assert whole[1] - whole[0] > 25 * PERIOD
    page.press("n")
    page.linked("token=6")
    page.press("p")
    page.linked("token=5")
    before = page.range()
    page.browser.find_element(By.CSS_SELECTOR, "#runs .ag-cell").click()
    page.press("w", "s", "n")
    page.browser.execute_script("document.getElementById('copy-link').focus()")
    assert page.moves("w") != before
    assert "token=5" in page.browser.current_url


def test_the_list_of_keys_opens_and_gives_the_focus_back(page, address):
    page.open(f"{address}?run=a&token=5")
    page.browser.execute_script("document.getElementById('zoom-in').focus()")
    page.press("?")
    dialog = page.browser.find_element(By.ID, "keys")
    until(page.browser, dialog.is_displayed, "the list of keys")
    assert all(does in dialog.text for does in KEYS.values())
    page.press("n", Keys.ESCAPE)
    until(page.browser, lambda: not dialog.is_displayed(), "it closed")
    assert page.focused() == "zoom-in"
    assert "token=5" in page.browser.current_url
    page.browser.find_element(By.ID, "help").click()
    page.browser.find_element(By.CSS_SELECTOR, "#keys-on input").click()
    page.press(Keys.ESCAPE)
    page.press("n")
    page.browser.find_element(By.ID, "help").click()
    page.browser.find_element(By.CSS_SELECTOR, "#keys-on input").click()
    page.press(Keys.ESCAPE)
    page.press("g")
    until(page.browser, page.range, "the gap")
    assert "token=5" in page.browser.current_url
