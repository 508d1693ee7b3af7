"""What the server answers, to whom, with which headers; who gets in by the token, and where the login leads."""

import hashlib
import json
import re
import socket
import time
from contextlib import closing
from pathlib import Path

from itsdangerous import TimestampSigner

from dashboard import pages
from dashboard.app import create_app
from dashboard.serving import Serving
from dashboard.serving.guard import LOOPBACK, Attempts, is_host, local_path, session_key
from dashboard.view import View
from tests.dashboard.conftest import client_of, served
from tests.fuzz.callbacks import callbacks_of
from tests.fuzz.hostile import asked

REQUESTS = json.loads((Path(__file__).parent / "data" / "requests.json").read_text(encoding="utf-8"))
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
    deadline = time.monotonic() + 20
    while client.get("/healthz").get_json()["runs"] != {"read": 1, "total": 1}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_redirects_say_no_scheme_and_no_host(runs):
    for address in ("/graph", "/graph?run=a", "//evil.example/../graph", "//evil.example/graph"):
        answer = client_of(runs).get(address, base_url="https://tool.example")
        assert answer.status_code == 404 or re.match("/[a-z]", answer.headers["Location"]), address


def test_all_pages_have_the_scripts_and_styles_of_the_first(runs):
    client = client_of(runs, prefix="/lab/tool")
    texts = [client.get(f"/{address}").text for address in ("graph/", "gap/", "")]  # a link may open any page first
    first, *others = [re.findall(r'<(?:script|link rel="stylesheet") (?:src|href)="([^"]+)"', text) for text in texts]
    assert len(first) > 20
    assert all(other == first for other in others)
    for address in first:
        assert address.startswith("/lab/tool/")
        with client.get(address.removeprefix("/lab/tool")) as answer:
            assert answer.status_code == 200, address


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
