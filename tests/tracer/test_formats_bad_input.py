"""Files that are damaged, hostile or something else: one clear line each, and nothing left behind."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tracer.nsys_exports import RECORDING, export
from tracer import formats
from tracer.errors import FormatError, TraceError
from tracer.formats.nsys_schema import COLUMNS, REQUIRED
from tracer.model.schema import TABLES
from tracer.model.trace import Trace

KERNELS = TABLES["kernels"].nsys


def error_of(path: Path) -> str:
    """The message that reading the path gives: one line that names it."""
    with pytest.raises(FormatError) as caught:
        formats.read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


INSTEAD = "is not read; record with PyTorch's profiler, or with rocmProfileData and its rpd2tracing"


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    return export(tmp_path / "trace.sqlite")


@pytest.fixture
def parquet(sqlite: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    formats.write(formats.read(sqlite), path)
    return path


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such file or directory" in error_of(tmp_path / "absent.sqlite")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").touch()
    assert "is empty" in error_of(tmp_path / "a.sqlite")


@pytest.mark.parametrize("name", ["a.sqlite", "a.db", "A.SQLITE"])
def test_another_kind_of_file_named_sqlite(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("kernel,start,end\n")
    assert "not an SQLite file" in error_of(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "begin", "what"),
    [
        ("a.json", '{"rocprofiler-sdk-tool":[{"metadata":{"pid":1}}]}', "JSON"),
        ("a.json.gz", '{\n "rocprofiler-sdk-tool": [{"metadata": {}}]}', "JSON"),
        ("a_kernel_trace.csv", '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n', "CSV"),
        ("a_hip_api_trace.csv", "Domain,Function,Process_Id,Start_Timestamp,End_Timestamp\n", "CSV"),
    ],
)
def test_a_recording_of_rocprofv3(tmp_path: Path, name: str, begin: str, what: str) -> None:
    text = begin.encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert error_of(tmp_path / name) == (f"{tmp_path / name}: the {what} of rocprofv3 {INSTEAD}")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (
            ["rocpd_op", "rocpd_api"],
            "a database of rocmProfileData is not read; convert it to JSON with its rpd2tracing",
        ),
        (
            ["rocpd_kernel_dispatch_0000a1", "rocpd_string_0000a1"],
            f"the database of rocprofv3 (rocpd) {INSTEAD}",
        ),
    ],
)
def test_a_database_of_amd(tmp_path: Path, tables: list[str], says: str) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        for table in tables:
            database.execute(f'CREATE TABLE "{table}" ("id" integer NOT NULL PRIMARY KEY)')
    assert error_of(tmp_path / "a.db") == f"{tmp_path / 'a.db'}: {says}"


def test_a_file_of_no_known_format(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("kernel,start,end\n")
    assert "not a trace" in error_of(tmp_path / "a.txt")


@pytest.mark.parametrize("kept", [1, 15, 16, 20, 100, 511, 4096, 20_000, -1])
def test_a_truncated_export(sqlite: Path, kept: int) -> None:
    sqlite.write_bytes(sqlite.read_bytes()[:kept])
    message = error_of(sqlite)
    assert ("truncated" if kept >= 16 or kept < 0 else "not an SQLite file") in message


def test_an_sqlite_suffix_is_not_needed(sqlite: Path) -> None:
    assert len(formats.read(sqlite.rename(sqlite.with_name("what? 100%#.bin")))["kernels"]) == 2


def test_a_database_of_something_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute("CREATE TABLE songs (start, end)")
    database.close()
    assert "not an nsys export" in error_of(tmp_path / "a.sqlite")


def _export_with_many_kernels(path: Path, kernels: int) -> Path:
    row = RECORDING[KERNELS][0]
    return export(path, {**RECORDING, KERNELS: [row | {"start": i, "end": i + 1} for i in range(kernels)]})


@pytest.mark.parametrize("garbage", [b"\xff", b"\x00", b"\x5a"])
def test_a_page_of_garbage_amid_the_kernels(tmp_path: Path, garbage: bytes) -> None:
    path = _export_with_many_kernels(tmp_path / "a.sqlite", 5000)
    content = bytearray(path.read_bytes())
    middle = len(content) * 9 // 10 // 4096 * 4096  # the first tenth holds the enums
    content[middle - 4096 : middle] = garbage * 4096
    path.write_bytes(content)
    assert "SQLite cannot read it" in error_of(path)


def test_more_rows_than_one_chunk(tmp_path: Path) -> None:
    path = _export_with_many_kernels(tmp_path / "a.sqlite", 200_000)
    assert formats.read(path)["kernels"]["start"].tolist() == list(range(200_000))


def test_columns_that_begin_with_many_nulls(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"start": i, "end": i + 1, "eventType": 59, "textId": 20} for i in range(5_000)]
    rows.append({"start": 9000, "end": 9001, "eventType": 59, "text": "late", "doubleValue": 0.5})
    nvtx = formats.read(export(tmp_path / "a.sqlite", {**RECORDING, "NVTX_EVENTS": rows}))["nvtx"]
    assert nvtx["payload"].isna().sum() == 5_000
    assert nvtx.iloc[-1][["text", "payload"]].tolist() == ["late", 0.5]


@pytest.mark.parametrize("rowid", [2**62, 2**63 - 1, -(2**63)])
def test_rowids_far_apart(tmp_path: Path, rowid: int) -> None:
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE {KERNELS} SET rowid = {rowid} WHERE rowid = 1")
    database.close()
    assert len(formats.read(path)["kernels"]) == 2


def test_text_where_numbers_belong(tmp_path: Path) -> None:
    rows = [RECORDING[KERNELS][0] | {"streamId": "seven"}]
    message = error_of(export(tmp_path / "a.sqlite", {KERNELS: rows}))
    assert f"table {KERNELS}, column streamId holds string, not numbers" in message


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = CAST(x'ff6b' AS TEXT) WHERE id = 4")
    database.close()
    assert set(formats.read(path)["kernels"]["short_name"]) == {"\ufffdk"}


def test_a_blob_for_a_name(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = x'6b31'")
    database.close()
    assert set(formats.read(path)["kernels"]["short_name"]) == {"k1"}


@pytest.mark.parametrize(("table", "column"), [(t, c) for t in RECORDING for c in REQUIRED.get(t, ())])
def test_a_required_column_is_missing(tmp_path: Path, table: str, column: str) -> None:
    message = error_of(export(tmp_path / "a.sqlite", without_columns={f"{table}.{column}"}))
    assert message.endswith(f"table {table} has no column {column}")


def test_an_export_without_cuda_is_readable(tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", {t: r for t, r in RECORDING.items() if "INFO" in t}))
    assert len(trace) == 0
    assert len(trace["devices"]) == 1


def test_an_export_of_empty_tables_is_readable(tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", {table: [] for table in RECORDING}))
    assert len(trace) == 0


# --- parquetdir ---


def test_a_directory_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "songs.parquet").touch()
    assert "directory holds no trace" in error_of(tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 4, 100, -1, -8])
def test_truncated_parquet(parquet: Path, kept: int) -> None:
    file = parquet / f"{KERNELS}.parquet"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(FormatError, match=rf"^{file}: not a valid Parquet file"):
        formats.read(parquet)
    error_of(parquet)


def test_parquet_with_garbage_inside(parquet: Path) -> None:
    file = parquet / f"{KERNELS}.parquet"
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(np.random.default_rng(0).integers(0, 256, 396, np.uint8))
    file.write_bytes(content)
    assert "not a valid Parquet file" in error_of(parquet)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["seven", "eight"], "holds string, not numbers"),
        ([[1], [2]], "not numbers"),
        ([0.5, 1.5], "truncated"),
    ],
)
def test_parquet_columns_of_another_type(parquet: Path, values: list[Any], reason: str) -> None:
    file = parquet / f"{KERNELS}.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index("start"), "start", pa.array(values)), file)
    message = error_of(parquet)
    assert f"table {KERNELS}, column start" in message
    assert reason in message


def test_rows_without_a_start(parquet: Path) -> None:
    file = parquet / f"{KERNELS}.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index("start"), "start", pa.array([1, None])), file)
    assert f"table {KERNELS} has 1 rows without start" in error_of(parquet)


def test_other_integer_and_string_types_are_as_good(parquet: Path) -> None:
    expected = formats.read(parquet)
    for file in parquet.glob("*.parquet"):
        table = pq.read_table(file)
        for i, (name, type) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
            if pa.types.is_string(type):
                table = table.set_column(i, name, table[name].dictionary_encode())
            elif name in ("streamId", "deviceId", "correlationId"):
                table = table.set_column(i, name, table[name].cast(pa.uint32()))
        pq.write_table(table, file)
    actual = formats.read(parquet)
    assert all(actual[name].astype("object").equals(expected[name].astype("object")) for name in TABLES)


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '"run"'])
def test_run_json_that_is_no_object(parquet: Path, content: str) -> None:
    (parquet / "run.json").write_text(content)
    with pytest.raises(FormatError, match=r"run\.json: (not valid JSON|holds a)"):
        formats.read(parquet)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_damaged_metadata(parquet: Path, content: str) -> None:
    rows = {"name": ["INTERTOKEN_METADATA"], "value": [content]}
    pq.write_table(pa.table(rows), parquet / "META_DATA_EXPORT.parquet")
    assert "row INTERTOKEN_METADATA" in error_of(parquet)


def test_run_json_is_the_run(parquet: Path, tmp_path: Path) -> None:
    run = {"model": "tiny", "tokens": 8}
    (parquet / "run.json").write_text(json.dumps(run))
    trace = formats.read(parquet)
    assert trace.metadata["run"] == run
    formats.write(trace, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "run.json").read_text()) == run


def test_nothing_is_overwritten(parquet: Path) -> None:
    with pytest.raises(TraceError, match="already exists"):
        formats.write(Trace({}), parquet)


def test_a_failed_write_leaves_nothing(parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TraceError, match="No space left on device"):
        formats.write(formats.read(parquet), tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


def test_only_what_the_trace_has_is_written(parquet: Path, tmp_path: Path) -> None:
    written = {file.stem for file in parquet.iterdir()}
    derived = {"ANALYSIS_DETAILS", "TARGET_INFO_CUDA_CONTEXT_INFO"}
    assert written <= set(COLUMNS) | derived | {name for name in written if name.startswith("ENUM_")}
    formats.write(formats.read(parquet, whole=False), tmp_path / "bare")
    export_rows = pq.read_table(tmp_path / "bare" / "META_DATA_EXPORT.parquet").to_pydict()
    assert set(export_rows["name"]) == {
        "EXPORT_PRODUCT_NAME", "EXPORT_SCHEMA_VERSION", "EXPORT_SCHEMA_VERSION_MAJOR",
        "EXPORT_SCHEMA_VERSION_MINOR", "EXPORT_SCHEMA_VERSION_MICRO", "INTERTOKEN_METADATA", "INTERTOKEN_NOTES",
    }  # fmt: skip
