"""Addresses within this server, as far as requests can choose them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_PATH: Final = r"(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?"  # no part begins with a dot, so that none leads upwards
_QUERY: Final = r"(?:[\w.~+=&,:;@!*()/?-]|%(?![01]|7[fF])[0-9a-fA-F]{2})*"
_LONGEST: Final = 4_000


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


def relative(location: str, host: str) -> str:
    """The target of a redirect, without our own scheme and host: behind TLS the server may not know them.

    Example:
        >>> relative("http://gpu1/graph/?run=a", "gpu1"), relative("http://gpu1//evil/", "gpu1")
        ('/graph/?run=a', '/evil/')
    """
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if not parts.netloc or parts.netloc != host:
        return location
    return parts._replace(scheme="", netloc="", path=f"/{parts.path.lstrip('/')}").geturl()
