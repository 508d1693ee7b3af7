"""A CUDA driver and a CUPTI that any program can load, built from `fake.c`; see `tests.tracer.fake_cuda.build`."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.tracer.compiled_once import compiled_once
from tests.tracer.fake_driver import compiler_or_skip

SOURCES = Path(__file__).parent


def build(folder: Path, flags: Sequence[str] = ()) -> dict[str, str]:
    """Compile it into a folder, with the program `traced`; the environment in which programs find it."""
    compiled_once(folder, lambda made: _compile(made, flags), [SOURCES], flags)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(folder / "libcupti.so.13")}


def _compile(folder: Path, flags: Sequence[str]) -> None:
    compiler = [compiler_or_skip(), "-O1", "-w", "-pthread", *flags]
    library = folder / "libcupti.so.13"
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, SOURCES / "fake.c", "-ldl"], check=True)
    subprocess.run([*compiler, "-o", folder / "traced", SOURCES / "traced.c", "-ldl"], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)  # one file, so that both are one library
