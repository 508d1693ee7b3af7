"""The preloaded library of the light recorder.

Platform wheels contain the compiled library. Other installations contain only its C sources and compile them on first
use into the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tracer.errors import RecordError
from tracer.recorders.native import compile as native

SHIPPED: Final = native.SOURCES / native.NAME


def library() -> Path:
    """The library for this machine, compiled now if necessary.

    Raises:
        RecordError: there is no library and no compiler, it does not load, or the system is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RecordError("the light recorder preloads a library, which is possible only on Linux")
    found = SHIPPED if SHIPPED.is_file() else _compiled()
    try:
        ctypes.CDLL(str(found))
    except OSError as problem:
        raise RecordError(f"the recorder's library does not load on this machine: {problem}") from problem
    return found


def _compiled() -> Path:
    made = cached()
    if made.is_file():
        return made
    compiler = native.compiler()
    if compiler is None:
        raise RecordError(
            "the recorder's library is not compiled in this installation, and there is no C compiler (cc, gcc or "
            "clang on PATH, or CC); install one, or a wheel of intertoken for this machine"
        )
    new = made.with_suffix(f".{os.getpid()}")
    try:
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        native.compile_library(new, compiler)
        new.rename(made)
    except native.CompileError as problem:
        raise RecordError(f"the recorder's library cannot be compiled: {problem}") from problem
    except OSError as problem:
        raise RecordError(f"{made.parent}: cannot be written: {problem.strerror or problem}") from problem
    return made


def cached() -> Path:
    """The path in the user's cache of the library compiled from these sources for this machine and its C library."""
    digest = hashlib.sha256("\0".join(platform.libc_ver()).encode())
    for source in sorted([*native.SOURCES.glob("*.[ch]"), *native.SOURCES.glob("*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return user_cache_path("intertoken") / f"{digest.hexdigest()[:16]}-{os.uname().machine}-{native.NAME}"
