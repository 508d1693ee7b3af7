"""Nsight Systems reports (.nsys-rep): read only, through a temporary SQLite export (`nsys export`)."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tracer.errors import FormatError
from tracer.formats import WHOLE, Format, nsys_sqlite
from tracer.formats.nsys_schema import SAMPLED
from tracer.model.trace import Trace

_STACKS: Final = "--include-json=true"
"""Without it, samples of Python have no stacks (`nsys_python`)."""


def sniff(path: Path) -> bool:
    """Whether the file has the suffix of a report; the format of its content is not documented."""
    return path.is_file() and path.suffix.lower() == ".nsys-rep"


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a report. `whole` lets the trace carry all of its data. Samples are read only with `samples` or
    `whole`.

    Raises:
        FormatError: nsys is not on PATH (the message says what to run where it is installed), or cannot read the file.
    """
    with tempfile.TemporaryDirectory(prefix="intertoken-") as directory:
        export = Path(directory) / "export.sqlite"
        try:
            done = _export(path, export, *([_STACKS] if whole or samples else []))
            if done.returncode and (whole or samples):  # it may be too old to know that option
                done = _export(path, export)
        except OSError as error:
            raise FormatError(
                f"{path}: reading a .nsys-rep needs nsys on PATH; on a machine that has it, run "
                f"`nsys export --type sqlite -o {path.with_suffix('.sqlite').name} {path.name}` and open the result"
            ) from error
        if done.returncode or not export.exists():
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise FormatError(f"{path}: nsys export failed (exit code {done.returncode}): {output}")
        try:
            return nsys_sqlite.read(export, whole=whole, samples=samples)
        except FormatError as error:
            raise FormatError(str(error).replace(str(export), str(path))) from error


def _export(path: Path, export: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("nsys", "export", "--type", "sqlite", *options, "--force-overwrite", "true", "-o", str(export))
    given = (*command, str(path.absolute()))
    return subprocess.run(given, check=False, capture_output=True, text=True, errors="replace")


FORMAT: Final = Format("Nsight Systems report", ".nsys-rep", sniff, read, options=WHOLE | {SAMPLED})
