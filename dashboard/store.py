"""The recordings that a page may show: found once, read in the background or when first asked for, then kept."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.cache import Cache
from dashboard.reading import is_pass, name_of, read_runs
from dashboard.run import Run
from dashboard.view import MOST_RUNS
from tracer import formats, progress
from tracer.analysis.summary import Summary
from tracer.errors import TraceError, UsageError

_log = logging.getLogger(__name__)
_DEEPEST = 2  # levels below a given directory that are searched


@dataclass(eq=False)
class _Place:
    """A recording: where it is, what its runs are called, and once they are read the runs."""

    path: Path
    key: str
    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    share: float | None = None
    runs: list[Run] | None = None

    def read(self, cache: Cache | None) -> list[Run]:
        """Its runs; who comes second waits for the first."""
        with self.lock:
            if self.runs is None:
                self.share = 0.0
                with progress.listening(self._tell):
                    runs = read_runs(self.path, cache)
                own = name_of(self.path)
                for run in runs:
                    run.key, run.name = self.key + run.key[len(own) :], self.name + run.name[len(own) :]
                    run.tokens  # noqa: B018  # made here, where one thread at a time does it
                self.runs = runs
            return self.runs

    def holds(self, key: str) -> bool:
        """Whether a run of this key can only be here."""
        return key == self.key or key.startswith(f"{self.key}~")

    def _tell(self, share: float) -> None:
        self.share = share

    def so_far(self) -> list[Run]:
        """Its runs, or until they are read one that says so."""
        if self.runs is not None:
            return self.runs
        said = "waiting to be read" if self.share is None else f"being read: {self.share:.0%}"
        return [Run(self.key, self.name, Summary(self.name, problem=said))]


@dataclass(frozen=True)
class Progress:
    """How many recordings there are, and how many of them are read."""

    read: int
    total: int

    @property
    def done(self) -> bool:
        """Whether all are read."""
        return self.read == self.total


class RunStore:
    """All runs below the given paths. Safe to use from several threads.

    Without `passes` the traced passes inside run directories are left out, unless a path names them. With a `cache`
    nothing is read twice.
    """

    def __init__(self, paths: Iterable[Path | str], passes: bool = True, cache: Cache | None = None) -> None:
        self._given = [Path(p) for p in paths]
        self._passes = passes
        self._cache = cache
        self._lock = threading.Lock()
        self._found: list[_Place] | None = None
        self._reader: threading.Thread | None = None
        self._since: float | None = None

    def runs(self) -> list[Run]:
        """Every run, in the order of the paths; waits until all are read."""
        return [run for place in self._places() for run in place.read(self._cache)]

    def so_far(self) -> list[Run]:
        """The same without waiting: what is not read yet stands for itself, with how far it is as its problem."""
        return [run for place in self._places() for run in place.so_far()]

    def progress(self) -> Progress:
        """How far reading is."""
        places = self._places()
        return Progress(sum(place.runs is not None for place in places), len(places))

    def read_ahead(self) -> None:
        """Read everything in the background, in the order of the paths."""
        with self._lock:
            if self._reader is not None:
                return
            self._since = time.monotonic()
            self._reader = threading.Thread(target=self._read_all, name="reading", daemon=True)
        self._reader.start()

    def _read_all(self) -> None:
        for place in self._places():
            try:
                place.read(self._cache)
            except Exception as problem:  # a fault of ours must not keep the others from being read
                _log.exception("%s cannot be shown", place.path)
                said = f"{place.path}: cannot be shown: {type(problem).__name__}: {problem}"
                place.runs = [Run(place.key, place.name, Summary(place.name, problem=said))]

    @property
    def waited(self) -> float:
        """Seconds since reading in the background began, 0 before."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def chosen(self, keys: Iterable[str]) -> list[Run]:
        """The runs of these keys that have tokens to show, in this order; keys nobody knows are left out.

        Waits until their recordings are read, not for others.
        """
        wanted = list(keys)
        for place in self._places():
            if any(place.holds(key) for key in wanted):
                place.read(self._cache)
        return self.ready(wanted)

    def named(self, key: str) -> Run | None:
        """The run of this key, once its recording is read; None if nobody knows it."""
        here = (place for place in self._places() if place.holds(key))
        return next((run for place in here for run in place.read(self._cache) if run.key == key), None)

    def awaited(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys whose recordings are still to be read."""
        unread = [place for place in self._places() if place.runs is None]
        return [key for key in keys if any(place.holds(key) for place in unread)]

    def ready(self, keys: Iterable[str]) -> list[Run]:
        """Those of `chosen` that are read."""
        known = {run.key: run for place in self._places() for run in place.runs or ()}
        return [known[key] for key in keys if key in known and known[key].tokens is not None]

    def _places(self) -> Sequence[_Place]:
        with self._lock:
            if self._found is None:
                paths = find_traces(self._given, self._passes)
                twins = {name for name, times in Counter(path.name for path in paths).items() if times > 1}
                places: dict[str, _Place] = {}
                for path in paths:
                    apart = path.name in twins and not is_pass(path)
                    name = f"{path.absolute().parent.name}/{name_of(path)}" if apart else name_of(path)
                    key = _unused(name, places)
                    places[key] = _Place(path, key, name)
                self._found = list(places.values())
            return self._found


def runs_to_compare(paths: Iterable[Path]) -> list[Run]:
    """The runs at these paths, without the traced passes inside run directories, in this order.

    Raises:
        UsageError: there are none, or more than fit on one page.
        TraceError: one of them cannot be read or has no token steps.
    """
    runs = RunStore(paths, passes=False).runs()
    if not 1 <= len(runs) <= MOST_RUNS:
        names = f": {', '.join(run.name for run in runs[:3])}, ..." if runs else ""
        raise UsageError(f"{len(runs)} runs at the given paths{names}; name one to {MOST_RUNS} of them")
    for run in runs:
        if run.tokens is None:
            problem = run.summary.problem or "no token steps"
            raise TraceError(problem if run.name in problem else f"{run.name}: {problem}")
    return runs


def find_traces(given: Iterable[Path], passes: bool = True) -> list[Path]:
    """The recordings among and below the given paths; a path without any stays, to be shown with its problem.

    A run directory may hold the traced passes of the same run in directories of their own; they follow it if `passes`.
    """
    found: dict[Path, None] = {}
    for path in given:
        below = [trace for trace in _below(path, _DEEPEST) if passes or trace == path or not is_pass(trace)]
        found |= dict.fromkeys(below or [path])
    return list(found)


def _below(path: Path, depth: int) -> list[Path]:
    """The path, if it is a recording, and those down to so many levels below it."""
    try:
        found = [path] if formats.is_trace(path) else []
        if depth and path.is_dir():
            for inside in sorted(path.iterdir()):
                if not inside.name.startswith("."):
                    found += _below(inside, depth - 1)
    except OSError:  # unreadable: reading it later says why
        return [path]
    return found


def _unused(key: str, taken: dict[str, _Place]) -> str:
    return key if key not in taken else next(k for i in range(2, len(taken) + 3) if (k := f"{key}-{i}") not in taken)
