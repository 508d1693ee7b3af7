"""Processes that read recordings, so that a file that crashes, exhausts or stalls its reader affects nothing else.

Both they and the server return freed memory as `mallopt(3)` says; C libraries other than glibc are not changed.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from tracer import progress
from tracer.errors import TraceError, printable
from tracer.stored import Cache, set_options

_ARENA_MAX: Final = -8
_MMAP_MAX: Final = -4
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_ARENAS: Final = 2
_LARGE: Final = 256 * 1024  # bytes
_NEVER: Final = 2**31 - 1  # bytes; a C int holds no more

_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork would share locks that other threads hold
SECONDS: Final = 600.0
_BYTES_PER_SECOND: Final = 1_000_000  # a tenth of the slowest rate measured, so that large files have time
_AT_ONCE: Final = 2
_MOST_TASKS: Final = 20  # then a new process takes over, which frees the old one's heap
_LOOK: Final = 0.1  # s between two polls of its progress
_START: Final = 300.0  # s for a process to start, on a busy machine
_GRACE: Final = 10.0  # s for a process to end after it has closed its pipe
_LONGEST_ANSWER: Final = 1 << 16  # bytes
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
_log = logging.getLogger(__name__)
_STATM: Final = Path("/proc/self/statm")
_LONGEST: Final = 10_000  # bytes of an answer


def half_of_memory() -> int:
    """Half the memory of this machine or container, bytes."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_CGROUP.read_text())) // 2
    except (OSError, ValueError):  # no container, or one without a limit
        return whole // 2


@dataclass(frozen=True)
class Limits:
    """Limits on reading one recording.

    Attributes:
        memory: bytes, in addition to those of an idle reader.
        seconds: wall-clock time; a file or directory gets one more second per megabyte.
    """

    memory: int = field(default_factory=half_of_memory)
    seconds: float = SECONDS

    def seconds_for(self, path: Path) -> float:
        """The time limit for reading a path."""
        try:
            files = list(path.iterdir()) if path.is_dir() else [path]
            return self.seconds + sum(file.stat().st_size for file in files) / _BYTES_PER_SECOND
        except OSError:  # reading it gives the reason
            return self.seconds


