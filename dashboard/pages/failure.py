"""The page's message after a server error: shown in place, and without internal details."""

from __future__ import annotations

import datetime
import logging
import secrets
import traceback

from dash import html, set_props
from flask import Flask, Response
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as Answer

from dashboard.text import plain
from tracer.errors import IntertokenError

_MOST_LINES, _LONGEST_LINE = 100, 300
_log = logging.getLogger(__name__)


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
