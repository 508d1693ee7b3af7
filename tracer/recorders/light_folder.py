"""The folders of rings: in memory (/dev/shm), one per recording, locked while its recorder runs.

A folder is removed once its recording is written. If that fails, or the recorder is killed, the folder stays until it
is recovered or removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from tracer.files.bounded import opened
from tracer.files.output import lock_folder, take_folder
from tracer.recorders.light_ring import facts_of

SETTINGS: Final = "cupti"
"""The file in a folder that makes the library record through CUPTI (`cupti_run`)."""

_PREFIX: Final = "intertoken-light-"
_MEMORY: Final = Path("/dev/shm")
_EVERY_S: Final = 1.0
_BLOCK: Final = bytes(1 << 18)
_MOST_BYTES: Final = 1 << 31
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@contextmanager
def folder(*, large: bool = False) -> Iterator[Path]:
    """Create a folder for rings. It is removed when the block succeeds; if the block fails, the rings are kept.

    Args:
        large: whether to create it where there is the most free space, rather than in memory.
    """
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    if large:
        base = max(base, Path(tempfile.gettempdir()), key=_free_bytes)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    with _removed_on_success(made, lock_folder(made)):
        yield made


@contextmanager
def taken(left: Path) -> Iterator[None]:
    """Take over a folder that a recorder left behind; it is removed when the block succeeds.

    Raises:
        OSError: it is not such a folder, or its recorder is still running.
    """
    with _removed_on_success(left, take_folder(left)):
        yield


@contextmanager
def _removed_on_success(rings: Path, lock: int) -> Iterator[None]:
    is_over = False
    try:
        yield
        is_over = True
    finally:
        if is_over or not has_rings(rings):
            shutil.rmtree(rings, ignore_errors=True)
        os.close(lock)


def has_rings(rings: Path) -> bool:
    """Whether the folder contains rings."""
    return any(rings.glob("*.ring"))


def left_folders() -> list[Path]:
    """This user's folders with rings but without a running recorder. Folders without rings are removed."""
    found = []
    for left in sorted(path for base in _bases() for path in base.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # its recorder is running, or it is not ours
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
    """The rings of this user's processes that are running under a light recorder."""
    found = []
    for path in (path for base in _bases() for path in base.glob(f"{_PREFIX}*/*.ring")):
        with suppress(OSError):
            is_light = not (path.parent / SETTINGS).exists()
            if is_light and path.stat().st_uid == os.geteuid() and not _has_ended(path):
                found.append(path)
    return sorted(found)


@contextmanager
def kept_small(rings: Path) -> Iterator[None]:
    """During the block, free the unused memory in rings of processes that have ended."""
    done = set[Path]()

    def look() -> None:
        for path in set(rings.glob("*.ring")) - done:
            with suppress(OSError):  # it belongs to another user
                if _has_ended(path):
                    trim(path)
                    done.add(path)

    with repeating(look, _EVERY_S):
        yield


@contextmanager
def repeating(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """During the block, do this work in a thread every so many seconds."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def trim(path: Path) -> None:
    """Free the memory of the parts of a ring that were never written: blocks of zeros become holes.

    Raises:
        OSError: the ring cannot be read or written.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with opened(path, "r+b") as file:
        for at, part in _written(file):
            if part == _BLOCK[: len(part)]:
                where = ctypes.c_int64(at), ctypes.c_int64(len(part))
                libc.fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, *where)


def copy_small(path: Path, target: Path) -> None:
    """Copy a ring without the parts that were never written.

    Raises:
        OSError: the ring cannot be read, or the copy takes more than half of the free space.
    """
    with opened(path) as file, target.open("wb") as copy:
        if os.fstat(file.fileno()).st_blocks * 512 > _free_bytes(target.parent) // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        copy.truncate(os.fstat(file.fileno()).st_size)
        for at, part in _written(file):
            if part != _BLOCK[: len(part)]:
                os.pwrite(copy.fileno(), part, at)


def _written(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The blocks of a ring that are not holes: offset and content.

    Raises:
        OSError: the file is larger than a ring.
    """
    size, at = os.fstat(file.fileno()).st_size, 0
    if size > _MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    while at < size:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA) // len(_BLOCK) * len(_BLOCK)
        except OSError as none:
            if none.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        yield at, os.pread(file.fileno(), len(_BLOCK), at)
        at += len(_BLOCK)


def _free_bytes(base: Path) -> int:
    space = os.statvfs(base)
    return space.f_bavail * space.f_frsize


def _bases() -> set[Path]:
    return {_MEMORY, Path(tempfile.gettempdir())}


def _has_ended(path: Path) -> bool:
    """Whether a ring's process has ended; False for one in another PID namespace (a container), as that is unknown."""
    facts = facts_of(path)
    is_known = facts.namespace == os.stat("/proc/self/ns/pid").st_ino
    return is_known and not Path(f"/proc/{facts.process}").exists()
