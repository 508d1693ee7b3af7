"""The folders of light recordings: what a recorder leaves, and how much memory rings take."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tracer.fake_driver import Build, run
from tracer import formats, read
from tracer.errors import TraceError
from tracer.files.output import lock_folder
from tracer.recorders import light, light_ring
from tracer.recorders.light import read_rings

TOKENS = 40
pytestmark = pytest.mark.usefixtures("recorder")


def test_folders_of_recorders_that_live_are_left_alone(tmp_path: Path) -> None:
    """Also where their process cannot be seen, as in another container that shares the memory."""
    with light_ring.folder() as made:
        (made / "1-0.ring").touch()
        assert light_ring.left_folders() == []
        result = run("record", "-o", tmp_path / "out", "--recover", made)
        assert result.exit_code == 2
        assert "not a folder left by a light recorder of this user" in result.stderr
        assert made.is_dir()
    assert not made.exists()


def test_an_empty_folder_that_a_recorder_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "intertoken-light-x"
    left.mkdir()
    os.close(lock_folder(left))
    assert light_ring.left_folders() == []
    assert not left.exists()


KILLED = """
import os, sys
from pathlib import Path
from tracer.cli import main
from tracer.recorders import light_folder, light
light.library = lambda: Path(sys.argv[1])
light_folder._MEMORY = Path(sys.argv[2])
main(["record", "-o", sys.argv[3], "--", sys.argv[4], "proc", "stays", "40"])
"""


def test_what_a_killed_recorder_left_is_said_and_recovered(built: Build, tmp_path: Path) -> None:
    arguments = [built.folder / "light.so", tmp_path, tmp_path / "lost", built.folder / "decode"]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as recorder:
        assert recorder.stdout
        assert recorder.stdout.readline()  # the program is done, and waits for a line
        recorder.kill()
        recorder.wait()
        (left,) = light_ring.left_folders()
        result = run("record", "-o", tmp_path / "other", "--", built.folder / "decode", "proc")
        advice = f"`intertoken record -o TRACE --recover {left}`"
        assert f"note: a killed recorder left a recording: {advice}" in result.stderr
        result = run("record", "-o", tmp_path / "out", "--recover", left)
        assert result.exit_code == 0, result.output
    assert not left.exists()
    assert not (tmp_path / "lost").exists()
    assert len(read(tmp_path / "out")["graph_launches"]) == 80


@pytest.mark.parametrize("how", [TraceError("out: cannot be written: No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_stays_in_memory(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: BaseException
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise how

    with monkeypatch.context() as patched:
        patched.setattr(formats, "write", fails)
        result = run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "", TOKENS)
    assert result.exit_code != 0
    (left,) = light_ring.left_folders()
    assert f"the recording is kept: `intertoken record -o TRACE --recover {left}`" in result.stderr
    assert run("record", "-o", tmp_path / "out", "--recover", left).exit_code == 0
    assert len(read(tmp_path / "out")["graph_launches"]) == 2 * TOKENS


@pytest.mark.parametrize("arguments", [[], ["--recover", "x", "--", "/bin/true"]])
def test_either_a_command_or_what_was_left(tmp_path: Path, arguments: list[str]) -> None:
    result = run("record", "-o", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert "give a COMMAND to run, after --, or --recover FOLDER" in result.stderr


def used(path: Path) -> int:
    """Bytes of a file that take memory."""
    return path.stat().st_blocks * 512


def test_rings_of_programs_that_ended_take_little_memory(built: Build, tmp_path: Path) -> None:
    built.run("decode", "proc", "", str(TOKENS))
    before = built.ring()
    assert used(before.path) > 2_000_000
    with light_ring.kept_small(built.rings):
        deadline = time.monotonic() + 30
        while used(before.path) > 800_000 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert used(before.path) <= 800_000
    after = built.ring()
    assert (after.records == before.records).all()
    assert (after.stamps[0] == before.stamps[0]).all()


def test_rings_are_bounded_together(built: Build, tmp_path: Path) -> None:
    """Of three programs the last finds no room, and the one before it none for its stamps."""
    ring = 65536 + 4096 * 64
    decode = f"{built.folder}/decode proc '' 2 > /dev/null"
    names = 65536  # of kernels, beside the ring
    most = str(2 * (ring + names) + (131072 + 4096) * 16 + 50_000)
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        subprocess.run(
            ["sh", "-c", f"{decode}; {decode}; {decode}"], check=True,
            env={**environment, "INTERTOKEN_LIGHT_BYTES": most, "INTERTOKEN_LIGHT_RECORDS": "4096"},
        )  # fmt: skip
        first, second = read_rings(rings)
        assert (first.counters["stamps_failed"], second.counters["stamps_failed"]) == (0, 1)
        trace = light.read_folder(rings)
        assert trace
        (note,) = [note for note in trace.notes if "not recorded" in note]
        assert note.endswith("(decode)")
        assert "not enough space for a ring in" in note
        assert "half of which is kept free; not recorded: process" in note
        (note,) = [note for note in trace.notes if "1 parts of the recording are missing" in note]
        assert f"process {second.process} (decode)" in note


@contextmanager
def memory(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system in memory of that size, as /dev/shm of a container."""
    folder.mkdir()
    size = f"size={megabytes}m,mode=700"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def free(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_all_rings_together_leave_half_of_the_shared_memory_free(built: Build, tmp_path: Path) -> None:
    """Of what is free without them, however many programs begin one after the other."""
    with memory(tmp_path / "small", 8) as small:
        before = free(small)
        environment = light.environment(built.folder / "light.so", small)
        for _ in range(12):
            subprocess.run([built.folder / "decode", "proc"], env=environment, check=True, stdout=subprocess.DEVNULL)
        assert free(small) >= before // 2
        rings = read_rings(small)
        assert 1 <= len(rings) < 12
        said = (small / "programs").read_text()
        assert said.count("!space ") == 12 - len(rings)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_eight_living_processes_are_recorded_in_64_megabytes(built: Build, tmp_path: Path) -> None:
    """The /dev/shm of a container: all of them begin at once, with stamps, and half of it stays free."""
    with memory(tmp_path / "shm", 64) as small:
        before = free(small)
        environment = light.environment(built.folder / "light.so", small)
        programs = [
            subprocess.Popen(
                [built.folder / "decode", "proc", "stays", "40"], env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(8)
        ]  # fmt: skip
        for program in programs:
            assert program.stdout
            assert program.stdout.readline()
        assert free(small) >= before // 2
        for program in programs:
            program.communicate(b"\n")
        rings = read_rings(small)
        assert len(rings) == 8
        assert [ring.counters["stamps_failed"] for ring in rings] == [0] * 8
        assert all(len(ring.stamps[0]) for ring in rings)
        assert "!" not in (small / "programs").read_text()
