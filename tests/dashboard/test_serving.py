"""What the server answers, to whom, how soon; who gets in by the token; what callbacks may be sent."""

import gzip
import hashlib
import json
import logging
import re
import resource
import socket
import time
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from itsdangerous import TimestampSigner

from dashboard import pages
from dashboard.app import create_app
from dashboard.pages import gap
from dashboard.pages.parts import MOST_PRESSES, done
from dashboard.serving import Serving, callbacks
from dashboard.serving.guard import LOOPBACK, Attempts, is_host, local_path, session_key
from dashboard.serving.patience import Patience, listen
from dashboard.view import View
from tests.dashboard.conftest import client_of, running, served, until
from tests.dashboard.filled import FILLED, write_runs
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import PLACES, Fuzzed, callbacks_of, peak, post
from tests.fuzz.hostile import asked
from tracer import formats
from tracer.errors import FormatError

DATA = Path(__file__).parent / "data"
REQUESTS = json.loads((DATA / "requests.json").read_text(encoding="utf-8"))
LOGIN = {"token": "secret"}


def test_every_answer_carries_the_headers_and_nothing_outside_is_shown(runs):
    client = client_of(runs)
    for address, status in {
        "/": 200, "/graph/": 200, "/_dash-layout": 200, "/graph": 308, "/healthz": 200, "/assets/page.js": 200,
        "/no/such/page": 404, "/etc/passwd": 404, "/assets/..%2fapp.py": 404, "/assets/../app.py": 404,
    }.items():  # fmt: skip
        with client.get(address) as answer:
            assert answer.status_code == status, address
            policy, headers = answer.headers["Content-Security-Policy"], answer.headers
        script = re.search("script-src ([^;]*)", policy)[1]
        assert "unsafe" not in script
        assert "'self' 'sha256-" in script
        assert "http:" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "no-cache" in headers["Cache-Control"]
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    page = client.get("/").text
    assert "http://" not in page
    assert "https://" not in page


