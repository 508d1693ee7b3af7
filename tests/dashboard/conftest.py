"""A real Chromium, and pages served to it. Without one the tests are skipped unless INTERTOKEN_REQUIRE_BROWSER=1."""

import hashlib
import json
import os
import pickle
import shutil
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from urllib3.exceptions import HTTPError

from dashboard.app import create_app
from dashboard.reading import run
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.patience import listen
from dashboard.serving.uploads import SLICE
from tests.dashboard.page import SCRIPTS, Page
from tests.dashboard.traces import GAP, decode
from tests.recordings import SAMPLES
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
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    except WebDriverException as problem:
        missing(f"Chromium does not start: {problem.msg}")
    browser.set_script_timeout(20)
    counts = f"(() => {{ {SCRIPTS['count']} }})()"
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": counts})
    yield browser
    browser.quit()


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


@pytest.fixture
def page(browser):
    """A page of which the browser must not complain, and in which nothing of a recording may be run."""
    page = Page(browser)
    page.faults()
    yield page
    assert page.faults() == []
    assert page.run("return window.hacked") is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """After a failure the next test gets a page that is loaded for it."""
    report = yield
    if report.failed and "chromium" in item.funcargs:
        with suppress(WebDriverException, HTTPError):  # after the last test it is gone
            item.funcargs["chromium"].get("about:blank")
    return report


_ports = []
"""Those of servers that are gone: the next one takes it, so that the browser knows its scripts already."""


@contextmanager
def running(server):
    """The server, while it runs in a thread."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        for channel in list(server.active_channels.values()):
            channel.handle_close()  # a page that is still open would go on with the server that it knows
        server.task_dispatcher.shutdown()
        thread.join(1)


@contextmanager
def served(runs, serving=None):
    """The address of a dashboard that shows these runs."""
    app, prefix = create_app([runs], serving).server, serving.prefix if serving else ""
    with running(listen(app, "127.0.0.1", _ports.pop() if _ports else 0, prefix)) as server:
        yield f"http://127.0.0.1:{server.effective_port}{prefix}/"
    _ports.append(server.effective_port)


@pytest.fixture(scope="session", autouse=True)
def analysed_once():
    """What is found in a trace depends on its tables alone: for all tests of a worker it is found once."""
    found = {}

    def content_of(trace):
        if "content" not in vars(trace):
            trace.content = hashlib.sha256(pickle.dumps((trace.metadata, trace.tables))).digest()
        return trace.content

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


def copied(runs, *names):
    """Bundled recordings in a folder, without their node passes."""
    for name in names:
        shutil.copytree(SAMPLES / name, runs / name, ignore=shutil.ignore_patterns("node"))
    return runs


def as_json(*arguments):
    """What a command answers with --json."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def client_of(runs, **serving):
    """Who asks a dashboard of these runs, without a server."""
    return create_app([runs], Serving(**serving)).server.test_client()


def begin_upload(client, name, size):
    return client.post("/upload", query_string={"name": name, "size": size})


def upload(client, name, data, step=SLICE):
    """The answer to the last slice, or to the first request that is refused."""
    begun = begin_upload(client, name, len(data))
    if begun.status_code != 201:
        return begun
    for at in range(0, len(data), step):
        answer = client.put(f"/upload/{begun.get_json()['id']}?at={at}", data=data[at : at + step])
        if answer.status_code != 200:
            break
    return answer


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The address of a dashboard of which every page has something to show."""
    from tests.dashboard.filled import write_filled

    with served(write_filled(tmp_path_factory.mktemp("filled"))) as address:
        yield address


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """The address of a dashboard of two runs of 30 tokens; the gaps of `b` are twice those of `a`."""
    runs = tmp_path_factory.mktemp("two")
    formats.write(decode(tokens=30), runs / "a")
    formats.write(decode(tokens=30, gap=2 * GAP), runs / "b")
    with served(runs) as address:
        yield address
