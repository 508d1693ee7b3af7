"""A Chrome or Kineto JSON in a zip, and directories of several recordings."""

import gzip
import json
import struct
import zipfile

import pytest
from click.testing import CliRunner

from tests.tracer import kineto
from tests.tracer.test_formats_bad_input import error_of
from tracer import formats
from tracer.cli import main
from tracer.errors import FormatError

GOOD = json.dumps(kineto.GPU).encode()


def zipped(path, packing=zipfile.ZIP_DEFLATED, **files):
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_only_json_in_a_zip_is_read(tmp_path):
    expected = formats.read(kineto.write(tmp_path / "a.json", kineto.GPU))
    others = {"__MACOSX/._a.json": b"", "readme.txt": b"hello", ".hidden.json": b"{}", "folder/": b""}
    for number, (name, content, packing) in enumerate([
        ("rank0/a.pt.trace.json", GOOD, zipfile.ZIP_DEFLATED), ("a.JSON", GOOD, zipfile.ZIP_STORED),
        ("a.json.gz", gzip.compress(GOOD), zipfile.ZIP_DEFLATED),
    ]):  # fmt: skip
        found = formats.read(zipped(tmp_path / f"{number}.zip", packing, **{name: content}, **others))
        assert found.notes == [f"read from {name} in the zip", *expected.notes]
        assert all(found[table].equals(frame) for table, frame in expected.tables.items())
        assert found.metadata == expected.metadata
    assert formats.functions_of(tmp_path / "0.zip") == {"python_functions": True}
    cut = formats.read(zipped(tmp_path / "cut.zip", **{"a.json": GOOD[: len(GOOD) // 2]}))
    assert "the file is truncated" in " ".join(cut.notes)
    (tmp_path / "named.bin").write_bytes((tmp_path / "0.zip").read_bytes())
    assert len(formats.read(tmp_path / "named.bin")) == len(expected)


def test_zips_that_are_refused_in_a_line(tmp_path):
    path = tmp_path / "a.zip"
    for files, says in (
        ({"a.sqlite": b"SQLite format 3"}, "a zip without a Chrome or Kineto JSON (a.sqlite); unpack it first"),
        ({f"rank{n}.json": GOOD for n in range(7)}, "a zip with 7 recordings (rank0.json, rank1.json, rank2.json, "
         "rank3.json, rank4.json, ...); unpack it, and name one of them"),
        ({"a.json": b"{}"}, "a.json in it is not a trace"),
        ({"../../etc/a.json": b"[]"}, "../../etc/a.json in it is not a trace"),
        ({"a\x1b[31m.json": b"[]"}, "a?[31m.json in it is not a trace"),
    ):  # fmt: skip
        assert error_of(zipped(path, **files)).startswith(f"{path}: {says}")
    assert "is packed with bzip2; only stored" in error_of(zipped(path, zipfile.ZIP_BZIP2, **{"a.json": GOOD}))
    many = {f"{n}.txt": b"" for n in range(2001)}
    assert "holds more files than a recording has (2,000 at most)" in error_of(zipped(path, **many))
    good = zipped(path, **{"a.json": GOOD}).read_bytes()
    path.write_bytes(good[:-30])
    assert error_of(path) == f"{path}: truncated zip file"
    middle = len(good) // 3
    path.write_bytes(good[:middle] + bytes(8) + good[middle + 8 :])
    assert "cannot be unpacked: Error -3" in error_of(path)
    flags = good.index(b"PK\1\2") + 8
    path.write_bytes(good[:flags] + struct.pack("<H", 1) + good[flags + 2 :])
    assert "cannot be unpacked: " in error_of(path)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_zip_that_unpacks_to_too_much(tmp_path, monkeypatch, name):
    monkeypatch.setattr("tracer.formats.chrome._ACCEPTED", 1 << 20)
    bomb = b'{"traceEvents": [' + b" " * (32 << 20) + b"]}"
    path = zipped(tmp_path / "a.zip", **{name: gzip.compress(bomb) if name.endswith(".gz") else bomb})
    assert "unpacks to more than 200 times its size; it is not read further" in error_of(path)


def test_a_directory_of_several_recordings_names_them(tmp_path):
    for rank in range(2):
        told = {"distributedInfo": {"rank": rank, "world_size": 2}}
        kineto.write(tmp_path / f"host_{40 + rank}.pt.trace.json.gz", kineto.GPU | told)
    (tmp_path / "notes.txt").write_text("hello")
    asked = "name one of them (compare takes the directory, to compare them all)"
    both = "host_40.pt.trace.json.gz (rank 0), host_41.pt.trace.json.gz (rank 1)"
    for command in ("info", "gaps", "syncs"):
        result = CliRunner().invoke(main, [command, str(tmp_path)])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"intertoken: {tmp_path}: a directory with 2 recordings: {both}; {asked}\n"
    for number in range(5):
        kineto.write(tmp_path / f"rank{number}.json", kineto.GPU)
    assert "rank0.json, rank1.json, rank2.json and 2 more; name one" in error_of(tmp_path)
    (one := tmp_path / "one").mkdir()
    path = kineto.write(one / "a.json", kineto.GPU)
    with pytest.raises(FormatError, match=f"^{one}: a directory with a recording; name it: {path}$"):
        formats.read(one)
    assert not formats.is_trace(one)
