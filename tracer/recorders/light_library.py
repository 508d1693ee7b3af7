"""The preloaded library of the light recorder: where it is, and how it is compiled.

A wheel brings it compiled; an installation from source, or one made without a C compiler, has its C alone and compiles
it when it is first asked for, into the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tracer.errors import RecordError

SOURCES: Final = Path(__file__).parent / "native"
NAME: Final = "libintertoken_light.so"
FLAGS: Final = (
    "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread", "-shared",
)  # fmt: skip


def library() -> Path:
    """The library for this machine, compiled now if need be.

    Raises:
        RecordError: there is none, and no compiler to make it, or another system than Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RecordError("the light recorder preloads a library, which is possible on Linux alone")
    shipped = SOURCES / NAME
    if shipped.is_file():
        return shipped
    made = user_cache_path("intertoken") / f"{_digest()}-{os.uname().machine}-{NAME}"
    if made.is_file():
        return made
    compiler = next(
        (found for name in (os.environ.get("CC", ""), "cc", "gcc", "clang") if (found := which(name))), None
    )
    if compiler is None:
        raise RecordError(
            "the light recorder's library is not compiled in this installation, and there is no C compiler (cc, gcc or "
            "clang on PATH, or CC); install one, or a wheel of intertoken for this machine"
        )
    made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = made.with_suffix(f".{os.getpid()}")
    compile_library(new, compiler)
    new.rename(made)
    return made


def which(name: str) -> str | None:
    """A program on PATH."""
    return shutil.which(name) if name else None


def compile_library(target: Path, compiler: str, flags: Sequence[str] = ()) -> None:
    """Compile it.

    Raises:
        RecordError: the compiler fails.
    """
    sources = sorted(map(str, SOURCES.glob("*.c")))
    command = [compiler, *FLAGS, *flags, "-o", str(target), *sources, "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as problem:
        raise RecordError(f"{compiler} cannot be run: {problem.strerror}") from problem
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise RecordError(f"the light recorder's library cannot be compiled: {said}")


def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
