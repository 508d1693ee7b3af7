"""What a page says when the server fails at something, and when there is nothing to show."""

import logging
import re

import pytest

from dashboard.pages import gap
from dashboard.view import View
from tests.dashboard.conftest import alter, client_of, until
from tests.dashboard.filled import FILLED, TRACED, open_filled
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tracer.errors import FormatError

SAID = """
const [box, said] = ["failure", "failure-said"].map((id) => document.getElementById(id));
return box.checkVisibility() ? said.innerText : ""
"""


PROBLEMS = ValueError("secret /etc/passwd"), FormatError("a.sqlite: no table KERNEL")
SCREEN = {"scheme": "light", "width": 1200}


def answer(client, place, output, **view):
    """What a page's callback for an output answers."""
    callback = next(one for one in callbacks_of(client, place) if output in one["output"])
    values = {"view.data": View(**view).data(), "screen.data": SCREEN}
    return post(client, place, asked(callback, values)).get_json()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_said_of_a_failure(runs, monkeypatch, problem):
    def fails(*_):
        raise problem

    client = client_of(runs)
    monkeypatch.setattr(gap, "panels_of", fails)
    said = answer(client, "gap/", "made-of.rowData", runs=("a",))["sideUpdate"]
    assert said["failure"] == {"hidden": False}
    words = said["failure-said"]["children"]
    expected = "a.sqlite: no table KERNEL (" if isinstance(problem, FormatError) else "The server failed to handle this"
    assert words.startswith(expected)
    assert "secret" not in words


@pytest.mark.browser
@pytest.mark.parametrize(
    "problem",
    [
        PROBLEMS[0],
    ],
)
def test_a_failure_is_said_in_place_and_goes_with_the_next_view(browser, filled, monkeypatch, caplog, problem):
    def fails(*_):
        raise problem

    open_filled(browser, filled, "gap/")
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR, "dashboard.pages"):
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


@pytest.mark.parametrize("place", FILLED)
def test_without_recordings_the_server_says_how_to_make_some(tmp_path, place):
    told = answer(client_of(tmp_path), place, "nothing.children")["response"]
    assert "intertoken run" in str(told["nothing"]["children"])
