"""Where a command's output goes: never over what is there, never through a link, whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial as bound
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.programs import PROGRAMS
from tests.recordings import LLAMA
from tests.tracer.places import read_only, small_disk  # noqa: F401
from tracer.cli import main
from tracer.errors import TraceError, UsageError
from tracer.files import output
from tracer.files.output import appearing, check_place, write_output

SMALL = LLAMA["sccc", "graph"]
COMMANDS = {
    "record": ("record", "-o", "OUT", "--force", "--", "sh", "-c", "touch started"),
    "convert": ("convert", SMALL, "OUT", "--force"),
    "scrub": ("scrub", SMALL, "OUT", "--force"),
    "whatif": ("whatif", SMALL, "--sync", "aaag", "-o", "OUT", "--force"),
    "report": ("report", SMALL, SMALL, "-o", "OUT.html", "--force"),
    "table": ("syncs", SMALL, "--table", "OUT.csv", "--force"),
    "budget": ("check", SMALL, "--write-budget", "OUT.toml", "--force"),
    "run": ("run", "--sync", "ggg", "--tokens", "2", "--repeats", "1", "-o", "OUT", "--force"),
}


def invoke(command, out, force=True):
    """Exit code, stderr without what begins each line, and where the output belongs."""
    arguments = [str(argument).replace("OUT", str(out)) for argument in COMMANDS[command]]
    if not force:
        arguments.remove("--force")
    result = CliRunner().invoke(main, arguments)
    path = Path(next(a for a in arguments if a.startswith(str(out))))
    path = path / "tiny-ggg-sequential" if command == "run" else path
    assert result.exit_code == 0 or result.stderr.count("\n") == 1, result.stderr
    return result.exit_code, result.stderr.removeprefix(f"intertoken: {path}: ").strip(), path


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """A nsys that starts the command and makes no report; returns what `record` would start leaves."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    (tmp_path / "bin" / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "started"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_place_is_refused_before_any_work(command, read_only, nsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr("executor.run.light_pass.execute", lambda *_, **__: pytest.fail("it began to work"))
    missing = [each if each != SMALL else "missing" for each in COMMANDS[command]]
    monkeypatch.setitem(COMMANDS, command, missing)  # which is said by who looks for it
    code, said, _ = invoke(command, read_only / "deep" / "out")
    reason = "Read-only file system" if os.geteuid() == 0 else "Permission denied"
    assert (code, said) == (2, f"cannot be written: {reason}: {read_only}")
    assert not nsys.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_there_and_not_ours_stays(command, tmp_path, nsys, monkeypatch):
    """A link is not followed, and only replaced if that is asked; a pipe and a directory are not."""
    monkeypatch.setattr("executor.run.light_pass.execute", lambda *_, **__: pytest.fail("it began to work"))
    suffix = {"report": ".html", "table": ".csv", "budget": ".toml"}.get(command, "")
    path = tmp_path / f"out{suffix}" if command != "run" else tmp_path / "out" / "tiny-ggg-sequential"
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    for target in (tmp_path / "nothing", tmp_path / "elsewhere"):
        path.symlink_to(target)
        code, said, _ = invoke(command, tmp_path / "out", force=False)
        assert (code, "already exists" in said or "already holds" in said) == (2, True)
        assert os.readlink(path) == str(target)
        path.unlink()
    assert (os.listdir(tmp_path / "elsewhere"), (tmp_path / "nothing").exists()) == ([], False)
    os.mkfifo(path)
    assert invoke(command, tmp_path / "out")[0] == 2
    assert path.is_fifo()
    path.unlink()
    path.mkdir()
    (path / "data.parquet").write_text("precious")  # of somebody else
    code, said, _ = invoke(command, tmp_path / "out")
    assert (code, said) in (
        (2, "not replaced, because it does not contain a recording"), (2, "is a directory; choose another name"),
    )  # fmt: skip
    assert (path / "data.parquet").read_text() == "precious"
    assert not nsys.exists()


def test_a_parent_that_is_no_directory_and_places_that_are_there_always(tmp_path, nsys):
    (tmp_path / "file").touch()
    code, said, _ = invoke("record", tmp_path / "file" / "out")
    assert (code, said) == (2, f"cannot be written: Not a directory: {tmp_path / 'file'}")
    assert not nsys.exists()
    for path in (Path("."), Path("/"), Path("..")):
        with pytest.raises(TraceError, match="already exists"):
            check_place(path, replace=False)


@pytest.mark.parametrize("command", ["convert", "scrub", "table", "run"])
def test_a_full_disk_is_one_line_and_costs_nothing(command, small_disk):  # noqa: F811
    code, said, _ = invoke(command, small_disk / "out")
    before = {file: file.read_bytes() for file in small_disk.rglob("*") if file.is_file()} if code == 0 else {}
    assert code == 0 or "No space left on device" in said  # it is too large from the first
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    assert invoke(command, small_disk / "out")[:2] == (2, "cannot be written: No space left on device")
    (small_disk / "filler").unlink()
    assert {file: file.read_bytes() for file in small_disk.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_writer_that_is_ended_leaves_nothing_or_what_the_next_removes(number, tmp_path):
    path = tmp_path / "a*.csv"
    path.write_text("old")
    with subprocess.Popen([sys.executable, "-c", PROGRAMS["writes half"], path], stdin=-1, stdout=-1) as writer:
        assert writer.stdout.readline() == b"ready\n"
        (left,) = {file.name for file in tmp_path.iterdir()} - {path.name}
        with appearing(path, replace=True) as partial:  # a second writer, while the first lives
            partial.write_text("new")
        assert {file.name for file in tmp_path.iterdir()} == {path.name, left}
        writer.send_signal(number)
    assert writer.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert path.read_text() == "new"
    assert (tmp_path / left).exists() == (number == signal.SIGKILL)
    (tmp_path / f".{path.name}.01234567.partial").mkdir()  # alike, but not ours
    with appearing(path, replace=True) as partial:
        partial.write_text("newer")
    assert {file.name for file in tmp_path.iterdir()} == {path.name, f".{path.name}.01234567.partial"}


def half(place):
    place.write_text("ne")
    raise OSError(28, "No space left on device")


def meanwhile(path, place):
    place.write_text("mine")
    path.write_text("theirs")


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_comes_meanwhile_and_what_was_there_stay(exchanges, tmp_path, monkeypatch):
    if not exchanges:  # as on NFS
        monkeypatch.setattr(output, "_rename", lambda *_: 22)
    path = tmp_path / "a"
    with pytest.raises(UsageError, match="a: already exists: it was created meanwhile"):
        write_output(path, bound(meanwhile, path), replace=False)
    with pytest.raises(UsageError, match=r"a: cannot be written: No space left on device"):
        write_output(path, half, replace=True)
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["a"]
    (kept := path.rename(tmp_path / "kept")).chmod(0o444)
    path.symlink_to(kept)  # what replaces a link leaves what it leads to
    write_output(path, lambda place: place.write_text("mine"), replace=True)
    assert (path.is_symlink(), path.read_text(), kept.read_text()) == (False, "mine", "theirs")
    kept.unlink()
    assert os.listdir(tmp_path) == ["a"]
    if exchanges:
        return
    path.unlink()  # where a file system cannot exchange, a writer may be killed between the two steps
    (folder := tmp_path / ".a.01234567.partial").mkdir()
    os.close(output.lock_folder(folder))
    (folder / output._REPLACED).mkdir()
    (folder / output._REPLACED / "text").write_text("old")
    output.clear_away(path)
    assert (path / "text").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]
    shutil.rmtree(path)
