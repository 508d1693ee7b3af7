"""Scripts and styles: sent packed, without the reader's session, and kept by browsers for as long as their address says
which content they have.

An address does so by a fingerprint in its name (version and time, `dash.fingerprint`) or by `?h=`, the beginning of the
content's SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Collection
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from dash.fingerprint import build_fingerprint, check_fingerprint
from flask import Flask, Response, request

SUITES: Final = "/_dash-component-suites/"
ASSETS: Final = "/assets/"
_KEPT: Final = "public, max-age=31536000, immutable"
_SMALL: Final = 1_000  # bytes; what is smaller fits in a packet as it is
_MOST_PACKED: Final = 200  # files of all pages
_PACKED: Final = re.compile(r"text/|application/(json|javascript)")
_OWN: Final = re.compile(r'(/assets/([^"?]+))\?m=[\d.]+')
_SCRIPT: Final = re.compile(r'<script src="[^"]*/_dash-component-suites/([^"]+)"></script>\n?')


def is_file(path: str) -> bool:
    """Whether a request is for a script or a style, which are the same for all readers."""
    return path.startswith(ASSETS) or SUITES in path


def add_packing(server: Flask) -> None:
    """Send texts packed to browsers that take that, and let these keep files whose address says what they hold."""

    @server.after_request
    def pack(response: Response) -> Response:
        if response.status_code != 200 or (response.is_streamed and not is_file(request.path)):
            return response
        if is_file(request.path):
            response.direct_passthrough = False  # else the file itself is handed on
            if _says_its_content(response):
                response.headers["Cache-Control"] = _KEPT
        if not _PACKED.match(response.mimetype or "") or response.content_encoding:
            return response
        response.vary.add("Accept-Encoding")
        if request.accept_encodings["gzip"] and len(data := response.get_data()) >= _SMALL:
            response.set_data(_packed_file(data) if is_file(request.path) else gzip.compress(data, 6, mtime=0))
            response.content_encoding = "gzip"
            if tag := response.get_etag()[0]:
                response.set_etag(tag, weak=True)
        if response.get_etag()[0]:
            response.make_conditional(request)
        return response


def _says_its_content(response: Response) -> bool:
    if request.path.startswith(ASSETS):
        return request.args.get("h") == _hash(response.get_data())
    return bool(check_fingerprint(request.path)[1])  # type: ignore[no-untyped-call]  # Dash has no types


@lru_cache(_MOST_PACKED)
def _packed_file(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def with_hashes(tags: str, assets: Path) -> str:
    """The tags of our scripts and styles with the hashes of these in place of the times that Dash gives them."""
    return _OWN.sub(lambda match: f"{match[1]}?h={_hash((assets / match[2]).read_bytes())}", tags)


def only(tags: str, libraries: Collection[str]) -> str:
    """The script tags without those of component libraries that a page has nothing of."""
    return _SCRIPT.sub(lambda match: match[0] if _library(match[1]) in libraries else "", tags)


def _library(path: str) -> str:
    """The library that a script belongs to; "" for those of every page."""
    package, _, rest = path.partition("/")
    if package == "dash":
        return "dash_table" if rest.startswith("dash_table/") else ""
    return package


@cache
def plotly_file() -> str:
    """The name of Plotly's script, with a fingerprint, below its `package_data`."""
    import plotly

    script = Path(plotly.__file__).with_name("package_data") / "plotly.min.js"
    modified = int(script.stat().st_mtime)
    return str(build_fingerprint(script.name, plotly.__version__, modified))  # type: ignore[no-untyped-call]  # Dash has no types
