"""How the dashboard is served, and serving it until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from dashboard.serving.token import open_link

if TYPE_CHECKING:
    from dashboard.reading.readers import Readers
    from dashboard.recording.runner import Runner


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
        runner: starts recordings for readers; None to disable them. Its creator closes it.
        proxy: address of the reverse proxy whose X-Forwarded-For, -Host and -Proto the WSGI server trusts (waitress:
            `trusted_proxy`); None for none.
        readers: processes that read recordings; None to read in this process. Their creator closes them.
    """

    prefix: str = ""
    hosts: frozenset[str] | None = None
    token: str | None = None
    uploads: Path | None = None
    upload_limit: int = 2 * 10**9
    runner: Runner | None = None
    proxy: str | None = None
    readers: Readers | None = None


def serve(app: Any, host: str, port: int, serving: Serving, private: Path | None) -> None:
    """Serve a WSGI app until Ctrl-C or SIGTERM, and print its address.

    Args:
        app: the app.
        host: address to listen on.
        port: 0 for a free one.
        serving: how to serve it.
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
