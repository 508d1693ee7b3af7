"""Run a program in the foreground, as a shell does: it has the terminal, and termination signals are passed on to it.

`run_under_nsys` records any command with Nsight Systems, which requires `nsys` on PATH (part of Nsight Systems, and
also of Nsight Compute).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final

from tracer.errors import RecordError

_RUN_MODULE: Final = "import runpy, sys; del sys.path[:1]; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_PATIENCE: Final = 10  # seconds after SIGTERM


def module_command(module: str) -> tuple[str, ...]:
    """The command that runs one of our modules, regardless of what the current directory contains (`python -P -m
    MODULE`)."""
    if sys.version_info < (3, 11):
        return (sys.executable, "-c", _RUN_MODULE.format(module))
    return (sys.executable, "-P", "-m", module)


def run(
    command: Sequence[str], pass_fds: Sequence[int] = (), environment: Mapping[str, str] | None = None,
    output: BinaryIO | int | None = None, seconds: float | None = None, folder: Path | None = None,
) -> int:  # fmt: skip
    """Run a command, in `folder` if given, and wait for it to end.

    Without `environment` it inherits ours. With `output`, that gets all it prints, and it has nothing to read. SIGTERM,
    SIGHUP and SIGINT are passed on to it, except for Ctrl-C, which the terminal sends to both. After so many `seconds`
    it gets SIGTERM, and then SIGKILL.

    Returns:
        its exit code; -N if signal N ended it.

    Raises:
        OSError: the command cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and _has_terminal():
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    heeded = [number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]  # nohup and & ignore some
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        pipes: dict[str, Any] = (
            {} if output is None else {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        )
        child = subprocess.Popen(command, pass_fds=pass_fds, env=environment, cwd=folder, **pipes)
        for number in early:
            child.send_signal(number)
        return _end_of(child, seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_of(child: subprocess.Popen[bytes], seconds: float | None) -> int:
    for end, patience in ((child.terminate, seconds), (child.kill, _PATIENCE)):
        try:
            return child.wait(patience)
        except subprocess.TimeoutExpired:
            end()
    return child.wait()


def shell_code(code: int) -> int:
    """The exit code that a shell reports for a return value of `run`."""
    return code if code >= 0 else 128 - code


def how_it_ended(code: int) -> str:
    """A return value of `run` in words: "ended by SIGKILL", "ended with exit code 3"."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def end_with(parent: int) -> None:
    """Have this process, a child of `parent`, receive SIGTERM when `parent` ends for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has already ended
        os.kill(os.getpid(), signal.SIGTERM)


def _has_terminal() -> bool:
    """Whether Ctrl-C in the terminal reaches this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


NSYS_REPORT: Final = "recording.nsys-rep"


def has_nsys() -> bool:
    """Whether nsys is on PATH."""
    return shutil.which("nsys") is not None


def run_under_nsys(command: Sequence[str], graph_trace: str, report: Path, *, call_sites: bool = False) -> int:
    """Run a command under `nsys profile`, in the foreground, at the level "node" or "graph". The .nsys-rep file may be
    missing afterwards. To keep the stack of each CUDA call, nsys must sample as well.

    Returns:
        The exit code of the command; -N if signal N ended nsys.

    Raises:
        RecordError: nsys is missing.
    """
    stacks = ("--sample=process-tree", "--cudabacktrace=all:0") if call_sites else ("--sample=none",)
    options = ("--trace=cuda,nvtx", *stacks, "--cpuctxsw=none", f"--cuda-graph-trace={graph_trace}")
    try:
        return run(("nsys", "profile", *options, "-o", str(report), *command))
    except OSError as error:
        raise RecordError(f"nsys cannot be run: {error.strerror}; install Nsight Systems") from error
