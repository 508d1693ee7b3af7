"""The native form: Nsight Systems' parquetdir layout, one Parquet file per nsys table, in a directory.

A run directory is the same plus `run.json`, which is `trace.metadata["run"]`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tracer.errors import FormatError
from tracer.formats import Format, nsys, register
from tracer.formats.nsys_schema import COLUMNS
from tracer.formats.nsys_tables import from_trace
from tracer.formats.partial import appearing
from tracer.trace import Trace

RUN_FILE: Final = "run.json"
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
    tables = {name: _read_table(file, name, whole) for name, file in files.items()}
    try:
        trace = nsys.to_trace(tables, whole=whole)
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


def _read_table(file: Path, name: str, whole: bool) -> pa.Table:
    try:
        with pq.ParquetFile(file) as parquet:
            columns = None if whole else [c for c in COLUMNS[name] if c in parquet.schema_arrow.names]
            table = parquet.read(columns=columns)
        return nsys.typed(table, name)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{file}: is no Parquet file, or a damaged one: {str(error).splitlines()[0]}") from error


def _write_table(table: pa.Table, file: Path) -> None:
    delta = {c: "DELTA_BINARY_PACKED" for c in _DELTA if c in table.column_names}
    others = [c for c in table.column_names if c not in delta]
    pq.write_table(
        table, file, compression="zstd", compression_level=9, use_dictionary=others,
        column_encoding=delta or None, write_statistics=False, store_schema=False,
    )  # fmt: skip


def _read_run(file: Path) -> dict[str, Any]:
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file}: is no JSON: {error}") from error
    if not isinstance(run, dict):
        raise FormatError(f"{file}: holds a {type(run).__name__}, not a JSON object")
    return run


register(Format("nsys parquetdir or run directory", "", sniff, read, write, carries=True))
