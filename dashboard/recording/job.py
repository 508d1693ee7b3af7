"""What is known of a recording that was started, as a file that every server process reads. No other imports: the
process that writes it is small."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

RUNNING, DONE, CANCELLED, STOPPED, FAILED = "running", "done", "cancelled", "stopped", "failed"
_SILENCE: Final = 5.0
"""Seconds without a write after which a job that should go on is looked at more closely."""


@dataclass
class Job:
    """A recording.

    Attributes:
        number: tells it from others.
        command: its arguments, the program first.
        started: when (s since 1970).
        began: when its first unit of work did, None before.
        ended: when, None while it goes on.
        status: `RUNNING`, `DONE`, `CANCELLED` by a reader, `STOPPED` with its server, or `FAILED`.
        problem: why it failed, in one line.
        units, steps, runs: how many warm-ups, repeats and traced passes, token steps and run directories are done,
            and how many there are; (0, 0) while unknown.
        whole: names of the run directories that are, in the output directory.
        lines: the last of what it printed.
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
        """How much of the work is done: token steps, and the writing of each run as if it were one."""
        total = self.steps[1] + self.runs[1]
        return (self.steps[0] + self.runs[0]) / total if total else 0.0

    def elapsed(self, now: float) -> float:
        """Seconds that it took, or takes already."""
        return max((self.ended or now) - self.started, 0.0)

    def left(self, now: float) -> float | None:
        """Seconds that it still takes if it goes on as it did; None where nothing is done yet."""
        if self.began is None or not self.share or self.status != RUNNING:
            return None
        return max(now - self.began, 0.0) * (1 - self.share) / self.share


@dataclass(frozen=True)
class Place:
    """The files of a recording, in a hidden folder of the directory that gets the runs.

    Attributes:
        output: that directory.
    """

    output: Path

    @property
    def folder(self) -> Path:
        """Hidden: a store does not look into it."""
        return self.output / ".intertoken-record"

    @property
    def lock(self) -> Path:
        """Locked while a recording goes on."""
        return self.folder / "lock"

    @property
    def staging(self) -> Path:
        """Runs that are not whole yet."""
        return self.folder / "staging"

    @property
    def cancel(self) -> Path:
        """Holds the number of the job that is to end."""
        return self.folder / "cancel"

    def write(self, job: Job) -> None:
        """Put it where `read` finds it, whole.

        Raises:
            OSError: it cannot be written; the one before stays.
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
