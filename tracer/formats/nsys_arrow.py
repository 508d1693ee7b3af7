"""Nsight Systems' arrowdir layout: one Arrow stream per nsys table, in a directory. Read only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from tracer.files.bounded import check_unpacked
from tracer.formats import WHOLE, Format
from tracer.formats.nsys_parquet import read_directory, sniff_directory, wanted
from tracer.formats.nsys_schema import SAMPLED
from tracer.model.trace import Trace

_SUFFIX: Final = ".arrow"


def sniff(path: Path) -> bool:
    """Whether the path is a directory with an Arrow stream named after an nsys table."""
    return sniff_directory(path, _SUFFIX)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read an arrowdir. Missing tables are empty in the trace. `whole` lets the trace carry all other data.

    Samples are read only with `samples` or `whole`.

    Raises:
        FormatError: it has no nsys table, or a file is damaged.
    """
    return read_directory(path, _SUFFIX, _load, whole=whole, samples=samples)


def is_part(path: Path) -> bool:
    """Whether a file in a directory is part of its recording."""
    return path.is_file() and path.suffix == _SUFFIX


def _load(file: Path, name: str, left_out: list[str] | None) -> pa.Table:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
        columns, size = wanted(stream.schema, name, left_out), 0
        batches: list[pa.RecordBatch] = []
        for batch in stream:
            batches.append(batch.select(columns))
            size += batch.nbytes
            check_unpacked(size, source.size())
        table = pa.Table.from_batches(batches, pa.schema([stream.schema.field(column) for column in columns]))
    table.validate(full=True)  # without this the stream's offsets and lengths are trusted
    return table


FORMAT: Final = Format("nsys arrowdir", "", sniff, read, options=WHOLE | {SAMPLED}, is_part=is_part)
