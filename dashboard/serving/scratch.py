"""Temporary directories of servers, and removal of those left by killed servers."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NAME: Final = "intertoken-uploads-"


@contextmanager
def scratch() -> Iterator[Path]:
    """A private directory, removed at the end; directories of killed servers are removed first.

    The process holds a lock on it, which is released however the process ends.
    """
    remove_orphans()
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_orphans() -> None:
    """Remove directories of this user's servers that no longer run; links are not followed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_NAME}*"):
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked() -> tuple[Path, int | None]:
    """A new directory and its lock; None for the lock if the file system has no locks, so that no one else can take
    it.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_NAME))
        lock = _lock(folder, fcntl.LOCK_EX)
        if lock is not None or folder.exists():  # else another server took it for an orphan before it was locked
            return folder, lock


def _lock(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """Lock a directory of this user; None if it cannot be locked or no longer exists."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, how)
        at = os.fstat(lock)
        if at.st_uid == os.geteuid() and os.path.samestat(at, os.stat(folder, follow_symlinks=False)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
