"""What all pages share, in a real Chromium: the navigation, by keyboard and by link."""

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import faults, load, served, until
from tests.dashboard.graph_runs import write_run_of_tiny

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    write_run_of_tiny(runs)
    with served(runs) as address:
        yield address


FOCUSED = "const e = document.activeElement; return e.id || e.innerText || e.tagName"


def test_by_keyboard_from_page_to_page_with_the_chosen_run_token_and_theme(browser, address):
    faults(browser)
    browser.get(f"{address}?run=tiny-sccc-branches&token=2&theme=dark")
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline")
    order = []
    for _ in range(9):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        order.append(browser.execute_script(FOCUSED))
    assert order == [
        "Skip to the content",
        "page-runs",
        "page-gap",
        "page-syncs",
        "page-advice",
        "page-what-if",
        "page-graph",
        "copy-link",
        "theme",
    ]
    current = browser.find_elements(By.CSS_SELECTOR, "nav [aria-current=page]")
    assert [entry.text for entry in current] == ["Runs"]

    browser.find_element(By.ID, "page-graph").send_keys(Keys.ENTER)
    until(browser, lambda: "82 of 102" in browser.find_element(By.ID, "panel").text, "the graph")
    assert browser.current_url.startswith(f"{address}graph/?run=tiny-sccc-branches&token=2&theme=dark")
    assert browser.title == "Graph · intertoken"
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    browser.find_element(By.ID, "page-runs").send_keys(Keys.ENTER)
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline again")
    assert "token=2" in browser.current_url

    browser.execute_script("document.querySelector('.skip').focus()")  # outside of the window until then
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script(FOCUSED) == "content"
    assert faults(browser) == []


def test_a_narrow_window_with_everything_folded_out_is_not_wider_than_itself(browser, address):
    """390 px on a desk, of which a scroll bar takes some: no phone, which would show all of a wider page."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        load(browser, f"{address}?run=tiny-sccc-branches")
        until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline")
        browser.execute_script("document.querySelectorAll('details').forEach((folded) => (folded.open = true))")
        until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#row-list li li"), "the list of rows")
        widths = "const e = document.documentElement; return [e.scrollWidth - e.clientWidth, innerWidth]"
        until(browser, lambda: browser.execute_script(widths) == [0, 390], "nothing to scroll to")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
