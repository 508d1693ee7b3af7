"""The native format: Nsight Systems' parquetdir layout, a directory with one Parquet file per nsys table.

A run directory is the same plus `run.json`, which is `trace.metadata["run"]`. `nsys recipe NAME --input X.nsys-rep`
reads `X_pqtdir` next to the report if it is newer than the report. A directory that we write under such a name has
every table that a recipe may query.

`read_directory` also reads arrowdir (`ARROW`), which has an Arrow stream in the place of each Parquet file. Read only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracer.errors import FormatError
from tracer.files.bounded import check_regular, check_unpacked, json_of
from tracer.files.output import appearing
from tracer.formats import WHOLE, Format, nsys
from tracer.formats.nsys import plainly_named, typed, without_what_changed
from tracer.formats.nsys_schema import COLUMNS, SAMPLED, Versioned, newest_versions, read_first
from tracer.formats.nsys_tables import completed, from_trace
from tracer.model.trace import Trace
from tracer.progress import tell

RUN_FILE: Final = "run.json"
_SUFFIX: Final = ".parquet"
_FOR_RECIPES: Final = "_pqtdir"
_FEW_ROWS: Final = 1 << 16
_READERS: Final = 2
_DELTA: Final = ("start", "end", "correlationId")  # nearly sorted: small as differences

Load = Callable[[Path, str, Versioned, list[str] | None], pa.Table]
"""Reads the `wanted` columns of the named table from a file, with their names in the file."""
Schema = Callable[[Path], pa.Schema]
"""Reads the schema of a file."""


def sniff_directory(path: Path, suffix: str) -> bool:
    """Whether the path is a directory with a file named after an nsys table."""
    return path.is_dir() and any((path / f"{table}{suffix}").is_file() for table in COLUMNS)


def read_directory(
    path: Path, suffix: str, schema: Schema, load: Load, *, whole: bool = False, samples: bool = False
) -> Trace:
    """Read a trace from a directory's tables. Missing tables are empty in it. `whole` lets it carry all other data.
    Samples are read only with `samples` or `whole`.

    Raises:
        FormatError: it has no nsys table, or a file is damaged.
    """
    chosen, notes = read_first(samples), list[str]()
    stored = {file.stem: file for file in sorted(path.glob(f"*{suffix}"))}
    versions = newest_versions(stored, lambda name: _guarded(stored[name], lambda: schema(stored[name]).names), notes)
    plain = stored.keys() - {version.name for version in versions.values()}
    versions = dict(sorted(({name: Versioned(name) for name in plain} | versions).items()))
    files = {name: stored[of.name] for name, of in versions.items() if whole or name in chosen}
    if not files.keys() & COLUMNS.keys():
        raise FormatError(f"{path}: directory holds no nsys tables (TABLE{suffix})")
    left_out: list[str] = []
    tables, done, total = {}, 0, sum(file.stat().st_size for file in files.values())
    for name, file in files.items():
        table = _read_table(file, name, versions[name], load, left_out if whole else None)
        if table.num_columns:
            tables[name] = table
        done += file.stat().st_size
        tell(done, total)
    try:
        trace = nsys.to_trace(tables, whole=whole, samples=samples, left_out=left_out)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    trace.notes += [note for note in notes if note not in trace.notes]
    return trace


def wanted(schema: pa.Schema, name: str, version: Versioned, left_out: list[str] | None) -> list[str]:
    """The columns of an nsys table to read, by the schema of its file and with their names there: the known ones, and
    all others if `left_out` is given, which receives those whose names or types (such as lists) occur in no export.

    Raises:
        FormatError: two columns have the same name, or a known one holds neither numbers nor text. The file is not
            named.
    """
    if len(set(schema.names)) < len(schema.names):
        raise FormatError("has two columns of the same name")
    known, stored = COLUMNS.get(name, {}), dict(zip(version.known(schema.names), schema.names, strict=True))
    flat = [column for column, field in zip(stored, schema, strict=True) if _is_flat(field.type)]
    for column, field in zip(stored, schema, strict=True):
        if column in known and column not in flat:
            raise FormatError(f"table {name}, column {column} holds {field.type}, not numbers or text")
    if left_out is None:
        return [stored[column] for column in flat if column in known]
    left_out += [f"{name}.{column}" for column in stored if column not in flat]
    return [stored[column] for column in plainly_named(name, flat, left_out)]


def is_number(type: pa.DataType) -> bool:
    """Whether a column holds numbers; this includes booleans, which nsys writes in Parquet."""
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type))


def _is_flat(type: pa.DataType) -> bool:
    type = type.value_type if pa.types.is_dictionary(type) else type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return is_number(type) or pa.types.is_null(type) or any(is_text(type) for is_text in texts)


def _read_table(file: Path, name: str, version: Versioned, load: Load, left_out: list[str] | None) -> pa.Table:
    def read() -> pa.Table:
        table = load(file, name, version, left_out)
        return typed(table.rename_columns(version.known(table.column_names)), name)

    return _guarded(file, read)


def _guarded(file: Path, read: Callable[[], Any]) -> Any:
    """What it reads from the file; what it raises becomes FormatError."""
    try:
        check_regular(file)
        return read()
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = file.suffix.lstrip(".").capitalize()
        reason = (str(error).splitlines() or [""])[0]
        raise FormatError(f"{file}: not a valid {kind} file: {reason}") from error


def sniff(path: Path) -> bool:
    """Whether the path is a directory with a Parquet file named after an nsys table."""
    return sniff_directory(path, _SUFFIX)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a parquetdir or run directory, as `read_directory`."""
    trace = read_directory(path, _SUFFIX, _schema, _load, whole=whole, samples=samples)
    if (path / RUN_FILE).exists():
        trace.metadata["run"] = read_run(path / RUN_FILE)
    return trace


