"""Cache on disk of what was read from recordings, so that the next command or page does not parse them again.

The key of an entry is the recording's path, the sizes and times of its files, and this code. Entries are stored in the
cache's own directory, never next to the recording, and only their user can read them. Damaged entries are deleted, and
the least recently used make room for new ones. A cache that cannot be read or written costs only time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from tracer import formats
from tracer.errors import UsageError
from tracer.files import snapshot
from tracer.model.fits import own_file
from tracer.model.run_json import NODE
from tracer.model.trace import Trace

VARIABLE: Final = "INTERTOKEN_CACHE"
"""Environment variable: the cache's directory, or `OFF`."""

OFF: Final = "off"
MOST_BYTES: Final = 8 << 30
TRACE: Final = "trace"
"""Prefix of the name of a part that is the trace itself; its arrays are as in a trace just read."""

FUNCTIONS: Final = f"{TRACE} with Python functions"
"""The part that holds a trace with the functions that its format leaves out by default."""

LEAST: Final = 4 << 20
"""Recordings of at least this many bytes are cached; smaller ones are parsed about as fast as they are loaded."""

_NEW: Final = "new-"  # followed by the id of the writing process: an incomplete entry
_DAY: Final = 86_400.0  # s; no entry takes that long to write
_CODE: Final = ("dashboard", "tracer")  # packages whose classes are in entries
Value = TypeVar("Value")
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # messages appear in a server's log, not on a command's stderr


def directory_of_user() -> Path | None:
    """The directory that `VARIABLE` names, else the user's cache directory; None if the cache is off.

    Raises:
        UsageError: the variable is not an absolute path.
    """
    value = os.environ.get(VARIABLE, "")
    if value.lower() == OFF:
        return None
    if value and not Path(value).is_absolute():
        raise UsageError(f"{VARIABLE}={value}: neither an absolute path nor {OFF!r}")
    if value:
        return Path(value)
    import platformdirs

    return platformdirs.user_cache_path("intertoken", appauthor=False) / "recordings"


class Cache:
    """Entries in a directory, which is created on first use; at most `most_bytes` in total."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self.directory, self.most_bytes = directory, most_bytes

    def load(
        self, recording: Path, classes: tuple[type, ...], restored: Callable[[Any], Value], part: str = "runs"
    ) -> Value | None:
        """Load a part of a recording, which may contain these dataclasses, and pass it through `restored`.

        Returns None if there is no intact entry.
        """
        try:
            entry = self.entry(recording, part)
            value = restored(snapshot.load(entry, classes, own=part.startswith(TRACE)))
            os.utime(entry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            _log.warning("a cached recording is damaged and will be read again: %s", problem)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return value

    def save(self, recording: Path, value: Any, part: str = "runs", entry: Path | None = None) -> bool:
        """Save a part of a recording; False if it cannot be written, or if the part alone exceeds `most_bytes`.

        Given the `entry` from before the recording was read, nothing is saved if the recording has changed since.
        """
        try:
            now = self.entry(recording, part)
            if entry not in (None, now):
                return False
            entry = now
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=self.directory))
        except OSError as problem:
            _log.warning("cannot cache in %s: %s", self.directory, problem)
            return False
        try:
            snapshot.save(value, scratch)
            needed = sum(size for _, size in _files(scratch))
            if needed > self.most_bytes:
                return False
            self._make_room(needed)
            shutil.rmtree(entry, ignore_errors=True)
            scratch.rename(entry)
        except OSError as problem:
            _log.warning("cannot cache %s: %s", recording, problem)
            return False
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return True

    def remove_unfinished(self, process: int) -> None:
        """Remove the incomplete entries of a process that ended while saving."""
        for scratch in self.directory.glob(f"{_NEW}{process}-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def entry(self, recording: Path, part: str = "runs") -> Path:
        """The directory of a part of a recording in its present state."""
        facts = [part, str(recording.absolute()), fingerprint(recording), _code(), own_file()]
        return self.directory / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _make_room(self, needed: int) -> None:
        """Remove the least recently used entries until `needed` more bytes fit, and incomplete ones over a day old."""
        entries = []
        for entry in self.directory.iterdir():
            with suppress(OSError):
                if entry.name.startswith(_NEW):
                    if entry.stat().st_mtime < time.time() - _DAY:
                        shutil.rmtree(entry, ignore_errors=True)
                elif entry.is_dir():
                    entries.append((entry.stat().st_mtime_ns, sum(size for _, size in _files(entry)), entry))
        held = needed + sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if held <= self.most_bytes:
                return
            shutil.rmtree(entry, ignore_errors=True)
            held -= size


def _files(directory: Path) -> Iterator[tuple[Path, int]]:
    return ((path, path.stat().st_size) for path in directory.iterdir() if path.is_file())


def fingerprint(recording: Path) -> list[list[Any]]:
    """Name, size and times of the recording's files, including SQLite's journal and write-ahead log, and of the node
    pass in a run directory, which is shown with it."""
    beside = (recording.with_name(f"{recording.name}-{kind}") for kind in ("journal", "wal"))
    files = sorted(recording.iterdir()) if recording.is_dir() else [recording, *(p for p in beside if p.exists())]
    stats = [(path.name, path.stat()) for path in files if not path.is_dir() or path.name == NODE]
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]


@cache
def _code() -> list[Any]:
    """The version and, for development, the time of the last change of the code."""
    root = Path(__file__).parents[2]
    files = (path for name in _CODE for kind in ("py", "toml") for path in (root / name).rglob(f"*.{kind}"))
    changed = max(path.stat().st_mtime_ns for path in files)
    return [version("intertoken"), changed]


def read(path: Path, *, python_functions: bool = False) -> Trace:
    """Read a recording without the data that no analysis uses (see `formats.read`): from the user's cache, or else from
    the file, which is then cached.

    Args:
        path: the recording.
        python_functions: whether to keep the functions that its format leaves out by default.

    Raises:
        FormatError: see `formats.read`.
        UsageError: the environment variable for the cache has an invalid value.
    """
    directory = directory_of_user()
    asked = formats.functions_of(path) if python_functions else {}
    if directory is None or _size(path) < LEAST:
        return formats.read(path, whole=False, **asked)
    cache, part = Cache(directory), FUNCTIONS if asked else TRACE
    kept = kept_trace(path, cache, part)
    if kept is not None:
        return kept
    try:
        entry = cache.entry(path, part)
    except OSError:  # reading it says why
        entry = None
    trace = formats.read(path, whole=False, **asked)
    if entry is not None:
        cache.save(path, trace, part, entry)
    return trace


def kept_trace(path: Path, cache: Cache, part: str = TRACE) -> Trace | None:
    """The cached trace of a recording."""
    return cache.load(path, (Trace,), _whole, part)


def _whole(kept: object) -> Trace:
    if not isinstance(kept, Trace):
        raise TypeError(f"{type(kept).__name__} is not a trace")
    return kept


def _size(path: Path) -> int:
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except OSError:  # reading it says why
        return 0
