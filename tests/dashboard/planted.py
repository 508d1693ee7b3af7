"""Readers that do their worst, for recordings of these names (`slow-7` too).

A test has its readers' processes call `plant`.
"""

import os
import signal
import tempfile
import time
from pathlib import Path

from dashboard.reading import run as reading
from tracer import stored


def plant():
    """Let reading end the process, take memory or time without end, or fail, by the name of the recording."""
    read = reading.formats.read

    def planted(path, **options):
        match path.stem.partition("-")[0]:
            case "abort":
                os.abort()
            case "killed":  # with a temporary file, and while an entry of the cache is made
                Path(tempfile.mkstemp()[1]).write_text("x")
                Path(tempfile.mkdtemp(), "x").touch()
                stored.save_value = lambda value, place: os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "hungry":
                held = []
                while True:
                    held.append(bytearray(1 << 24))
            case "slow":
                time.sleep(600)
            case "faulty":
                raise ZeroDivisionError("a fault\x00 of ours")
            case "bytes":
                held = bytes(1 << 33)
        return read(path, **options)

    reading.formats.read = planted
