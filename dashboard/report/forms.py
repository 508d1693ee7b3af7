"""The forms in which tables are downloaded: CSV, Parquet and JSON, written in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from tempfile import TemporaryFile
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tracer.text import without_formulas

_ROWS: Final = 20_000
_LINE: Final = "\r\n"  # as RFC 4180


def csv_of(table: pd.DataFrame) -> Iterator[str]:
    """The table as CSV, in pieces.

    Texts are escaped (`without_formulas`); Parquet and JSON hold every text as recorded.
    """
    yield table.head(0).to_csv(index=False, lineterminator=_LINE)
    for start in range(0, len(table), _ROWS):
        yield without_formulas(table.iloc[start : start + _ROWS]).to_csv(
            index=False, header=False, lineterminator=_LINE
        )


def json_of(table: pd.DataFrame) -> Iterator[str]:
    """The table as one JSON list of objects, in pieces."""
    for start in range(0, len(table), _ROWS):
        piece = table.iloc[start : start + _ROWS].to_json(orient="records", double_precision=15)
        yield ("," if start else "[") + piece[1:-1]
    yield "]" if len(table) else "[]"


def parquet_of(table: pd.DataFrame) -> Iterator[bytes]:
    """The table as Parquet, in pieces."""
    with TemporaryFile() as file:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), file)
        file.seek(0)
        while piece := file.read(1 << 20):
            yield piece


FORMS: Final[dict[str, tuple[str, Callable[[pd.DataFrame], Iterator[str] | Iterator[bytes]]]]] = {
    "csv": ("text/csv; charset=utf-8", csv_of),
    "parquet": ("application/vnd.apache.parquet", parquet_of),
    "json": ("application/json", json_of),
}
"""Suffix -> media type, and the function that writes a table."""
