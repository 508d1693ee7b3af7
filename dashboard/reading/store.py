"""The recordings of a page, which are read in the background or on first use, and then cached.

`Background` computes slow answers, once for all readers, and keeps the latest ones. This uses threads instead of Dash's
background callbacks, which start a process per question and would need the recording pickled or read again. All readers
with the same question share one answer, and the page polls for it, so any server process can answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeVar

from dashboard.reading.readers import Readers, half_of_memory
from dashboard.reading.run import Run, at_rates, is_pass, name_of, read_functions, read_runs
from dashboard.view import MOST_RUNS, Rate
from tracer import formats, progress
from tracer.analysis.summary import Summary
from tracer.errors import IntertokenError, TraceError, UsageError, printable
from tracer.model.trace import Trace
from tracer.stored import Cache, fingerprint

_log = logging.getLogger(__name__)

DEEPEST = 2  # levels below a given directory that are searched
_DRAWS = 1.0  # s in which a page draws the recordings that it wanted, before others are read


@dataclass(frozen=True)
class Progress:
    """The number of recordings, and of those that are read."""

    read: int
    total: int

    @property
    def done(self) -> bool:
        """Whether all are read."""
        return self.read == self.total


class RunStore:
    """All runs below the given paths. Safe to use from several threads.

    Without `passes` the traced passes inside run directories are left out, unless a path names them. `inbox` is one
    more directory, for uploaded recordings. With a `cache` each recording is parsed once. With `readers` recordings are
    read in separate processes, as untrusted ones should be; otherwise in this process.
    """

    def __init__(
        self, paths: Iterable[Path | str], passes: bool = True, inbox: Path | None = None, cache: Cache | None = None,
        readers: Readers | None = None,
    ) -> None:  # fmt: skip
        self.readers = readers
        self.given, self.inbox = [Path(p) for p in paths], inbox
        self._passes = passes
        self._cache = cache
        self._lock = threading.Condition()
        self._known: list[Place] | None = None
        self._reader: threading.Thread | None = None
        self._since: float | None = None
        self._wanted: tuple[str, ...] = ()
        self._is_drawing = False
        self.revision = 0

    @cached_property
    def background(self) -> Background:
        """Slow answers about the runs, computed in the background."""
        return Background()

    @property
    def searched(self) -> list[Path]:
        """All paths that are searched."""
        return [*self.given, *([self.inbox] if self.inbox else [])]

    def refresh(self) -> None:
        """Look for new, changed and removed recordings; reads none.

        Unchanged recordings keep their runs and keys, so that links to them stay valid. `revision` counts
        these changes and every recording that was read.
        """
        with self._lock:
            self._look()
            reads = self._since is not None
        if reads:
            self.read_ahead()

    def runs(self, rates: Iterable[Rate] = ()) -> list[Run]:
        """Every run, in the order of the paths, with the given rates; waits until all are read."""
        return at_rates(self.each(), rates)

    def each(self) -> Iterator[Run]:
        """Yield every run: a recording is read when its first run is requested."""
        return (run for place in self._places() for run in self._read(place))

    def so_far(self, rates: Iterable[Rate] = ()) -> list[Run]:
        """Every run, without waiting: unread recordings have a placeholder, with the progress as its problem."""
        return at_rates((run for place in self._places() for run in place.so_far()), rates)

    def progress(self) -> Progress:
        """The progress of reading."""
        places = self._places()
        return Progress(sum(place.runs is not None for place in places), len(places))

    def reading(self) -> list[str]:
        """Names of the recordings that are being read."""
        return [place.name for place in self._places() if place.is_being_read]

    def read_ahead(self, first: Iterable[str] = ()) -> None:
        """Read the unread recordings in the background: the recordings of these keys first, then, once the page has had
        time to draw them, the others in the order of the paths, traced passes of runs last."""
        with self._lock:
            wanted = tuple(first) or self._wanted
            if wanted != self._wanted:
                self._wanted, self._is_drawing = wanted, True
                self._lock.notify_all()
            if self._reader is not None:
                return
            self._since = self._since or time.monotonic()
            self._reader = threading.Thread(target=self._read_all, name="reading", daemon=True)
            self._reader.start()

    def _read_all(self) -> None:
        while True:
            places = self._places()
            with self._lock:
                waiting = [place for place in places if place.runs is None]
                unread = min(waiting, key=lambda p: (not self._is_wanted(p), is_pass(p.path)), default=None)
                if unread is None and places is self._known:
                    self._reader = None
                    return
                if unread is not None and self._is_drawing and not self._is_wanted(unread):
                    self._is_drawing = False
                    self._lock.wait_for(lambda: self._is_drawing, _DRAWS)
                    continue
            if unread is not None:
                self._read(unread)

    def _is_wanted(self, place: Place) -> bool:
        return any(place.holds(key) for key in self._wanted)

    def wait(self, seconds: float, keys: Sequence[str] = ()) -> bool:
        """Wait until all recordings, or those of these keys, are read, with a timeout; returns whether they are."""
        self._places()

        def is_read() -> bool:
            awaited = [p for p in self._known or () if not keys or any(p.holds(key) for key in keys)]
            return all(place.runs is not None for place in awaited)

        with self._lock:
            return self._lock.wait_for(is_read, seconds)

    def settle(self, patience: float) -> None:
        """Wait until all are read or, if there is a recording to show, until this many seconds after reading began."""
        self.read_ahead()
        while not self.wait(0.1):
            if self.waited > patience and any(run.tokens is not None for run in self.so_far()):
                return

    @property
    def waited(self) -> float:
        """Seconds since background reading first started, 0 before."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def chosen(self, keys: Iterable[str], rates: Iterable[Rate] = ()) -> list[Run]:
        """The runs of these keys that have tokens to show, in this order and with the given rates; unknown keys are
        left out.

        Waits until their recordings are read, not for others.
        """
        wanted = list(keys)
        for place in self._places():
            if any(place.holds(key) for key in wanted):
                self._read(place)
        return self.ready(wanted, rates)

    def named(self, key: str) -> Run | None:
        """The run of this key, once its recording is read; None if unknown."""
        here = (place for place in self._places() if place.holds(key))
        return next((run for place in here for run in self._read(place) if run.key == key), None)

    def with_functions(self, run: Run) -> Trace | None:
        """The trace of a run with the Python functions of its program; the regular trace if the recording has no such
        functions.

        Raises:
            TraceError: it cannot be read any more.
        """
        path = None if run.recording is None else run.recording.path
        if path is None:
            return None
        return read_functions(path, None if self._is_upload(path) else self._cache, self.readers) or run.trace

    def below(self, path: Path) -> list[Run]:
        """The runs of the recordings at a path and below it, once they are read."""
        here = (place for place in self._places() if place.path.is_relative_to(path))
        return [run for place in here for run in self._read(place)]

    def awaited(self, keys: Iterable[str]) -> list[str]:
        """The keys whose recordings are still to be read."""
        unread = [place for place in self._places() if place.runs is None]
        return [key for key in keys if any(place.holds(key) for place in unread)]

    def key_of(self, name: str) -> str:
        """The key of the run meant by a link, under any name it was shown with; the name itself if unknown.

        The first of several recordings of that name, but one with exactly that key takes precedence.
        """
        places = self._places()
        if any(place.holds(name) for place in places):
            return name
        keys = [key for place in places if (key := place.key_of(name)) is not None]
        return min(keys, key=lambda key: "~" in key, default=name)

    def without(self, keys: Iterable[str]) -> dict[str, str]:
        """The keys that show nothing once all is read, with the reasons."""
        keys, awaited = list(keys), set(self.awaited(keys))
        known = {run.key: run for place in self._places() for run in place.runs or ()}
        return {
            key: (known[key].summary.problem or "it has no token steps") if key in known else ""
            for key in keys
            if key not in awaited and (key not in known or known[key].tokens is None)
        }

    def ready(self, keys: Iterable[str], rates: Iterable[Rate] = ()) -> list[Run]:
        """Those of `chosen` that are read."""
        known = {run.key: run for place in self._places() for run in place.runs or ()}
        return at_rates((known[key] for key in keys if key in known and known[key].tokens is not None), rates)

    def _places(self) -> Sequence[Place]:
        with self._lock:
            return self._look() if self._known is None else self._known

    def _look(self) -> list[Place]:
        """The recordings now on disk; the lock is held."""
        stamps = {path: stamp_of(path) for path in find_traces(self.searched, self._passes)}
        before = {place.path: place for place in self._known or () if stamps.get(place.path) == place.stamp}
        if self._known is not None and list(stamps) == [p.path for p in self._known] == list(before):
            return self._known
        twins = {name for name, times in Counter(path.name for path in stamps).items() if times > 1}
        taken = {place.key for place in before.values()}
        self._known = [before.get(path) or self._new(path, stamp, twins, taken) for path, stamp in stamps.items()]
        self.revision += 1
        return self._known

    def _new(self, path: Path, stamp: list[list[Any]], twins: set[str], taken: set[str]) -> Place:
        apart = path.name in twins and not is_pass(path)
        name = f"{path.absolute().parent.name}/{name_of(path)}" if apart else name_of(path)
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        key = next(unused for unused in names if unused not in taken)
        taken.add(key)
        return Place(path, stamp, key, name, self._arrived)

    def _read(self, place: Place) -> list[Run]:
        return place.read(None if self._is_upload(place.path) else self._cache, self.readers)

    def _is_upload(self, path: Path) -> bool:
        """Whether a recording is an upload."""
        return self.inbox is not None and path.is_relative_to(self.inbox)

    def _arrived(self) -> None:
        with self._lock:
            self.revision += 1
            self._lock.notify_all()


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
    """The recordings among and below the given paths; other files stay, to be shown with their problem.

    A run directory may hold the traced passes of the same run in subdirectories; they follow it if `passes`.
    """
    traces: dict[Path, None] = {}
    for path in given:
        below = [trace for trace in _below(path, DEEPEST) if passes or trace == path or not is_pass(trace)]
        traces |= dict.fromkeys(below if below or path.is_dir() else [path])
    return list(traces)


