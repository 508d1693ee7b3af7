"""Uploads in a real Chromium: chosen or dropped files, hostile ones too, and recordings that come into a directory."""

import pytest
from selenium.webdriver.common.by import By

from dashboard.serving import Serving
from tests.dashboard.conftest import faults, served, unfold, until
from tests.dashboard.traces import decode
from tracer import formats

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=window.hacked=1>\u202e😀.json"


@pytest.fixture
def page(browser, tmp_path):
    """An empty directory, and a browser at a dashboard that watches it and takes uploads of up to 3 MB."""
    for name in ("inbox", "runs"):
        (tmp_path / name).mkdir()
    browser.get("about:blank")
    faults(browser)
    with served(tmp_path / "runs", Serving(uploads=tmp_path / "inbox", upload_limit=3_000_000)) as address:
        browser.get(address)
        unfold(browser)
        until(browser, lambda: "No recordings yet" in browser.find_element(By.ID, "nothing").text, "what to do")
        yield browser
        assert browser.execute_script("return window.hacked") is None
        browser.get("about:blank")  # before the server is gone


DROP = """
const files = new DataTransfer();
for (const [name, size, text] of arguments[0]) files.items.add(new File([text || new Uint8Array(size)], name));
for (const kind of ["dragover", "drop"])
  document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
"""


def rows(browser):
    found = browser.find_elements(By.CSS_SELECTOR, "#runs .ag-center-cols-container [row-id]")
    return {row.get_attribute("row-id") for row in found}


def said(browser):
    return [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#uploads li")]


def choose(browser, *paths):
    """Give files to the button, as a reader who chooses them."""
    browser.execute_script("""
        const click = HTMLInputElement.prototype.click;
        HTMLInputElement.prototype.click = function () { this.id = "chosen"; document.body.append(this); };
        document.getElementById("add").click();
        HTMLInputElement.prototype.click = click;
    """)
    browser.find_element(By.ID, "chosen").send_keys("\n".join(str(path) for path in paths))


def test_a_chosen_file_appears_in_the_table_and_is_shown(page, tmp_path):
    formats.write(decode(), tmp_path / "first.json")
    formats.write(decode(tokens=1200), tmp_path / "large.sqlite")
    assert (tmp_path / "large.sqlite").stat().st_size > 1_100_000  # several slices
    choose(page, tmp_path / "first.json", tmp_path / "large.sqlite")
    until(page, lambda: rows(page) == {"first", "large"}, "both in the table")
    until(page, lambda: [text.split("\n")[1] for text in said(page)] == ["is in the table. Show it"] * 2, "said so")
    page.find_elements(By.LINK_TEXT, "Show it")[1].click()
    until(page, lambda: page.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "its timeline")
    assert page.current_url.endswith("?run=large")
    assert faults(page) == []


def test_hostile_files_are_refused_in_place_and_the_rest_goes_on(page, tmp_path):
    formats.write(decode(kernel=HOSTILE), tmp_path / "x.json")
    text = (tmp_path / "x.json").read_text()
    page.execute_script(DROP, [[HOSTILE + ".png", 9, ""], ["big.sqlite", 3_000_001, ""], ["empty.json", 0, ""],
                               ["n" * 10_000 + ".zip", 5, "PK\3\4!"], [HOSTILE, 0, text]])  # fmt: skip
    until(page, lambda: len(rows(page)) == 1, "the one that can be read")
    lines = until(
        page, lambda: len(said(page)) == 5 and "in the table" in said(page)[-1] and said(page), "five answers"
    )
    assert lines[0].startswith("<img src=x onerror=window.hacked=1>")
    assert "not a recording" in lines[0]
    assert "the limit is 3,000,000" in lines[1]
    assert "is empty" in lines[2]
    assert "truncated zip" in lines[3]
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [fault for fault in faults(page) if "413" not in fault and "422" not in fault] == []
    page.find_element(By.CSS_SELECTOR, "#uploads button").click()
    assert len(said(page)) == 4


def test_why_a_recording_cannot_be_read_stands_in_its_row(page, tmp_path):
    (tmp_path / "runs" / "broken.json").write_bytes(b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 4301 + b"}]}")
    formats.write(decode(), tmp_path / "runs" / "good.json")
    until(page, lambda: rows(page) == {"broken", "good"}, "both in the table")
    shown = """
        const row = document.querySelector("#runs .ag-center-cols-container [row-id=broken]"), range = new Range();
        range.selectNodeContents(row.querySelector("[col-id=strategy]"));
        const text = range.getBoundingClientRect(), y = text.top + text.height / 2;
        const over = [text.left + 1, text.right - 1].map(x => document.elementFromPoint(x, y));
        return over.every(each => each?.closest("[col-id]")?.getAttribute("col-id") === "strategy")
            ? [...row.querySelectorAll("[role=gridcell]")].filter(each => each.checkVisibility(
                {visibilityProperty: true})).map(each => each.innerText.trim()).filter(Boolean) : null;
    """
    said = "contains a number with more than 100 digits, so it is not a trace"
    until(page, lambda: page.execute_script(shown) == ["broken", said], "the reason, whole")
