"""`intertoken record --call-sites` of Python programs that end badly, over a driver and a CUPTI that are not there.

The program launches five kernels, says that it has, and then does what its first line of input says.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

import tracer
from tests.programs import PROGRAMS
from tests.tracer import fake_cuda
from tests.tracer.places import small_disk  # noqa: F401

Start = Callable[..., "Recording"]


class Ended(NamedTuple):
    """How a recording ended: exit code, what was printed, and what lies in the folder."""

    code: int
    out: bytes
    err: list[str]
    files: list[str]


class Recording:
    """A program that is being recorded."""

    def __init__(self, environment, folder, *options):
        self.folder, program = folder, folder.parent / "program.py"
        program.write_text(PROGRAMS["launches and is told what to do"])
        options = ("--passes", "node", "--call-sites", *options, "--", sys.executable)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracer.cli", "record", "-o", folder / "out", *options, program],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        word, pid = self.process.stdout.readline().split()
        assert word == b"ready"
        self.pid = int(pid)

    def tell(self, statement):
        self.process.stdin.write(f"{statement}\n".encode())
        self.process.stdin.flush()

    def end(self, statement=""):
        """The end, when the program has closed its output too; it does this, or whatever it was told or sent before."""
        if statement:
            self.tell(statement)
        out, code = self.process.stdout.read(), self.process.wait(60)
        return Ended(code, out, self.process.stderr.read().decode().splitlines(), sorted(os.listdir(self.folder)))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return fake_cuda.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def start(environment):
    begun = []

    def recording(folder, *options):
        begun.append(Recording(environment, folder, *options))
        return begun[-1]

    yield recording
    for each in begun:  # whatever still runs
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def check_kept(folder):
    """All five kernels are in the one recording there."""
    names = tracer.read(folder / "out")["kernels"]["short_name"].astype(str).tolist()
    assert names == [f"kernel{number}" for number in range(5)]
    assert os.listdir(folder) == ["out"]


def test_output_exceptions_exit_code_and_handled_signals_are_the_programs_own(start, folder):
    recording = start(folder)
    handler = "lambda *_: exec('raise OSError(2, \\'gone\\', \\'file\\')')"
    recording.tell(rf"signal.signal(signal.SIGTERM, {handler}); os.write(1, b'\xff\0[bold]\n'); signal.pause()")
    assert recording.process.stdout.readline() == b"\xff\0[bold]\n"
    recording.process.terminate()
    ended = recording.end()
    assert ended.code == 1
    assert ended.err[0] == "Traceback (most recent call last):"
    assert ended.err[-2:] == ["FileNotFoundError: [Errno 2] gone: 'file'", f"{folder / 'out'}: 10 events"]
    check_kept(folder)


@pytest.mark.parametrize(("statement", "code", "how"), [
    ("os._exit(3)", 3, "ended with exit code 3"),
    ("pyarrow.parquet.write_table = lambda *_, **__: end(False)", 137, "ended by SIGKILL"),
], ids=["left", "killed while writing"])  # fmt: skip
def test_a_program_that_dies_is_said_in_one_line_and_leaves_nothing(start, folder, statement, code, how):
    ended = start(folder).end(statement)
    lost = "and the recording in its memory was lost"
    said = f"intertoken: {folder / 'out'}: nothing was recorded: the program {how} {lost}"
    assert (ended.code, ended.err, ended.files) == (code, [said], [])


@pytest.mark.parametrize("told", ["tool SIGHUP", "program SIGTERM", "both SIGINT", "thread SIGTERM", "tool SIGKILL"])
def test_what_was_recorded_until_a_signal_is_kept(start, folder, told):
    """Also if the signal interrupts no call of the main thread, as one that arrives right before the call: Python's own
    handlers would wait for its end. If the tool is killed the program ends, too."""
    recording, (whom, name) = start(folder), told.split()
    number = signal.Signals[name]
    late = "lambda: (time.sleep(0.3), signal.pthread_kill(threading.get_ident(), signal.SIGTERM))"
    statement = f"threading.Thread(target={late}).start(); sys.stdin.readline()" if whom == "thread" else ""
    if whom == "both":
        os.killpg(recording.process.pid, number)
    elif whom != "thread":
        os.kill(recording.process.pid if whom == "tool" else recording.pid, number)
    ended = recording.end(statement)
    check_kept(folder)
    if number == signal.SIGKILL:
        assert ended.code == -number
        return
    assert ended.code == 128 + number
    kept = f"intertoken: the program ended by {name}; everything recorded until then is kept"
    assert ended.err[-2:] == [kept, f"{folder / 'out'}: 10 events"]
    assert (ended.err[0] == kept) == (number != signal.SIGINT)  # which Python shows by a traceback


def test_what_both_leave_when_killed_while_writing_goes_at_the_next_start(start, folder):
    ended = start(folder).end("pyarrow.parquet.write_table = lambda *_, **__: end(True)")
    assert (ended.code, ended.files[0][:5], len(ended.files)) == (-signal.SIGKILL, ".out.", 1)
    ended = start(folder).end("pass")
    assert (ended.code, ended.files) == (0, ["out"])
