"""How the dashboard is served, until it is stopped; its token, its link, opened without revealing it, and its temporary
directory, with the removal of those left by killed servers.

The other files of the folder are what the server checks, limits and takes.
"""

from __future__ import annotations

import fcntl
import html
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

from tracer.errors import UsageError

if TYPE_CHECKING:
    from dashboard.reading.readers import Readers

_NAME: Final = "intertoken-uploads-"

VARIABLE: Final = "INTERTOKEN_TOKEN"
LONG: Final = 16  # minimum length of a token that cannot be guessed: any number of attempts is allowed
_LARGEST: Final = 4_096


@dataclass(frozen=True)
class Serving:
    """How the dashboard is served.

    Attributes:
        prefix: path before all addresses in the browser, "" or such as "/tool". The WSGI server strips it (waitress:
            `url_prefix`).
        hosts: names accepted in the Host header; None for any.
        token: token that readers must give; None for none.
        uploads: an empty directory for uploaded recordings; None to disable uploads.
        upload_limit: maximum number of bytes of an uploaded recording.
        proxy: address of the reverse proxy whose X-Forwarded-For, -Host and -Proto the WSGI server trusts (waitress:
            `trusted_proxy`); None for none.
        readers: processes that read recordings; None to read in this process. Their creator closes them.
    """

    prefix: str = ""
    hosts: frozenset[str] | None = None
    token: str | None = None
    uploads: Path | None = None
    upload_limit: int = 2 * 10**9
    proxy: str | None = None
    readers: Readers | None = None


def serve(app: Any, host: str, port: int, serving: Serving, private: Path | None) -> None:
    """Serve a WSGI app until Ctrl-C or SIGTERM, and print its address.

    Args:
        port: 0 for a free one.
        private: a directory of this user, for the file that opens the browser; None to open none.

    Raises:
        click.UsageError: the address or port is not available.
    """
    from dashboard.serving.patience import listen

    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a page asks for many files at once: no news
    try:
        server = listen(app, host, port, serving.prefix, serving.proxy)
    except (OSError, ValueError) as problem:
        raise click.UsageError(f"cannot listen on {host}:{port}: {problem}; choose another --port") from None
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{getattr(server, 'effective_port', port)}{serving.prefix}/"
    if serving.token is not None:
        url += f"login?{urlencode({'token': serving.token})}"
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything is cleared away
    try:
        click.echo(f"intertoken dashboard at {url} (Ctrl-C stops it)")
        if private is not None and (sys.stdout.isatty() or os.environ.get("DISPLAY")):
            Thread(target=open_link, args=(url, private), daemon=True).start()  # one in a terminal lasts
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        server.close()


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


@contextmanager
def scratch() -> Iterator[Path]:
    """A private directory, removed at the end; directories of killed servers are removed first.

    The process holds a lock on it, which is released however the process ends.
    """
    remove_orphans()
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_orphans() -> None:
    """Remove directories of this user's servers that no longer run; links are not followed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_NAME}*"):
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked() -> tuple[Path, int | None]:
    """A new directory and its lock; None for the lock if the file system has no locks, so that no one else can take
    it.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        lock = _lock(folder, fcntl.LOCK_EX)
        if lock is not None or folder.exists():  # else another server took it for an orphan before it was locked
            return folder, lock


def _lock(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """Lock a directory of this user; None if it cannot be locked or no longer exists."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, how)
        at = os.fstat(lock)
        if at.st_uid == os.geteuid() and os.path.samestat(at, os.stat(folder, follow_symlinks=False)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
