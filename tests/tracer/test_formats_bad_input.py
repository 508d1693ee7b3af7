"""Files that are damaged, hostile or something else: one clear line each, and nothing left behind."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dashboard.reading.store import RunStore
from tests.tracer import kineto
from tests.tracer.hostile import BAD_FILES, EVENT, long
from tests.tracer.nsys_exports import KERNELS, RECORDING, export, tampered
from tracer import formats
from tracer.cli import main
from tracer.errors import FormatError, TraceError, printable
from tracer.files.bounded import LEAST_BYTES, MOST_MEMBERS, Gunzip
from tracer.formats import nsys_sqlite
from tracer.formats.nsys_schema import REQUIRED
from tracer.model.graph_json import read_graph


def error_of(path):
    """The message that reading the path gives: one short line that begins with its name, and soon."""
    begin = time.process_time()
    with pytest.raises(FormatError) as caught:
        formats.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < len(str(path)) + 250
    assert time.process_time() - begin < 5
    return message


def changed(file, column, values):
    """The Parquet file with other values in a column."""
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values)), file)
    return file.parent


@pytest.fixture
def sqlite(tmp_path):
    return export(tmp_path / "trace.sqlite")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    formats.write(formats.read(export(folder / "trace.sqlite")), folder / "run")
    return folder / "run"


@pytest.fixture
def parquet(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def test_bad_files_are_said_in_a_line(tmp_path):
    assert "no such file or directory" in error_of(tmp_path / "absent.sqlite")
    for name, text, says in BAD_FILES["files"]:
        content = long(text).encode()
        (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
        assert says in error_of(tmp_path / name), (name, text)
    for number, (statements, says) in enumerate(BAD_FILES["databases"]):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as database:
            for statement in statements:
                database.execute(statement)
        assert error_of(tmp_path / f"{number}.db").startswith(f"{tmp_path / f'{number}.db'}: {says}")


def test_a_truncated_export_and_a_page_of_garbage(tmp_path):
    rows = [RECORDING[KERNELS][0] | {"start": i, "end": i + 1} for i in range(5000)]
    content = export(tmp_path / "good.sqlite", {**RECORDING, KERNELS: rows}).read_bytes()
    path = tmp_path / "a.sqlite"
    for kept in (16, 20, 100, 511, 4096, 20_000, -1):
        path.write_bytes(content[:kept])
        assert "truncated" in error_of(path), kept
    middle = len(content) * 9 // 10 // 4096 * 4096  # the first tenth holds the enums
    for byte in (b"\xff", b"\x00", b"\x5a"):
        path.write_bytes(content[: middle - 4096] + byte * 4096 + content[middle:])
        assert "SQLite cannot read it" in error_of(path), byte


def test_every_required_column_that_is_missing_is_named(tmp_path):
    for table, columns in REQUIRED.items():
        for column in columns if table in RECORDING else ():
            rows = {table: RECORDING[table]}
            path = export(tmp_path / f"{table}.{column}.sqlite", rows, without_columns={f"{table}.{column}"})
            assert error_of(path).endswith(f"table {table} has no column {column}")


def test_exports_that_are_odd_and_readable(tmp_path):
    def names(number, *statements):
        path = tampered(tmp_path / f"what? {number}%#.bin", *statements)  # nor is a suffix needed
        return set(formats.read(path)["kernels"]["short_name"])

    assert names(1, "UPDATE StringIds SET value = CAST(x'ff6b' AS TEXT) WHERE id = 4") == {"\ufffdk"}
    assert names(2, "UPDATE StringIds SET value = x'6b31'") == {"k1"}
    for rowid in (2**62, 2**63 - 1, -(2**63)):
        assert names(rowid, f"UPDATE {KERNELS} SET rowid = {rowid} WHERE rowid = 1") == {"mul"}
    without_cuda = {table: rows for table, rows in RECORDING.items() if "INFO" in table}
    trace = formats.read(export(tmp_path / "no-cuda.sqlite", without_cuda))
    assert (len(trace), len(trace["devices"])) == (0, 1)
    assert len(formats.read(export(tmp_path / "empty.sqlite", {table: [] for table in RECORDING}))) == 0


def test_columns_that_begin_with_many_nulls(tmp_path):
    rows: list[dict[str, Any]] = [{"start": i, "end": i + 1, "eventType": 59, "textId": 20} for i in range(5_000)]
    rows.append({"start": 9000, "end": 9001, "eventType": 59, "text": "late", "doubleValue": 0.5})
    nvtx = formats.read(export(tmp_path / "a.sqlite", {**RECORDING, "NVTX_EVENTS": rows}))["nvtx"]
    assert nvtx["payload"].isna().sum() == 5_000
    assert nvtx.iloc[-1][["text", "payload"]].tolist() == ["late", 0.5]


@pytest.mark.parametrize("kind", ["wal", "journal"])
def test_files_beside_an_export_are_neither_read_nor_changed(tmp_path, kind):
    path = export(tmp_path / "a.sqlite")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {'WAL' if kind == 'wal' else 'PERSIST'}")
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN")
    database.execute(f"DELETE FROM {KERNELS}")
    if kind == "wal":
        database.execute("COMMIT")
    (copy := tmp_path / "copy").mkdir()
    for file in (path, path.with_name(f"a.sqlite-{kind}")):  # as it is after a crash
        shutil.copy(file, copy)
    database.close()
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    assert before[f"a.sqlite-{kind}"]
    assert f"changes that are still in a.sqlite-{kind} are not read" in formats.read(copy / "a.sqlite").notes
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


def test_damaged_parquet(parquet, tmp_path):
    file = parquet / f"{KERNELS}.parquet"
    content = file.read_bytes()
    for damaged in (b"", content[:3], content[:100], content[:-1], content[:4] + bytes(396) + content[400:]):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=rf"^{file}: not a valid Parquet file"):
            formats.read(parquet)
        error_of(parquet)
    (tmp_path / "songs").mkdir()
    (tmp_path / "songs" / "songs.parquet").touch()
    assert "directory holds no trace" in error_of(tmp_path / "songs")


def test_parquet_columns_of_another_type(parquet):
    file = parquet / f"{KERNELS}.parquet"
    for values, reason in (
        (["seven", "eight"], "column start holds string, not numbers"), ([[1], [2]], "not numbers"),
        ([0.5, 1.5], "truncated"), ([1, None], f"table {KERNELS} has 1 rows without start"),
    ):  # fmt: skip
        assert reason in error_of(changed(file, "start", values))
    table = pq.read_table(parquet / "StringIds.parquet")
    pq.write_table(pa.Table.from_arrays([table["id"], table["id"]], ["id", "id"]), parquet / "StringIds.parquet")
    assert "two columns of the same name" in error_of(parquet)


def test_other_integer_and_string_types_and_nested_columns_are_as_good(parquet):
    expected = formats.read(parquet)
    for file in parquet.glob("*.parquet"):
        table = pq.read_table(file)
        for i, (name, type) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
            if pa.types.is_string(type):
                table = table.set_column(i, name, table[name].dictionary_encode())
            elif name in ("streamId", "deviceId", "correlationId"):
                table = table.set_column(i, name, table[name].cast(pa.uint32()))
        pq.write_table(table.append_column("list", pa.array([[1]] * len(table))), file)
    actual = formats.read(parquet)
    assert all(actual[t].astype("object").equals(frame.astype("object")) for t, frame in expected.tables.items())
    assert actual.notes[-1].endswith("tables or columns with names or types unknown to nsys are left out")


def test_json_in_a_run_directory_that_is_damaged(parquet, tmp_path):
    (parquet / "run.json").write_text('{"model": "tiny"}')
    trace = formats.read(parquet)
    formats.write(trace, tmp_path / "again")
    assert trace.metadata["run"] == json.loads((tmp_path / "again" / "run.json").read_text()) == {"model": "tiny"}
    for content in BAD_FILES["run.json"]:
        (parquet / "run.json").write_text(long(content))
        with pytest.raises(FormatError, match=r"run\.json: (not valid JSON|holds a)"):
            formats.read(parquet)
    (parquet / "run.json").unlink()
    for content in BAD_FILES["INTERTOKEN_METADATA"]:
        rows = {"name": ["INTERTOKEN_METADATA"], "value": [content]}
        pq.write_table(pa.table(rows), parquet / "META_DATA_EXPORT.parquet")
        assert "row INTERTOKEN_METADATA" in error_of(parquet), content


def test_a_failed_write_leaves_nothing(sqlite, tmp_path, monkeypatch):
    trace, before = formats.read(sqlite), sqlite.read_bytes()

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    # A page limit makes SQLite fail half-way, as a full disk does.
    monkeypatch.setattr(nsys_sqlite, "_PRAGMAS", (*nsys_sqlite._PRAGMAS, "max_page_count = 5"))
    for name, says in (("new", "No space left on device"), ("b.sqlite", r"b\.sqlite: cannot be written: .*full")):
        with pytest.raises(TraceError, match=says):
            formats.write(trace, tmp_path / name)
    with pytest.raises(TraceError, match="full"):
        formats.write(trace, sqlite, replace=True)
    assert list(tmp_path.iterdir()) == [sqlite]
    assert sqlite.read_bytes() == before


def test_only_a_recording_is_replaced_and_only_if_asked(parquet, tmp_path):
    trace = formats.read(parquet)
    with pytest.raises(TraceError, match="already exists"):
        formats.write(trace, parquet)
    (parquet / "graph.json").write_text("{}")
    (tmp_path / "folder.sqlite").mkdir()
    (tmp_path / "file").write_text("precious")
    for name, reason in (
        ("run", "more than a recording: graph.json"), ("folder.sqlite", "is a directory"), ("file", "is a file"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=reason):
            formats.write(trace, tmp_path / name, replace=True)
    assert (tmp_path / "file").read_text() == "precious"


def fifo(path):
    os.mkfifo(path)


def linked_fifo(path):
    os.mkfifo(path.with_name(f"{path.name}.pipe"))
    path.symlink_to(f"{path.name}.pipe")


def unix_socket(path):
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        os.chdir(path.parent)  # a socket's path holds about 100 bytes
        bound.bind(path.name)


def device(path):
    path.symlink_to("/dev/zero")


IRREGULAR = (fifo, linked_fifo, unix_socket, device)


@pytest.fixture
def _no_waiting(monkeypatch, tmp_path):
    """Whoever waits for a writer is ended."""
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a reader waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("make", IRREGULAR)
def test_what_is_no_regular_file_is_named(recorded, tmp_path, make):
    for name in ("a.sqlite", "a.json", "a.json.gz", "a.nsys-rep", "a.pftrace", "a"):
        make(tmp_path / name)
        assert not formats.is_trace(tmp_path / name)
        assert error_of(tmp_path / name).startswith(f"{tmp_path / name}: neither a regular file nor a directory")
    (arrows := tmp_path / "arrows").mkdir()
    make(arrows / f"{KERNELS}.arrow")
    assert not formats.is_trace(arrows)
    (arrows / "StringIds.arrow").touch()
    assert "not a regular file" in error_of(arrows)
    for name in (f"{KERNELS}.parquet", "run.json", "other.parquet"):  # a part of a run directory
        run = Path(shutil.copytree(recorded, tmp_path / f"run-{name}"))
        (run / name).unlink(missing_ok=True)
        make(run / name)
        assert f"{name}: not a regular file" in error_of(run)
    assert CliRunner().invoke(main, ["info", str(run)]).exit_code == 0  # which reads no more than it needs
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    make(run / "graph.json")
    with pytest.raises(FormatError, match=r"graph\.json: not a regular file"):
        read_graph(run / "graph.json")
    assert [found.graph_file for found in RunStore([run]).runs()] == [None]
    make(budget := tmp_path / "budget.toml")
    checked = CliRunner().invoke(main, ["check", str(run), "--budget", str(budget)])
    assert (checked.exit_code, checked.stderr) == (2, f"intertoken: {budget}: not a regular file\n")


def test_numbers_that_no_column_has_room_for(tmp_path):
    numbers = ["1e999999999", "-1e999999999", "1e-999999999", "0e999999999", "1E+19", "9" * 100, "0." + "9" * 100]
    fields = ("ts", "dur", "pid", "tid", "id")
    texts = [f'{EVENT[:-1]}, "{field}": {number}}}' for field in fields for number in numbers]
    sizes = f'{{"grid": [{", ".join(numbers[:3])}], "device": {numbers[0]}, "stream": {numbers[5]}}}'
    texts += [f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": {n}, "args": {sizes}}}' for n in numbers]
    outer = f'{{"baseTimeNanoseconds": 1e999999999, "distributedInfo": {{"rank": {"9" * 100}, "world_size": 2}}'
    trace = kineto.read(tmp_path, f'{outer}, "schemaVersion": 1, "traceEvents": [{",".join(texts)}]}}'.encode())
    assert trace.metadata["source"] == "PyTorch profiler"
    assert len(trace["nvtx"]) + len(trace["kernels"]) + sum(int(note.split()[0]) for note in trace.notes) == len(texts)


def test_brackets_and_keys_in_strings_are_neither_depth_nor_events(tmp_path):
    events = [kineto.event("cpu_op", '[{\\"[' * 10, n, 1) for n in range(5_000)]
    assert len(kineto.read(tmp_path, events)["nvtx"]) == 5_000
    before, begin = ",".join(['"traceEvents"'] * 80_000), time.process_time()
    trace = kineto.read(tmp_path, f'{{"a": [{before}], "traceEvents": [{EVENT}]}}'.encode())
    assert trace["nvtx"]["text"].tolist() == ["op"]
    assert time.process_time() - begin < 5
    assert printable(f"a is {'7' * 300}, not 1") == "a is 7777777777..., not 1"


def unpacked(data, size=1 << 16):
    source = Gunzip(io.BytesIO(data))
    return b"".join(iter(lambda: source.read1(size), b""))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 9), st.integers(1, 200), st.integers(1)
)
def test_gzip_members_are_unpacked_as_by_the_standard_library(parts, padding, size, cut):
    whole = gzip.compress(parts[0])
    data = b"".join(gzip.compress(part) + bytes(padding) for part in parts)
    assert unpacked(data, size) == b"".join(parts)
    with pytest.raises(EOFError):
        unpacked(data + whole[: len(whole) - 1 - cut % (len(whole) - 1)])
    with pytest.raises(zlib.error):
        unpacked(data + b"no gzip")


def test_gzip_that_unpacks_to_little_or_too_much(tmp_path, monkeypatch):
    empty, space = gzip.compress(b"", mtime=0), gzip.compress(b" ", mtime=0)
    assert unpacked(space * MOST_MEMBERS) == b" " * MOST_MEMBERS
    assert len(unpacked(gzip.compress(bytes(LEAST_BYTES)) * 3 * MOST_MEMBERS)) == LEAST_BYTES * 3 * MOST_MEMBERS
    path, begin = tmp_path / "a.json.gz", gzip.compress(b'{"traceEvents": [' + EVENT.encode())
    many = "has more than 1,000 gzip members that hold less than 16 KiB on average; it is not read further"
    for data in (empty * 52_000, gzip.compress(b" " * 1_000_000) + space * 50_000, begin + empty * 52_000):
        path.write_bytes(data)
        assert formats.is_trace(path)
        assert error_of(path) == f"{path}: {many}"
    monkeypatch.setattr("tracer.formats.chrome._ACCEPTED", 1 << 20)
    kineto.write(path, b'{"traceEvents": [' + b" " * (8 << 20) + b"]}")
    assert "unpacks to more than 200 times its size" in error_of(path)
    whole = json.dumps([kineto.event("cpu_op", f"op {n}", n, 1) for n in range(100)]).encode()
    path.write_bytes(b"".join(gzip.compress(whole[at : at + 100]) for at in range(0, len(whole), 100)))
    assert len(formats.read(path)["nvtx"]) == 100


def test_a_bad_recording_is_one_line_of_every_command(sqlite, tmp_path):
    path = tampered(tmp_path / "a.sqlite", f"UPDATE {KERNELS} SET end = {-(2**63)}")
    (longest := tmp_path / ("x" * 255)).touch()
    for command in (["info"], ["tokens"], ["syncs"], ["gaps"], ["streams"], ["path"], ["convert", "OUT"]):
        for bad in (path, tmp_path / "missing", tmp_path / ("x" * 300), longest):
            arguments = [command[0], str(bad), *(str(tmp_path / "out") for _ in command[1:])]
            result = CliRunner().invoke(main, arguments)
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), arguments
            assert result.stderr.startswith(f"intertoken: {bad}: ")
    for more in (["convert", "LONG"], ["gaps", "--table", "LONG.csv"], ["scrub", "LONG"]):
        target = str(tmp_path / ("x" * 300))
        arguments = [more[0], str(sqlite), *(each.replace("LONG", target) for each in more[1:])]
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, "File name too long" in result.stderr, result.stderr.count("\n")) == (2, True, 1)
