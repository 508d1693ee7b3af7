"""The record page in a real Chromium, by keyboard: start, watch, cancel, and find the runs."""

import os
import signal
import time
from contextlib import closing

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from dashboard.pages import parts
from dashboard.pages.record import callbacks
from dashboard.recording.runner import Runner
from dashboard.recording.running import Running
from dashboard.serving import Serving
from tests.dashboard.conftest import alter, faults, load, served
from tests.dashboard.test_answers_browser import Page
from tests.dashboard.test_record import until as wait_until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    with closing(Runner(runs, grace=2)) as runner:
        wait_until(lambda: runner.options() is not None, "the options")
        with served(runs, Serving(runner=runner)) as address:
            yield runner, address


@pytest.fixture
def page(browser):
    faults(browser)
    yield Page(browser)
    assert faults(browser) == []


def field(page, option):
    """The elements of an option's field that can be typed into or ticked."""
    own = f"""[id='{{"option":"{option}"}}']"""
    return page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, f"{own} input, input{own}"), option)


SHARE = "return document.getElementById('progress').value"


def press(page, element, *keys):
    page.browser.execute_script("arguments[0].focus()", element)
    element.send_keys(*keys)


def fill(page, option, text):
    press(page, field(page, option)[0], Keys.CONTROL, "a", Keys.NULL, text)


def test_two_strategies_are_chosen_refused_recorded_and_found(page, place):
    runner, address = place
    page.open(address)
    page.says("nothing", "No recordings yet")
    table = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.open(f"{address}record/?theme=light")
    backends = {e.get_attribute("value"): e.is_enabled() for e in field(page, "backend")}
    assert backends["cpu"]
    assert backends["sim"]
    for box in field(page, "strategies"):
        if box.get_attribute("value") in ("sccc", "ggg"):
            press(page, box, Keys.SPACE)
    fill(page, "tokens", "1000")
    page.says("refused", "context of 256")
    fill(page, "tokens", "6")
    page.says("said-of-plan", "2 runs: tiny-sccc-sequential, tiny-ggg-sequential")
    page.linked("strategies=sccc%2Cggg&tokens=6")
    page.browser.back()
    page.says("refused", "context of 256")
    page.until(lambda: field(page, "tokens")[0].get_attribute("value") == "1000", "the field as it was")
    page.browser.forward()
    page.says("said-of-plan", "2 runs: tiny-sccc-sequential, tiny-ggg-sequential")
    assert page.text("refused") == ""
    assert page.text("command") == f"intertoken run --sync sccc,ggg --tokens 6 -o {runner.shown}"
    page.press("start", Keys.ENTER)
    page.says("said-of-job", "Done after")
    page.says("said-of-job", "2 of 2 runs complete")
    page.says("log", "tiny-ggg-sequential")
    page.says("announced", "Done: 2 runs")
    page.says("new-runs", "Compare them")
    said = page.text("said-of-job")
    page.browser.refresh()
    page.says("said-of-job", said)
    page.press("compare", Keys.ENTER)
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "the timeline")
    assert "run=tiny-sccc-sequential&run=tiny-ggg-sequential" in page.browser.current_url
    page.browser.close()
    page.browser.switch_to.window(table)
    page.says("runs", "tiny-ggg-sequential")  # without loading it again


def test_answers_slower_than_the_poll_are_drawn(page, place, monkeypatch):
    """Dash drops the answer of a callback that was triggered again meanwhile."""

    def slowly(function):
        return lambda *arguments: time.sleep(1.5) or function(*arguments)

    _, address = place
    known, options = time.monotonic() + 2, callbacks.known_options
    monkeypatch.setattr(callbacks, "known_options", lambda of: options(of) if time.monotonic() > known else None)
    page.open(f"{address}record/?tokens=6", load)
    page.says("form", "Asking intertoken run")
    page.until(lambda: field(page, "tokens")[0].get_attribute("value") == "6", "the field")
    page.says("command", "--tokens 6")
    for name in ("form", "plan_of"):
        monkeypatch.setattr(callbacks, name, slowly(getattr(callbacks, name)))
    monkeypatch.setattr(Running, "rows", slowly(Running.rows))
    page.open(f"{address}record/?tokens=1000")
    page.until(lambda: field(page, "tokens")[0].get_attribute("value") == "1000", "the field of the link")
    page.says("refused", "context of 256")
    page.says("running", "No process runs")


UNHEARD = """
const fetched = window.fetch;
window.unheard = 0;
window.fetch = (...what) => {
  if (window.heard || !String(what[1]?.body).includes('"id":"poll"')) return fetched(...what);
  window.unheard++;
  return Promise.reject(new TypeError("no network"));
};
"""


def test_polls_go_on_after_requests_that_failed(page, place, monkeypatch):
    runner, _ = place
    monkeypatch.setattr(parts, "_PAUSED_MS", 2000)
    with served(runner.files.output, Serving(runner=runner)) as address:
        page.open(f"{address}record/?tokens=6", load)
        page.says("command", "--tokens 6")
        alter(page.browser, UNHEARD)
        page.until(lambda: page.browser.execute_script("return window.unheard") >= 2, "polls that fail")
        page.browser.execute_script("window.heard = true")
        monkeypatch.setattr(callbacks, "plan_of", lambda *_: ("heard again", "", ""))
        page.says("command", "heard again")
        page.browser.get("about:blank")  # before the server is gone
    assert faults(page.browser), "those of the requests that failed"


def test_progress_a_second_start_and_cancel(page, place):
    runner, address = place
    page.open(f"{address}record/?theme=dark&strategies=sccc&tokens=60&repeats=900")
    page.says("said-of-plan", "1 run: tiny-sccc-sequential")
    page.press("start", Keys.ENTER)
    page.says("said-of-job", "left.")
    page.until(lambda: 0 < page.browser.execute_script(SHARE) < 1, "some progress")
    page.press("start", Keys.ENTER)
    page.says("refused", "is already running")
    page.press("cancel", Keys.ENTER)
    page.says("said-of-job", "Cancelled after")
    assert not runner.files.staging.exists()
    assert not page.browser.find_element(By.ID, "cancel").is_enabled()


def test_a_killed_child_leaves_the_page_working(page, place):
    runner, address = place
    page.open(f"{address}record/?strategies=aaag&tokens=60&repeats=900")
    page.says("said-of-plan", "1 run")
    page.press("start", Keys.ENTER)
    page.says("said-of-job", "left.")
    os.kill(child_of(runner), signal.SIGKILL)
    page.says("failed", "ended by SIGKILL")
    page.browser.refresh()
    page.says("failed", "ended by SIGKILL")
    page.says("said-of-plan", "1 run")


def child_of(runner):
    """The process that records: the only child of the one that watches."""
    watching = runner._supervisor.pid
    with open(f"/proc/{watching}/task/{watching}/children") as children:
        return int(children.read().split()[0])
