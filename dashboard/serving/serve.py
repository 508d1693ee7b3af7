"""Serving the dashboard until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from dashboard.serving.token import open_link

if TYPE_CHECKING:
    from dashboard.app import Serving


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
