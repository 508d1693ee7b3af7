"""Who gets in by the token, and where the login leads."""

import hashlib
import time

import pytest
from itsdangerous import TimestampSigner

from dashboard.serving.guard import Attempts, local_path, session_key
from dashboard.view import View
from tests.dashboard.conftest import client_of


@pytest.fixture(scope="module")
def lead(runs):
    """Where a login leads that names a place to go on to."""
    client = client_of(runs, token="secret", prefix="/tool")

    def target(place):
        answer = client.post("/login", data={"token": "secret", "next": place})
        assert answer.status_code == 303
        return answer.headers["Location"]

    return target


def test_without_the_token_nothing_is_shown(runs):
    client = client_of(runs, token="secret", prefix="/tool")
    for address in ("/", "/graph/?run=a&node=%3Cb%3E", "/_dash-layout", "/_dash-dependencies"):
        answer = client.get(address)
        assert answer.status_code == 403
        assert 'action="/tool/login"' in answer.text
        assert "<b>" not in answer.text
    assert client.post("/_dash-update-component", json={}).status_code == 403
    with client.get("/assets/page.css") as style:
        assert style.status_code == 200
    wrong = client.post("/login", data={"token": "sécret"})
    assert wrong.status_code == 403
    assert "Set-Cookie" not in wrong.headers
    client.set_cookie("intertoken-00000000", "forged")
    assert client.get("/").status_code == 403


def test_the_token_opens_a_session_by_link_and_by_form(runs):
    client = client_of(runs, token="secret", prefix="/tool")
    answer = client.get("/login?token=secret")
    assert (answer.status_code, answer.headers["Refresh"]) == (200, "0; url=/tool/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/tool" in cookie
    assert "secret" not in cookie

    other = client_of(runs, token="secret")
    answer = other.post("/login", data={"token": "secret", "next": "/graph/?run=a"})
    assert (answer.status_code, answer.location) == (303, "/graph/?run=a")
    assert other.get("/graph/?run=a").status_code == 200
    for elsewhere in ("//evil.example", "/\\evil.example", "https://evil.example"):
        assert other.post("/login", data={"token": "secret", "next": elsewhere}).location == "/"


def test_tokens_are_tried_against_a_cookie_only_at_the_price_of_scrypt(runs, monkeypatch):
    derived = []

    def scrypt(*given, **named):
        derived.append(given)
        return true(*given, **named)

    true = hashlib.scrypt
    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    client = client_of(runs, token="secret")
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
    assert attempts.wait("10.0.0.1") == 51
    assert attempts.wait("10.0.0.2") == 0
    now[0] = 60.0
    assert attempts.wait("10.0.0.1") == 0
    for number in range(5_000):
        attempts.wrong(f"address {number}")
    assert len(attempts._wrong) <= 1_000
    caplog.clear()

    client = client_of(runs, token="secret")
    answers = [client.post("/login", data={"token": "guess"}).status_code for _ in range(12)]
    assert answers == [403] * 10 + [429] * 2
    late = client.post("/login", data={"token": "guess again"})
    assert (late.status_code, int(late.headers["Retry-After"]) > 50) == (429, True)
    assert [record.getMessage() for record in caplog.records] == ["10 wrong tokens within a minute from 127.0.0.1"]
    assert client.post("/login", data={"token": "secret"}).status_code == 303  # whoever else is at this address


def test_nobody_else_can_lock_out_who_has_the_token(runs):
    client = client_of(runs, token="secret")
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    for number in range(15):  # as pictures and forms on a page that the owner visits
        assert client.get(f"/login?token=wrong{number}", headers=elsewhere).status_code == 403
        assert client.post("/login", data={"token": "wrong"}, headers=elsewhere).status_code == 403
    assert client.post("/login", data={"token": "wrong"}).status_code == 403  # and not 429
    assert client.get("/login?token=secret", headers=elsewhere).status_code == 200


@pytest.mark.parametrize(
    "place",
    ["/%09/evil.example", "/%09//evil.example", "/\\evil.example", "\\\\evil.example", "//evil.example",
     "///evil.example", "/\tevil.example", "/\t/evil.example", "\t//evil.example", "/%2f/evil.example",
     "/%2fevil.example", "/%5cevil.example", "/%0d%0aSet-Cookie:%20a=b", "/\r\nSet-Cookie: a=b",
     "/?a=%0d%0aSet-Cookie:%20a=b", "/?a=%00", "/?a=%7f", "/?a=%", "/?a=b\n", "/\n", "/\0", "https://evil.example",
     "https:evil.example", "javascript:alert(1)", "evil.example", "", "?run=a", "/../x", "/./x", "/graph/../../x",
     "/%2e%2e/x", "/..", "/.", "/.;/x", "/graph//x", "/@evil.example", "/:80", "/#//evil", "/é", "/?a=é", "/\u2028",
     "/\u202e", "/１", "/ ", " /", "/?a=<b>", '/?a="', "/?a='", "/?a=\\", "/" + "a" * 10_000, "/?" + "a" * 10_000,
     "/" * 10_000, "/" + "a/" * 5_000 + "!"],
)  # fmt: skip
def test_the_login_leads_nowhere_else(lead, place):
    start = time.perf_counter()
    assert local_path(place) == "/"
    assert time.perf_counter() - start < 0.5
    assert lead(place) == "/tool/"


@pytest.mark.parametrize(
    "place",
    ["/", "/graph/", "/graph", "/?run=a", "/gap/?run=a&run=b~1&token=3&range=-1.5,2",
     "/download/gaps.csv?run=a%20%3Cb%3E+c", "/?run=%C3%A9%F0%9F%98%80/x:y",
     "/" + View(runs=("<img src=x>", "a b/é&=%", "x" * 240)).query()],
)  # fmt: skip
def test_the_login_leads_to_what_was_asked_for(lead, place):
    assert lead(place) == f"/tool{place}"


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_a_cookie_that_came_over_tls_goes_over_nothing_else(runs, scheme, is_secure):
    client = client_of(runs, token="secret")
    answer = client.post("/login", data={"token": "secret"}, base_url=f"{scheme}://tool.example")
    assert ("Secure" in answer.headers["Set-Cookie"].split("; ")) == is_secure
