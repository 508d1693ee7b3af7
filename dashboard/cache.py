"""What the page needs of recordings, kept on disk so that a second opening reads no trace.

An entry is made for a recording as it is: its path, the sizes and times of its files, and this code. It lies in the
cache's own directory, never beside the recording. Entries that are damaged are thrown away, and the longest unused
make room for new ones.
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

from dashboard import snapshot

MOST_BYTES: Final = 8 << 30
TRACE: Final = "trace"
"""The part that is the trace itself, whose arrays are as those of one that was read."""

_NEW: Final = "new-"  # and the process that makes it: an entry that is not whole
_DAY: Final = 86_400.0  # s; nobody takes so long for one
_CODE: Final = ("dashboard", "tracer")
Value = TypeVar("Value")
_log = logging.getLogger(__name__)


class Cache:
    """Entries below a directory, which is made when first needed; together at most `most_bytes`."""

    def __init__(self, directory: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.directory = directory or platformdirs.user_cache_path("intertoken", appauthor=False) / "dashboard"
        self.most_bytes = most_bytes

    def load(
        self, recording: Path, classes: tuple[type, ...], restored: Callable[[Any], Value], part: str = "runs"
    ) -> Value | None:
        """What `restored` makes of a part kept for a recording, which may hold these dataclasses.

        None if there is no sound value.
        """
        try:
            entry = self._entry(recording, part)
            value = restored(snapshot.load(entry, classes, own=part == TRACE))
            os.utime(entry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            _log.warning("a cached recording is damaged and read anew: %s", problem)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return value

    def save(self, recording: Path, value: Any, part: str = "runs") -> bool:
        """Keep a part for a recording; False if the disk does not let us."""
        try:
            entry = self._entry(recording, part)
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=self.directory))
        except OSError as problem:
            _log.warning("nothing is kept in %s: %s", self.directory, problem)
            return False
        try:
            snapshot.save(value, scratch)
            self._make_room(sum(size for _, size in _files(scratch)))
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

    def _entry(self, recording: Path, part: str = "runs") -> Path:
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
    """Name, size and time of its files."""
    files = sorted(recording.iterdir()) if recording.is_dir() else [recording]
    stats = [(path.name, path.stat()) for path in files if not path.is_dir()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


@cache
def _code() -> list[Any]:
    """The version, and for who works on it, when its files last changed."""
    root = Path(__file__).parents[1]
    changed = max(path.stat().st_mtime_ns for name in _CODE for path in (root / name).rglob("*.py"))
    return [version("intertoken"), changed]
