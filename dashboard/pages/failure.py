"""What a reader sees of failures: a message in place, without internal details, and a page for unknown addresses."""

from __future__ import annotations

import datetime
import logging
import secrets
import traceback
from collections.abc import Iterable
from typing import Final

from dash import html, set_props
from dash.exceptions import DependencyException
from flask import Flask, Response, render_template_string, request
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.wrappers import Response as Answer

from dashboard.text import plain
from tracer.errors import IntertokenError

_MOST_LINES, _LONGEST_LINE = 100, 300
_log = logging.getLogger(__name__)
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


def place() -> html.Div:
    """The place of the failure message, hidden until there is one."""
    return html.Div(
        [
            html.P(id="failure-said"),
            html.Button("Copy this message", id="failure-copy", className="button"),
        ],
        id="failure",
        role="alert",
        hidden=True,
        className="failure",
    )


def say(problem: Exception) -> None:
    """Show a message on the page that made the request, and leave its components unchanged; log the traceback.

    For `Dash(on_error=)`. Our own errors are shown; for others the page shows only a number, which identifies the
    details in the log.
    """
    number = _logged(problem)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(problem, IntertokenError):
        message = f"{plain(str(problem), 600)} ({when})"
    else:
        message = (
            f"The server failed to handle this, so the page is unchanged. Change something or reload the page. If it "
            f"fails again, the output of intertoken dashboard has the details: failure {number}, {when}."
        )
    set_props("failure-said", {"children": message})
    set_props("failure", {"hidden": False})


def catch(server: Flask) -> None:
    """Answer with status 500 and a number that identifies the traceback in the log, for failures that no page can
    show."""

    @server.errorhandler(Exception)
    def answer(problem: Exception) -> Answer | HTTPException:
        if isinstance(problem, HTTPException):
            return problem
        message = f"The server failed to answer; its output has the details: failure {_logged(problem)}.\n"
        return Response(message, 500, mimetype="text/plain")


def _logged(problem: Exception) -> str:
    """Log the end of the traceback, whose lines may contain untrusted text, and return its number."""
    number, lines = secrets.token_hex(3), "".join(traceback.format_exception(problem)).splitlines()
    _log.error("failure %s\n%s", number, "\n".join(plain(line, _LONGEST_LINE) for line in lines[-_MOST_LINES:]))
    return number


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
