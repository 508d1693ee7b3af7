"""The native form: Nsight Systems' parquetdir layout, one Parquet file per nsys table, in a directory.

A run directory is the same plus `run.json`, which is `trace.metadata["run"]`. `nsys recipe NAME --input X.nsys-rep`
reads `X_pqtdir` beside the report, if it is the younger one; what we write under such a name has every table that a
recipe may ask for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tracer.errors import FormatError
from tracer.formats import WHOLE, Format, register
from tracer.formats.nsys_directory import read_directory, sniff_directory
from tracer.formats.nsys_tables import completed, from_trace
from tracer.formats.partial import appearing
from tracer.trace import Trace

RUN_FILE: Final = "run.json"
_SUFFIX: Final = ".parquet"
_FOR_RECIPES: Final = "_pqtdir"
_DELTA: Final = ("start", "end", "correlationId")  # nearly sorted: small as differences


def sniff(path: Path) -> bool:
    """Whether the path is a directory with a Parquet file named as a nsys table."""
    return sniff_directory(path, _SUFFIX)


def read(path: Path, *, whole: bool = False) -> Trace:
    """Read a parquetdir or run directory; what it lacks is empty in the trace.

    `whole` lets the trace carry all else that the directory holds.

    Raises:
        FormatError: no nsys table in it, or a damaged file.
    """
    trace = read_directory(path, _SUFFIX, _load, whole=whole)
    if (path / RUN_FILE).is_file():
        trace.metadata["run"] = _read_run(path / RUN_FILE)
    return trace


def _load(file: Path, columns: list[str] | None) -> pa.Table:
    with pq.ParquetFile(file) as parquet:
        wanted = None if columns is None else [c for c in columns if c in parquet.schema_arrow.names]
        return parquet.read(columns=wanted)


def write(trace: Trace, path: Path) -> None:
    """Write a parquetdir, with run.json if the trace has `metadata["run"]`. It appears whole or not at all.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    with appearing(path) as partial:
        partial.mkdir()
        tables = from_trace(trace, with_run=False)
        for name, make in (completed(tables) if path.name.endswith(_FOR_RECIPES) else tables).items():
            _write_table(make(), partial / f"{name}{_SUFFIX}")
        if "run" in trace.metadata:
            (partial / RUN_FILE).write_text(json.dumps(trace.metadata["run"], indent=2) + "\n", encoding="utf-8")


def is_part(path: Path) -> bool:
    """Whether a file in a directory is part of its recording, which `write` would write anew."""
    return path.is_file() and (path.suffix == _SUFFIX or path.name == RUN_FILE)


def _write_table(table: pa.Table, file: Path) -> None:
    delta = {c: "DELTA_BINARY_PACKED" for c in _DELTA if c in table.column_names}
    others = [c for c in table.column_names if c not in delta]
    pq.write_table(
        table, file, compression="zstd", compression_level=9, use_dictionary=others,
        column_encoding=delta or None, write_statistics=False, store_schema=False,
        row_group_size=max(1, len(table)),  # in one piece, which is read without copying
    )  # fmt: skip


def _read_run(file: Path) -> dict[str, Any]:
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file}: is no JSON: {error}") from error
    if not isinstance(run, dict):
        raise FormatError(f"{file}: holds a {type(run).__name__}, not a JSON object")
    return run


register(Format("nsys parquetdir or run directory", "", sniff, read, write, options=WHOLE))
