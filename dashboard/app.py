"""The dashboard as one Flask server with a Dash app per page, and what it answers beside them.

That is its health, and whether recordings are new: the given directories are scanned when a page polls, so that new
recordings appear while it is open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeAlias

from dash import Dash
from flask import Flask

from dashboard import pages
from dashboard.downloads import add_downloads
from dashboard.files import add_packing
from dashboard.pages import Page, add_missing, add_pages
from dashboard.pages.runs import read_linked
from dashboard.reading.store import DEEPEST, RunStore
from dashboard.serving import Serving
from dashboard.serving.callbacks import check_callbacks, check_queries
from dashboard.serving.guard import content_security_policy, guard, require_token
from dashboard.serving.uploads import Inbox, add_uploads
from tracer.stored import Cache

INTERVAL: Final = 1.0  # minimum number of seconds between two scans, however many pages poll
Print: TypeAlias = tuple[tuple[str, int, int], ...]

_MODULES: Final = [import_module(f"{pages.__name__}.{info.name}") for info in iter_modules(pages.__path__)]
PAGES: Final[tuple[Page, ...]] = tuple(
    sorted((module.PAGE for module in _MODULES if hasattr(module, "PAGE")), key=lambda page: (page.place, page.name))
)
"""Every `PAGE` of a file or folder of `dashboard/pages/`, in navigation order."""


def create_app(paths: Iterable[Path | str], serving: Serving | None = None, cache: Cache | None = None) -> Dash:
    """The app of the first page, whose `server` serves them all: the recordings at these paths, and in the directories.

    Nothing is read before a page is first opened, and nothing outside the paths is ever read. With a `cache` each
    recording is parsed once.
    """
    serving = serving or Serving()
    store = RunStore(paths, inbox=serving.uploads, cache=cache, readers=serving.readers)
    server = Flask("intertoken", static_folder=None, template_folder=str(Path(__file__).with_name("templates")))
    pages.catch_failures(server)
    apps = add_pages(server, PAGES, store, serving.prefix, serving.upload_limit if serving.uploads else 0)
    policy = content_security_policy(script for app in apps for script in app.csp_hashes())
    guard(server, policy, serving.hosts, serving.prefix)
    add_packing(server)
    check_queries(server)
    if serving.token is not None:
        require_token(server, serving.token, serving.prefix)
    check_callbacks(server, zip(PAGES, apps, strict=True))
    add_health(server, store)
    add_downloads(server, store)
    add_missing(server, [(page.address, page.name) for page in PAGES], serving.prefix)
    if serving.uploads is not None:
        add_uploads(server, Inbox(serving.uploads, serving.upload_limit, store))
    read_linked(server, [f"/{page.address}" for page in PAGES], store)
    return apps[0]


def add_health(server: Flask, store: RunStore) -> None:
    """Answer /healthz with the version and the numbers of recordings read and found (it reads and names none), and
    /revision with a number that grows whenever the runs have changed."""
    watch = Watch(store)

    @server.get("/healthz")
    def healthz() -> dict[str, Any]:
        progress = store.progress()
        runs = {"read": progress.read, "total": progress.total}
        return {"status": "ok", "version": version("intertoken"), "runs": runs}

    @server.get("/revision")
    def revision() -> dict[str, int]:
        return {"revision": watch.revision()}


class Watch:
    """Reads changed recordings again, once they no longer change: those still being written are incomplete.

    There is no thread and nothing to close: directories are scanned only while a page polls.
    """

    def __init__(self, store: RunStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._looking = threading.Lock()
        self._looked = -INTERVAL
        self._last: Print | None = None
        self._read: Print | None = None

    def revision(self) -> int:
        """The store's revision, after a scan if the last one is old; 0 before the runs were first requested."""
        if self._store.revision and self._looking.acquire(blocking=False):
            try:
                if self._clock() >= self._looked + INTERVAL:
                    self._look()
            finally:
                self._looking.release()
        return self._store.revision

    def _look(self) -> None:
        now = fingerprint(self._store.searched)
        if now == self._last and now != self._read:
            self._store.refresh()
            self._read = now
        self._last, self._looked = now, self._clock()


def fingerprint(paths: Iterable[Path]) -> Print:
    """Path, modification time (ns) and size of everything that the store would read; opens no file."""
    return tuple(entry for path in paths for entry in _entries(path, DEEPEST + 1))


def _entries(path: Path | os.DirEntry[str], depth: int) -> Iterator[tuple[str, int, int]]:
    try:
        at = path.stat()
        yield os.fspath(path), at.st_mtime_ns, at.st_size
        if depth and path.is_dir():
            with os.scandir(path) as inside:
                for entry in sorted(inside, key=lambda entry: entry.name):
                    if not entry.name.startswith("."):
                        yield from _entries(entry, depth - 1)
    except OSError:  # gone or not ours to read: reading it says so
        return
