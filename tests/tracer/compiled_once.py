"""What the tests compile: once for the same sources and flags, whichever test or worker asks first.

The folder of such builds is made in `tests/conftest.py` for one session; without it everything is compiled anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

FOLDER = "INTERTOKEN_TEST_BUILDS"


def compiled_once(
    into: Path, make: Callable[[Path], None], sources: Iterable[Path], flags: Sequence[str] = ()
) -> None:  # fmt: skip
    """Put what `make` compiles into an empty folder there; sources are folders with everything that is compiled, flags
    whatever tells this build from others of these sources."""
    if FOLDER not in os.environ:
        make(into)
        return
    files = sorted(path for folder in sources for path in folder.glob("*.[ch]"))
    told = hashlib.sha256("\0".join([make.__qualname__, *flags]).encode())
    for path in files:
        told.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    kept = Path(os.environ[FOLDER]) / told.hexdigest()
    with open(f"{kept}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            shutil.rmtree(half := kept.with_suffix(".half"), ignore_errors=True)  # of a test that failed to compile
            half.mkdir()
            make(half)
            half.rename(kept)
    shutil.copytree(kept, into, symlinks=True, dirs_exist_ok=True)
