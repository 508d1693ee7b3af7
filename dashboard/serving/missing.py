"""The page for addresses that do not exist, with links to those that do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dash.exceptions import DependencyException
from flask import Flask, Response, render_template_string, request
from werkzeug.exceptions import NotFound

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>No such page · intertoken</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="{{ prefix }}/assets/page.css"></head>
<body><header><h1>intertoken</h1>
<nav aria-label="Pages"><ul>{% for address, name in pages %}<li><a href="{{ prefix }}/{{ address }}">{{ name }}</a></li>
{% endfor %}</ul></nav></header>
<main><section aria-label="No such page"><p role="alert">There is no page at {{ path }}.</p></section></main>
</body></html>
"""


def add_missing(server: Flask, pages: Iterable[tuple[str, str]], prefix: str) -> None:
    """Answer 404: clients that accept HTML get a page with links to these (address, name), others a line of text."""
    pages = list(pages)

    @server.errorhandler(NotFound)
    @server.errorhandler(DependencyException)  # a script of a component that there is not
    def missing(_: Exception) -> Response:
        if request.accept_mimetypes.best_match(["text/plain", "text/html"]) != "text/html":
            return Response("There is nothing at this address.\n", 404, mimetype="text/plain")
        page = render_template_string(_PAGE, pages=pages, prefix=prefix, path=f"{prefix}{request.path}"[:200])
        return Response(page, 404)
