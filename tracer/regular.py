"""Only regular files are read: opening a FIFO waits for a writer that may never come, and a device may do anything."""

from __future__ import annotations

from pathlib import Path

from tracer.errors import FormatError


def check_regular(path: Path) -> None:
    """Raise FormatError where a path leads to neither a file nor a directory; the path is not in the message.

    A directory, and what is not there, is left to whoever opens it.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FormatError("is no regular file")