def test_an_address_without_a_page_leads_to_those_there_are(runs):
    client = client_of(runs, prefix="/lab")
    page = client.get("/what<b>if", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "There is no page at /lab/what&lt;b&gt;if." in page.text
    assert all(f'href="/lab/{place}"' in page.text for place in ("", "gap/", "syncs/", "whatif/", "graph/"))
    plain = client.get("/what<b>if")
    assert (plain.status_code, plain.mimetype) == (404, "text/plain")


def test_a_failure_is_a_number_in_the_answer_and_a_bounded_traceback_in_the_log(runs, caplog):
    server = create_app([runs]).server

    @server.get("/fails")
    def fails():
        raise ValueError("secret\x1b[2J" + "x" * 10**6)

    server.config["PROPAGATE_EXCEPTIONS"] = False
    answer = server.test_client().get("/fails")
    assert answer.status_code == 500
    assert not re.search("Traceback|ValueError|secret", answer.text)
    assert "Content-Security-Policy" in answer.headers
    assert not server.debug
    (record,) = caplog.records
    assert record.name == pages.__name__
    assert len(record.getMessage()) < 30_000
    assert "\x1b" not in record.getMessage()
    assert "fails" in record.getMessage()


def test_names_of_this_machine_and_those_allowed_are_answered_and_no_others(runs):
    client, loopback = client_of(runs, hosts=LOOPBACK | {"GPU1", "node_7.lab.example"}), client_of(runs, hosts=LOOPBACK)
    for of, asked_of, status in (("own hosts", client, 200), ("other hosts", loopback, 400)):
        for host in REQUESTS[of]:
            assert asked_of.get("/healthz", headers={"Host": host}).status_code == status, host
    for host in (*REQUESTS["odd hosts"], "localhost:" + "0" * 9_000):
        assert not is_host(host, LOOPBACK), host
        assert not is_host(host, None), host


def port_of(address):
    return int(re.search(r":(\d+)/", address)[1])


def test_the_server_refuses_odd_hosts_and_answers_the_next_request(runs):
    with served(runs, Serving(hosts=LOOPBACK)) as address:

        def status(*headers):
            """Of a request with these headers, byte by byte as they are."""
            with closing(socket.create_connection(("127.0.0.1", port_of(address)), 10)) as connection:
                lines = ["GET /healthz HTTP/1.1", *headers, "Connection: close", "", ""]
                connection.sendall("\r\n".join(lines).encode())
                return int(connection.makefile("rb").readline().split()[1])

        for host in ["\n", *REQUESTS["odd hosts"]]:
            assert status(f"Host: {host}") == 400, host
        assert status("Host: localhost", "Host: evil.example") == status() == 400
        assert status("Host:   localhost:8050  ") == 200


def test_only_own_pages_may_change_anything(runs, caplog):
    server = create_app([runs]).server
    server.config["PROPAGATE_EXCEPTIONS"] = False
    server.add_url_rule("/change<rest>", view_func=lambda rest: ("", 204), methods=["POST"])
    for headers, status in (
        ({}, 204), ({"Sec-Fetch-Site": "same-origin"}, 204), ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403), ({"Origin": "http://localhost"}, 204),
        ({"Origin": "http://localhost:3000"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://["}, 403),
        ({"Origin": "https://tool.example", "X-Forwarded-Host": "tool.example"}, 403),  # whoever says so
        ({"Origin": "http://[" + "9" * 10_000}, 403),
    ):  # fmt: skip
        caplog.clear()
        answer = server.test_client().post("/change\r\n" + "x" * 10_000, headers=headers)
        assert answer.status_code == status, headers
        assert [len(r.getMessage()) < 200 and r.getMessage().isprintable() for r in caplog.records] == (
            [True] * (status == 403)
        )


def table(client, page=""):
    """A request for the table of runs."""
    return asked(next(one for one in callbacks_of(client, page) if "runs.rowData" in one["output"]), {})


def test_health_tells_how_many_and_no_names(runs):
    client = client_of(runs, **LOGIN)
    assert client.get("/healthz").get_json()["runs"] == {"read": 0, "total": 1}
    client.get("/login?token=secret")
    client.post("/_dash-update-component", json=table(client))
    answer = create_app([runs]).server.test_client().get("/healthz").get_json()
    assert sorted(answer) == ["runs", "status", "version"]
    until(lambda: client.get("/healthz").get_json()["runs"] == {"read": 1, "total": 1})


def test_redirects_say_no_scheme_and_no_host(runs):
    for address in ("/graph", "/graph?run=a", "//evil.example/../graph", "//evil.example/graph"):
        answer = client_of(runs).get(address, base_url="https://tool.example")
        assert answer.status_code == 404 or re.match("/[a-z]", answer.headers["Location"]), address


def test_all_pages_have_the_scripts_and_styles_of_the_first_and_only_libraries_that_they_use(runs):
    client = client_of(runs, prefix="/lab/tool")
    texts = [client.get(f"/{address}").text for address in ("graph/", "gap/", "")]  # a link may open any page first
    graph, gap, first = [re.findall(r'<(?:script|link rel="stylesheet") (?:src|href)="([^"]+)"', t) for t in texts]
    assert len(first) > 20
    assert [each for each in first if "bootstrap" not in each] == [each for each in gap if "bootstrap" not in each]
    assert ["cytoscape" in " ".join(each) for each in (graph, gap, first)] == [True, False, False]
    assert ["ag_grid" in " ".join(each) for each in (graph, gap, first)] == [False, True, True]
    for address in {*graph, *gap, *first}:
        assert address.startswith("/lab/tool/")
        with client.get(address.removeprefix("/lab/tool")) as answer:
            assert answer.status_code == 200, address
            assert "immutable" in answer.headers["Cache-Control"], address


def test_files_are_packed_and_kept_and_say_nothing_of_a_session(runs):
    client = client_of(runs, **LOGIN)
    assert "Set-Cookie" in client.get("/login?token=secret").headers
    page = client.get("/", headers={"Accept-Encoding": "gzip"})
    assert page.headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(page.data).decode()
    for address in re.findall('(?:src|href)="(/(?:assets|_dash-component-suites)[^"]+)"', text):
        with client.get(address, headers={"Accept-Encoding": "br, gzip"}) as packed, client.get(address) as whole:
            is_small = len(whole.data) < 1000
            assert packed.headers.get("Content-Encoding") == (None if is_small else "gzip")
            assert (packed.data if is_small else gzip.decompress(packed.data)) == whole.data
            for answer in (packed, whole):
                assert "Set-Cookie" not in answer.headers
                assert answer.headers["Vary"] == "Accept-Encoding"
                assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    for address in ("/assets/page.js", "/assets/page.js?h=0123456789ab", "/assets/page.js?m=1"):
        with client.get(address) as answer:
            assert answer.headers["Cache-Control"] in ("no-cache", "private, no-cache"), address
            tag = answer.headers["ETag"]
        with client.get(address, headers={"If-None-Match": tag}) as again:
            assert again.status_code == 304
    with client.get("/_dash-component-suites/dash/dcc/async-graph.js", headers={"Accept-Encoding": "gzip"}) as chunk:
        tag = chunk.headers["ETag"]
    asked = {"Accept-Encoding": "gzip", "If-None-Match": tag}
    assert client.get("/_dash-component-suites/dash/dcc/async-graph.js", headers=asked).status_code == 304
    nobody = client_of(runs, **LOGIN)
    assert nobody.get("/_dash-component-suites/dash/dcc/async-graph.js").status_code == 200
    assert [nobody.get(address).status_code for address in ("/", "/_dash-layout", "/revision")] == [403] * 3


def test_without_the_token_nothing_is_shown(runs):
    client = client_of(runs, prefix="/tool", **LOGIN)
    for address in ("/", "/graph/?run=a&node=%3Cb%3E", "/_dash-layout", "/_dash-dependencies"):
        answer = client.get(address)
        assert answer.status_code == 403
        assert 'action="/tool/login"' in answer.text
        assert "<b>" not in answer.text
    assert client.post("/_dash-update-component", json={}).status_code == 403
    with client.get("/assets/page.css") as style:
        assert style.status_code == 200
    wrong = client.post("/login", data={"token": "sécret"})
    assert (wrong.status_code, "Set-Cookie" in wrong.headers) == (403, False)
    client.set_cookie("intertoken-00000000", "forged")
    assert client.get("/").status_code == 403


def test_the_token_opens_a_session_by_link_and_by_form(runs):
    answer = client_of(runs, prefix="/tool", **LOGIN).get("/login?token=secret")
    assert (answer.status_code, answer.headers["Refresh"]) == (200, "0; url=/tool/")
    linked = client_of(runs, prefix="/tool", **LOGIN).get("/login?token=secret&next=/gap/%3Frun%3Da%26token%3D3")
    assert linked.headers["Refresh"] == "0; url=/tool/gap/?run=a&token=3"
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/tool"} <= set(cookie.split("; "))
    assert "secret" not in cookie
    client = client_of(runs, **LOGIN)
    answer = client.post("/login", data=LOGIN | {"next": "/graph/?run=a"})
    assert (answer.status_code, answer.location) == (303, "/graph/?run=a")
    assert client.get("/graph/?run=a").status_code == 200
    for scheme in ("http", "https"):  # a cookie that came over TLS goes over nothing else
        answer = client_of(runs, **LOGIN).post("/login", data=LOGIN, base_url=f"{scheme}://tool.example")
        assert ("Secure" in answer.headers["Set-Cookie"].split("; ")) == (scheme == "https")


def test_tokens_are_tried_against_a_cookie_only_at_the_price_of_scrypt(runs, monkeypatch):
    derived, true = [], hashlib.scrypt
    monkeypatch.setattr(hashlib, "scrypt", lambda *given, **named: derived.append(given) or true(*given, **named))
    client = client_of(runs, **LOGIN)
    cookie = client.get("/login?token=secret").headers["Set-Cookie"].partition("=")[2].partition(";")[0]
    assert client.get("/").status_code == client.get("/healthz").status_code == 200
    assert len(derived) == 1  # once, when the server is made

    def explains(key):
        signer = TimestampSigner(key, "cookie-session", key_derivation="hmac", digest_method=hashlib.sha1)
        return signer.validate(cookie)

    cheap = [b"secret", *(hashlib.sha256(salt + b"secret").digest() for salt in (b"", b"session of intertoken\0"))]
    assert [explains(key) for key in cheap] == [False] * 3
    begin = time.process_time()
    assert [explains(session_key(token)) for token in ("guess", "secret")] == [False, True]
    assert time.process_time() - begin > 0.1  # s of CPU; with SHA-256 it is less than 1 µs


def test_ten_wrong_tokens_a_minute(runs, caplog):
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for second in range(10):
        now[0] = second
        assert attempts.wait("10.0.0.1") == 0
        attempts.wrong("10.0.0.1")
    assert (attempts.wait("10.0.0.1"), attempts.wait("10.0.0.2")) == (51, 0)
    now[0] = 60.0
    assert attempts.wait("10.0.0.1") == 0
    for number in range(5_000):
        attempts.wrong(f"address {number}")
    assert len(attempts._wrong) <= 1_000
    caplog.clear()
    client = client_of(runs, **LOGIN)
    answers = [client.post("/login", data={"token": "guess"}) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [403] * 10 + [429] * 2
    assert int(answers[-1].headers["Retry-After"]) > 50
    assert [record.getMessage() for record in caplog.records] == ["10 wrong tokens within a minute from 127.0.0.1"]
    assert client.post("/login", data=LOGIN).status_code == 303  # whoever else is at this address


def test_nobody_else_can_lock_out_who_has_the_token(runs):
    client, elsewhere = client_of(runs, **LOGIN), {"Sec-Fetch-Site": "cross-site"}
    for number in range(15):  # as pictures and forms on a page that the owner visits
        assert client.get(f"/login?token=wrong{number}", headers=elsewhere).status_code == 403
        assert client.post("/login", data={"token": "wrong"}, headers=elsewhere).status_code == 403
    assert client.post("/login", data={"token": "wrong"}).status_code == 403  # and not 429
    assert client.get("/login?token=secret", headers=elsewhere).status_code == 200


def test_the_login_leads_to_what_was_asked_for_and_nowhere_else(runs):
    client = client_of(runs, prefix="/tool", **LOGIN)

    def lead(place):
        answer = client.post("/login", data=LOGIN | {"next": place})
        assert answer.status_code == 303
        return answer.headers["Location"]

    long = "/" + "a" * 10_000, "/?" + "a" * 10_000, "/" * 10_000, "/" + "a/" * 5_000 + "!"
    for place in (*REQUESTS["leads nowhere"], *long):
        start = time.perf_counter()
        assert local_path(place) == "/", place
        assert time.perf_counter() - start < 0.5
        assert lead(place) == "/tool/", place
    hostile = "/" + View(runs=("<img src=x>", "a b/é&=%", "x" * 240)).query()
    for place in (*REQUESTS["leads there"], hostile):
        assert lead(place) == f"/tool{place}"


BAD = json.loads((DATA / "malformed.json").read_text(encoding="utf-8"))
SCREEN = {"scheme": "light", "width": 900}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    runs = write_runs(tmp_path_factory.mktemp("runs"))
    formats.write(decode(), runs / "a")
    return Fuzzed(runs)


@pytest.fixture
def client(fuzzed):
    return fuzzed.client


def pressed(client, **times):
    callback = next(one for one in callbacks_of(client, "") if one["output"].startswith("..view.data...url.search"))
    values = {"listed.data": [1, 0], "view.data": View(runs=("a",), token=1).data(), "screen.data": SCREEN}
    values |= {"pressed.data": {}} | {f"{button.replace('_', '-')}.n_clicks": n for button, n in times.items()}
    return asked(callback, values, [f"{button.replace('_', '-')}.n_clicks" for button in times])


def refused(client, caplog, body, why="", status=400):
    """The answer to a request that must be refused, with one short line in it and in the log."""
    caplog.clear()
    start = time.process_time()
    with caplog.at_level(logging.INFO):
        answer = post(client, "", body)
    assert time.process_time() - start < 2
    assert answer.status_code == status, answer.text
    (record,) = caplog.records
    said = record.getMessage()
    assert said.isprintable()
    assert len(said) < 200
    assert record.exc_info is None
    assert any(reason in said for reason in why.split("|"))
    assert answer.text.endswith(f"{said.rpartition(': ')[2]}.\n")


def test_a_counter_costs_no_more_than_a_key_held_down(client):
    for times in (30_000_000, 10**9):
        start = time.process_time()
        answer = post(client, "", pressed(client, zoom_out=times))
        assert time.process_time() - start < 2
        assert answer.status_code == 200
        assert answer.get_json()["response"]["pressed"]["data"]["zoom-out"] == times, "the next press is the next"
    assert done(["run.value"], {"a": 3, "b": 10**9}, None) == ["run", *"aaa", *"b" * (MOST_PRESSES - 3)]
    assert done([], {"a": 2}, {"a": 5}) == []


def test_values_and_numbers_of_another_kind_are_refused(client, caplog):
    for number in BAD["counters"]:
        refused(client, caplog, pressed(client, theme=number), "n_clicks has an invalid value|a number is too large")
    for text in (*BAD["numbers"], "9" * 400):
        body = json.dumps(pressed(client, theme=1)).replace('"token": 1', f'"token": {text}')
        refused(client, caplog, body, "a number is too large")
    for name, value in BAD["values"]:
        body = pressed(client, theme=1)
        entry = next(one for one in (*body["inputs"], *body["state"]) if f"{one['id']}.{one['property']}" == name)
        entry["value"] = View().data() | value if name == "view.data" and isinstance(value, dict) else value
        refused(client, caplog, body, f"{name} has an invalid value")
    callback = next(one for one in callbacks_of(client, "") if "make-base" in str(one["inputs"]))
    for keys in BAD["components"]:
        body = asked(callback, {"view.data": View(runs=("a",)).data()})
        body["inputs"] = [[{"id": key, "property": "n_clicks", "value": 1} for key in keys]]
        assert post(client, "", body).status_code == 400


def malformed(body):
    """Requests that no page sends."""
    first, *others = body["inputs"]
    for key in ("output", "outputs", "inputs", "state"):
        yield {name: value for name, value in body.items() if name != key}
    for change in (
        {"output": "x.y"}, {"output": ["x"]}, {"outputs": body["outputs"][:-1]}, {"inputs": 5}, {"inputs": others},
        {"inputs": [{**first, "id": "x"}, *others]}, {"inputs": [{**first, "id": {"x": 1}}, *others]},
        {"inputs": [[first], *others]}, {"changedPropIds": ["x.y"]}, {"changedPropIds": ['{"a":', 5, ".", "x"]},
        {"changedPropIds": ["theme.n_clicks"] * 100_000}, {"more": json.loads("[" * 100 + "]" * 100)},
        {"more": "x" * 200_000}, {"more": [[0] * 1_000] * 1_000},
    ):  # fmt: skip
        yield body | change
    for more in ("[" * 100_000 + "]" * 100_000, "1" * 4_301):
        yield json.dumps(body)[:-1] + f', "more": {more}' + "}"
    yield from ([body], None, "", "{", b"\xff\xfe\x00", json.dumps(body | {"more": "\ud800"}))


def test_what_is_malformed_or_too_large_ends_with_one_line(client, caplog):
    for body in malformed(pressed(client, theme=1)):
        refused(client, caplog, body)
    refused(client, caplog, "[" + " " * callbacks.MOST_BYTES + "]", "Too Large", status=413)
    assert client.post("/_dash-update-component", data="x=1").status_code == 415


def test_what_is_not_there_is_not_found(client, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for address in BAD["addresses"]:
            answer = client.get(f"/_dash-component-suites/{address}")
            assert answer.status_code == 404
            assert "Traceback" not in answer.text
    assert not caplog.records
    assert client.post("/nope/_dash-update-component", json={}).status_code in (404, 405)
    many = "/download/gaps.csv?" + "&".join(f"run={number}" for number in range(20_000))
    assert client.get(many).status_code == 404
    guarded = create_app([tmp_path], Serving(token="secret")).server.test_client()
    for address in ("/download/report.html", "/", "/login", "/graph/"):
        answer = guarded.get(address, environ_overrides={"QUERY_STRING": "run=a&token=\xff"})
        assert answer.status_code == 400, "a query that is no text"


def test_hostile_requests_are_answered_soon_or_refused_in_a_line(fuzzed):
    before = peak()
    counts = {place: len(callbacks_of(fuzzed.client, place)) for place in PLACES}
    assert min(counts.values()) >= 4, "every page has callbacks to be fuzzed"

    @settings(max_examples=10, suppress_health_check=[*HealthCheck])
    @given(fuzzed.bodies)
    def requests(request):
        fuzzed.check(*request)

    requests()
    assert fuzzed.requests[200] > 0
    hostile = 30_000_000, -(2**53), 1e308, float("nan"), "(a+)+$" * 9, [[]] * 10_000
    for number, (page, callback) in enumerate(fuzzed.callbacks):
        for at, one in enumerate((*callback["inputs"], *callback["state"])):
            name, value = f"{one['id']}.{one['property']}", hostile[(number + at) % len(hostile)]
            fuzzed.check(page, asked(callback, {name: [value] if name.startswith("{") else value}))
    assert peak() - before < 300 * 2**20


def answer(client, place, output, **view):
    """What a page's callback for an output answers."""
    callback = next(one for one in callbacks_of(client, place) if output in one["output"])
    return post(client, place, asked(callback, {"view.data": View(**view).data(), "screen.data": SCREEN})).get_json()


def test_what_is_said_of_a_failure_and_without_recordings(runs, tmp_path, monkeypatch):
    client = client_of(runs)
    for problem, words in (
        (ValueError("secret /etc/passwd"), "The server failed to handle this"),
        (FormatError("a.sqlite: no table KERNEL"), "a.sqlite: no table KERNEL ("),
    ):

        def fails(*_, problem=problem):
            raise problem

        with monkeypatch.context() as broken:
            broken.setattr(gap, "panels_of", fails)
            said = answer(client, "gap/", "made-of.rowData", runs=("a",))["sideUpdate"]
        assert said["failure"] == {"hidden": False}
        assert said["failure-said"]["children"].startswith(words)
        assert "secret" not in said["failure-said"]["children"]
    for place in FILLED:
        told = answer(client_of(tmp_path), place, "nothing.children")["response"]
        assert "intertoken run" in str(told["nothing"]["children"])


SOON = 8.0
"""Seconds in which a normal reader is answered, whoever else is there: 0.01 on an idle machine."""
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
ASK = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def app(environ, start):
    start("200 OK", [])
    if environ["PATH_INFO"] == "/large":
        return (bytes(1 << 20) for _ in range(20))
    told = [environ.get(name) for name in ("REMOTE_ADDR", "wsgi.url_scheme", "HTTP_HOST", "HTTP_FORWARDED")]
    return [json.dumps(told).encode()]


def listening(patience=None, **options):
    return running(listen(app, "127.0.0.1", 0, patience=patience, **options))


def connect(server, data=b""):
    connection = socket.create_connection(("127.0.0.1", server.effective_port), SOON)
    connection.sendall(data)
    return connection


def answered(server):
    """How long a normal reader waits (s)."""
    start = time.monotonic()
    with connect(server, ASK) as reader:
        assert b"200 OK" in b"".join(iter(lambda: reader.recv(100), b""))
    return time.monotonic() - start


def is_ended(connection, seconds):
    """Whether the server ends a connection within these seconds."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_half_open_connections_and_slow_bodies_hold_up_nobody():
    with listening() as server, ExitStack() as open_ones:
        slow = []
        for number in range(300):
            slow.append(open_ones.enter_context(connect(server, BODY if number % 3 else HEAD)))
            if number % 30 == 0:
                assert answered(server) < SOON
        for _ in range(10):
            for connection in slow:
                try:
                    connection.sendall(b"x")
                except ConnectionError:
                    continue  # it has been ended, which is as good
            assert answered(server) < SOON


def test_requests_that_come_byte_by_byte_are_ended_and_others_are_not():
    patience = Patience(request=0.3, rate=10_000, answer=30, idle=30)
    with listening(patience) as server, closing(connect(server)) as idle, closing(connect(server)) as body:
        with connect(server, HEAD) as dripping:
            for _ in range(40):
                try:
                    dripping.sendall(b"X-A: b\r\n")
                except ConnectionError:
                    break
                time.sleep(0.1)
            else:
                pytest.fail("it is still listened to")
        body.sendall(BODY + b"x" * 500_000)  # over which 50 s may go
        assert not is_ended(body, 0.5)
        body.sendall(b"x" * 500_000)
        assert b"200 OK" in body.recv(100)
        idle.sendall(ASK)
        assert b"200 OK" in idle.recv(100)


def test_one_too_many_ends_the_one_that_waited_longest():
    with listening(Patience(most=5)) as server, ExitStack() as open_ones:
        held = []
        for _ in range(7):
            held.append(open_ones.enter_context(connect(server, HEAD)))
            assert answered(server) < SOON
        assert all(is_ended(connection, SOON) for connection in held[:3])
        assert not any(is_ended(connection, 0.2) for connection in held[3:])


def test_no_more_files_are_taken_than_the_process_may_open(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400, 4_000))
    with listening() as server:
        assert server.channel_class.most == 100
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with listening(replace(Patience(), most=70)) as server:
        assert server.channel_class.most == 70


def test_bodies_on_their_way_have_room_for_so_much_together():
    with listening(Patience(unfinished=6 << 20)) as server, ExitStack() as open_ones:
        head = BODY.replace(b"1000000", b"9000000")
        held = [open_ones.enter_context(connect(server, head + bytes(2 << 20))) for _ in range(5)]
        assert all(is_ended(connection, SOON) for connection in held[:3])
        assert not any(is_ended(connection, 0.5) for connection in held[3:])
        assert answered(server) < SOON


def test_readers_who_take_nothing_hold_no_thread_and_not_for_ever():
    ask = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with listening(Patience(answer=4.0)) as server, ExitStack() as open_ones:  # others take theirs within that
        lazy = [open_ones.enter_context(connect(server, ask)) for _ in range(10)]
        for _ in range(5):
            assert answered(server) < SOON
        until(lambda: not server.active_channels)
        assert all(is_ended(connection, 5) for connection in lazy)


def test_only_the_proxy_that_was_named_is_believed():
    said = {"Host": "here", "X-Forwarded-For": "10.0.0.1, 10.0.0.2", "X-Forwarded-Proto": "https",
            "X-Forwarded-Host": "tool.example", "Forwarded": "for=10.0.0.9"}  # fmt: skip
    believed, not_believed = ["10.0.0.2", "https", "tool.example", None], ["127.0.0.1", "http", "here", None]
    for trusted, seen in (("127.0.0.1", believed), (None, not_believed), ("127.0.0.2", not_believed)):
        with listening(proxy=trusted) as server:
            there = urllib.request.Request(f"http://127.0.0.1:{server.effective_port}/", headers=said)
            with urllib.request.urlopen(there) as answer:
                assert json.load(answer) == seen
