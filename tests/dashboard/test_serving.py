"""What the server answers, to whom, and with which headers."""

import http.client
import http.server
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager

import pytest

from dashboard.app import create_app
from dashboard.serving import Serving
from dashboard.serving.guard import LOOPBACK, is_host
from tests.dashboard.conftest import client_of, served


@pytest.mark.parametrize(
    ("address", "status"),
    [("/", 200), ("/graph/", 200), ("/_dash-layout", 200), ("/graph", 308), ("/healthz", 200), ("/assets/page.js", 200),
     ("/no/such/page", 404), ("/etc/passwd", 404), ("/assets/..%2fapp.py", 404), ("/assets/../app.py", 404)],
)  # fmt: skip
def test_every_answer_carries_the_headers(runs, address, status):
    with client_of(runs).get(address) as answer:
        assert answer.status_code == status
        policy = answer.headers["Content-Security-Policy"]
        script = re.search("script-src ([^;]*)", policy)[1]
        assert "unsafe" not in script
        assert "'self' 'sha256-" in script
        assert "http:" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "no-cache" in answer.headers["Cache-Control"]
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"


def test_an_address_without_a_page_leads_to_those_there_are(runs):
    client = client_of(runs, prefix="/lab")
    page = client.get("/what<b>if", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "There is no page at /lab/what&lt;b&gt;if." in page.text
    assert all(f'href="/lab/{place}"' in page.text for place in ("", "gap/", "syncs/", "whatif/", "graph/"))
    plain = client.get("/what<b>if")
    assert (plain.status_code, plain.mimetype) == (404, "text/plain")
    assert plain.text == "There is nothing at this address.\n"


def test_no_page_shows_how_it_fails(runs, monkeypatch):
    server = create_app([runs]).server
    server.config["PROPAGATE_EXCEPTIONS"] = False
    monkeypatch.setattr("dashboard.reading.store.RunStore.progress", lambda self: 1 / 0)
    answer = server.test_client().get("/healthz")
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "ZeroDivision" not in answer.text
    assert "Content-Security-Policy" in answer.headers
    assert not server.debug


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8050", "LocalHost:8050", "127.0.0.1", "127.0.0.1:8050", "[::1]", "[::1]:8050", "gpu1:1",
     "node_7.lab.example:65535", "Node_7.Lab.Example"],
)  # fmt: skip
def test_names_of_this_machine_and_those_allowed_are_answered(runs, host):
    client = client_of(runs, hosts=LOOPBACK | {"GPU1", "node_7.lab.example"})
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:8050", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "127.0.0.2", "[::2]",
     "::1", "localhost."],
)  # fmt: skip
def test_other_names_are_refused(runs, host):
    assert client_of(runs, hosts=LOOPBACK).get("/healthz", headers={"Host": host}).status_code == 400


ODD = [
    "", " ", ":8050", "127.0.0.1@evil.example", "evil.example@localhost", "user:pw@localhost:8050", "@localhost",
    "[::1", "::1]", "[]", "[::1]x", "[::1]:", "[::1%eth0]", "[localhost]", "localhost:", "localhost::8050",
    "localhost:80:8050", "localhost:8050x", "localhost:x", "localhost:+80", "localhost:-1", "localhost:1_0",
    "localhost:65536", "localhost:0x50", "localhost:" + "0" * 9_000, "localhost /", "localhost 8050",
    "localhost:80 50", "localhost/", "localhost/x", "localhost?x", "localhost#x", "localhost\\x",
    "localhost,evil.example", "localhost;x", "localhost%00", "localhost\tx", "loc\u0430lhost", "localhost:\u0663",
    "localhost:\xb2", "localhost:\uff18\uff10",
]  # fmt: skip


@pytest.mark.parametrize("host", ODD)
@pytest.mark.parametrize("names", [LOOPBACK, None], ids=["loopback", "any"])
def test_odd_hosts_are_refused_whatever_names_are_allowed(host, names):
    assert not is_host(host, names)


