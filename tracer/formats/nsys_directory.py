"""Directories with one file per nsys table: parquetdir and arrowdir."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tracer.errors import FormatError
from tracer.files.bounded import check_regular
from tracer.formats import nsys
from tracer.formats.nsys_carry import plainly_named
from tracer.formats.nsys_schema import COLUMNS, read_first
from tracer.model.trace import Trace
from tracer.progress import tell

Load = Callable[[Path, str, list[str] | None], pa.Table]
"""Reads the `wanted` columns of the named table from a file."""


def sniff_directory(path: Path, suffix: str) -> bool:
    """Whether the path is a directory with a file named after an nsys table."""
    return path.is_dir() and any((path / f"{table}{suffix}").is_file() for table in COLUMNS)


def read_directory(path: Path, suffix: str, load: Load, *, whole: bool, samples: bool) -> Trace:
    """Read a trace from a directory's tables. Missing tables are empty in the trace.

    Samples are read only with `samples` or `whole`.

    Raises:
        FormatError: it has no nsys table, or a file is damaged.
    """
    chosen = read_first(samples)
    files = {file.stem: file for file in sorted(path.glob(f"*{suffix}")) if whole or file.stem in chosen}
    if not files.keys() & COLUMNS.keys():
        raise FormatError(f"{path}: directory holds no nsys tables (TABLE{suffix})")
    left_out: list[str] = []
    tables, done, total = {}, 0, sum(file.stat().st_size for file in files.values())
    for name, file in files.items():
        table = _read_table(file, name, load, left_out if whole else None)
        if table.num_columns:
            tables[name] = table
        done += file.stat().st_size
        tell(done, total)
    try:
        return nsys.to_trace(tables, whole=whole, left_out=left_out)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def wanted(schema: pa.Schema, name: str, left_out: list[str] | None) -> list[str]:
    """The columns of a table to read: the known ones, and all others if `left_out` is given.

    Args:
        schema: the schema of the file.
        name: the nsys table.
        left_out: receives the columns whose names or types (such as lists) occur in no export.

    Raises:
        FormatError: two columns have the same name, or a known one holds neither numbers nor text. The file is not
            named.
    """
    if len(set(schema.names)) < len(schema.names):
        raise FormatError("has two columns of the same name")
    known = COLUMNS.get(name, {})
    flat = [field.name for field in schema if _is_flat(field.type)]
    for field in schema:
        if field.name in known and field.name not in flat:
            raise FormatError(f"table {name}, column {field.name} holds {field.type}, not numbers or text")
    if left_out is None:
        return [column for column in flat if column in known]
    left_out += [f"{name}.{column}" for column in schema.names if column not in flat]
    return plainly_named(name, flat, left_out)


def is_number(type: pa.DataType) -> bool:
    """Whether a column holds numbers; this includes booleans, which nsys writes in Parquet."""
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type))


def _is_flat(type: pa.DataType) -> bool:
    type = type.value_type if pa.types.is_dictionary(type) else type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return is_number(type) or pa.types.is_null(type) or any(is_text(type) for is_text in texts)


def _read_table(file: Path, name: str, load: Load, left_out: list[str] | None) -> pa.Table:
    try:
        check_regular(file)
        return nsys.typed(load(file, name, left_out), name)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = file.suffix.lstrip(".").capitalize()
        reason = (str(error).splitlines() or [""])[0]
        raise FormatError(f"{file}: not a valid {kind} file: {reason}") from error
