"""The token, which a reader enters once, and the session that follows."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from flask import Flask, Response, redirect, render_template_string, request, session
from flask.sessions import SecureCookieSessionInterface
from werkzeug.wrappers import Response as Answer

from dashboard.serving.guard import local_path
from dashboard.text import plain

LOGIN: Final = "/login"
_log = logging.getLogger(__name__)
_OPEN: Final = ("/assets/", "/healthz")
_COST: Final = {"n": 1 << 15, "r": 8, "p": 3, "maxmem": 1 << 26}
"""What a key costs with scrypt: 32 MiB and about 0.2 s (OWASP's Password Storage Cheat Sheet, 2024)."""
_MOST_WRONG, _WINDOW, _MOST_ADDRESSES = 10, 60.0, 1_000

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · intertoken</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="{{ prefix }}/assets/page.css"></head>
<body><header><h1>intertoken</h1></header><main><section aria-label="Log in">
<p role="alert">{{ message }}</p>
<form method="post" action="{{ prefix }}/login" class="bar">
<input type="hidden" name="next" value="{{ next }}">
<label class="token">Token
<input type="password" name="token" required autofocus autocomplete="current-password"></label>
<button class="button">Log in</button>
</form></section></main></body></html>
"""


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
    """Sessions whose cookie, if set over TLS, is sent over TLS only."""

    def get_cookie_secure(self, app: Flask) -> bool:
        return request.is_secure


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
        page = render_template_string(_PAGE, message=message, prefix=prefix, next=wanted)
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
        headers = {"Refresh": f"0; url={prefix}/", "Cache-Control": "no-store"}
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
