"""The dashboard as one Flask server with a Dash app per page."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final

from dash import Dash
from flask import Flask

from dashboard import pages
from dashboard.pages import Page, add_pages, failure
from dashboard.pages.failure import add_missing
from dashboard.pages.runs import read_linked
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.callbacks import check_callbacks, check_queries
from dashboard.serving.downloads import add_downloads
from dashboard.serving.guard import content_security_policy, guard
from dashboard.serving.login import require_token
from dashboard.serving.uploads import Inbox, add_uploads
from dashboard.serving.watch import add_health, add_watch
from tracer.stored.cache import Cache

_FOUND: Final = [import_module(f"{pages.__name__}.{found.name}") for found in iter_modules(pages.__path__)]
PAGES: Final[tuple[Page, ...]] = tuple(
    sorted((module.PAGE for module in _FOUND if hasattr(module, "PAGE")), key=lambda page: (page.place, page.name))
)
"""Every `PAGE` of a file or folder of `dashboard/pages/`, in navigation order."""


def create_app(paths: Iterable[Path | str], serving: Serving | None = None, cache: Cache | None = None) -> Dash:
    """The app of the first page, whose `server` serves them all: the recordings at these paths, and in the directories.

    Nothing is read before a page is first opened, and nothing outside the paths is ever read. With a `cache` each
    recording is parsed once.
    """
    serving = serving or Serving()
    store = RunStore(paths, inbox=serving.uploads, cache=cache, readers=serving.readers)
    server = Flask("intertoken", static_folder=None)
    failure.catch(server)
    apps = add_pages(server, PAGES, store, serving.prefix, serving.upload_limit if serving.uploads else 0)
    policy = content_security_policy(script for app in apps for script in app.csp_hashes())
    guard(server, policy, serving.hosts, serving.prefix)
    check_queries(server)
    if serving.token is not None:
        require_token(server, serving.token, serving.prefix)
    check_callbacks(server, zip(PAGES, apps, strict=True))
    add_health(server, store)
    add_watch(server, store)
    add_downloads(server, store)
    add_missing(server, [(page.address, page.name) for page in PAGES], serving.prefix)
    if serving.uploads is not None:
        add_uploads(server, Inbox(serving.uploads, serving.upload_limit, store))
    read_linked(server, [f"/{page.address}" for page in PAGES], store)
    return apps[0]
