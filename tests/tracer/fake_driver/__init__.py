"""A CUDA driver without a GPU, and programs that use it, built from the C beside; see `Build`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.tracer.compiled_once import FOLDER, compiled_once
from tracer.cli import main
from tracer.recorders.light_ring import Ring, read_ring
from tracer.recorders.native import SOURCES, compile_library

HERE = Path(__file__).parent
SANITIZER = os.environ.get("INTERTOKEN_TEST_SANITIZER", "")
"""With which the library is compiled in all tests: "address", "thread" or "undefined"; none by default."""
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
"""What must come first in every program that the library is preloaded into."""
OPTIONS = ":".join([
    "halt_on_error=1",
    "allocator_may_return_null=1",  # as malloc does
    "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:use_sigaltstack=0",  # the program's
    "detect_leaks=0:report_thread_leaks=0",  # programs end with memory and threads of their own
    "die_after_fork=0",  # a child may have threads
    "atexit_sleep_ms=0",
])  # fmt: skip


def unless_sanitized(why: str, *by: str) -> pytest.MarkDecorator:
    """Leave a test out under these sanitizers, by default those with a runtime."""
    return pytest.mark.skipif(SANITIZER in (by or RUNTIMES), reason=why)


def sanitizing() -> list[str]:
    """The flags of the compiler for the sanitizer."""
    if SANITIZER == "undefined":  # without a runtime: it ends the program
        return ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-g"]
    return [f"-fsanitize={SANITIZER}", "-g"] if SANITIZER else []


@cache
def _runtime() -> str:
    """The runtime, and a library that only starts it, as nothing in a program does that was compiled without."""
    compiler, starts = compiler_or_skip(), f"{os.environ[FOLDER]}/starts-{os.getpid()}.so"
    made = [f"-fsanitize={SANITIZER}", "-shared", "-fPIC", "-o", starts, "-x", "c", "/dev/null"]
    subprocess.run([compiler, *made], check=True)
    asked = [compiler, f"-print-file-name={RUNTIMES[SANITIZER]}"]
    return f"{subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()} {starts}"


def sanitized(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program, with the sanitizer's runtime before all that is preloaded, if it has one.

    It reports to files, which `reported` reads: a program may close stderr, and has to print what it prints without us.
    """
    if SANITIZER not in RUNTIMES:
        return dict(environment)
    options = f"{OPTIONS}:log_path={os.environ[FOLDER]}/reported-{os.getpid()}"
    preloaded = f"{_runtime()} {environment.get('LD_PRELOAD', '')}".strip()
    given = {"ASAN_OPTIONS": options, "TSAN_OPTIONS": f"{options}:suppressions={HERE}/thread.supp"}
    return {**environment, **given, "LD_PRELOAD": preloaded}


def reported() -> str:
    """What the sanitizer has reported since the last time, other than that it knows little of coroutines."""
    lines = []
    for path in Path(os.environ[FOLDER]).glob(f"reported-{os.getpid()}.*"):
        lines += [line for line in path.read_text(errors="replace").splitlines() if "makecontext" not in line]
        path.unlink()
    return "\n".join(lines).strip()


@dataclass
class Build:
    """The library, the fake driver and the programs, and running these under the recorder."""

    folder: Path  # where they lie
    rings: Path  # the recorder's folder, emptied before each run
    extra: dict[str, str] = field(default_factory=dict)  # of the environment of what runs

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
        flags = [*flags, *sanitizing()]

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
        return sanitized({
            "LD_LIBRARY_PATH": str(self.folder), "PATH": os.environ["PATH"],
            "INTERTOKEN_LIGHT": str(self.rings), "INTERTOKEN_LIGHT_RECORDS": "4096",
            "INTERTOKEN_LIGHT_BUDGET": "0", **extra,
            "NVTX_INJECTION64_PATH": str(self.folder / "light.so"),
            "LD_PRELOAD": f"{extra.get('LD_PRELOAD', '')} {self.folder / 'light.so'}",
        })  # fmt: skip

    def clear(self) -> None:
        """Remove all rings."""
        for ring in self.rings.iterdir():
            ring.unlink()

    def run(self, *command: str, code: int = 0, **extra: str) -> str:
        """Run a program of `folder` under the recorder; what it printed."""
        self.clear()
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
