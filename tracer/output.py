"""Files that a command makes for its user: never over another one unasked, and whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tracer.errors import TraceError, UsageError
from tracer.formats.partial import appearing


def check_output(path: Path, what: str, suffixes: Iterable[str], *, replace: bool) -> None:
    """Refuse a path to which `what` (such as "a table") cannot go; worth asking before long work.

    Raises:
        UsageError: it ends with none of the suffixes, or exists and is not to be replaced.
    """
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: {what} ends with {' or '.join(suffixes)}")
    if path.exists() and not replace:
        raise UsageError(f"{path}: exists already; choose another name or --force")


def write_output(path: Path, write: Callable[[Path], object], *, replace: bool) -> None:
    """Let `write` make the file, which appears once it is complete.

    Raises:
        UsageError: it exists and is not to be replaced, or cannot be written.
    """
    try:
        with appearing(path, replace=replace) as partial:
            write(partial)
    except TraceError as problem:  # the path is the user's choice, and no recording is at fault
        raise UsageError(str(problem)) from None
