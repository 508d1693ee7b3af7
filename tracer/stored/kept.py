"""Reads a recording once: what one command has parsed is available to the next one, see `tracer.stored.cache`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracer import formats
from tracer.model.trace import Trace
from tracer.stored.cache import TRACE, Cache, directory_of_user

LEAST: Final = 4 << 20
"""Recordings of at least this many bytes are cached; smaller ones are parsed about as fast as they are loaded."""


FUNCTIONS: Final = f"{TRACE} with Python functions"
"""The part of a cache that holds a trace with the functions that its format leaves out by default."""


def read(path: Path, *, python_functions: bool = False) -> Trace:
    """Read a recording without the data that no analysis uses (see `formats.read`): from the user's cache, or else from
    the file, which is then cached.

    Args:
        path: the recording.
        python_functions: whether to keep the functions that its format leaves out by default.

    Raises:
        FormatError: see `formats.read`.
        UsageError: the environment variable for the cache has an invalid value.
    """
    directory = directory_of_user()
    asked = formats.functions_of(path) if python_functions else {}
    if directory is None or _size(path) < LEAST:
        return formats.read(path, whole=False, **asked)
    cache, part = Cache(directory), FUNCTIONS if asked else TRACE
    kept = kept_trace(path, cache, part)
    if kept is not None:
        return kept
    try:
        entry = cache.entry(path, part)
    except OSError:  # reading it says why
        entry = None
    trace = formats.read(path, whole=False, **asked)
    if entry is not None:
        cache.save(path, trace, part, entry)
    return trace


def kept_trace(path: Path, cache: Cache, part: str = TRACE) -> Trace | None:
    """The cached trace of a recording."""
    return cache.load(path, (Trace,), _whole, part)


def _whole(kept: object) -> Trace:
    if not isinstance(kept, Trace):
        raise TypeError(f"{type(kept).__name__} is not a trace")
    return kept


def _size(path: Path) -> int:
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except OSError:  # reading it says why
        return 0