def test_the_server_refuses_odd_hosts_and_answers_the_next_request(runs):
    with served(runs, Serving(hosts=LOOPBACK)) as address:
        for host in [host for host in ODD if len(host) < 1_000] + ["\n"]:
            assert _asked(_port(address), f"Host: {host}") == 400, host
        assert _asked(_port(address), "Host: localhost", "Host: evil.example") == 400
        assert _asked(_port(address)) == 400  # none
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "a@localhost"}))
        assert refused.value.read() == b"The Host header is not a name with or without a port.\n"
        refused.value.close()
        assert _asked(_port(address), "Host:   localhost:8050  ") == 200


def _asked(port, *headers):
    """The status of a request with these headers, byte by byte as they are."""
    with closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        lines = ["GET /healthz HTTP/1.1", *headers, "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Sec-Fetch-Site": "same-origin"}, 204),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403),
        ({"Origin": "http://localhost"}, 204),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://tool.example", "X-Forwarded-Host": "tool.example"}, 403),  # whoever says so
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://[" + "9" * 10_000}, 403),
    ],
)
def test_only_own_pages_may_change_anything(runs, caplog, headers, status):
    server = create_app([runs]).server
    server.config["PROPAGATE_EXCEPTIONS"] = False
    server.add_url_rule("/change<rest>", view_func=lambda rest: ("", 204), methods=["POST"])
    assert server.test_client().post("/change\r\n" + "x" * 10_000, headers=headers).status_code == status
    assert len(caplog.records) == (status == 403)
    assert all(len(record.getMessage()) < 200 and record.getMessage().isprintable() for record in caplog.records)


def test_health_tells_how_many_and_no_names(runs):
    client = client_of(runs, token="secret")
    assert client.get("/healthz").get_json()["runs"] == {"read": 0, "total": 1}
    client.get("/login?token=secret")
    rows = client.post("/_dash-update-component", json=_table(client)).get_json()["response"]["runs"]["rowData"]
    assert [row["key"] for row in rows] == ["a"]
    answer = create_app([runs]).server.test_client().get("/healthz").get_json()
    assert sorted(answer) == ["runs", "status", "version"]
    for _ in range(200):
        if client.get("/healthz").get_json()["runs"] == {"read": 1, "total": 1}:
            return
        time.sleep(0.05)
    pytest.fail("it was never read")


def _table(client):
    callback = next(c for c in client.get("/_dash-dependencies").get_json() if "runs.rowData" in c["output"])
    parts = callback["output"].strip(".").split("...")
    return {
        "output": callback["output"],
        "outputs": [dict(zip(("id", "property"), part.split("."), strict=True)) for part in parts],
        "inputs": callback["inputs"],
        "state": callback["state"],
        "changedPropIds": ["url.pathname"],
    }


@pytest.mark.parametrize("address", ["/graph", "/graph?run=a", "//evil.example/../graph", "//evil.example/graph"])
def test_redirects_say_no_scheme_and_no_host(runs, address):
    answer = client_of(runs).get(address, base_url="https://tool.example")
    if answer.status_code == 308:
        assert re.match("/[a-z]", answer.headers["Location"])
    else:
        assert answer.status_code == 404


