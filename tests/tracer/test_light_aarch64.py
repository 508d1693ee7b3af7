"""The preloaded library compiled for aarch64 and run by an emulator, over a driver without a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tracer.fake_driver import HERE
from tracer.recorders.light import light_trace, read_rings
from tracer.recorders.native import compile_library

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
SYSTEM = Path("/usr/aarch64-linux-gnu")
TOKENS = 40

pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR and SYSTEM.is_dir()), reason="needs gcc for aarch64 and its emulator (qemu-user)"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, the fake driver and a decode loop, all for aarch64."""
    assert COMPILER
    folder = tmp_path_factory.mktemp("aarch64")
    compile_library(folder / "light.so", COMPILER, ["-Werror"])
    cc = [COMPILER, "-std=gnu11", "-w", "-O1", "-pthread", "-o"]
    driver = [
        folder / "libcuda.so.1",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        HERE / "driver.c",
        HERE / "rest.c",
    ]
    subprocess.run([*cc, *driver], check=True)
    subprocess.run([*cc, folder / "decode", HERE / "decode.c", "-ldl"], check=True)
    linked = [folder / "decode_linked", "-DLINKED", HERE / "decode.c", folder / "libcuda.so.1", "-ldl"]
    subprocess.run([*cc, *linked], check=True)
    return folder


@pytest.mark.parametrize("way", ["dlsym", "proc", "direct"])
def test_a_decode_loop_however_it_gets_the_driver(folder: Path, tmp_path: Path, way: str) -> None:
    assert EMULATOR
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    given = {"LD_LIBRARY_PATH": folder, "LD_PRELOAD": folder / "light.so", "INTERTOKEN_LIGHT": rings,
             "INTERTOKEN_LIGHT_BUDGET": "0"}  # fmt: skip
    environment = [word for name, value in given.items() for word in ("-E", f"{name}={value}")]
    program = folder / ("decode_linked" if way == "direct" else "decode")
    subprocess.run(
        [EMULATOR, "-L", SYSTEM, *environment, program, way, "", str(TOKENS)], check=True, stdout=subprocess.DEVNULL
    )
    trace = light_trace(read_rings(rings))
    assert trace["graph_launches"]["graph"].value_counts().to_dict() == {1: TOKENS, -1: TOKENS}
    assert trace.metadata["clock"]["device_error_ns"] < 1_000_000
