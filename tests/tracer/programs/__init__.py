"""Small programs that do what real ones do to a preloaded library, and running each with and without the recorder.

They are built from the C beside: a file has one idea, its first argument says which variant. `cuda.h` has the CUDA
calls that they make; `reaper.c` runs them, and ends them and whatever they leave behind at a deadline.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.tracer.compiled_once import compiled_once
from tests.tracer.fake_driver import calls, compiler_or_skip
from tracer.recorders.light_ring import read_ring

HERE: Final = Path(__file__).parent
DEADLINE_S: Final = 20
HUNG: Final = "hung"
_LIBRARIES: Final = {"slow": "libslow.so", "linked": "libplugin.so", "auditor": "libauditor.so",
                     "interposer": "libinterposer.so", "arena": "libarena.so"}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What can be seen of a program from outside."""

    status: int | str  # exit code; a negative signal that ended it; "hung" if it, or what it left, ran at the deadline
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]  # that it made in its folder
    wall_s: float  # until it and all that it left had ended

    @property
    def seen(self) -> tuple[object, ...]:
        """All but the time."""
        return self.status, self.stdout, self.stderr, self.files


def build(folder: Path) -> None:
    """Compile the programs into a folder. That of `static.c` is missing where there is no static C library."""
    compiled_once(folder, _compile, [HERE])


def _compile(folder: Path) -> None:
    compiler = compiler_or_skip()

    def cc(*arguments: str | Path, check: bool = True) -> None:
        subprocess.run(
            [compiler, "-w", "-O1", "-pthread", *arguments], check=check, stderr=None if check else subprocess.DEVNULL
        )

    def one(source: Path) -> None:
        name = source.stem
        if name in _LIBRARIES:
            linked = ["-Wl,--no-as-needed", driver] if name == "linked" else []
            cc("-shared", "-fPIC", "-o", folder / _LIBRARIES[name], source, *linked, "-ldl")
        elif name == "static":
            cc("-static", "-o", folder / name, source, check=False)
        else:
            cc(*(["-rdynamic"] if name == "loading" else []), "-o", folder / name, source, "-ldl", "-lm")

    driver = folder / "stub" / "libcuda.so.1"  # only its name: the tests have two
    driver.parent.mkdir()
    cc("-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, "-x", "c", "/dev/null")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, HERE.glob("*.c")))


def run(programs: Path, command: Sequence[str | bytes | Path], folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Run a command (the file, argv[0], the arguments) to its end in a new folder, with this environment alone."""
    folder.mkdir()
    report = folder.with_name(folder.name + ".report")
    given = [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(
        [programs / "reaper", str(DEADLINE_S), report, *given, "--", *command], cwd=folder, env={},
        capture_output=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    status, ns = map(int, report.read_text().split())
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code = HUNG if status < 0 else os.waitstatus_to_exitcode(status)
    return Outcome(code, done.stdout, done.stderr, files, ns / 1e9)


@dataclass(frozen=True)
class Recorded:
    """What the library wrote into its folder."""

    rings: int
    waits: Counter[int]  # recorded calls of cuStreamSynchronize, by process
    names: list[str]  # of the processes, by their rings
    announced: list[bytes]  # the lines of the list of programs
    modes: set[int]  # the permissions of the files


def recorded(folder: Path) -> Recorded:
    """Read what the library wrote, other than through CUPTI."""
    rings = [read_ring(path) for path in sorted(folder.glob("*.ring"))]
    waits = Counter[int]()
    for ring in rings:
        waits[ring.process] += calls(ring).count("cuStreamSynchronize")
    said = folder / "programs"
    lines = said.read_bytes().split(b"\n")[:-1] if said.exists() else []
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    return Recorded(len(rings), waits, [ring.program for ring in rings], lines, modes)
