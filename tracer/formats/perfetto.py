"""Perfetto's protobuf traces (.pftrace), for ui.perfetto.dev and trace_processor. Write only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracer.errors import FormatError
from tracer.formats import Counters, Format
from tracer.model.trace import Trace

_SUFFIXES: Final = (".pftrace", ".perfetto-trace")
_PACKET: Final = b"\x0a"  # tag of field 1, a submessage


def sniff(path: Path) -> bool:
    """Whether the file has the suffix of a Perfetto trace and begins as one."""
    if not path.is_file() or not path.name.lower().endswith(_SUFFIXES):
        return False
    with path.open("rb") as file:
        return file.read(1) == _PACKET


def write(trace: Trace, path: Path, counters: Counters | None = None) -> list[str]:
    """Write a trace; see `perfetto_write.write`.

    Raises:
        FormatError: the required extra is not installed.
    """
    try:
        from tracer.formats import perfetto_write  # loads Perfetto's protos
    except ImportError as missing:
        raise FormatError(
            f"{path.name}: writing Perfetto traces needs additional packages: pip install 'intertoken[perfetto]'"
        ) from missing
    return perfetto_write.write(trace, path, counters)


FORMAT: Final = Format(
    "Perfetto trace", _SUFFIXES[0], sniff, None, write, aliases=_SUFFIXES[1:], lossless=False, has_counters=True
)
