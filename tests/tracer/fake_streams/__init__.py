"""A CUDA driver without a GPU whose streams are asynchronous, and programs with and without races (`seeded.c`)."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tracer import fake_driver
from tests.tracer.compiled_once import compiled_once
from tests.tracer.fake_driver import compiler_or_skip
from tracer.races.logs import Log, read_logs
from tracer.recorders.native import RACES, SOURCES, compile_library

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ran:
    """One run of a program: its exit code, what it printed, and what the library saw in each of its processes."""

    code: int
    printed: str
    logs: list[Log]

    @property
    def counts(self) -> Counter[str]:
        """Of all copies to the device, in all processes."""
        return sum((site.counts for log in self.logs for site in log.sites if "DtoH" not in site.call), Counter())

    @property
    def counters(self) -> Counter[str]:
        """Of all processes."""
        return sum((log.counters for log in self.logs), Counter())


@dataclass(frozen=True)
class Streams:
    """The library, the driver and the programs, and running these under it."""

    folder: Path
    logs: Path  # emptied before each run

    def environment(self, settings: str, **extra: str) -> dict[str, str]:
        """What a program gets to be watched with these settings."""
        return {
            "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.folder), "LD_PRELOAD": str(self.folder / RACES),
            "INTERTOKEN_LIGHT": str(self.logs), "INTERTOKEN_LIGHT_SITES": "1", "INTERTOKEN_RACES": settings, **extra,
        }  # fmt: skip

    def run(self, kind: str, settings: str = "", **extra: str) -> Ran:
        """Run one of the programs."""
        for path in self.logs.iterdir():
            path.unlink()
        done = subprocess.run(
            [self.folder / "seeded", kind], env=self.environment(settings, **extra), capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert not done.stderr
        return Ran(done.returncode, done.stdout, read_logs(self.logs))


def build(folder: Path) -> Streams:
    """Compile all of it; a warning of the library's is an error."""

    def library(made: Path) -> None:
        compile_library(made / RACES, compiler_or_skip(), ["-Werror"], races=True)

    compiled_once(folder, library, [SOURCES, SOURCES / "races"], ["races"])
    compiled_once(folder, _programs, [HERE, fake_driver.HERE])
    (logs := folder / "logs").mkdir(mode=0o700)
    return Streams(folder, logs)


def _programs(folder: Path) -> None:
    def cc(*arguments: str | Path) -> None:
        flags: Sequence[str] = ("-std=gnu11", "-w", "-O1", "-pthread", "-DINTERTOKEN_RACES")
        subprocess.run([compiler_or_skip(), *flags, *arguments], check=True)

    driver = folder / "libcuda.so.1"
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1,-Bsymbolic")
    cc(*shared, "-o", driver, HERE / "driver.c", fake_driver.HERE / "rest.c")
    cc("-o", folder / "seeded", HERE / "seeded.c", driver)
