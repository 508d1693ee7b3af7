"""The token of a dashboard: generated, given, or none; and its link, opened without revealing it."""

from __future__ import annotations

import html
import os
import secrets
import webbrowser
from pathlib import Path
from typing import Final

from tracer.errors import UsageError

VARIABLE: Final = "INTERTOKEN_TOKEN"
LONG: Final = 16
"""Minimum length of a token that cannot be guessed: any number of attempts is allowed."""
_LARGEST: Final = 4_096


def new_token() -> str:
    """A token that cannot be guessed, safe in links."""
    return secrets.token_urlsafe(24)


def read_token(file: Path) -> str:
    """The one line of a file.

    Raises:
        UsageError: it cannot be read, or contains anything else.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST + 1).decode().strip()
    except OSError as problem:
        raise UsageError(f"{file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not a text file") from None
    if not text or len(text) > _LARGEST or not text.isprintable():
        raise UsageError(f"{file}: must contain only the token, on one line")
    return text


def is_readable_by_others(file: Path) -> bool:
    """Whether other users of this machine can read a file."""
    return bool(file.stat().st_mode & 0o077)


def open_link(url: str, folder: Path) -> None:
    """Open a browser at an address that must stay private to this user.

    Other users see the command lines of this machine's processes, including that of the browser, which therefore gets
    the name of a file in `folder` that redirects there, as in Jupyter.
    """
    page = folder / "open.html"
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(
            '<!doctype html><meta charset="utf-8"><title>intertoken</title>'
            f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
            f'<a href="{html.escape(url)}">intertoken dashboard</a>\n'
        )
    webbrowser.open(page.as_uri())