def _schema(file: Path) -> pa.Schema:
    with file.open("rb") as opened:
        return pq.read_schema(opened)


def _load(file: Path, name: str, version: Versioned, left_out: list[str] | None) -> pa.Table:
    with file.open("rb") as opened, pq.ParquetFile(opened) as parquet:  # Arrow cannot open paths that are not UTF-8
        metadata, schema = parquet.metadata, parquet.schema_arrow
    columns, packed = wanted(schema, name, version, left_out), file.stat().st_size
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
    """Write a parquetdir, with run.json if the trace has `metadata["run"]`. It appears complete or not at all. Raises
    TraceError if the path exists or cannot be written."""
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
    """Read a run.json. Raises FormatError: not a regular file, not a JSON object, or too large."""
    try:
        run = json_of(file)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    if not isinstance(run, dict):
        raise FormatError(f"{file}: holds a {type(run).__name__}, not a JSON object")
    return run


def _schema_of_arrow(file: Path) -> pa.Schema:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
        return stream.schema


def _load_arrow(file: Path, name: str, version: Versioned, left_out: list[str] | None) -> pa.Table:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
        columns, size = wanted(stream.schema, name, version, left_out), 0
        batches: list[pa.RecordBatch] = []
        for batch in stream:
            batches.append(batch.select(columns))
            size += batch.nbytes
            check_unpacked(size, source.size())
        table = pa.Table.from_batches(batches, pa.schema([stream.schema.field(column) for column in columns]))
    table.validate(full=True)  # without this the stream's offsets and lengths are trusted
    return table


ARROW: Final = Format(
    "nsys arrowdir", "", partial(sniff_directory, suffix=".arrow"),
    partial(read_directory, suffix=".arrow", schema=_schema_of_arrow, load=_load_arrow), options=WHOLE | {SAMPLED},
    is_part=lambda path: path.is_file() and path.suffix == ".arrow",
)  # fmt: skip
FORMAT: Final = Format(
    "nsys parquetdir or run directory", "", sniff, read, write, options=WHOLE | {SAMPLED}, is_part=is_part
)
