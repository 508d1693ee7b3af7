"""Programs that tests run in processes of their own, and other texts of the data by their titles."""

import re
import subprocess
import sys

from tests.tracer.nsys_exports import DATA


def texts(name):
    """The texts of a file, each behind a line with its title."""
    parts = re.split(r"^=== (.+)\n", (DATA / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


PROGRAMS = texts("programs.txt")


def ran(name, *arguments, **options):
    """Run a Python program of these to its end."""
    command = [sys.executable, "-W", "error", "-c", PROGRAMS[name], *arguments]
    return subprocess.run(command, **{"capture_output": True, "text": True, **options})
