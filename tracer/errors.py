"""Every error intertoken raises on purpose, as one tree.

    IntertokenError
    ├── TraceError            a recording cannot be read, written or analysed
    │   ├── FormatError       not a trace, a damaged trace, or an unknown format
    │   ├── EmptyTraceError   readable, but without the data that the analysis needs
    │   │   └── NoStepsError  what ran on the device is there, but no steps are found
    │   ├── CannotTellError   a prediction for which the recording lacks data
    │   └── RecordError       recording is impossible here: no driver, CUPTI or nsys, or another profiler is active
    ├── UsageError            an invalid option or argument
    │   └── IncomparableError runs that do not do the same work on the same device
    ├── ExtensionError        an extension by another distribution cannot be loaded
    ├── ProgramError          a program that is measured fails
    └── ExecutionError        a run that is impossible
        └── UnsafePlanError   a strategy, backend and mode that do not work together

A message names the file, table, tensor, device or size and says what to do. Only the command line maps these errors to
exit code 2.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIGITS = re.compile(r"(\d{10})\d{70,}")


class IntertokenError(Exception):
    """Base of all errors caused by the input or the system, not by a bug."""


class TraceError(IntertokenError):
    """A recording cannot be read, written or analysed."""


class FormatError(TraceError):
    """A file is not a trace, is damaged, or has an unknown format."""


class EmptyTraceError(TraceError):
    """A trace is readable but lacks the data that the analysis needs (kernels, token steps, ...)."""


class NoStepsError(EmptyTraceError):
    """A trace holds work on a device, but no steps are found in it, or none is usable."""


class CannotTellError(TraceError):
    """A recording lacks the data for a prediction; the message says why, and what to record."""


class RecordError(TraceError):
    """Recording is impossible here: the driver, CUPTI or nsys is missing, or another profiler uses CUPTI."""


class UsageError(IntertokenError):
    """An invalid option or argument."""


class IncomparableError(UsageError):
    """Runs that do not do the same work on the same device."""


class ExtensionError(IntertokenError):
    """An extension by another distribution (`tracer.extensions`) cannot be loaded."""


class ProgramError(IntertokenError):
    """A program that is measured fails, or prints no rate; `whose` names its variant, and `code` is its exit code, -N
    if signal N ended it."""

    def __init__(self, message: str, whose: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.whose, self.code = whose, code


class ExecutionError(IntertokenError):
    """A run that cannot be made."""


class UnsafePlanError(ExecutionError):
    """A strategy, a backend and a mode that do not work together."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Start every error that a recording causes in the block with its path."""
    try:
        yield
    except (TraceError, UnsafePlanError) as problem:
        text = str(problem)
        raise type(problem)(text if text.startswith(str(path)) else f"{path}: {text}") from None


def printable(text: str, longest: int = 1000) -> str:
    """Reduce a text that may quote a file to one line of printable characters, with long numbers cut."""
    line = _DIGITS.sub(lambda match: f"{match[1]}...", "".join(c if c.isprintable() else "?" for c in text))
    return line if len(line) <= longest else f"{line[:longest]}..."
