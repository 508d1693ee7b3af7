"""The loop of a reader process, see `readers`: one recording at a time, within limits."""

from __future__ import annotations

import logging
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from dashboard import reading  # noqa: F401  # loaded before the first recording comes
from dashboard.reading.allocation import keep_memory, trim
from tracer import progress
from tracer.errors import TraceError, printable
from tracer.pandas_options import set_options

_log = logging.getLogger(__name__)
_STATM: Final = Path("/proc/self/statm")
_LONGEST: Final = 10_000  # bytes of an answer


def serve(line: Connection, memory: int, share: Any, scratch: str, prepare: Callable[[], None] | None) -> None:
    """Report readiness with an empty message; then handle tasks, answering each with nothing or a one-line error.

    Args:
        line: receives (work, path, arguments).
        memory: maximum number of bytes that reading may take.
        share: receives the completed share of the work.
        scratch: a directory for temporary files.
        prepare: called once before.
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
