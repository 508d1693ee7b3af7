"""The folders in which rings lie: in memory (/dev/shm), one for each recording, locked while its recorder lives.

One is gone when its recording is written. What could not be written, and what a recorder left that was killed, stays
until it is recovered or removed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tracer.output import lock_folder, take_folder
from tracer.recorders.light_ring import facts_of

_PREFIX: Final = "intertoken-light-"
_MEMORY: Final = Path("/dev/shm")
_EVERY_S: Final = 1.0
_BLOCK: Final = bytes(1 << 18)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for rings, gone when the block ends well. When it fails, they stay."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    with _gone_if_all_goes_well(made, lock_folder(made)):
        yield made


@contextmanager
def taken(left: Path) -> Iterator[None]:
    """Have a folder that a recorder left; it is gone when the block ends well.

    Raises:
        OSError: it is none, or its recorder lives.
    """
    with _gone_if_all_goes_well(left, take_folder(left)):
        yield


@contextmanager
def _gone_if_all_goes_well(rings: Path, lock: int) -> Iterator[None]:
    is_over = False
    try:
        yield
        is_over = True
    finally:
        if is_over or not has_rings(rings):
            shutil.rmtree(rings, ignore_errors=True)
        os.close(lock)


def has_rings(rings: Path) -> bool:
    """Whether anything was recorded there."""
    return any(rings.glob("*.ring"))


def left_folders() -> list[Path]:
    """The folders of this user that have rings, and no recorder. Those without rings are removed."""
    found = []
    for left in sorted(path for base in _bases() for path in base.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # its recorder lives, or it is not ours
            if left.lstat().st_uid != os.geteuid():
                continue
            lock = take_folder(left)
            if has_rings(left):
                found.append(left)
            else:
                shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    return found


def running_rings() -> list[Path]:
    """The rings of this user's processes that run under a recorder now."""
    found = []
    for path in (path for base in _bases() for path in base.glob(f"{_PREFIX}*/*.ring")):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and not _has_ended(path):
                found.append(path)
    return sorted(found)


@contextmanager
def kept_small(rings: Path) -> Iterator[None]:
    """Meanwhile the rings of processes that have ended give back the memory that they did not need."""
    over, done = threading.Event(), set[Path]()

    def look() -> None:
        while not over.wait(_EVERY_S):
            for path in set(rings.glob("*.ring")) - done:
                with suppress(OSError):  # it is another user's
                    if _has_ended(path):
                        trim(path)
                        done.add(path)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def trim(path: Path) -> None:
    """Give back the memory of what was never written in a ring: blocks of zeros become holes.

    Raises:
        OSError: it cannot be read or written to.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file:
        for at in range(0, os.fstat(file.fileno()).st_size, len(_BLOCK)):
            part = os.pread(file.fileno(), len(_BLOCK), at)
            if part == _BLOCK[: len(part)]:
                where = ctypes.c_int64(at), ctypes.c_int64(len(part))
                libc.fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, *where)


def _bases() -> set[Path]:
    return {_MEMORY, Path(tempfile.gettempdir())}


def _has_ended(path: Path) -> bool:
    """Whether the process of a ring has; of one in another namespace, as a container's, that is not known."""
    facts = facts_of(path)
    is_known = facts.namespace == os.stat("/proc/self/ns/pid").st_ino
    return is_known and not Path(f"/proc/{facts.process}").exists()
