"""Headers of all answers, checks of the requests' hosts and origins, the addresses that requests can choose, and the
token, which a reader enters once, with the session that follows.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, render_template, request, session
from flask.sessions import SecureCookieSessionInterface, SessionMixin
from werkzeug.wrappers import Response as Answer

from dashboard.files import ASSETS, SUITES, is_file
from dashboard.text import plain

LOGIN: Final = "/login"
_OPEN: Final = (ASSETS, SUITES, "/healthz")
_COST: Final = {"n": 1 << 15, "r": 8, "p": 3, "maxmem": 1 << 26}
"""What a key costs with scrypt: 32 MiB and about 0.2 s (OWASP's Password Storage Cheat Sheet, 2024)."""
_MOST_WRONG, _WINDOW, _MOST_ADDRESSES = 10, 60.0, 1_000

_log = logging.getLogger(__name__)
_SAFE: Final = {"GET", "HEAD", "OPTIONS"}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})  # names of this machine itself in a browser
_HOST: Final = re.compile(
    r"(?:(?P<name>[\w.-]+)|\[(?P<six>[\da-f:.]+)])(?::(?P<port>\d{1,5}))?", re.ASCII | re.IGNORECASE
)
"""A name or an IPv4 address, or an IPv6 address in brackets, and perhaps a port (RFC 9110, 7.2)."""
_MOST_PORT: Final = 65_535
_PATH: Final = r"(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?"  # no part begins with a dot, so that none leads upwards
_QUERY: Final = r"(?:[\w.~+=&,:;@!*()/?-]|%(?![01]|7[fF])[0-9a-fA-F]{2})*"
_LONGEST: Final = 4_000


def content_security_policy(scripts: Iterable[str]) -> str:
    """The policy: everything from this server only, no inline scripts except those with these hashes.

    Dash's and Plotly's components create inline styles and images, so `style-src` has to allow inline styles, and
    `img-src` data: and blob: addresses. `scripts` are as returned by `Dash.csp_hashes`.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *sorted(set(scripts))]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {allowed}" for name, allowed in rules.items())


def guard(server: Flask, policy: str, hosts: Collection[str] | None, prefix: str) -> None:
    """Add the headers to all answers, and reject requests from other sites' pages.

    Args:
        hosts: names that the Host header may give, against DNS rebinding; None for any name.
        prefix: path before all addresses in the browser, "" or such as "/tool".
    """
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",  # for browsers older than frame-ancestors
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }

    allowed = None if hosts is None else {name.lower() for name in hosts}

    @server.before_request
    def check() -> Answer | None:
        host = request.headers.get("Host", "")
        if not is_host(host, None):
            abort(Response("The Host header is not a name with or without a port.\n", 400, mimetype="text/plain"))
        if not is_host(host, allowed):
            said = "This host name is not allowed; start the dashboard with --allow-host.\n"
            abort(Response(said, 400, mimetype="text/plain"))
        if request.method not in _SAFE and not is_same_origin():
            _log.warning("refused %s, which comes from a page of another site", plain(request.path, 100))
            abort(Response("Only this dashboard's own pages may request that.\n", 403, mimetype="text/plain"))
        if prefix and not request.environ.get("PATH_INFO"):  # relative links need the slash
            return redirect(f"{prefix}/{'?' if request.query_string else ''}{request.query_string.decode('latin-1')}")
        if "path" in (request.view_args or {}):  # Dash's own rule for whatever it does not know
            abort(404)
        return None

    @server.after_request
    def add(response: Response) -> Response:
        response.headers.update(headers)
        if response.location:
            response.location = _relative(response.location, request.host)
        response.headers.setdefault("Cache-Control", "private, no-cache")  # Dash says so itself of what may be kept
        return response


def is_host(header: str, names: Collection[str] | None) -> bool:
    """Whether a Host header consists of a name, or one of these in lower case, with or without a port.

    Anything that another program may understand differently is rejected: user names, spaces, further colons, digits
    of other scripts.

    Example:
        >>> is_host("[::1]:8050", LOOPBACK), is_host("evil.example:8050", LOOPBACK), is_host("a@localhost", None)
        (True, False, False)
    """
    match = _HOST.fullmatch(header)
    if match is None or int(match["port"] or 0) > _MOST_PORT:
        return False
    return names is None or (match["name"] or match["six"]).lower() in names


def is_same_origin() -> bool:
    """Whether the request comes from a page of this server, or from no page.

    Browsers say so in Sec-Fetch-Site (over HTTPS and on loopback), else by Origin, which they send with every request
    of this kind. Behind a proxy Origin holds the name that the proxy passes on as Host, or as X-Forwarded-Host if it is
    trusted, neither of which another site's page can set.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        return site in {"same-origin", "none"}
    try:
        return origin is None or urlsplit(origin).netloc == request.host
    except ValueError:  # such as "http://["
        return False


def local_path(text: str) -> str:
    """The text if it is a path of plain characters on this server, with or without a query; else "/".

    Anything that browsers and proxies may interpret differently is rejected: percent signs in the path, control
    characters even if encoded, dots that lead upwards, a second slash at the beginning.

    Example:
        >>> local_path("/graph/?run=a%20b"), local_path("//evil.example"), local_path("/%09/evil.example")
        ('/graph/?run=a%20b', '/', '/')
    """
    is_plain = len(text) <= _LONGEST and re.fullmatch(rf"/{_PATH}(?:\?{_QUERY})?", text, re.ASCII)
    return text if is_plain else "/"


