"""The native format: Nsight Systems' parquetdir layout, a directory with one Parquet file per nsys table.

A run directory is the same plus `run.json`, which is `trace.metadata["run"]`. `nsys recipe NAME --input X.nsys-rep`
reads `X_pqtdir` next to the report if it is newer than the report. A directory that we write under such a name has
every table that a recipe may query.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracer.errors import FormatError
from tracer.files.bounded import check_unpacked, json_of
from tracer.files.output import appearing
from tracer.formats import WHOLE, Format
from tracer.formats.nsys_changed import without_what_changed
from tracer.formats.nsys_directory import is_number, read_directory, sniff_directory, wanted
from tracer.formats.nsys_schema import SAMPLED
from tracer.formats.nsys_tables import completed, from_trace
from tracer.model.trace import Trace

RUN_FILE: Final = "run.json"
_SUFFIX: Final = ".parquet"
_FOR_RECIPES: Final = "_pqtdir"
_FEW_ROWS: Final = 1 << 16
_READERS: Final = 2
_DELTA: Final = ("start", "end", "correlationId")  # nearly sorted: small as differences


def sniff(path: Path) -> bool:
    """Whether the path is a directory with a Parquet file named after an nsys table."""
    return sniff_directory(path, _SUFFIX)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a parquetdir or run directory. Missing tables are empty in the trace.

    `whole` lets the trace carry all other data in the directory. Samples are read only with `samples` or
    `whole`.

    Raises:
        FormatError: it has no nsys table, or a file is damaged.
    """
    trace = read_directory(path, _SUFFIX, _load, whole=whole, samples=samples)
    if (path / RUN_FILE).exists():
        trace.metadata["run"] = read_run(path / RUN_FILE)
    return trace


def _load(file: Path, name: str, left_out: list[str] | None) -> pa.Table:
    with file.open("rb") as opened, pq.ParquetFile(opened) as parquet:  # Arrow cannot open paths that are not UTF-8
        metadata, schema = parquet.metadata, parquet.schema_arrow
    columns, packed = wanted(schema, name, left_out), file.stat().st_size
    _check_size(metadata, columns, packed)
    texts = [column for column in columns if not is_number(schema.field(column).type)]

    def read(columns: list[str]) -> pa.Table:
        with file.open("rb") as opened, pq.ParquetFile(opened, metadata=metadata, read_dictionary=texts) as parquet:
            return parquet.read(columns=columns, use_threads=False)

    if metadata.num_rows < _FEW_ROWS:
        table = read(columns)
    else:  # one column per reader at a time, however many cores there are
        with ThreadPoolExecutor(_READERS) as pool:
            parts = list(pool.map(read, [[column] for column in columns]))
        table = pa.table({column: part[column] for column, part in zip(columns, parts, strict=True)})
    _check_texts(table, packed)
    return table


def write(trace: Trace, path: Path) -> None:
    """Write a parquetdir, with run.json if the trace has `metadata["run"]`. It appears complete or not at all.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    with appearing(path) as partial:
        partial.mkdir()
        tables = from_trace(without_what_changed(trace), with_run=False)
        for name, make in (completed(tables) if path.name.endswith(_FOR_RECIPES) else tables).items():
            _write_table(make(), partial / f"{name}{_SUFFIX}")
        if "run" in trace.metadata:
            (partial / RUN_FILE).write_text(json.dumps(trace.metadata["run"], indent=2) + "\n", encoding="utf-8")


def is_part(path: Path) -> bool:
    """Whether a file in a directory is part of its recording, which `write` would replace."""
    return path.is_file() and (path.suffix == _SUFFIX or path.name == RUN_FILE)


def _check_size(metadata: pq.FileMetaData, columns: list[str], packed: int) -> None:
    """Raise FormatError if the columns would take too much memory; checked before unpacking.

    Only totals of row groups are read: reading their column metadata crashes the process for some damaged files
    (pyarrow 26). A page whose header misstates its size can still take up to 2 GiB, one at a time per reader.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(max(group.total_byte_size, 8 * group.num_rows * len(columns)) for group in groups)
    check_unpacked(size, packed)


def _check_texts(table: pa.Table, packed: int) -> None:
    """Raise FormatError if dictionary-encoded texts would take too much memory when decoded."""
    chunks = (chunk for column in table.columns if pa.types.is_dictionary(column.type) for chunk in column.chunks)
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks)
    size = sum(pc.sum(length.cast(pa.int64())).as_py() or 0 for length in lengths)
    check_unpacked(size, packed)


def _write_table(table: pa.Table, file: Path) -> None:
    integers = {field.name for field in table.schema if pa.types.is_integer(field.type)}
    delta = {c: "DELTA_BINARY_PACKED" for c in _DELTA if c in integers}
    others = [c for c in table.column_names if c not in delta]
    # Columns without NULL are declared as such, which makes reading a quarter faster.
    known = pa.schema([field.with_nullable(table[field.name].null_count > 0) for field in table.schema])
    with file.open("wb") as opened:
        pq.write_table(
            table.cast(known), opened, compression="zstd", compression_level=9, use_dictionary=others,
            column_encoding=delta or None, write_statistics=False, store_schema=False,
            row_group_size=max(1, len(table)),  # a single row group is read without copying
        )  # fmt: skip


def read_run(file: Path) -> dict[str, Any]:
    """Read a run.json.

    Raises:
        FormatError: not a regular file, not a JSON object, or too large.
    """
    try:
        run = json_of(file)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    if not isinstance(run, dict):
        raise FormatError(f"{file}: holds a {type(run).__name__}, not a JSON object")
    return run


FORMAT: Final = Format("nsys parquetdir or run directory", "", sniff, read, write, options=WHOLE | {SAMPLED})
