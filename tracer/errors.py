"""Every error intertoken raises on purpose, as one tree.

    IntertokenError
    ├── TraceError            a recording cannot be read, written or analysed
    │   ├── FormatError       not a trace, a damaged one, or a format we do not know
    │   ├── EmptyTraceError   readable, but without what the question needs
    │   └── RecordError       nothing can be recorded here: no driver, no CUPTI, no nsys, or another profiler
    ├── UsageError            an option or argument that makes no sense
    │   └── IncomparableError runs that do not do the same work on the same device
    ├── ExtensionError        what another distribution adds to intertoken cannot be loaded
    └── ExecutionError        a run that cannot be done
        └── UnsafePlanError   a strategy, backend and mode that do not fit together

A message names the file, table, tensor, device or size and says what to do. Only the command line maps these
to exit code 2.
"""

import re

_DIGITS = re.compile(r"(\d{10})\d{70,}")


class IntertokenError(Exception):
    """Base of all errors that are the input's fault, not the program's."""


class TraceError(IntertokenError):
    """A recording cannot be read, written or analysed."""


class FormatError(TraceError):
    """A file is not a trace, is damaged, or has a format we do not know."""


class EmptyTraceError(TraceError):
    """A trace is readable but lacks what the question needs (kernels, token steps, ...)."""


class RecordError(TraceError):
    """Nothing can be recorded here: a driver, CUPTI or nsys is missing, or another profiler holds CUPTI."""


class UsageError(IntertokenError):
    """An option or argument that makes no sense."""


class IncomparableError(UsageError):
    """Runs that do not do the same work on the same device."""


class ExtensionError(IntertokenError):
    """What another distribution adds to intertoken (`tracer.extensions`) cannot be loaded."""


class ExecutionError(IntertokenError):
    """A run that cannot be done."""


class UnsafePlanError(ExecutionError):
    """A strategy, a backend and a mode that do not fit together."""


def printable(text: str, longest: int = 1000) -> str:
    """One line of printable characters, long numbers cut, for what may quote names and bytes of a file."""
    line = _DIGITS.sub(lambda found: f"{found[1]}...", "".join(c if c.isprintable() else "?" for c in text))
    return line if len(line) <= longest else f"{line[:longest]}..."
