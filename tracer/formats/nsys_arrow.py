"""Nsight Systems' arrowdir layout: one Arrow stream per nsys table, in a directory. Read only."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tracer.formats import WHOLE, Format, register
from tracer.formats.nsys_directory import read_directory, sniff_directory
from tracer.trace import Trace

_SUFFIX = ".arrow"


def sniff(path: Path) -> bool:
    """Whether the path is a directory with an Arrow stream named as a nsys table."""
    return sniff_directory(path, _SUFFIX)


def read(path: Path, *, whole: bool = False) -> Trace:
    """Read an arrowdir; what it lacks is empty in the trace. `whole` lets the trace carry all else that it holds.

    Raises:
        FormatError: no nsys table in it, or a damaged file.
    """
    return read_directory(path, _SUFFIX, _load, whole=whole)


def _load(file: Path, columns: list[str] | None) -> pa.Table:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
        table = stream.read_all()
    table.validate(full=True)  # the stream's own offsets and lengths are believed otherwise
    return table if columns is None else table.select([c for c in columns if c in table.column_names])


register(Format("nsys arrowdir", "", sniff, read, options=WHOLE))
