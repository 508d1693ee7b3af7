"""The Dash app."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dash import Dash
from flask import Flask

from dashboard.frame import add_pages
from dashboard.pages import gap, graph, overview, syncs, whatif
from dashboard.store import RunStore

PAGES = (overview.PAGE, gap.PAGE, syncs.PAGE, whatif.PAGE, graph.PAGE)
"""In the order of the navigation."""


def create_app(paths: Iterable[Path | str]) -> Dash:
    """An app that shows the recordings at these paths, and those in the directories among them.

    Nothing is read before the page is first opened, and nothing outside the paths ever.
    """
    store = RunStore(paths)
    server = Flask("intertoken", static_folder=None)
    return add_pages(server, PAGES, store)[0]
