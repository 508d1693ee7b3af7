"""The C sources of the recorder's preloaded library, compiled during a build of intertoken or on the user's machine.

This file uses only the standard library, because nothing else is available during a build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
NAME: Final = "libintertoken_light.so"
RACES: Final = "libintertoken_races.so"
_SHARED: Final = ("interpose.c", "held.c", "files.c", "sites.c")  # by both libraries
FLAGS: Final = (
    "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread", "-shared",
    "-Wl,-Bsymbolic-functions",  # our wrappers are ours, even if the driver is preloaded before
)  # fmt: skip


class CompileError(Exception):
    """The compiler cannot be run, or rejects the sources."""


def compiler() -> str | None:
    """The C compiler to use: from the environment variable CC, else cc, gcc or clang; None if there is none."""
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_library(target: Path, compiler: str, flags: Sequence[str] = (), *, races: bool = False) -> None:
    """Compile the library of the light recorder, or that of `intertoken races`.

    Raises:
        CompileError: the compiler fails; the message is the first line of its output that reports an error.
    """
    files = [*(SOURCES / name for name in _SHARED), *SOURCES.glob("races/*.c")] if races else SOURCES.glob("*.c")
    given = ["-DINTERTOKEN_RACES", *flags] if races else flags
    command = [compiler, *FLAGS, *given, "-o", str(target), *sorted(map(str, files)), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as problem:
        raise CompileError(f"{compiler} cannot be run: {problem.strerror}") from problem
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise CompileError(next((line for line in said.splitlines() if "error" in line), said.splitlines()[0]))