class Readers:
    """Readers of recordings. Safe to use from several threads; the processes are started when first needed.

    This uses plain `multiprocessing`: the pools of the standard library break when one of their processes ends, and
    Pebble (5.2) loses the task of a process that ends directly after its start.

    Args:
        prepare: called in each new process, such as to register more formats.
        within: a directory for their data; by default the one for temporary files.

    Attributes:
        cache: the cache for parsed recordings that are deleted with the readers.
    """

    def __init__(
        self, limits: Limits | None = None, prepare: Callable[[], None] | None = None, within: Path | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._folder = TemporaryDirectory(prefix="read-", dir=within)
        self.cache = Cache(Path(self._folder.name) / "kept")
        self._prepare = prepare
        self._free = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    def start(self) -> None:
        """Start a process in advance."""
        self._give_back(self._take_process())

    def close(self) -> None:
        """Terminate the processes and remove their files."""
        with self._lock:
            self._closed = True
            every = list(self._all)
        for process in every:
            process.end()
        self._folder.cleanup()

    def do(self, path: Path, work: Callable[..., None], *arguments: Any) -> None:
        """Have a reader call `work(path, *arguments)`, and report its progress as `tracer.progress` does.

        Raises:
            TraceError: the recording cannot be read, or reading it ended the reader or exceeded a limit.
        """
        with self._free:
            process = self._take_process()
            try:
                problem = process.do(path, work, arguments, self.limits.seconds_for(path))
            except BaseException:
                process.end()
                raise
            finally:
                if not process.is_alive:
                    self.cache.remove_unfinished(process.pid)
                self._give_back(process)
        if problem is not None:
            raise TraceError(problem)

    def _take_process(self) -> _Process:
        with self._lock:
            if self._closed:
                raise TraceError("the readers have ended")
            for process in [one for one in self._idle if not one.is_alive]:
                process.end()
                self._idle.remove(process)
                self._all.discard(process)
            if self._idle:
                return self._idle.pop()
            process = _Process(self.limits.memory, self._prepare, Path(self._folder.name))
            self._all.add(process)
            return process

    def _give_back(self, process: _Process) -> None:
        if process.done >= _MOST_TASKS:
            process.end()
        with self._lock:
            if process.is_alive and not self._closed:
                self._idle.append(process)
            else:
                self._all.discard(process)


class _Process:
    """One process, which handles one task at a time, and counts them.

    Its temporary files are in its own directory below `within`, which is removed however the process ends.
    """

    def __init__(self, memory: int, prepare: Callable[[], None] | None, within: Path) -> None:
        self.done = 0
        self._scratch = TemporaryDirectory(prefix="reader-", dir=within)
        self._share = _SPAWN.RawValue("d", 0.0)
        self._line, theirs = _SPAWN.Pipe()
        given = (theirs, memory, self._share, self._scratch.name, prepare)
        self._process = _SPAWN.Process(target=serve, args=given, name="reader", daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._scratch.cleanup()

    def do(self, path: Path, work: Callable[..., None], arguments: tuple[Any, ...], seconds: float) -> str | None:
        """A one-line error, or nothing; progress goes to listeners of `tracer.progress`."""
        try:
            if not self.done:  # its start does not count towards the recording's time
                self._answer(_START)
            self.done += 1
            self._share.value = 0.0
            self._line.send((work, path, arguments))
            return self._answer(seconds) or None
        except TimeoutError:
            self.end()
            return f"{path}: reading it took longer than {seconds:.0f} s (--reader-seconds); it is not shown"
        except (EOFError, OSError):
            self._process.join(_GRACE)
            self.end()
            return f"{path}: its reader process ended ({_how(self._process.exitcode)}); it is not shown"

    def _answer(self, seconds: float) -> str:
        """The reader's next message; as bytes, because a process that read an untrusted file must not send pickles."""
        end = time.monotonic() + seconds
        while not wait([self._line, self._process.sentinel], _LOOK):
            progress.tell(int(self._share.value * 1000), 1000)
            if time.monotonic() > end:
                raise TimeoutError
        return self._line.recv_bytes(_LONGEST_ANSWER).decode("utf-8", "replace")


def _how(exitcode: int | None) -> str:
    """How a process ended, with the name of the signal if it was ended by one."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    names = {known.value: known.name.removeprefix("SIG") for known in signal.Signals}
    return f"signal {names.get(-exitcode, -exitcode)}"


def serve(line: Connection, memory: int, share: Any, scratch: str, prepare: Callable[[], None] | None) -> None:
    """Report readiness with an empty message; then handle tasks, answering each with nothing or a one-line error.

    Args:
        line: receives (work, path, arguments).
        memory: maximum number of bytes that reading may take.
    """
    tempfile.tempdir = scratch
    keep_memory()
    set_options()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    held = int(_STATM.read_text().split()[5]) * resource.getpagesize()  # allocators reserve a gigabyte at once
    for kind, most in ((resource.RLIMIT_DATA, held + memory), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if prepare is not None:
        prepare()
    line.send_bytes(b"")
    while True:
        try:
            work, path, arguments = line.recv()
        except EOFError:
            return
        answer = done(memory, share, work, path, *arguments)
        line.send_bytes(answer.encode("utf-8", "replace")[:_LONGEST])


def done(memory: int, share: Any, work: Callable[..., None], path: Path, *arguments: Any) -> str:
    """Handle a task; return nothing, or a one-line error."""

    def report_share(done: float) -> None:
        share.value = done

    try:
        with progress.listening(report_share):
            work(path, *arguments)
    except TraceError as problem:
        return str(problem)
    except MemoryError:
        return f"{path}: reading it takes more than {memory / 1e9:.1f} GB of memory (--reader-memory); it is not shown"
    except Exception as problem:  # an internal error
        _log.exception("%s cannot be shown", path)
        return printable(f"{path}: cannot be shown: {type(problem).__name__}: {problem}")
    finally:
        pa.default_memory_pool().release_unused()
        trim()
    return ""


def _end_with_parent() -> None:
    """Make this process end with the server, even if the server is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def give_memory_back() -> None:
    """Make the C library return freed memory to the system; call it before threads are started.

    glibc gives each thread a separate arena, up to eight per core, and memory freed in one arena serves no other.
    With a server's threads the heap then grows for hours though the memory in use does not. Two arenas for all threads,
    and a separate mapping for each large block, with a fixed threshold, which glibc would otherwise raise when one is
    freed.
    """
    _set((_ARENA_MAX, _ARENAS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE))


def keep_memory() -> None:
    """Make the C library reuse the memory of large arrays, until `trim`; call it before threads are started.

    By default each is a separate mapping, whose pages the system zeroes each time: that was half of the processor time
    of reading ten million events.
    """
    _set((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))


def trim() -> None:
    """Return what is free now to the system."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _set(*options: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)
