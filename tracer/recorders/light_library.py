"""The preloaded library of the light recorder.

A wheel for a platform brings it compiled; any other installation has its C alone, and compiles it when it is first
asked for, into the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tracer.errors import RecordError
from tracer.recorders.native import compile as native

SHIPPED: Final = native.SOURCES / native.NAME


def library() -> Path:
    """The library for this machine, compiled now if need be.

    Raises:
        RecordError: there is none, and no compiler to make it, or another system than Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RecordError("the light recorder preloads a library, which is possible on Linux alone")
    if SHIPPED.is_file():
        return SHIPPED
    made = user_cache_path("intertoken") / f"{_digest()}-{os.uname().machine}-{native.NAME}"
    if made.is_file():
        return made
    compiler = native.compiler()
    if compiler is None:
        raise RecordError(
            "the light recorder's library is not compiled in this installation, and there is no C compiler (cc, gcc or "
            "clang on PATH, or CC); install one, or a wheel of intertoken for this machine, or use --passes node"
        )
    new = made.with_suffix(f".{os.getpid()}")
    try:
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        native.compile_library(new, compiler)
        new.rename(made)
    except native.CompileError as problem:
        raise RecordError(f"the light recorder's library cannot be compiled: {problem}") from problem
    except OSError as problem:
        raise RecordError(f"{made.parent}: cannot be written: {problem.strerror or problem}") from problem
    return made


def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(native.SOURCES.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