def prefix_of(text: str) -> str | None:
    """The path before all addresses in the browser: "" or such as "/tool"; None if the text is not such a path.

    Example:
        >>> prefix_of("lab/tool/"), prefix_of("/"), prefix_of("/../x"), prefix_of("//x")
        ('/lab/tool', '', None, None)
    """
    if not re.fullmatch(rf"/?{_PATH}", text, re.ASCII):
        return None
    return f"/{text.strip('/')}".rstrip("/")


def _relative(location: str, host: str) -> str:
    """The target of a redirect, without our own scheme and host: behind TLS the server may not know them.

    Example:
        >>> _relative("http://gpu1/graph/?run=a", "gpu1"), _relative("http://gpu1//evil/", "gpu1")
        ('/graph/?run=a', '/evil/')
    """
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if not parts.netloc or parts.netloc != host:
        return location
    return parts._replace(scheme="", netloc="", path=f"/{parts.path.lstrip('/')}").geturl()


class Attempts:
    """Recent wrong tokens by client address: after ten in a minute only the right one is accepted from that address.

    The token is always compared, so that others behind the same address cannot lock its owner out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this address may try again, or 0."""
        times = self._wrong.get(address, deque())
        while times and times[0] <= self._clock() - _WINDOW:
            times.popleft()
        return times[0] + _WINDOW - self._clock() if len(times) >= _MOST_WRONG else 0.0

    def wrong(self, address: str) -> None:
        """Record a wrong token."""
        times = self._wrong.setdefault(address, deque())
        times.append(self._clock())
        if len(times) == _MOST_WRONG:
            _log.warning("%d wrong tokens within a minute from %s", _MOST_WRONG, plain(address, 100))
        self._wrong.move_to_end(address)
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)


class _Sessions(SecureCookieSessionInterface):
    """Sessions whose cookie, if set over TLS, is sent over TLS only, and not set anew with files, which are for all."""

    def get_cookie_secure(self, app: Flask) -> bool:
        return request.is_secure

    def save_session(self, app: Flask, session: SessionMixin, response: Answer) -> None:
        if not is_file(request.path):
            super().save_session(app, session, response)  # type: ignore[arg-type]  # werkzeug's class of answers


def session_key(token: str) -> bytes:
    """The key of 32 bytes that signs the sessions of a token.

    Whoever has a cookie can try tokens until one explains its signature, without asking the server. Each try costs as
    much as this function. The salt is the same everywhere, because servers with the same token share their sessions.
    """
    return hashlib.scrypt(_bytes(token), salt=b"session of intertoken", dklen=32, **_COST)


def require_token(server: Flask, token: str, prefix: str) -> None:
    """Require the token, at /login by form or link; other requests get a page that asks for it (403).

    The session is a signed cookie that other sites' requests do not carry and scripts do not see. Its key is derived
    from the token, see `session_key`, so it is valid for all workers and across restarts with the same token, for a
    week.
    """
    attempts = Attempts()
    key = session_key(token)
    server.secret_key = key
    server.session_interface = _Sessions()
    server.config.update(
        SESSION_COOKIE_NAME=f"intertoken-{hashlib.sha256(key).hexdigest()[:8]}",  # ports share their cookies
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_PATH=prefix or "/",
        PERMANENT_SESSION_LIFETIME=timedelta(days=7),
    )

    def asks(message: str, status: int, wanted: str, **headers: str) -> Response:
        page = render_template("login.html", message=message, prefix=prefix, next=wanted)
        return Response(page, status, {"Cache-Control": "no-store", **headers})

    @server.before_request
    def check() -> Answer | None:
        if request.path == LOGIN or request.path.startswith(_OPEN) or session.get("in"):
            return None
        wanted = request.full_path.rstrip("?") if request.method == "GET" else "/"
        return asks("Enter the token of this dashboard. It is in the link that was printed at the start.", 403, wanted)

    @server.route(LOGIN, methods=["GET", "POST"])
    def login() -> Answer:
        given, wanted = request.values.get("token", ""), request.values.get("next", "/")
        if not hmac.compare_digest(_digest(given), _digest(token)):
            return refuse(given, wanted)
        session.permanent, session["in"] = True, True
        if request.method == "POST":
            return redirect(prefix + local_path(wanted), 303)
        # A link from elsewhere: a redirect would still count as from there, and the cookie would stay at home.
        headers = {"Refresh": f"0; url={prefix}{local_path(wanted)}", "Cache-Control": "no-store"}
        return Response('<!doctype html><link rel="icon" href="data:,">Logged in.', headers=headers)

    def refuse(given: str, wanted: str) -> Answer:
        if not given:
            return asks("Enter the token.", 403, wanted)
        if request.method == "POST":  # of our own form, or of no page; pictures are fetched unasked
            address = request.remote_addr or ""
            if wait := attempts.wait(address):
                return asks("Too many wrong tokens; wait a minute.", 429, wanted, **{"Retry-After": f"{wait + 1:.0f}"})
            attempts.wrong(address)
        return asks("That is not the token.", 403, wanted)


def _digest(text: str) -> bytes:
    """What is compared in place of a token: of the same length for all."""
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
