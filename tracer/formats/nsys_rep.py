"""Nsight Systems reports (.nsys-rep): read only, through `nsys export`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracer.formats import WHOLE, Format
from tracer.formats.nsys_schema import SAMPLED
from tracer.model.trace import Trace


def sniff(path: Path) -> bool:
    """Whether the file has the suffix of a report; the format of its content is not documented."""
    return path.is_file() and path.suffix.lower() == ".nsys-rep"


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a report. `whole` lets the trace carry all of its data. Samples are read only with `samples` or
    `whole`.

    Raises:
        FormatError: nsys is not on PATH (the message says what to run where it is installed), or cannot read the file.
    """
    from tracer.recorders.nsys import read_report

    return read_report(path, whole=whole, samples=samples)


FORMAT: Final = Format("Nsight Systems report", ".nsys-rep", sniff, read, options=WHOLE | {SAMPLED})
