"""The Dash app."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dash import Dash

from dashboard.cache import Cache
from dashboard.pages.graph import callbacks as graph_callbacks
from dashboard.pages.graph import layout as graph_layout
from dashboard.pages.graph.view import ADDRESS
from dashboard.pages.overview import callbacks, layout
from dashboard.store import RunStore


def create_app(paths: Iterable[Path | str], cache: Cache | None = None) -> Dash:
    """An app that shows the recordings at these paths, and those in the directories among them.

    With a `cache` none is read twice.

    Nothing is read before the page is first opened, and nothing outside the paths ever. The graph page is an app of its
    own on the same server.
    """
    store = RunStore(paths, cache=cache)
    app = _page(True, "/")
    app.layout = layout.layout
    callbacks.register(app, store)
    other = _page(app.server, ADDRESS)
    other.layout = graph_layout.layout
    graph_callbacks.register(other, store)
    return app


def _page(server: Any, address: str) -> Dash:
    return Dash(
        "intertoken",
        server=server,
        url_base_pathname=address,
        assets_folder=str(Path(__file__).parent / "assets"),
        title="intertoken",
        update_title=None,  # type: ignore[arg-type]  # Dash takes None for "never", its annotation says str
        serve_locally=True,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"},
                   {"name": "color-scheme", "content": "light dark"}],
    )  # fmt: skip
