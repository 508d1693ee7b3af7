"""Reads processes under the light recorder in the background, once for all readers, and saves them on request."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Final

from dashboard.reading.background import Background
from tracer.errors import TraceError, UsageError
from tracer.files.output import appearing
from tracer.formats import nsys_parquet
from tracer.model.trace import Trace
from tracer.recorders.live import Live, live, snapshot

_log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
"""Age at which figures are read again."""
_LONGEST_NAME: Final = 40


class Running:
    """The processes that run under a recorder of this user.

    Args:
        output: directory for the recordings; `shown` is its displayed name.
        look, take: read the rings, see `tracer.recorders.live`.
    """

    def __init__(
        self, output: Path, shown: Path, look: Callable[[], list[Live]] = live,
        take: Callable[[int, float | None], Trace] = snapshot,
    ) -> None:  # fmt: skip
        self.shown = shown
        self._output, self._look, self._take = output, look, take
        self._background = Background()
        self._lock = threading.Lock()
        self._rows: list[Live] | None = None
        self._looking: Future[list[Live]] | None = None
        self._looked = -EVERY_S
        self._keeping: Future[str] | None = None

    def rows(self) -> list[Live] | None:
        """The last result, without waiting (None before the first); a new one is started if it is old."""
        with self._lock:
            if self._looking is not None and self._looking.done():
                looked, self._looking, self._looked = self._looking, None, time.monotonic()
                if looked.cancelled() or (problem := looked.exception()) is not None:
                    _log.warning("cannot list running processes: %s", "cancelled" if looked.cancelled() else problem)
                else:
                    self._rows = looked.result()
            if self._looking is None and time.monotonic() - self._looked >= EVERY_S:
                self._looking = self._background.ask("live", object(), self._look, most=1)
            return self._rows

    def keep(self, process: int, seconds: float | None) -> None:
        """Start saving the contents of a process's rings, or its last seconds, as a recording.

        Raises:
            UsageError: the process is not running, or another recording is being saved.
        """
        program = next((row.program for row in self.rows() or () if row.process == process), None)
        if program is None:
            raise UsageError("Select a running process.")
        with self._lock:
            if self._keeping is not None and not self._keeping.done():
                raise UsageError("A recording is already being saved: wait a moment.")
            made = datetime.now().strftime("%H%M%S.%f")
            name = f"{re.sub(r'[^A-Za-z0-9_-]+', '_', program)[:_LONGEST_NAME]}-{process}-{made}".replace(".", "-")
            self._keeping = self._background.ask(
                "keep", name, lambda: self._kept(name, process, seconds), most=1
            )  # fmt: skip

    def said(self) -> str:
        """The state of the current or last saved recording; "" if there is none."""
        with self._lock:
            keeping = self._keeping
        if keeping is None:
            return ""
        if not keeping.done():
            return "Writing the recording …"
        return "Nothing was saved: cancelled" if keeping.cancelled() else keeping.result()

    def _kept(self, name: str, process: int, seconds: float | None) -> str:
        try:
            trace = self._take(process, seconds)
            self._output.mkdir(parents=True, exist_ok=True)
            with appearing(self._output / name) as new:
                nsys_parquet.write(trace, new)
        except (TraceError, MemoryError) as problem:
            return f"Nothing was saved: {problem or 'too little memory; choose fewer seconds'}"
        except OSError as problem:
            return f"Nothing was saved: {self.shown} cannot be written to ({problem.strerror})"
        return f"Saved as {self.shown / name}: {len(trace):,} events. It is in the table of runs."
