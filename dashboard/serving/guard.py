"""Headers of all answers, checks of the requests' hosts and origins, and the addresses that requests can choose."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request
from werkzeug.wrappers import Response as Answer

from dashboard.text import plain

_log = logging.getLogger(__name__)
_SAFE: Final = {"GET", "HEAD", "OPTIONS"}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine itself in a browser."""
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
    found = _HOST.fullmatch(header)
    if found is None or int(found["port"] or 0) > _MOST_PORT:
        return False
    return names is None or (found["name"] or found["six"]).lower() in names


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
