"""Where a command's output goes: never over what is there, never through a link, whole or not at all."""

import os
import resource
import signal
import subprocess
import sys
from functools import partial as bound
from pathlib import Path

import pytest
from click.testing import CliRunner

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
DIRECTORIES = ("record", "convert", "scrub", "whatif")


def invoke(command: str, out: Path, force: bool = True) -> tuple[int, str, Path]:
    """Exit code, stderr and where the output belongs."""
    arguments = [str(argument).replace("OUT", str(out)) for argument in COMMANDS[command]]
    if not force:
        arguments.remove("--force")
    result = CliRunner().invoke(main, arguments)
    name = next(a for a in arguments if a.startswith(str(out)))
    return result.exit_code, result.stderr, Path(name) / "tiny-ggg-sequential" if command == "run" else Path(name)


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nsys that starts the command and makes no report; returns what `record` would start leaves."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    (tmp_path / "bin" / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "started"


def one_line(stderr: str, path: Path) -> str:
    assert len(stderr.splitlines()) == 1
    assert stderr.startswith(f"intertoken: {path}: ")
    return stderr.removeprefix(f"intertoken: {path}: ").strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_place_is_refused_before_any_work(command, read_only, nsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr("executor.run.light_pass.execute", lambda *_, **__: pytest.fail("it began to work"))
    missing = [each if each != SMALL else "missing" for each in COMMANDS[command]]
    monkeypatch.setitem(COMMANDS, command, missing)  # which is said by who looks for it
    code, stderr, path = invoke(command, read_only / "deep" / "out")
    reason = "Read-only file system" if os.geteuid() == 0 else "Permission denied"
    assert (code, one_line(stderr, path)) == (2, f"cannot be written: {reason}: {read_only}")
    assert not nsys.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_is_neither_followed_nor_unasked_replaced(command, tmp_path, nsys):
    _, _, path = invoke(command, tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    targets = {"nowhere": tmp_path / "nothing", "directory": tmp_path / "elsewhere"}
    nsys.unlink(missing_ok=True)
    for target in targets.values():
        subprocess.run(["rm", "-rf", path], check=True)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
        code, stderr, _ = invoke(command, tmp_path / "out", force=False)
        assert code == 2
        assert "already exists" in stderr or "already holds" in stderr
        assert os.readlink(path) == str(target)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert not (tmp_path / "nothing").exists()
    assert not nsys.exists()


@pytest.mark.parametrize("command", ["convert", "table", "run"])
def test_what_replaces_a_link_leaves_what_it_leads_to(command, tmp_path):
    code, _, path = invoke(command, tmp_path / "out")
    assert code == 0
    kept = path.rename(tmp_path / "kept")
    before = sorted(kept.iterdir()) if kept.is_dir() else kept.read_bytes()
    path.symlink_to(kept)
    assert invoke(command, tmp_path / "out")[0] == 0
    assert not path.is_symlink()
    assert path.exists()
    assert (sorted(kept.iterdir()) if kept.is_dir() else kept.read_bytes()) == before
    assert [name for name in os.listdir(path.parent) if name.startswith(".")] == []


@pytest.mark.parametrize("command", [*DIRECTORIES, "table", "run"])
def test_a_pipe_and_a_directory_that_is_not_ours_stay(command, tmp_path, nsys):
    _, _, path = invoke(command, tmp_path / "out")
    nsys.unlink(missing_ok=True)
    subprocess.run(["rm", "-rf", path], check=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    assert invoke(command, tmp_path / "out")[0] == 2
    assert path.is_fifo()
    path.unlink()
    path.mkdir()
    (path / "data.parquet").write_text("precious")  # of somebody else
    code, stderr, _ = invoke(command, tmp_path / "out")
    assert code == 2
    assert one_line(stderr, path) in (
        "not replaced, because it does not contain a recording", "is a directory; choose another name",
    )  # fmt: skip
    assert (path / "data.parquet").read_text() == "precious"
    assert not nsys.exists()


def test_a_parent_that_is_no_directory_is_refused_before_the_program_starts(tmp_path, nsys):
    (tmp_path / "file").touch()
    code, stderr, path = invoke("record", tmp_path / "file" / "out")
    assert (code, one_line(stderr, path)) == (2, f"cannot be written: Not a directory: {tmp_path / 'file'}")
    assert not nsys.exists()


@pytest.mark.parametrize("command", [
    "convert", "scrub", "whatif", "table", "budget", "run",
])  # fmt: skip
def test_a_full_disk_is_one_line_and_costs_nothing(command, small_disk):  # noqa: F811
    code, stderr, path = invoke(command, small_disk / "out")
    if code == 0:
        before = {file: file.read_bytes() for file in small_disk.rglob("*") if file.is_file()}
    else:  # it is too large from the first
        before = {}
        assert "No space left on device" in one_line(stderr, path)
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    code, stderr, path = invoke(command, small_disk / "out")
    assert (code, one_line(stderr, path)) == (2, "cannot be written: No space left on device")
    (small_disk / "filler").unlink()
    assert {file: file.read_bytes() for file in small_disk.rglob("*") if file.is_file()} == before


def test_a_limit_on_the_size_of_files_is_one_line(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [sys.executable, "-m", "tracer.cli", "convert", SMALL, tmp_path / "a.sqlite"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 2
    assert one_line(done.stderr, tmp_path / "a.sqlite").startswith("cannot be written: ")
    assert os.listdir(tmp_path) == []


WRITER = """
import pathlib, sys
from tracer.files.output import appearing
with appearing(pathlib.Path(sys.argv[1]), replace=True) as partial:
    partial.write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_writer_that_is_ended_leaves_nothing_or_what_the_next_removes(number, tmp_path):
    path = tmp_path / "a*.csv"
    path.write_text("old")
    heard = bound(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdin=-1, stdout=-1, preexec_fn=heard) as writer:
        assert writer.stdout is not None
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


@pytest.fixture(params=[True, False], ids=["renameat2", "without"])
def exchanges(request, monkeypatch):
    if not request.param:  # as on NFS
        monkeypatch.setattr(output, "_rename", lambda *_: 22)


def test_what_comes_meanwhile_stays(exchanges, tmp_path):
    path = tmp_path / "a"

    def write(partial: Path) -> None:
        partial.write_text("mine")
        path.write_text("theirs")

    with pytest.raises(UsageError, match="a: already exists: it was created meanwhile"):
        write_output(path, write, replace=False)
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_what_was_about_to_be_replaced_comes_back(tmp_path, monkeypatch):
    """Where a file system cannot exchange, a writer may be killed between the two steps."""
    monkeypatch.setattr(output, "_rename", lambda *_: 22)
    monkeypatch.setattr(Path, "rename", renaming := Path.rename)
    path = tmp_path / "a"
    path.mkdir()
    (path / "text").write_text("old")
    folder = tmp_path / ".a.01234567.partial"
    folder.mkdir()
    os.close(output.lock_folder(folder))
    renaming(path, folder / output._REPLACED)
    output.clear_away(path)
    assert (path / "text").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_current_directory_and_the_root_are_there_already():
    for path in (Path("."), Path("/"), Path("..")):
        with pytest.raises(TraceError, match="already exists"):
            check_place(path, replace=False)
