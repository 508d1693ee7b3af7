"""A CUDA driver without a GPU, and programs that use it, built from the C beside; see `Build`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.tracer.compiled_once import compiled_once
from tracer.cli import main
from tracer.recorders.light_ring import Ring, read_ring
from tracer.recorders.native.compile import SOURCES, compile_library

HERE = Path(__file__).parent
SANITIZER = os.environ.get("INTERTOKEN_TEST_SANITIZER", "")
"""With which the library is compiled in all tests: "address", "thread" or "undefined"; none by default."""


def sanitizing() -> tuple[list[str], dict[str, str]]:
    """The flags of the compiler for the sanitizer, and what its runtime needs in the environment of a program."""
    if SANITIZER in ("", "undefined"):  # of undefined behaviour without a runtime: it ends the program
        trapping = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-g"]
        return (trapping if SANITIZER else []), {}
    name = {"address": "libasan.so", "thread": "libtsan.so"}[SANITIZER]
    found = subprocess.run([compiler_or_skip(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    return [f"-fsanitize={SANITIZER}", "-g"], {"LD_PRELOAD": found.stdout.strip(), **quiet}


@dataclass
class Build:
    """The library, the fake driver and the programs, and running these under the recorder.

    Attributes:
        folder: where they lie.
        rings: the recorder's folder, emptied before each run.
        extra: of the environment of what runs.
    """

    folder: Path
    rings: Path
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def into(cls, folder: Path, flags: Sequence[str] = ()) -> Build:
        """Compile all of it for one test; flags are for the compiler."""
        cls.compile(folder, flags)
        return cls.at(folder, folder / "rings")

    @classmethod
    def at(cls, folder: Path, rings: Path) -> Build:
        """What was compiled into a folder, with a new one for rings."""
        rings.mkdir(mode=0o700)
        return cls(folder, rings)

    @staticmethod
    def library(folder: Path, flags: Sequence[str] = ()) -> Path:
        """Compile the library alone, as light.so; a warning is an error."""
        compiler = compiler_or_skip()
        flags = [*flags, *sanitizing()[0]]

        def library(folder: Path) -> None:
            compile_library(folder / "light.so", compiler, ["-Werror", *flags])

        compiled_once(folder, library, [SOURCES], flags)
        return folder / "light.so"

    @staticmethod
    def compile(folder: Path, flags: Sequence[str] = ()) -> None:
        """Compile all of it; flags are for the compiler."""
        Build.library(folder, flags)
        compiled_once(folder, lambda made: _programs(made, flags), [HERE], flags)

    def environment(self, **extra: str) -> dict[str, str]:
        """What a program gets to run under the recorder."""
        extra = {**sanitizing()[1], **extra}
        return {
            "LD_LIBRARY_PATH": str(self.folder), "PATH": os.environ["PATH"],
            "INTERTOKEN_LIGHT": str(self.rings), "INTERTOKEN_LIGHT_RECORDS": "4096",
            "INTERTOKEN_LIGHT_BUDGET": "0", **extra,
            "NVTX_INJECTION64_PATH": str(self.folder / "light.so"),
            "LD_PRELOAD": f"{extra.get('LD_PRELOAD', '')} {self.folder / 'light.so'}",
        }  # fmt: skip

    def run(self, *command: str, code: int = 0, **extra: str) -> str:
        """Run a program of `folder` under the recorder; what it printed."""
        for ring in self.rings.iterdir():
            ring.unlink()
        environment = self.environment(**{**self.extra, **extra})
        program = [self.folder / command[0], *command[1:]]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert not done.stderr
        return done.stdout

    def read(self) -> list[Ring]:
        """The rings of the last run, in the order in which they began."""
        return sorted((read_ring(path) for path in self.rings.glob("*.ring")), key=lambda ring: ring.start_ns)

    def ring(self) -> Ring:
        """The one ring of the last run."""
        (ring,) = self.read()
        return ring


def _programs(folder: Path, flags: Sequence[str]) -> None:
    """Compile the fake driver and its programs."""
    compiler = compiler_or_skip()

    def cc(*arguments: str | Path) -> None:
        subprocess.run([compiler, "-std=gnu11", "-w", "-O1", "-pthread", *flags, *arguments], check=True)

    driver = folder / "libcuda.so.1"
    cc("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-o", driver, HERE / "driver.c", HERE / "rest.c")
    cc("-o", folder / "decode", HERE / "decode.c", "-ldl")
    cc("-DLINKED", "-o", folder / "decode_linked", HERE / "decode.c", driver, "-ldl")
    for program in ("every", "scenes", "costs", "ranges", "sites"):
        cc("-o", folder / program, HERE / f"{program}.c", "-ldl")


def compiler_or_skip() -> str:
    """A C compiler, which CI must have."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("INTERTOKEN_REQUIRE_BROWSER") == "1":
            pytest.fail("CI needs a C compiler")
        pytest.skip("there is no C compiler (cc)")
    return compiler


def calls(ring: Ring) -> list[str]:
    """The names of a ring's records."""
    return [ring.calls[record["call"]] for record in ring.records]


def run(*arguments: object) -> Result:
    """`intertoken` with these arguments."""
    return CliRunner().invoke(main, [str(a) for a in arguments])
