"""Readers that do their worst, for recordings of these names; a test has its readers' processes call `plant`."""

import os
import time

from dashboard import reading


def plant():
    """Let reading end the process, take memory or time without end, or fail, by the name of the recording."""
    read = reading.formats.read

    def planted(path, **options):
        match path.stem:
            case "abort":
                os.abort()
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