@contextmanager
def proxied(target, strips, prefix):
    """A reverse proxy that shows a server below a prefix, which it takes off or not."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            path = self.path.removeprefix(prefix) if strips else self.path
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            there = http.client.HTTPConnection("127.0.0.1", target)
            there.request(self.command, path or "/", body, dict(self.headers))
            answer = there.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            there.close()

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{prefix}/"
    server.shutdown()
    server.server_close()
    thread.join(10)


PROXIED = Serving(prefix="/lab/tool", hosts=LOOPBACK, token="a token & more")


@pytest.mark.browser
def test_behind_a_prefix_with_a_token(browser, tmp_path):
    from selenium.webdriver.common.by import By

    from tests.dashboard.conftest import faults, unfold, until
    from tests.dashboard.graph_runs import write_run_of_tiny

    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    faults(browser)
    write_run_of_tiny(tmp_path)
    with served(tmp_path, PROXIED) as direct, proxied(_port(direct), False, PROXIED.prefix) as address:
        browser.get(f"{address}graph/?run=tiny-sccc-branches&theme=dark")
        assert browser.find_element(By.CSS_SELECTOR, "[role=alert]").text.startswith(
            "Enter the token of this dashboard"
        )
        assert [fault for fault in faults(browser) if "403" not in fault] == []
        browser.find_element(By.NAME, "token").send_keys("a token & more\n")
        until(browser, lambda: "82 of 102" in browser.find_element(By.ID, "panel").text, "the graph that was asked for")
        assert "theme=dark" in browser.current_url
        browser.find_element(By.ID, "page-runs").click()
        until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline")
        assert browser.current_url.startswith(f"{address}?run=tiny-sccc-branches")
        unfold(browser)
        links = "return [...document.querySelectorAll('#runs .ag-row a')].map((a) => a.href.split('&')[0])"
        there = f"{address}graph/?run=tiny-sccc-branches"
        until(browser, lambda: there in browser.execute_script(links), "a link to the graph in the table")
        browser.get("about:blank")
        assert faults(browser) == []


@pytest.mark.parametrize("strips", [False, True])
def test_a_proxy_may_take_the_prefix_off_or_leave_it(runs, strips):
    prefix = PROXIED.prefix
    with (
        served(runs, PROXIED) as direct,
        proxied(_port(direct), strips, prefix) as address,
        closing(http.client.HTTPConnection("127.0.0.1", _port(address))) as proxy,
    ):

        def ask(place, cookie="", body=None):
            origin = {"Origin": address.removesuffix(f"{prefix}/"), "Content-Type": "application/json"}
            given = {} if body is None else origin
            proxy.request("GET" if body is None else "POST", f"{prefix}{place}", body, {"Cookie": cookie, **given})
            answer = proxy.getresponse()
            return answer.status, answer.headers, answer.read().decode()

        status, _, text = ask("/graph/?run=a")
        assert (status, f'action="{prefix}/login"' in text) == (403, True)
        status, headers, _ = ask("/login?token=a+token+%26+more")
        assert (status, headers["Refresh"]) == (200, f"0; url={prefix}/")
        cookie, _, attributes = headers["Set-Cookie"].partition(";")
        assert f"Path={prefix}" in attributes
        status, _, text = ask("/", cookie)
        scripts = re.findall(r'<script src="([^"]+)"', text)
        assert (status, len(scripts) > 20) == (200, True)
        assert ask(scripts[-1].removeprefix(prefix), cookie)[0] == 200
        assert ask("/graph?run=a", cookie)[1]["Location"] == f"{prefix}/graph/?run=a"
        asked = json.dumps(_table(client_of(runs, prefix=prefix)))
        answer = json.loads(ask("/_dash-update-component", cookie, asked)[2])["response"]
        assert [row["key"] for row in answer["runs"]["rowData"]] == ["a"]
        if not strips:  # one that takes the prefix off has to add the slash itself
            assert ask("", cookie)[1]["Location"] == f"{prefix}/"


def _port(address):
    return int(re.search(r":(\d+)/", address)[1])


@pytest.mark.parametrize("prefix", ["", "/lab/tool"])
def test_all_pages_have_the_scripts_and_styles_of_the_first(runs, prefix):
    client = client_of(runs, prefix=prefix)
    texts = [client.get(f"/{address}").text for address in ("graph/", "gap/", "")]  # a link may open any page first
    first, *others = [re.findall(r'<(?:script|link rel="stylesheet") (?:src|href)="([^"]+)"', text) for text in texts]
    assert len(first) > 20
    assert all(other == first for other in others)
    assert all(address.startswith(f"{prefix}/") for address in first)
    for address in first:
        with client.get(address.removeprefix(prefix)) as answer:
            assert answer.status_code == 200, address