def _below(path: Path, depth: int) -> list[Path]:
    """The path, if it is a recording, and the recordings down to this many levels below it."""
    try:
        traces = [path] if formats.is_trace(path) else []
        if depth and path.is_dir():
            for inside in formats.other_entries(path) if traces else sorted(path.iterdir()):
                if not inside.name.startswith("."):
                    traces += _below(inside, depth - 1)
    except OSError:  # unreadable: reading it later gives the reason
        return [path]
    return traces


def stamp_of(path: Path) -> list[list[Any]]:
    """The recording's state, see `tracer.stored.fingerprint`; empty if it no longer exists."""
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


Answer = TypeVar("Answer")

_MOST_WAITING: Final = 500
_MOST_KEPT: Final = 2000
_BYTES: Final = 100  # of memory that an event takes


def heaviest() -> int:
    """Maximum number of events in all kept answers: a sixteenth of the memory of this machine or container."""
    return half_of_memory() // 8 // _BYTES


@dataclass(frozen=True)
class _Asked:
    """A question: its answer, its weight, its lane, and how many answers of the lane are kept."""

    future: Future[Any]
    weight: Callable[[Any], int]
    lane: str = ""
    most: int = _MOST_KEPT


class Background:
    """Questions and their answers. Safe to use from several threads.

    Each lane has its own thread while it has work, so that the questions of one page do not wait for those of another.
    The kept answers together weigh at most `most` events, not counting the last one requested.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = heaviest() if most is None else most
        self._lock = threading.Lock()
        self._asked: OrderedDict[Hashable, _Asked] = OrderedDict()
        self._waiting: dict[str, deque[tuple[Hashable, Future[Any], Callable[[], Any]]]] = {}

    def ask(
        self, lane: str, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int] = lambda _: 1,
        most: int = _MOST_KEPT,
    ) -> Future[Answer]:  # fmt: skip
        """The answer to a question, possibly not ready yet; asking again returns the same one.

        Args:
            weight: the memory that the answer takes, in events.
            most: the number of the lane's answers that are kept.
        """
        with self._lock:
            if question in self._asked:
                self._asked.move_to_end(question)
                return self._asked[question].future
            future: Future[Answer] = Future()
            self._asked[question] = _Asked(future, weight, lane, most)
            if lane not in self._waiting:
                self._waiting[lane] = deque()
                threading.Thread(target=self._work, args=(lane,), name=f"background {lane}", daemon=True).start()
            waiting = self._waiting[lane]
            waiting.append((question, future, work))
            if len(waiting) > _MOST_WAITING:  # readers who still need it ask again
                oldest, dropped, _ = waiting.popleft()
                dropped.cancel()
                self._asked.pop(oldest, None)
            self._forget()
            return future

    def now(self, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int]) -> Answer:
        """Like `ask`, but computed in the calling thread unless it is known; for parts that several answers need."""
        with self._lock:
            known = self._asked.get(question)
            future: Future[Answer] = known.future if known else Future()
            self._asked[question] = _Asked(future, weight)
            self._asked.move_to_end(question)
            self._forget()
        if known is None:
            _find(future, work)
        return future.result()

    def _work(self, lane: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[lane]:
                    del self._waiting[lane]
                    return
                _, future, work = self._waiting[lane].popleft()
            _find(future, work)

    def _forget(self) -> None:
        """Drop the least recently used answers until the weight is below the limit."""
        done = [(question, one) for question, one in self._asked.items() if one.future.done()]
        weights = [1 if one.future.exception() else one.weight(one.future.result()) for _, one in done]
        total, held = sum(weights), Counter(one.lane for _, one in done)
        for (question, one), own in zip(done, weights, strict=True):
            if total > self._most or len(self._asked) > _MOST_KEPT or held[one.lane] > one.most:
                del self._asked[question]
                total, held[one.lane] = total - own, held[one.lane] - 1


def known(answer: Future[Answer]) -> Answer | str | None:
    """The answer, why there is none, or None if it is still being computed."""
    if not answer.done() or answer.cancelled():
        return None
    problem = answer.exception()
    if problem is None:
        return answer.result()
    return printable(str(problem)) if isinstance(problem, IntertokenError) else f"internal error: {problem!r}"


def _find(future: Future[Answer], work: Callable[[], Answer]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as problem:  # it is the answer, shown by the page that asked
            future.set_exception(problem)
