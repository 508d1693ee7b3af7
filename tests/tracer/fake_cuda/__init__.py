"""A CUDA driver and a CUPTI that any program can load, built from `fake.c`; see `tests.tracer.fake_cuda.build`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake.c"


def build(folder: Path) -> dict[str, str]:
    """Compile it into a folder; the environment in which programs find it."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("INTERTOKEN_REQUIRE_BROWSER") == "1":
            pytest.fail("CI needs a C compiler")
        pytest.skip("there is no C compiler (cc)")
    library = folder / "libcupti.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, SOURCE], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)  # one file, so that both are one library
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(library)}
