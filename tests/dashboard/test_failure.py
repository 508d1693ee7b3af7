"""What a page says when the server fails at something, and when there is nothing to show."""

import logging
import re

import pytest

from dashboard.pages import gap
from tests.dashboard.conftest import alter, served, until, visit
from tests.dashboard.filled import FILLED, TRACED, open_filled
from tracer.errors import FormatError

pytestmark = pytest.mark.browser
SAID = """
const [box, said] = ["failure", "failure-said"].map((id) => document.getElementById(id));
return box.checkVisibility() ? said.innerText : ""
"""


@pytest.mark.parametrize("problem", [ValueError("secret /etc/passwd"), FormatError("a.sqlite: no table KERNEL")])
def test_a_failure_is_said_in_place_and_goes_with_the_next_view(browser, filled, monkeypatch, caplog, problem):
    def fails(*_):
        raise problem

    open_filled(browser, filled, "gap/")
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR, "dashboard.pages.failure"):
        broken.setattr(gap, "panels_of", fails)
        browser.execute_script("document.querySelector('#scale input[value=all]').click()")
        said = until(browser, lambda: browser.execute_script(SAID), "what went wrong")
    if isinstance(problem, FormatError):
        assert said.startswith("a.sqlite: no table KERNEL (")
    else:
        number = re.search(r"failure ([0-9a-f]{6})", said)[1]
        assert number in caplog.text
        assert "secret" in caplog.text
        assert "secret" not in browser.page_source
    assert "Traceback" not in browser.page_source
    assert browser.find_element("id", "failure").get_attribute("role") == "alert"
    assert TRACED in browser.find_element("id", "figures").text, "what was shown still is"
    alter(
        browser,
        "window.copied = ''; navigator.clipboard.writeText = async (text) => { window.copied = text; }",
    )
    browser.find_element("id", "failure-copy").click()
    until(browser, lambda: said in browser.execute_script("return window.copied"), "a copy")
    browser.execute_script("document.querySelector('#scale input[value=typical]').click()")
    until(browser, lambda: not browser.execute_script(SAID), "no failure any more")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    with served(tmp_path_factory.mktemp("empty")) as address:
        yield address


@pytest.mark.parametrize("place", [place for place in FILLED if place != "record/"])
def test_without_recordings_a_page_says_how_to_make_some(browser, empty, place):
    visit(browser, f"{empty}{place}")
    words = "intertoken run"
    until(browser, lambda: words in browser.find_element("id", "nothing").text, words)
    assert browser.execute_script(SAID) == ""


@pytest.mark.parametrize("place", ["gap/", "syncs/", "whatif/"])
def test_without_a_chosen_run_a_page_says_so(browser, filled, place):
    visit(browser, f"{filled}{place}?run=")
    until(browser, lambda: "Select" in browser.find_element("id", "nothing").text, "what to do")
