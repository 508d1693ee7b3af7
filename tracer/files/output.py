"""Output files and directories: nothing is overwritten without permission, and output appears complete or not at all.

Incomplete output is kept in a hidden folder next to its destination, locked while its writer runs. The next writer to
the same destination removes what a killed writer left there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import signal
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from tracer.errors import TraceError, UsageError

OR_FORCE: Final = "choose another name or --force"
"""Advice of a command that has --force."""

_LOCK: Final = ".intertoken-lock"
"""A file that marks a folder as ours; the writer holds its lock."""
_REPLACED: Final = ".intertoken-replaced"
_LONGEST_SHORT: Final = 200  # bytes
_HERE, _NO_REPLACE, _EXCHANGE = -100, 1, 2  # AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE: renameat2(2)
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def check_place(path: Path, *, replace: bool, a_directory: bool = False, advice: str = "choose another name") -> None:
    """Check, before long work, that output (a file, or a directory) can be written to a path; existing output of the
    same kind may be replaced with `replace`, and otherwise the message gives the `advice`.

    Symbolic links are never followed: a link counts as existing, and the output replaces the link itself.

    Raises:
        TraceError: the path exists and must not be replaced, or its parent directory is not writable.
    """
    try:
        if _exists(path):
            if not replace:
                raise TraceError(f"{path}: already exists; {advice}")
            kind = "a directory" if path.is_dir() else "a file" if path.is_file() or not path.exists() else "a device"
            if kind != ("a directory" if a_directory else "a file"):
                raise TraceError(f"{path}: is {kind}; choose another name")
        around = next(each for each in path.absolute().parents if _exists(each))
        if not around.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"Not a directory: {around}")
        if not os.access(around, os.W_OK | os.X_OK):
            read_only = os.statvfs(around).f_flag & os.ST_RDONLY
            raise OSError(errno.EACCES, f"{'Read-only file system' if read_only else 'Permission denied'}: {around}")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_output(path: Path, what: str, suffixes: Iterable[str], *, replace: bool) -> None:
    """Check, before long work, that `what` (such as "a table") can be written to a path. Raises UsageError if the path
    has none of the suffixes, exists and must not be replaced, or cannot be written."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: the name of {what} must end with {' or '.join(suffixes)}")
    with blaming_the_choice():
        check_place(path, replace=replace, advice=OR_FORCE)


def empty_folder(path: Path) -> Path:
    """The path of a folder that is empty, or is made. Raises UsageError if it holds something or cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path}: already holds something; choose another name")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def write_output(path: Path, write: Callable[[Path], object], *, replace: bool) -> None:
    """Write the file with `write`; it appears once it is complete. Raises UsageError if it exists and must not be
    replaced, or cannot be written."""
    with blaming_the_choice(), appearing(path, replace=replace) as partial:
        write(partial)


@contextmanager
def blaming_the_choice() -> Iterator[None]:
    """Turn a TraceError about a path into a UsageError: the user chose the path, and the recording is not at fault."""
    try:
        yield
    except TraceError as problem:
        raise UsageError(str(problem)) from None


@contextmanager
def appearing(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary path for a file or directory that becomes `path` when the block ends; removed if the block fails.
    With `replace`, existing output stays until then.

    Raises:
        TraceError: the path exists and must not be replaced, or it cannot be written.
    """
    partial = path
    try:
        if _exists(path) and not replace:
            raise TraceError(f"{path}: already exists; choose another name")
        with hidden_folder(path) as folder:
            partial = folder / path.name
            yield partial
            _put(partial, path, folder, replace=replace)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error
    except TraceError as problem:  # from parts that are written with `appearing` themselves
        raise type(problem)(str(problem).replace(str(partial), str(path))) from problem


def _short(path: Path) -> str:
    """The name, shortened so that additions fit into the 255 bytes that file systems allow."""
    name = os.fsencode(path.name)
    if len(name) <= _LONGEST_SHORT:
        return path.name
    return f"{name[: _LONGEST_SHORT - 8].decode(errors='ignore')}{zlib.crc32(name):08x}"


@contextmanager
def hidden_folder(path: Path) -> Iterator[Path]:
    """A hidden folder next to a path, removed when the block ends or a signal ends the process. Raises OSError if it
    cannot be created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_away(path)
    folder = path.with_name(f".{_short(path)}.{uuid.uuid4().hex[:8]}.partial")
    lock = None
    with signals_unwind():
        try:
            folder.mkdir()
            lock = lock_folder(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def is_leftover(path: Path) -> bool:
    """Whether the path is a folder that a killed writer left."""
    return path.name.endswith(".partial") and not path.is_symlink() and (path / _LOCK).is_file()


def _exists(path: Path) -> bool:
    """Whether the path exists, even as a broken link."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def lock_folder(folder: Path) -> int:
    """Mark a folder as ours until the returned file descriptor is closed or this process ends. The lock file gets its
    name once it is locked, so no process finds it unlocked."""
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # some file systems have no locks; no other process gets this one there either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(folder / _LOCK)
    return lock


def take_folder(folder: Path) -> int:
    """Lock a folder that its writer left, as `lock_folder` does. Raises OSError: the folder is not marked, or its
    writer still runs."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def clear_away(path: Path) -> None:
    """Remove what killed writers to this path left; restore what one of them was about to replace."""
    named = re.compile(rf"\.{re.escape(_short(path))}\.[0-9a-f]{{8}}\.partial")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for folder in [Path(e.path) for e in entries if named.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]:
            with suppress(OSError):  # it is not ours, or its writer still runs
                lock = take_folder(folder)
                try:
                    if _exists(folder / _REPLACED) and not _exists(path):
                        (folder / _REPLACED).rename(path)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)


def _put(new: Path, path: Path, folder: Path, *, replace: bool) -> None:
    """Move complete output to its destination, atomically where the file system can. Raises TraceError if the
    destination was created meanwhile and must not be replaced, OSError if the output cannot be moved."""
    there = _exists(path)
    problem = _rename(new, path, _EXCHANGE if replace and there else _NO_REPLACE)
    if problem == errno.EEXIST or (problem in _UNSUPPORTED and there and not replace):
        raise TraceError(f"{path}: already exists: it was created meanwhile; choose another name")
    if problem not in _UNSUPPORTED:
        if problem:
            raise OSError(problem, os.strerror(problem))
        return
    if there:
        path.rename(folder / _REPLACED)
    try:
        new.rename(path)
    except OSError:
        if there:
            (folder / _REPLACED).rename(path)
        raise


def _rename(old: Path, new: Path, flags: int) -> int:
    """Call Linux's renameat2; return its error number, 0 for success."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return errno.ENOSYS
    failed = library.renameat2(_HERE, os.fsencode(old), _HERE, os.fsencode(new), flags)
    return ctypes.get_errno() if failed else 0


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, where they would end the process immediately, into SystemExit with the shell's code."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
