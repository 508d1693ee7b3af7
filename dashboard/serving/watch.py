"""What pages and load balancers poll: the health of the server, and whether recordings are new.

The given directories are scanned when a page polls, so that new recordings appear while it is open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

from flask import Flask

from dashboard.reading.store import DEEPEST, RunStore

INTERVAL: Final = 1.0
"""Minimum number of seconds between two scans, however many pages poll."""
Print: TypeAlias = tuple[tuple[str, int, int], ...]


def add_health(server: Flask, store: RunStore) -> None:
    """Answer /healthz with the version and the numbers of recordings read and found; it reads and names none."""

    @server.get("/healthz")
    def healthz() -> dict[str, Any]:
        progress = store.progress()
        return {
            "status": "ok",
            "version": version("intertoken"),
            "runs": {"read": progress.read, "total": progress.total},
        }


def add_watch(server: Flask, store: RunStore) -> None:
    """Answer /revision: a number that grows whenever the runs have changed."""
    watch = Watch(store)

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
