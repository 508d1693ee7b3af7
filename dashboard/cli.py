"""`intertoken dashboard`: the page on this machine's loopback address."""

from __future__ import annotations

import logging
import os
import socket
import sys
import webbrowser
from ipaddress import ip_address
from pathlib import Path

import click


def register(group: click.Group) -> None:
    """Add this package's commands."""
    group.add_command(dashboard)


@click.command()
@click.argument("paths", nargs=-1, metavar="[TRACE_OR_DIR]...", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8050, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--open/--no-open", "opens", default=True, help="Open a browser.")
def dashboard(paths: tuple[Path, ...], host: str, port: int, opens: bool) -> None:
    """Show recordings side by side in a browser.

    A directory that is no recording itself is searched for recordings, two levels deep.
    """
    import waitress

    from dashboard.app import create_app

    for path in paths:
        if not path.exists():
            raise click.BadParameter(f"{path}: no such file or directory", param_hint="TRACE_OR_DIR")
    if not _is_loopback(host):
        click.echo(f"warning: {host} is not a loopback address: whoever reaches it reads these recordings", err=True)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a page asks for many files at once: no news
    app = create_app(paths)
    try:
        server = waitress.create_server(app.server, host=host, port=port, threads=8, ident=None)
    except (OSError, socket.gaierror) as problem:
        raise click.UsageError(f"cannot listen on {host}:{port}: {problem}; choose another --port") from None
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{getattr(server, 'effective_port', port)}/"
    click.echo(f"intertoken dashboard at {url} (Ctrl-C stops it)")
    if opens and (sys.stdout.isatty() or os.environ.get("DISPLAY")):
        webbrowser.open(url)
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
