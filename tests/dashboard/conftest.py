"""A real Chromium, and pages served to it. Without one the tests are skipped unless INTERTOKEN_REQUIRE_BROWSER=1."""

import hashlib
import json
import os
import pickle
import shutil
import threading
import weakref
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.app import create_app
from dashboard.reading import run
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.patience import listen
from tests.dashboard.traces import GAP, decode
from tracer import formats
from tracer.analysis import estimates
from tracer.cli import main

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1440,1100", "--lang=en",
    "--process-per-site", "--renderer-process-limit=1",  # a new process would compile all scripts of the page again
    "--force-prefers-reduced-motion",  # nothing is drawn for the sake of moving
    # Every page that is loaded grows the heap, and collecting it is 40 % of all CPU time; no flags of a user's browser.
    "--js-flags=--min-semi-space-size=64,--initial-heap-size=512,--single-threaded",
]  # fmt: skip


def missing(what):
    if os.environ.get("INTERTOKEN_REQUIRE_BROWSER") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One Chromium for all modules of a worker: it compiles the page's scripts once."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or program is None:
        missing("no Chromium with its driver; install them (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    try:
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    except WebDriverException as problem:
        missing(f"Chromium does not start: {problem.msg}")
    page.set_script_timeout(20)
    page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": f"(() => {{ {COUNT} }})()"})
    yield page
    page.quit()


@pytest.fixture(scope="module")
def browser(chromium):
    """The browser as if it were new, but that it knows the page's scripts."""
    yield chromium
    first, *others = chromium.window_handles
    for tab in others:
        chromium.switch_to.window(tab)
        chromium.close()
    chromium.switch_to.window(first)
    chromium.get("about:blank")
    chromium.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "cookies,local_storage"})
    chromium.get_log("browser")


COUNT = """
if (window.rest) return;
const fetched = window.fetch;
window.underWay = 0;
window.fetch = (...asked) => { window.underWay++; return fetched(...asked).finally(() => window.underWay--); };
window.rest = (quietly, done) => {
  let quiet = 0, left = 100;
  const rests = () => {
    quiet = window.underWay ? 0 : quiet + 1;
    quiet < quietly && left-- ? setTimeout(rests, 50) : done(true);
  };
  setTimeout(rests, 50);
};
"""
VISIT = """
const [address, done] = arguments, there = new URL(address);
const isOpen = there.origin + there.pathname === location.origin + location.pathname;
if (!isOpen || window.altered || !window.rest || !window.dash_clientside?.intertoken) return done(false);
document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
document.querySelectorAll("details[open]:has(> summary[id$=-open])").forEach((folded) => (folded.open = false));
document.querySelector("#runs-open[aria-expanded=true]")?.click();
document.activeElement.blur();
scrollTo(0, 0);
history.pushState({}, "", address);
dispatchEvent(new PopStateEvent("popstate"));
window.rest(3, done);
"""


def visit(browser, address):
    """Show a view: in the page that is open, as its links do, which costs a third of loading it; else by loading it.

    What no address holds is as on a new page: nothing folded out, no dialog, no focus. A test that checks what a link
    restores, or that needs a page nobody has touched, loads it: `load`. One that changes the page's own code says so:
    `alter`. What comes later may move what is there: the page is at rest when its requests have been answered.
    """
    if not browser.execute_async_script(VISIT, address):
        browser.get(address)
        browser.execute_script(COUNT)  # another tab has none
        browser.execute_async_script("window.rest(6, arguments[0])")


def load(browser, address):
    """Show a view on a page that is loaded for it."""
    browser.get("about:blank")
    browser.get(address)


def alter(browser, script):
    """Change the page's own code, until it is loaded anew."""
    browser.execute_script(f"window.altered = true; {script}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """After a failure the next test gets a page that is loaded for it."""
    report = yield
    if report.failed and "chromium" in item.funcargs:
        item.funcargs["chromium"].get("about:blank")
    return report


def until(browser, condition, what, seconds=60):
    """Wait for a condition, whatever is drawn anew meanwhile; `what` is missing if it does not come."""
    return WebDriverWait(browser, seconds, 0.1, (StaleElementReferenceException, NoSuchElementException)).until(
        lambda _: condition(), what
    )


def click_on(browser, selector):
    """Click an element once it is there. What is in a table may be drawn anew between finding and clicking."""
    until(browser, lambda: browser.find_element(By.CSS_SELECTOR, selector).click() or True, selector)


def unfold(browser):
    """Show the table of runs, which is folded while runs are shown."""
    opens = """
        const button = document.getElementById("runs-open");
        const filled = document.querySelector("#runs [row-id], #chips li");
        const isOpen = () => button?.getAttribute("aria-expanded") === "true";
        if (filled && !isOpen()) button.click();
        return isOpen();
    """
    until(browser, lambda: browser.execute_script(opens), "the table of runs")


@contextmanager
def screen_of(browser, width, height):
    """Another screen of so many px, a phone's if it is narrow."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def faults(browser):
    """What the browser complained of since it was last asked; not the default of a component that is its own."""
    log = [e["message"] for e in browser.get_log("browser") if e["level"] in {"SEVERE", "WARNING"}]
    return [message for message in log if "custom wheel sensitivity" not in message]


_ports = []
"""Those of servers that are gone: the next one takes it, so that the browser knows its scripts already."""


@contextmanager
def served(runs, serving=None):
    """The address of a dashboard that shows these runs."""
    app, prefix = create_app([runs], serving).server, serving.prefix if serving else ""
    port = _ports.pop() if _ports else 0
    server = listen(app, "127.0.0.1", port, prefix)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}{prefix}/"
    finally:
        server.close()
        for channel in list(server.active_channels.values()):
            channel.handle_close()  # a page that is still open would go on with the server that it knows
        server.task_dispatcher.shutdown()
        thread.join(1)
        _ports.append(server.effective_port)


@pytest.fixture(scope="session", autouse=True)
def analysed_once():
    """What is found in a trace depends on its tables alone: for all tests of a worker it is found once."""
    known, found = {}, {}

    def content_of(trace):
        content, of = known.get(id(trace), (None, lambda: None))
        if of() is not trace:
            content = hashlib.sha256(pickle.dumps((trace.metadata, trace.tables))).digest()
            known[id(trace)] = content, weakref.ref(trace)
        return content

    def once(function):
        def answer(trace, *arguments, **given):
            asked = function, content_of(trace), estimates.RESAMPLES, *arguments
            if asked not in found:
                found[asked] = function(trace, *arguments, **given)
            return found[asked]

        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "recording_of", once(run.recording_of))
        patch.setattr(run, "choose_steps", once(run.choose_steps))
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A directory with one recording."""
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(), directory / "a")
    return directory


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two runs of six tokens: the gaps of `b` are twice those of `a`."""
    directory = tmp_path_factory.mktemp("pair")
    formats.write(decode(), directory / "a")
    formats.write(decode(gap=2 * GAP), directory / "b")
    return RunStore([directory]).chosen(["a", "b"])


def as_json(*arguments):
    """What a command answers with --json."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def client_of(runs, **serving):
    """Who asks a dashboard of these runs, without a server."""
    return create_app([runs], Serving(**serving)).server.test_client()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The address of a dashboard of which every page has something to show."""
    from tests.dashboard.filled import write_filled

    with served(write_filled(tmp_path_factory.mktemp("filled"))) as address:
        yield address
