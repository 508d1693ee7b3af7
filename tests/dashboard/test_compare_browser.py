"""The comparison in a real Chromium, by keyboard: its sentence, its table, another base."""

import shutil

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import faults, served, until, visit
from tests.recordings import SAMPLES

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("all_resamples")]

SCCC, SAAAS = (f"llama-1.1b-{s}-sequential-cuda" for s in ("sccc", "saaas"))
HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for name, to in ((SCCC, SCCC), (SAAAS, SAAAS), ("llama-1.1b-ggg-sequential-cuda", HOSTILE)):
        shutil.copytree(SAMPLES / name, runs / to, ignore=shutil.ignore_patterns("node"))
    with served(runs) as address:
        yield address


@pytest.fixture
def page(browser):
    faults(browser)
    yield browser
    assert faults(browser) == []
    assert browser.execute_script("return window.hacked") is None


def says(page, key, words):
    text = "return (document.getElementById(arguments[0]) || {}).innerText || ''"
    until(page, lambda: words in page.execute_script(text, key), f"{words!r} in {key}")


def press(page, element):
    page.execute_script("arguments[0].focus()", element)
    element.send_keys(Keys.ENTER)


def test_why_one_run_is_faster_and_where_its_figures_stand(page, address):
    visit(page, f"{address}?run={SCCC}&run={SAAAS}")
    says(page, "compare-words", f"{SAAAS} is faster than {SCCC}: gap from 73.4 to 51.7 µs (−30 %; untraced)")
    says(page, "compare-figures", "+3.0 % [+2.4, +3.7]")
    gap = page.find_element(By.CSS_SELECTOR, "#compare-words a.figure")
    press(page, gap)
    row = page.find_element(By.CSS_SELECTOR, ".figures tr:has(td:target)")
    assert row.text.startswith("Gap p50, µs 73.4 51.7")
    press(page, page.find_element(By.CSS_SELECTOR, "#compare-words button"))
    until(page, lambda: f"?run={SAAAS}&run={SCCC}" in page.current_url, "the other in front")
    says(page, "compare-words", f"{SCCC} is slower than {SAAAS}")
    until(page, lambda: page.find_element(By.CSS_SELECTOR, "#chips .tag").text == "base", "the base on its chip")
    assert page.find_element(By.CSS_SELECTOR, "#chips li").text.startswith("llama-1.1b-saaas")


def test_tokens_worth_a_look_by_keyboard(page, address):
    visit(page, f"{address}?run={SCCC}&run={SAAAS}&token=5&theme=light")
    until(page, lambda: page.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline")
    press(page, page.find_element(By.ID, "tokens-open"))
    for key, gap in (("token-worst", "115 µs"), ("token-median", "73.4 µs")):
        press(page, page.find_element(By.ID, key))
        says(page, "timeline", f"gap after it {gap}")
    median = page.current_url
    assert "theme=light" in median
    field = page.find_element(By.ID, "percentile")
    field.send_keys(Keys.BACKSPACE * 2, "100", Keys.ENTER)
    says(page, "timeline", "gap after it 115 µs")
    page.back()
    until(page, lambda: page.current_url == median, "the link before")
    field.send_keys(Keys.BACKSPACE * 3, Keys.ENTER)  # no number, nothing to show
    says(page, "timeline", "gap after it 73.4 µs")
