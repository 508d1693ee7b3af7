"""Directories with one file per nsys table, whatever the kind of file: parquetdir and arrowdir."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tracer.errors import FormatError
from tracer.formats import nsys
from tracer.formats.nsys_schema import COLUMNS
from tracer.trace import Trace

Load = Callable[[Path, list[str] | None], pa.Table]
"""Reads a file's table: of the columns those that are named, or all."""


def sniff_directory(path: Path, suffix: str) -> bool:
    """Whether the path is a directory with a file named as a nsys table."""
    return path.is_dir() and any((path / f"{table}{suffix}").is_file() for table in COLUMNS)


def read_directory(path: Path, suffix: str, load: Load, *, whole: bool) -> Trace:
    """The trace of a directory's tables; what it lacks is empty in the trace.

    Raises:
        FormatError: no nsys table in it, or a damaged file.
    """
    files = {file.stem: file for file in sorted(path.glob(f"*{suffix}")) if whole or file.stem in COLUMNS}
    if not files.keys() & COLUMNS.keys():
        raise FormatError(f"{path}: directory holds no nsys tables (TABLE{suffix})")
    tables = {name: _read_table(file, name, load, whole) for name, file in files.items()}
    try:
        return nsys.to_trace(tables, whole=whole)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _read_table(file: Path, name: str, load: Load, whole: bool) -> pa.Table:
    try:
        return nsys.typed(load(file, None if whole else list(COLUMNS[name])), name)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = file.suffix.lstrip(".").capitalize()
        reason = (str(error).splitlines() or [""])[0]
        raise FormatError(f"{file}: is no {kind} file, or a damaged one: {reason}") from error
