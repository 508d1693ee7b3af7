"""What was read of recordings, kept on disk so that the next command, or page, reads no trace again.

An entry is made for a recording as it is: its path, the sizes and times of its files, and this code. It lies in the
cache's own directory, never beside the recording, and only its user can read it. Entries that are damaged are thrown
away, and the longest unused make room for new ones. A cache that cannot be read or written costs time and nothing else.
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

import platformdirs

from tracer import snapshot
from tracer.errors import UsageError

VARIABLE: Final = "INTERTOKEN_CACHE"
"""The variable that names the directory, or says `OFF`."""

OFF: Final = "off"
MOST_BYTES: Final = 8 << 30
TRACE: Final = "trace"
"""Begins the name of a part that is the trace itself, whose arrays are as those of one that was read."""

_NEW: Final = "new-"  # and the process that makes it: an entry that is not whole
_DAY: Final = 86_400.0  # s; nobody takes so long for one
_CODE: Final = ("dashboard", "tracer")  # of both are parts
Value = TypeVar("Value")
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # a server's log has what is said here, a command's stderr has not


def directory_of_user() -> Path | None:
    """Where the user wants it: what `VARIABLE` says, else the user's cache directory; None for nowhere.

    Raises:
        UsageError: the variable names no absolute path.
    """
    said = os.environ.get(VARIABLE, "")
    if said.lower() == OFF:
        return None
    if said and not Path(said).is_absolute():
        raise UsageError(f"{VARIABLE}={said}: is neither an absolute path nor {OFF!r}")
    return Path(said) if said else platformdirs.user_cache_path("intertoken", appauthor=False) / "recordings"


class Cache:
    """Entries below a directory, which is made when first needed; together at most `most_bytes`."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self.directory, self.most_bytes = directory, most_bytes

    def load(
        self, recording: Path, classes: tuple[type, ...], restored: Callable[[Any], Value], part: str = "runs"
    ) -> Value | None:
        """What `restored` makes of a part kept for a recording, which may hold these dataclasses.

        None if there is no sound value.
        """
        try:
            entry = self.entry(recording, part)
            value = restored(snapshot.load(entry, classes, own=part.startswith(TRACE)))
            os.utime(entry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            _log.warning("a cached recording is damaged and read anew: %s", problem)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return value

    def save(self, recording: Path, value: Any, part: str = "runs", entry: Path | None = None) -> bool:
        """Keep a part for a recording; False if the disk does not let us, or it takes more than all may.

        With the `entry` that it had before it was read, nothing is kept of a recording that has changed since.
        """
        try:
            now = self.entry(recording, part)
            if entry not in (None, now):
                return False
            entry = now
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=self.directory))
        except OSError as problem:
            _log.warning("nothing is kept in %s: %s", self.directory, problem)
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
            _log.warning("%s is not kept: %s", recording, problem)
            return False
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return True

    def remove_unfinished(self, process: int) -> None:
        """Remove what a process has left that ended while it was saving."""
        for scratch in self.directory.glob(f"{_NEW}{process}-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def entry(self, recording: Path, part: str = "runs") -> Path:
        """Where a part of a recording, as that is now, is kept."""
        facts = [part, str(recording.absolute()), _fingerprint(recording), _code()]
        return self.directory / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _make_room(self, needed: int) -> None:
        """Remove the longest unused entries until all, with one of `needed` bytes more, are few enough.

        What was left unfinished a day ago goes too.
        """
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


def _fingerprint(recording: Path) -> list[list[Any]]:
    """Name, size and times of its files, and of those that SQLite puts beside one."""
    beside = (recording.with_name(f"{recording.name}-{kind}") for kind in ("journal", "wal"))
    files = sorted(recording.iterdir()) if recording.is_dir() else [recording, *(p for p in beside if p.exists())]
    stats = [(path.name, path.stat()) for path in files if not path.is_dir()]
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]


@cache
def _code() -> list[Any]:
    """The version, and for who works on it, when its files last changed."""
    root = Path(__file__).parents[1]
    changed = max(path.stat().st_mtime_ns for name in _CODE for path in (root / name).rglob("*.py"))
    return [version("intertoken"), changed]
