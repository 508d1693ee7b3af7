"""Headers of all answers, and checks of the requests' hosts and origins."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request
from werkzeug.wrappers import Response as Answer

from dashboard.serving.addresses import relative
from dashboard.text import plain

_log = logging.getLogger(__name__)
_SAFE: Final = {"GET", "HEAD", "OPTIONS"}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine itself in a browser."""


def content_security_policy(scripts: Iterable[str]) -> str:
    """The policy: everything from this server only, no inline scripts except those with these hashes.

    Dash's and Plotly's components create inline styles and images, so `style-src` has to allow inline
    styles, and `img-src` data: and blob: addresses.

    Args:
        scripts: as returned by `Dash.csp_hashes`.
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
        server: the server.
        policy: the content security policy.
        hosts: names that the Host header may give, against DNS rebinding; None for any.
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

    @server.before_request
    def check() -> Answer | None:
        if hosts is not None and not is_host(request.headers.get("Host", ""), hosts):
            abort(
                Response(
                    "This host name is not allowed; start the dashboard with --allow-host.\n",
                    400,
                    mimetype="text/plain",
                )
            )
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
            response.location = relative(response.location, request.host)
        response.headers.setdefault("Cache-Control", "private, no-cache")  # Dash says so itself of what may be kept
        return response


def is_host(header: str, names: Collection[str]) -> bool:
    """Whether a Host header gives one of these names, with any port.

    Example:
        >>> is_host("[::1]:8050", LOOPBACK), is_host("evil.example:8050", LOOPBACK)
        (True, False)
    """
    try:
        return (urlsplit(f"//{header}").hostname or "") in names
    except ValueError:
        return False


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
