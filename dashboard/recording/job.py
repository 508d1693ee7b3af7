"""The state of a recording, in a file that every server process reads. Imports nothing of ours, so that the process
that writes it stays small."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

RUNNING, DONE, CANCELLED, STOPPED, FAILED = "running", "done", "cancelled", "stopped", "failed"
_SILENCE: Final = 5.0
"""Seconds without a write after which a running job is checked."""


@dataclass
class Job:
    """A recording.

    Attributes:
        number: unique number.
        command: its arguments, the program first.
        started: start time (s since 1970).
        began: start of its first unit of work, None before.
        ended: end time, None while it runs.
        status: `RUNNING`, `DONE`, `CANCELLED` by the user, `STOPPED` with its server, or `FAILED`.
        problem: why it failed, in one line.
        units, steps, runs: finished and total warm-ups, repeats and traced passes; token steps; run directories;
            (0, 0) while unknown.
        whole: names of the complete run directories in the output directory.
        lines: last lines of its output.
    """

    number: str
    command: list[str]
    started: float
    began: float | None = None
    ended: float | None = None
    status: str = RUNNING
    problem: str = ""
    units: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)
    runs: tuple[int, int] = (0, 0)
    whole: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Finished share of the work: token steps, with the writing of each run counted as one step."""
        total = self.steps[1] + self.runs[1]
        return (self.steps[0] + self.runs[0]) / total if total else 0.0

    def elapsed(self, now: float) -> float:
        """Seconds from the start to the end, or to now."""
        return max((self.ended or now) - self.started, 0.0)

    def left(self, now: float) -> float | None:
        """Seconds left at the rate so far; None while nothing is finished."""
        if self.began is None or not self.share or self.status != RUNNING:
            return None
        return max(now - self.began, 0.0) * (1 - self.share) / self.share


@dataclass(frozen=True)
class Files:
    """The files of a recording, in a hidden folder of the directory that gets the runs.

    Attributes:
        output: that directory.
    """

    output: Path

    @property
    def folder(self) -> Path:
        """Hidden, so that a store does not search it."""
        return self.output / ".intertoken-record"

    @property
    def lock(self) -> Path:
        """Locked while a recording runs."""
        return self.folder / "lock"

    @property
    def staging(self) -> Path:
        """Incomplete runs."""
        return self.folder / "staging"

    @property
    def cancel(self) -> Path:
        """Holds the number of the job to cancel."""
        return self.folder / "cancel"

    def write(self, job: Job) -> None:
        """Write the job to the place where `read` finds it, atomically.

        Raises:
            OSError: it cannot be written; the previous one stays.
        """
        new = self.folder / f"job.{os.getpid()}.new"
        try:
            new.write_text(json.dumps(asdict(job)), encoding="utf-8")
            new.replace(self._file)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def read(self) -> Job | None:
        """The last recording, None if there was none."""
        try:
            return Job(**json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # none, or one of another version
            return None

    def silent(self) -> bool:
        """Whether nothing has been written for some seconds."""
        try:
            return time.time() - self._file.stat().st_mtime > _SILENCE
        except OSError:
            return True

    @property
    def _file(self) -> Path:
        return self.folder / "job.json"
