"""The server's side of recordings: lists the options, and starts, cancels and follows a recording."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dashboard.reading.background import Background
from dashboard.recording.job import FAILED, RUNNING, Files, Job
from dashboard.recording.options import Option, options_of
from tracer.errors import UsageError
from tracer.recorders.foreground import module_command

RUN: Final = (*module_command("tracer.cli"), "run")
_PATIENCE: Final = 120.0
"""Timeout of a listing or a plan (s)."""
_TRIES, _PAUSE = 40, 0.05


class Runner:
    """Starts `intertoken run`, one at a time among all servers that write to the same directory.

    Args:
        output: directory for the runs.
        command: the program and its first arguments.
        grace: seconds that a run has to end on request.
    """

    def __init__(self, output: Path, command: Sequence[str] = RUN, grace: float = 5.0) -> None:
        self.files = Files(output.absolute())
        self.shown = output
        self._command, self._grace = list(command), grace
        self._background = Background()
        self._lock = threading.Lock()
        self._planning: tuple[tuple[str, ...], Future[list[str]]] | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    def options(self) -> tuple[Option, ...] | None:
        """The options of `intertoken run`; None until the command has listed them.

        Raises:
            UsageError: the command does not list them.
        """
        future = self._background.ask("choices", "choices", lambda: options_of(self._ask(["--choices"])))
        return future.result() if future.done() else None

    def plan(self, arguments: Sequence[str]) -> list[str] | None:
        """The runs that these arguments would record; None while unknown: ask again, as only one plan is made at a
        time.

        Raises:
            UsageError: the command rejects them; the message is the command's own.
        """
        wanted = tuple(arguments)
        with self._lock:
            if self._planning is None or (self._planning[0] != wanted and self._planning[1].done()):
                self._planning = wanted, self._background.ask("plan", wanted, lambda: self._planned(wanted))
            asked, future = self._planning
        return future.result() if asked == wanted and future.done() else None

    def command_line(self, arguments: Sequence[str]) -> str:
        """The command of these arguments, quoted for a shell."""
        return shlex.join(["intertoken", "run", *arguments, "-o", str(self.shown)])

    def start(self, arguments: Sequence[str]) -> None:
        """Start a recording.

        Raises:
            UsageError: another one is running, or the directory is not writable.
        """
        self._reap()
        try:
            self.files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if not self._locked(lock):
                    raise UsageError("A recording is already running: wait until it ends, or cancel it.")
                self._begin(arguments, lock)
            finally:
                os.close(lock)
        except OSError as problem:
            message = f"{self.shown} cannot be written to ({problem.strerror})"
            raise UsageError(f"{message}; start the dashboard with --record-to DIR") from None

    def _locked(self, lock: int) -> bool:
        """Take the lock if no recording is running; the process of a finished one may hold it for a moment."""
        for _ in range(_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                job = self.files.read()
                if job is None or job.status == RUNNING:
                    return False
                time.sleep(_PAUSE)
        return False

    def _begin(self, arguments: Sequence[str], lock: int) -> None:
        """Start the watching process, which holds the lock from now on."""
        self.close()  # the previous one, which has released the lock
        files = self.files
        if files.staging.is_symlink():  # runs go nowhere else
            files.staging.unlink()
        shutil.rmtree(files.staging, ignore_errors=True)  # of one that could not clear away
        files.cancel.unlink(missing_ok=True)
        command = [*self._command, *arguments, "--progress", "json", "-o", str(files.staging)]
        job = Job(secrets.token_hex(8), command, time.time())
        files.write(job)
        watched = [str(files.output), str(self._grace), job.number, str(job.started), *command]
        self._supervisor = subprocess.Popen(
            [*module_command("dashboard.recording.supervise"), *watched],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],
        )

    def cancel(self) -> None:
        """Cancel the running recording, whichever server started it.

        Raises:
            UsageError: nothing is being recorded.
        """
        job = self.job()
        if job is None or job.status != RUNNING:
            raise UsageError("Nothing is being recorded.")
        new = self.files.folder / f"cancel.{secrets.token_hex(4)}.new"
        new.write_text(job.number)
        new.replace(self.files.cancel)

    def job(self) -> Job | None:
        """The running recording, or else the last one; None if there was none."""
        self._reap()
        job = self.files.read()
        if job is not None and job.status == RUNNING and self.files.silent() and not self._is_locked():
            return replace(job, status=FAILED, problem="its process has ended", ended=job.ended or time.time())
        return job

    def close(self) -> None:
        """End what this server has started, and wait for it."""
        with self._lock:
            ending, self._supervisor = self._supervisor, None
        if ending is not None:
            ending.communicate(timeout=self._grace + 10)  # closes its standard input, which tells it

    def _reap(self) -> None:
        with self._lock:
            has_ended = self._supervisor is not None and self._supervisor.poll() is not None
        if has_ended:
            self.close()

    def _is_locked(self) -> bool:
        try:
            with self.files.lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _planned(self, arguments: Sequence[str]) -> list[str]:
        nowhere = str(self.files.folder / "nowhere")
        return [str(name) for name in self._ask([*arguments, "--dry-run", "--json", "-o", nowhere])["runs"]]

    def _ask(self, arguments: Sequence[str]) -> dict[str, Any]:
        """One JSON object that the command prints."""
        try:
            done = subprocess.run(
                [*self._command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_PATIENCE, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UsageError(f"intertoken run printed nothing for {_PATIENCE:.0f} s; choose smaller numbers") from None
        except OSError as problem:
            raise UsageError(f"{self._command[0]}: cannot be started: {problem.strerror}") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise UsageError(lines[-1].removeprefix("intertoken: ") if lines else f"exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
