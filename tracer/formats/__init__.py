"""Trace formats, one file each. A format registers itself on its last line; `read` and `write` find it.

Adding a format: write `formats/NAME.py` with `sniff(path) -> bool`, `read(path) -> Trace` and
`write(trace, path)`, end it with `register(...)`, and import it at the foot of this file.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracer.errors import FormatError, TraceError, printable
from tracer.trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format.

    Attributes:
        name: for messages.
        suffix: what a file of this format ends with when written; "" for a directory.
        sniff: whether a path holds this format, judged by its content.
        read: path -> Trace; raises FormatError with one clear line.
        carries: whether `read` takes `whole=True`, for a trace that carries what it has no columns for.
        write: (trace, path); None where the format can only be read.
        aliases: other suffixes under which it is written too.
    """

    name: str
    suffix: str
    sniff: Callable[[Path], bool]
    read: Callable[..., Trace]
    write: Callable[[Trace, Path], None] | None = None
    aliases: tuple[str, ...] = ()
    carries: bool = False


_formats: list[Format] = []
_SUFFIX: Final = re.compile(r"\.[a-z]\w*(-rep)?", re.IGNORECASE)
"""What counts as a suffix; the end of `llama-1.1b-sccc` does not."""


def register(format: Format) -> None:
    """Make a format known to `read` and `write`."""
    _formats.append(format)


def registered() -> tuple[Format, ...]:
    """All known formats, in the order in which they are tried."""
    return tuple(_formats)


def is_trace(path: Path) -> bool:
    """Whether some format recognises the path."""
    return any(f.sniff(path) for f in _formats)


def read(path: str | Path, *, whole: bool = True) -> Trace:
    """Read a recording of any known format.

    Args:
        path: the recording.
        whole: let the trace carry what the file holds beyond its columns, to be written again. Without it, reading
            is faster; no analysis looks at what is carried.

    Raises:
        FormatError: no such path, not a trace, or a damaged one.
    """
    source = Path(path)
    if not source.exists():
        raise FormatError(f"{source}: no such file or directory")
    if source.is_file() and source.stat().st_size == 0:
        raise FormatError(f"{source}: the file is empty")
    try:
        for f in _formats:
            if f.sniff(source):
                return f.read(source, whole=whole) if f.carries else f.read(source)
    except OSError as error:
        raise FormatError(f"{source}: cannot be read: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(printable(str(error))) from error
    what = "directory holds no trace" if source.is_dir() else "is not a trace"
    raise FormatError(f"{source}: {what}; expected one of: {', '.join(f.name for f in _formats)}")


def write(trace: Trace, path: str | Path, *, replace: bool = False) -> None:
    """Write a trace in the format that the path's suffix names (a directory for none).

    What `replace` replaces stays as it was until the new recording is complete.

    Raises:
        FormatError: see `check_writable`.
        TraceError: the disk is full, the place is not ours to write, ...
    """
    target = Path(path)
    writer = check_writable(target, replace=replace)
    if not target.exists():
        writer(trace, target)
        return
    new, old = (target.with_name(f".{uuid.uuid4().hex[:8]}.{target.name}") for _ in range(2))
    writer(trace, new)
    try:
        if target.is_dir():
            os.rename(target, old)
        os.replace(new, target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise TraceError(f"{target}: cannot be replaced by {new}: {error.strerror}") from error


def check_writable(path: str | Path, *, replace: bool = False) -> Callable[[Trace, Path], None]:
    """What would write a trace to a path; worth asking before a long recording.

    Raises:
        FormatError: no format that can be written has that suffix; or the path exists already, and
            `replace` is not given or something else than a recording would be lost.
    """
    target = Path(path)
    if target.exists() and not replace:
        raise FormatError(f"{target}: exists already; choose another name")
    suffix = target.suffix.lower() if _SUFFIX.fullmatch(target.suffix) else ""
    writers = {s: f.write for f in _formats if f.write is not None for s in (f.suffix, *f.aliases)}
    if suffix not in writers:
        known = ", ".join(f"{f.name} ({f.suffix or 'a directory'})" for f in _formats if f.write is not None)
        raise FormatError(f"{target}: cannot write {suffix}; known are {known}")
    if target.exists():
        _check_replaceable(target, a_directory=not suffix)
    return writers[suffix]


def _check_replaceable(target: Path, *, a_directory: bool) -> None:
    if target.is_dir() != a_directory:
        raise FormatError(f"{target}: is {'a directory' if target.is_dir() else 'a file'}; choose another name")
    others = [p.name for p in target.iterdir() if not nsys_parquet.is_part(p)] if a_directory else []
    if others:
        raise FormatError(f"{target}: is not replaced, it holds more than a recording: {', '.join(sorted(others)[:3])}")


from tracer.formats import chrome, nsys_parquet, nsys_rep, nsys_sqlite  # noqa: E402

__all__ = [
    "Format",
    "check_writable",
    "chrome",
    "is_trace",
    "nsys_parquet",
    "nsys_rep",
    "nsys_sqlite",
    "read",
    "register",
    "registered",
    "write",
]
