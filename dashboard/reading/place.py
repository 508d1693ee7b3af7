"""One recording of a store: its path and, once read, its runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboard.reading.read import name_of, read_runs
from dashboard.reading.readers import Readers
from dashboard.reading.run import Run
from tracer import progress
from tracer.analysis.summary import Summary
from tracer.stored.cache import Cache, fingerprint

_log = logging.getLogger(__name__)


def stamp_of(path: Path) -> list[list[Any]]:
    """The recording's state, see `tracer.stored.cache.fingerprint`; empty if it no longer exists."""
    try:
        return fingerprint(path)
    except OSError:
        return []


@dataclass(eq=False)
class Place:
    """A recording: its path, its state when it was found, the names of its runs and, once they are read, the runs."""

    path: Path
    stamp: list[list[Any]]
    key: str
    name: str
    arrived: Callable[[], None]
    runs: list[Run] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _share: float | None = None

    def read(self, cache: Cache | None, readers: Readers | None) -> list[Run]:
        """Read the runs of the recording; a second caller waits for the first. `arrived` is called once they are
        read."""
        with self._lock:
            if self.runs is not None:
                return self.runs
            self._share = 0.0
            try:
                with progress.listening(self._tell):
                    self.runs = self._read(cache, readers)
            except Exception as problem:  # an internal error must not hide the others
                _log.exception("%s cannot be shown", self.path)
                message = f"{self.path}: cannot be shown: {type(problem).__name__}: {problem}"
                self.runs = [Run(self.key, self.name, Summary(self.name, problem=message), path=self.path)]
        self.arrived()
        return self.runs

    def _read(self, cache: Cache | None, readers: Readers | None) -> list[Run]:
        runs = read_runs(self.path, cache, readers)
        own = name_of(self.path)
        for run in runs:
            run.key, run.name = self.key + run.key[len(own) :], self.name + run.name[len(own) :]
            run.tokens  # noqa: B018  # made here, where one thread at a time does it
        return runs

    def holds(self, key: str) -> bool:
        """Whether this recording is the only one that can have a run with this key."""
        return key == self.key or key.startswith(f"{self.key}~")

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which the recording can be shown, also next to others of the same name; the key comes
        first."""
        alone, parent = name_of(self.path), self.path.absolute().parent.name
        return self.key, self.name, alone, f"{parent}/{alone}", self.path.name, str(self.path)

    def key_of(self, name: str) -> str | None:
        """The key for one of its names, or of a run in it; None for any other name."""
        if name in self.names:
            return self.key
        for own in self.names:
            for between in ("~", " · "):  # as in keys, and as in what readers see
                if name.startswith(f"{own}{between}"):
                    return f"{self.key}~{name[len(own) + len(between) :]}"
        return None

    @property
    def is_being_read(self) -> bool:
        """Whether it is being read."""
        return self.runs is None and self._share is not None

    def so_far(self) -> list[Run]:
        """The runs of the recording or, until they are read, a placeholder."""
        if self.runs is not None:
            return self.runs
        message = "waiting to be read" if self._share is None else f"being read: {self._share:.0%}"
        return [Run(self.key, self.name, Summary(self.name, problem=message), path=self.path)]

    def _tell(self, share: float) -> None:
        self._share = share
