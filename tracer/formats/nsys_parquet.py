"""The native form: Nsight Systems' parquetdir layout, one Parquet file per nsys table, in a directory.

A run directory is the same plus `run.json`, which is `trace.metadata["run"]`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracer.errors import FormatError
from tracer.formats import Format, nsys, register
from tracer.formats.nsys_carry import plainly_named
from tracer.formats.nsys_schema import COLUMNS
from tracer.formats.nsys_tables import from_trace
from tracer.formats.partial import appearing
from tracer.trace import Trace
from tracer.typed_json import parsed

RUN_FILE: Final = "run.json"
_MOST_RATIO: Final = 200  # unpacked to packed; of the recordings we know it is at most 55
_ALWAYS_FINE: Final = 256 << 20  # bytes that no ratio makes suspicious
_MOST_RUN: Final = 8 << 20  # bytes of run.json
_DELTA: Final = ("start", "end", "correlationId")  # nearly sorted: small as differences


def sniff(path: Path) -> bool:
    """Whether the path is a directory with a Parquet file named as a nsys table."""
    return path.is_dir() and any(_file(path, table).is_file() for table in COLUMNS)


def read(path: Path, *, whole: bool = False) -> Trace:
    """Read a parquetdir or run directory; what it lacks is empty in the trace.

    `whole` lets the trace carry all else that the directory holds.

    Raises:
        FormatError: no nsys table in it, or a damaged file.
    """
    files = {file.stem: file for file in sorted(path.glob("*.parquet")) if whole or file.stem in COLUMNS}
    if not files.keys() & COLUMNS.keys():
        raise FormatError(f"{path}: directory holds no nsys tables (TABLE.parquet)")
    left_out: list[str] = []
    tables = {name: _read_table(file, name, left_out if whole else None) for name, file in files.items()}
    try:
        given = {name: table for name, table in tables.items() if table.num_columns}
        trace = nsys.to_trace(given, whole=whole, left_out=left_out)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    if (path / RUN_FILE).is_file():
        trace.metadata["run"] = _read_run(path / RUN_FILE)
    return trace


def write(trace: Trace, path: Path) -> None:
    """Write a parquetdir, with run.json if the trace has `metadata["run"]`. It appears whole or not at all.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    with appearing(path) as partial:
        partial.mkdir()
        for name, table in from_trace(trace, with_run=False).items():
            _write_table(table, _file(partial, name))
        if "run" in trace.metadata:
            (partial / RUN_FILE).write_text(json.dumps(trace.metadata["run"], indent=2) + "\n", encoding="utf-8")


def is_part(path: Path) -> bool:
    """Whether a file in a directory is part of its recording, which `write` would write anew."""
    return path.is_file() and (path.suffix == ".parquet" or path.name == RUN_FILE)


def _file(directory: Path, table: str) -> Path:
    return directory / f"{table}.parquet"


def _read_table(file: Path, name: str, left_out: list[str] | None) -> pa.Table:
    """The columns we know; with `left_out` all others too, but for those whose names it gets."""
    try:
        with pq.ParquetFile(file) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
        columns = _wanted(schema, name, left_out)
        if len(set(schema.names)) < len(schema.names):
            raise FormatError("has two columns of one name")
        _check_size(metadata, columns, _MOST_RATIO * file.stat().st_size)
        texts = [column for column in columns if not _is_number(schema.field(column).type)]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts) as parquet:
            table = parquet.read(columns=columns, use_threads=False)
        _check_texts(table, _MOST_RATIO * file.stat().st_size)
        return nsys.typed(table, name)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{file}: is no Parquet file, or a damaged one: {(str(error).splitlines() or [''])[0]}"
        ) from error


def _wanted(schema: pa.Schema, name: str, left_out: list[str] | None) -> list[str]:
    """The columns to read; types that no export has, such as lists, are not."""
    known = COLUMNS.get(name, {})
    flat = [field.name for field in schema if _is_flat(field.type)]
    for field in schema:
        if field.name in known and field.name not in flat:
            raise FormatError(f"table {name}, column {field.name} holds {field.type}, not numbers or text")
    if left_out is None:
        return [column for column in flat if column in known]
    left_out += [f"{name}.{column}" for column in schema.names if column not in flat]
    return plainly_named(name, flat, left_out)


def _is_flat(type: pa.DataType) -> bool:
    type = type.value_type if pa.types.is_dictionary(type) else type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return _is_number(type) or pa.types.is_null(type) or any(is_text(type) for is_text in texts)


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


def _check_size(metadata: pq.FileMetaData, columns: list[str], most: int) -> None:
    """What the columns take unpacked, before anything is.

    Row groups are not asked for their columns: of a damaged file that ends the process (pyarrow 26). A page whose own
    header lies about its size still takes up to 2 GiB, one at a time.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(max(group.total_byte_size, 8 * group.num_rows * len(columns)) for group in groups)
    if size > max(_ALWAYS_FINE, most):
        raise FormatError(f"unpacks to {size} bytes, more than {_MOST_RATIO} times its size; it is not read")


def _check_texts(table: pa.Table, most: int) -> None:
    """What texts that were read as indices into their distinct ones take at full length."""
    chunks = (chunk for column in table.columns if pa.types.is_dictionary(column.type) for chunk in column.chunks)
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks)
    size = sum(pc.sum(length.cast(pa.int64())).as_py() or 0 for length in lengths)
    if size > max(_ALWAYS_FINE, most):
        raise FormatError(f"its texts take {size} bytes, more than {_MOST_RATIO} times its size; it is not read")


def _write_table(table: pa.Table, file: Path) -> None:
    delta = {c: "DELTA_BINARY_PACKED" for c in _DELTA if c in table.column_names}
    others = [c for c in table.column_names if c not in delta]
    pq.write_table(
        table, file, compression="zstd", compression_level=9, use_dictionary=others,
        column_encoding=delta or None, write_statistics=False, store_schema=False,
    )  # fmt: skip


def _read_run(file: Path) -> dict[str, Any]:
    if (size := file.stat().st_size) > _MOST_RUN:
        raise FormatError(f"{file}: has {size} bytes; that is no file of ours")
    try:
        run = parsed(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file}: is no JSON: {error}") from error
    if not isinstance(run, dict):
        raise FormatError(f"{file}: holds a {type(run).__name__}, not a JSON object")
    return run


register(Format("nsys parquetdir or run directory", "", sniff, read, write, carries=True))
