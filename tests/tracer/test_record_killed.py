"""`intertoken record --call-sites` of Python programs that end badly, over a driver and a CUPTI that are not there.

The program launches five kernels, says that it has, and then does what its first line of input says.
"""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.tracer import fake_cuda
from tests.tracer.places import small_disk  # noqa: F401
from tracer import read

PROGRAM = textwrap.dedent(
    """
    import ctypes, os, signal, sys
    import pyarrow.parquet

    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    for number in range(5):
        cuda.cuLaunchKernel(b"kernel%d" % number)

    def end(group):
        (os.killpg if group else os.kill)(0 if group else os.getpid(), signal.SIGKILL)

    def main():
        print("ready", os.getpid(), flush=True)
        exec(sys.stdin.readline())

    main()
    """
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fake_cuda.build(tmp_path_factory.mktemp("cuda"))


class Recording:
    """A program that is being recorded."""

    def __init__(self, environment: dict[str, str], folder: Path, *options: str) -> None:
        program = folder.parent / "program.py"
        program.write_text(PROGRAM)
        self.folder = folder
        options = ("--passes", "node", "--call-sites", *options)
        command = ("record", "-o", folder / "out", *options, "--", sys.executable, program)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracer.cli", *command],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.stdout: IO[bytes] = self.process.stdout
        word, pid = self.stdout.readline().split()
        assert word == b"ready"
        self.pid = int(pid)

    def do(self, statement: str) -> "Ended":
        """Let the program do this, and wait for the end."""
        out, err = self.process.communicate(f"{statement}\n".encode(), timeout=60)
        return Ended(self.process.returncode, out, err.decode().splitlines(), sorted(os.listdir(self.folder)))

    def wait(self) -> "Ended":
        """The end, when the program has closed its output too."""
        out = self.stdout.read()
        code = self.process.wait(60)
        assert self.process.stderr is not None
        return Ended(code, out, self.process.stderr.read().decode().splitlines(), sorted(os.listdir(self.folder)))

    def close(self) -> None:
        """End whatever still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Ended:
    """How a recording ended: exit code, what was printed, and what lies in the folder."""

    def __init__(self, code: int, out: bytes, err: list[str], files: list[str]) -> None:
        self.code, self.out, self.err, self.files = code, out, err, files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[type[Recording]]:
    begun: list[Recording] = []

    def recording(folder: Path, *options: str) -> Recording:
        begun.append(Recording(environment, folder, *options))
        return begun[-1]

    yield recording
    for each in begun:
        each.close()


def kernels(folder: Path) -> list[str]:
    return read(folder / "out")["kernels"]["short_name"].astype(str).tolist()


FIVE = [f"kernel{number}" for number in range(5)]


def test_output_and_exit_code_pass_through(start, folder):
    ended = start(folder).do(r"os.write(1, b'\xff\0[bold]'); os.write(2, b'said\n'); sys.exit(7)")
    assert (ended.code, ended.out) == (7, b"\xff\0[bold]")
    assert ended.err == ["said", f"{folder / 'out'}: 10 events"]
    assert kernels(folder) == FIVE


def test_an_exception_of_the_program_is_its_own(start, folder):
    ended = start(folder).do("raise OSError(2, 'gone', 'file')")
    assert ended.code == 1
    assert ended.err[0] == "Traceback (most recent call last):"
    assert ended.err[-1] == f"{folder / 'out'}: 10 events"
    assert kernels(folder) == FIVE


@pytest.mark.parametrize(("statement", "code", "how"), [
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "ended by SIGSEGV"),
    ("os._exit(3)", 3, "ended with exit code 3"),
    ("pyarrow.parquet.write_table = lambda *_, **__: end(False)", 137, "ended by SIGKILL"),
], ids=["crashed", "left", "killed while writing"])  # fmt: skip
def test_a_program_that_dies_is_said_in_one_line_and_leaves_nothing(start, folder, statement, code, how):
    ended = start(folder).do(statement)
    assert ended.code == code
    lost = "and the recording in its memory was lost"
    assert ended.err == [f"intertoken: {folder / 'out'}: nothing was recorded: the program {how} {lost}"]
    assert ended.files == []


@pytest.mark.parametrize(
    ("told", "number"),
    [("tool", signal.SIGTERM), ("tool", signal.SIGHUP),
     ("program", signal.SIGTERM), ("both", signal.SIGINT)],
)  # fmt: skip
def test_what_was_recorded_until_a_signal_is_kept(start, folder, number, told):
    recording = start(folder)
    if told == "both":
        os.killpg(recording.process.pid, number)
    else:
        os.kill(recording.process.pid if told == "tool" else recording.pid, number)
    ended = recording.wait()
    assert ended.code == 128 + number
    kept = f"intertoken: the program ended by {number.name}; everything recorded until then is kept"
    assert ended.err[-2:] == [kept, f"{folder / 'out'}: 10 events"]
    assert (ended.err[0] == kept) == (number != signal.SIGINT)  # which Python shows by a traceback
    assert ended.files == ["out"]
    assert kernels(folder) == FIVE


def test_a_signal_that_interrupts_no_call_of_the_main_thread_ends_the_program_too(start, folder):
    """As one that arrives right before the call. Python's own handlers would wait for its end."""
    late = "lambda: (time.sleep(0.3), signal.pthread_kill(threading.get_ident(), signal.SIGTERM))"
    recording = start(folder)
    statement = f"threading.Thread(target={late}).start(); sys.stdin.readline()"
    recording.process.stdin.write(f"exec('import threading, time; {statement}', globals())\n".encode())
    recording.process.stdin.flush()
    ended = recording.wait()
    assert ended.code == 128 + signal.SIGTERM
    assert ended.files == ["out"]
    assert kernels(folder) == FIVE


def test_a_signal_that_the_program_handles_is_its_own(start, folder):
    recording = start(folder)
    assert recording.process.stdin is not None
    recording.process.stdin.write(
        b"signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print('set', flush=True); signal.pause()\n"
    )
    recording.process.stdin.flush()
    assert recording.stdout.readline() == b"set\n"
    recording.process.terminate()
    ended = recording.wait()
    assert (ended.code, ended.err) == (5, [f"{folder / 'out'}: 10 events"])


def test_when_the_tool_is_killed_the_program_ends_and_its_recording_is_kept(start, folder):
    recording = start(folder)
    recording.process.kill()
    ended = recording.wait()  # of both: the program holds the output
    assert (ended.code, ended.files) == (-signal.SIGKILL, ["out"])
    assert kernels(folder) == FIVE


def test_what_both_leave_when_killed_while_writing_goes_at_the_next_start(start, folder):
    ended = start(folder).do("pyarrow.parquet.write_table = lambda *_, **__: end(True)")
    assert ended.code == -signal.SIGKILL
    (left,) = ended.files
    assert left.startswith(".out.")
    ended = start(folder).do("")
    assert (ended.code, ended.files) == (0, ["out"])


def test_a_full_disk_is_one_line_and_costs_nothing(start, small_disk):  # noqa: F811
    ended = start(small_disk).do("")
    assert ended.code == 0
    before = {file.name: file.read_bytes() for file in (small_disk / "out").iterdir()}
    room = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(max(room.f_bavail - 3, 0) * room.f_bsize))
    ended = start(small_disk, "--force").do("")
    assert (ended.code, ended.err) == (
        2, [f"intertoken: {small_disk / 'out'}: cannot be written: No space left on device"],
    )  # fmt: skip
    assert ended.files == ["filler", "out"]
    assert {file.name: file.read_bytes() for file in (small_disk / "out").iterdir()} == before


def test_a_name_that_is_taken_meanwhile_stays(start, folder):
    recording = start(folder)
    (folder / "out").write_text("precious")
    ended = recording.do("")
    assert ended.code == 2
    assert ended.err == [f"intertoken: {folder / 'out'}: already exists; choose another name"]
    assert (folder / "out").read_text() == "precious"
    assert ended.files == ["out"]
