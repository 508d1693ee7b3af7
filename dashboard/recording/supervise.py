"""Supervises one recording: `python -m dashboard.recording.supervise OUTPUT GRACE NUMBER STARTED COMMAND ...`.

It is a separate process instead of a thread of the server: the recording ends with the server, however the server ends
(standard input is then closed), any server process can cancel it, and its runs are moved into place even without a
server.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dashboard.recording.job import CANCELLED, DONE, FAILED, STOPPED, Files, Job

_MOST_LINES, _LONGEST_LINE = 200, 2_000
_LOOK: Final = 0.1
"""Seconds between two checks of the process and of cancellation."""
_SOONEST: Final = 0.5
"""Seconds between two writes of the state."""
_PR_SET_PDEATHSIG: Final = 1
_PROGRESS: Final = "intertoken.progress/1"


class Supervisor:
    """Runs the command of a job and keeps the job up to date.

    Args:
        files: its files.
        job: a job that has not started.
        grace: seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, files: Files, job: Job, grace: float) -> None:
        self._files, self._job, self._grace = files, job, grace
        self._rest = b""
        self._lost = ""
        self._stopping: str | None = None
        self._kill_at = float("inf")
        self._written = 0.0

    def run(self, server: int) -> None:
        """Run until the command has ended.

        Args:
            server: a file descriptor that closes when the server does.
        """
        try:
            child = subprocess.Popen(
                self._job.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # safe: there are no other threads
            )
        except OSError as problem:
            self._end(FAILED, f"{self._job.command[0]}: cannot be started: {problem.strerror}")
            return
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while child.poll() is None:
                self._listen(selector, child, server)
                self._save()
        _signal(child.pid, signal.SIGKILL)  # its child processes
        self._take(child.stdout.read() or b"")
        child.stdout.close()
        self._take(b"\n" if self._rest else b"")
        self._conclude(child.returncode)

    def _listen(self, selector: selectors.BaseSelector, child: subprocess.Popen[bytes], server: int) -> None:
        """Read the output, or wait for it a moment; stop the child on request."""
        ready = selector.select(_LOOK)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            if not data:
                selector.unregister(key.fileobj)
            if key.fd == server:
                self._stop(child, STOPPED)
            else:
                self._take(data)
        if not selector.get_map():
            time.sleep(_LOOK)
        if self._is_cancelled():
            self._stop(child, CANCELLED)
        if time.monotonic() > self._kill_at:
            _signal(child.pid, signal.SIGKILL)

    def _is_cancelled(self) -> bool:
        try:
            return self._files.cancel.read_text() == self._job.number
        except OSError:
            return False

    def _stop(self, child: subprocess.Popen[bytes], status: str) -> None:
        if self._stopping is None:
            self._stopping, self._kill_at = status, time.monotonic() + self._grace
            _signal(child.pid, signal.SIGTERM)

    def _take(self, data: bytes) -> None:
        """Lines of progress or other output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LONGEST_LINE:]
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if not self._progress(text):
                self._log(text)

    def _log(self, text: str) -> None:
        self._job.lines = [*self._job.lines, text[:_LONGEST_LINE]][-_MOST_LINES:]

    def _progress(self, text: str) -> bool:
        """Whether the line was a line of progress."""
        if _PROGRESS not in text:
            return False
        try:
            progress = json.loads(text)
            units, steps, runs = ((int(progress[k][0]), int(progress[k][1])) for k in ("units", "steps", "runs"))
            whole = progress["whole"]
        except (ValueError, LookupError, TypeError):
            return False
        job = self._job
        job.began = job.began or time.time()
        job.units, job.steps, job.runs = units, steps, runs
        if isinstance(whole, str):
            try:
                job.whole = [*job.whole, put(self._files.staging / Path(whole).name, self._files.output)]
            except OSError as problem:
                self._lost = f"{whole}: cannot be moved to {self._files.output}: {problem.strerror}"
                self._log(self._lost)
        return True

    def _save(self) -> None:
        now = time.monotonic()
        if now >= self._written + _SOONEST:
            with suppress(OSError):  # the disk may be full for a while; the recording goes on
                self._files.write(self._job)
            self._written = now

    def _conclude(self, code: int) -> None:
        if code == 0:
            self._end(FAILED if self._lost else DONE, self._lost)
        elif self._stopping is not None:
            self._end(self._stopping)
        elif code < 0:
            name = signal.Signals(-code).name
            memory = "; perhaps it ran out of memory: choose smaller numbers" if -code == signal.SIGKILL else ""
            self._end(FAILED, f"ended by {name}{memory}")
        else:
            lines = [line for line in self._job.lines if line.strip()]
            self._end(FAILED, lines[-1].removeprefix("intertoken: ") if lines else f"ended with exit code {code}")

    def _end(self, status: str, problem: str = "") -> None:
        shutil.rmtree(self._files.staging, ignore_errors=True)
        self._job.status, self._job.problem, self._job.ended = status, problem, time.time()
        with suppress(OSError):  # readers then see that this process is gone
            self._files.write(self._job)


def put(run: Path, output: Path) -> str:
    """Move a complete run directory into the output directory under an unused name; return the name."""
    number = 1
    while True:
        name = run.name if number == 1 else f"{run.name}-{number}"
        number += 1
        if not os.path.lexists(output / name):
            run.rename(output / name)
            return name


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Watch the job that these arguments describe."""
    output, grace, number, started, *command = arguments
    job = Job(number, command, float(started))
    Supervisor(Files(Path(output)), job, float(grace)).run(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
