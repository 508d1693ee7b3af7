"""Records a Python program with its stacks, through CUPTI, in a process that `intertoken record` starts for it.

The records are in the memory of the program, so its own process writes the recording when the program ends, also by a
signal that it can handle, and also if `intertoken record` was killed. It reports the outcome in an inherited file.
"""

from __future__ import annotations

import _thread
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from tracer.errors import IntertokenError, RecordError
from tracer.recorders import foreground

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_AGAIN_S: Final = 0.1
_TIMES: Final = 50
_PROCESS: Final = os.getpid()
"""Distinguishes this process from forks of the program, which also unwind through this code."""


@dataclass
class CuptiOutcome:
    """The outcome of a recording.

    Attributes:
        unavailable: why CUPTI cannot record here; the program was not started.
        failed: why there is no recording.
        events: the number of events in the recording; None without a recording.
        signal: the name of the signal that ended the program after the recording was written, if any.
    """

    unavailable: str = ""
    failed: str = ""
    events: int | None = None
    notes: list[str] = field(default_factory=list)
    signal: str = ""


def record(program: Sequence[str], graph_trace: str, target: Path, *, replace: bool) -> tuple[CuptiOutcome, int]:
    """Run ("-m", module, ...) or (script, ...) in its own process, recorded into `target`. Returns the outcome of the
    recording, and the exit code as returned by `foreground.run`."""
    with os.fdopen(os.memfd_create("intertoken"), "rb") as report:
        options = (str(os.getpid()), str(report.fileno()), graph_trace, "replace" if replace else "new", str(target))
        command = (*foreground.module_command(__name__), *options, *program)
        code = foreground.run(command, [report.fileno()])
        report.seek(0)
        text = report.read()
    return (CuptiOutcome(**json.loads(text)) if text else CuptiOutcome()), code


def main(arguments: Sequence[str]) -> None:
    """Record the program that the arguments name."""
    parent, report, graph_trace, replace, target, *program = arguments
    os.set_inheritable(int(report), False)
    foreground.end_with(int(parent))
    outcome = CuptiOutcome()
    try:
        _record(program, graph_trace, Path(target), replace == "replace", outcome)
    finally:
        if os.getpid() == _PROCESS:
            os.write(int(report), json.dumps(asdict(outcome)).encode())


def _record(program: Sequence[str], graph_trace: str, target: Path, replace: bool, outcome: CuptiOutcome) -> None:
    from tracer.recorders.cupti import CuptiRecorder
    from tracer.reporting.exports import write

    try:
        recorder = CuptiRecorder("graph" if graph_trace == "graph" else "node", stacks=True)
    except RecordError as problem:
        outcome.unavailable = str(problem)
        return
    try:
        recorder.start()
    except RecordError as problem:
        outcome.failed = str(problem)
        return
    _unwind_at_signals(outcome)
    try:
        run_python(program)
    finally:
        if os.getpid() == _PROCESS:
            try:
                _ignore_signals()
            except KeyboardInterrupt:  # another one on the way here
                _ignore_signals()
            try:
                recorder.stop()
                trace = recorder.trace
                write(trace, target, replace=replace)
                outcome.events, outcome.notes = len(trace), trace.notes
            except IntertokenError as problem:
                outcome.failed = str(problem)


def _unwind_at_signals(outcome: CuptiOutcome) -> None:
    """Let SIGTERM and SIGHUP unwind the program instead of ending it immediately, so that the recording is written."""

    def unwind(number: int, frame: FrameType | None) -> None:
        if not outcome.signal:
            outcome.signal = signal.Signals(number).name
            raise SystemExit(128 + number)

    def is_due(number: int) -> bool:
        return not outcome.signal and signal.getsignal(number) is unwind

    def as_before() -> None:
        if (other := signal.set_wakeup_fd(-1)) != told:
            signal.set_wakeup_fd(other)
        for number in _ENDING:
            if signal.getsignal(number) is unwind:
                signal.signal(number, signal.SIG_DFL)

    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, unwind)
    told = _interrupt_again(is_due)
    os.register_at_fork(after_in_child=as_before)


def _interrupt_again(is_due: Callable[[int], bool]) -> int:
    """Python runs a handler between two of its instructions, in the main thread. A signal that arrives right before a
    system call, or in another thread, does not interrupt that call: send it to the main thread until it does, as long
    as its handler `is_due`. Returns the file descriptor to which Python writes the numbers of signals."""
    heard, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(heard, True)
    main = threading.get_ident()

    def listen() -> None:
        while said := os.read(heard, 1):
            for _ in range(_TIMES):
                time.sleep(_AGAIN_S)
                if said[0] not in _ENDING or not is_due(said[0]):
                    break
                signal.pthread_kill(main, said[0])

    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _thread.start_new_thread(listen, ())  # not one of the program's threads
    return told


def _ignore_signals() -> None:
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)


def run_python(program: Sequence[str]) -> None:
    """Run ("-m", module, ...) or (script, ...) as the main program."""
    if program[0] == "-m":
        sys.argv = list(program[1:])
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
