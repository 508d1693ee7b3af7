"""The Dash app."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dash import Dash

from dashboard.pages.overview import callbacks, layout
from dashboard.store import RunStore


def create_app(paths: Iterable[Path | str]) -> Dash:
    """An app that shows the recordings at these paths, and those in the directories among them.

    Nothing is read before the page is first opened, and nothing outside the paths ever.
    """
    app = Dash(
        "intertoken",
        assets_folder=str(Path(__file__).parent / "assets"),
        title="intertoken",
        update_title=None,  # type: ignore[arg-type]  # Dash takes None for "never", its annotation says str
        serve_locally=True,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"},
                   {"name": "color-scheme", "content": "light dark"}],
    )  # fmt: skip
    app.layout = layout.layout
    callbacks.register(app, RunStore(paths))
    return app
