"""The check that a file is regular: opening a FIFO may wait forever for a writer, and a device may do anything."""

from __future__ import annotations

from pathlib import Path

from tracer.errors import FormatError


def check_regular(path: Path) -> None:
    """Raise FormatError if a path is neither a file nor a directory; the message does not contain the path.

    Directories and missing files pass: the code that opens the path reports them.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FormatError("not a regular file")
