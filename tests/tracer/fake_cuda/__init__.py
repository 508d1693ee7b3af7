"""A CUDA driver and a CUPTI that any program can load, built from `fake.c`; see `tests.tracer.fake_cuda.build`."""

import os
import subprocess
from pathlib import Path

from tests.tracer.fake_driver import compiler_or_skip

SOURCE = Path(__file__).parent / "fake.c"


def build(folder: Path) -> dict[str, str]:
    """Compile it into a folder; the environment in which programs find it."""
    compiler = compiler_or_skip()
    library = folder / "libcupti.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, SOURCE], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)  # one file, so that both are one library
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(library)}
