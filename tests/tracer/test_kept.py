"""A large recording is parsed once: the next command finds it, the same to the digit, or reads it again."""

import json
import os
import stat

import pytest
from click.testing import CliRunner
from pandas.testing import assert_frame_equal

from tests.recordings import SAMPLES
from tracer import formats, stored
from tracer.cli import main


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("INTERTOKEN_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(stored, "LEAST", 1)
    return tmp_path / "kept"


@pytest.fixture
def recording(tmp_path):
    formats.write(formats.read(SAMPLES / "llama1b-sccc-node"), tmp_path / "a.sqlite")
    return tmp_path / "a.sqlite"


def _said(command, recording):
    answer = CliRunner().invoke(main, [command, str(recording), "--json"])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_what_is_kept_is_what_was_read(directory, reads):
    for number, name in enumerate(("vllm-b8-torch", "transformers-batching", "vllm-b8-graph-nvtx"), start=1):
        first, second = stored.read(SAMPLES / name), stored.read(SAMPLES / name)
        assert len(reads) == number
        assert (first.metadata, first.notes) == (second.metadata, second.notes)
        for table, frame in first.tables.items():
            assert_frame_equal(second[table], frame)


def test_the_second_command_reads_nothing_unless_the_recording_changed(directory, recording, reads):
    first = {command: _said(command, recording) for command in ("info", "gaps")}
    assert {command: _said(command, recording) for command in first} == first
    assert len(reads) == 1
    made = [directory, *directory.rglob("*")]  # which only the user can read
    assert len(made) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600) for path in made)
    stamp = recording.stat()
    recording.unlink()
    formats.write(formats.read(SAMPLES / "llama1b-sccc-graph"), recording)
    os.utime(recording, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert json.loads(_said("info", recording))["events"] != json.loads(first["info"])["events"]


def test_one_that_changes_while_it_is_read_is_not_kept(directory, recording, monkeypatch):
    read = formats.read
    monkeypatch.setattr(formats, "read", lambda path, **options: (read(path, **options), os.utime(path, ns=(1, 1)))[0])
    stored.read(recording)
    assert not directory.exists()


def test_a_broken_cache_is_read_again_without_a_word(directory, recording, reads, capfd):
    said = _said("gaps", recording)
    for number, (name, kept) in enumerate((("value.json", -9), ("arrays", 0)), start=2):
        (tree,) = directory.rglob("value.json")
        file = tree.with_name(name)
        file.write_bytes(file.read_bytes()[:kept])
        assert [_said("gaps", recording) for _ in range(2)] == [said, said]
        assert len(reads) == number
    assert capfd.readouterr() == ("", "")


def test_where_nothing_can_or_shall_be_kept_every_command_reads(recording, reads, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("INTERTOKEN_CACHE", str(tmp_path / "kept"))
    stored.read(recording)  # a small one
    monkeypatch.setattr(stored, "LEAST", 1)
    monkeypatch.setenv("INTERTOKEN_CACHE", "off")
    stored.read(recording)
    assert not (tmp_path / "kept").exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("INTERTOKEN_CACHE", str(tmp_path / "file" / "kept"))
    assert _said("gaps", recording) == _said("gaps", recording)
    assert len(reads) == 4
    assert capfd.readouterr() == ("", "")
