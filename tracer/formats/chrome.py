"""Chrome JSON (.json, .json.gz) as PyTorch's profiler, Kineto, writes it, read as a stream.

What has no table of its own becomes a range in `nvtx`: annotations without a domain, all else (cpu_op, overhead)
with its category for one. Left out and counted in the notes: gpu_user_annotation, which repeats the host's
annotations over the device's time, and python_function unless asked for. Times are the file's own `ts`, in whole ns;
`metadata["base_time_ns"]` is what the file says they count from. Kineto gives only the sum of static and dynamic
shared memory, which stands in `dynamic_shared`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tracer.errors import FormatError
from tracer.formats import Format, register
from tracer.formats.chrome_stream import open_events
from tracer.formats.chrome_tables import Tables
from tracer.formats.chrome_write import write
from tracer.schema import MISSING
from tracer.trace import Columns, Trace

_SUFFIXES: Final = (".json", ".json.gz")
_METADATA: Final = {
    "schemaVersion": "schema_version", "baseTimeNanoseconds": "base_time_ns", "distributedInfo": "distributed",
    "displayTimeUnit": "display_time_unit", "cuda_runtime_version": "cuda_runtime_version",
    "cuda_driver_version": "cuda_driver_version",
}  # fmt: skip
"""What is kept of the file's metadata; not the host's name, nor the path it was written to."""


def sniff(path: Path) -> bool:
    """Whether the file begins as a list of trace events, or says so by its suffix and is damaged."""
    if not path.is_file():
        return False
    try:
        with open_events(path) as events:
            return events.looks_right
    except FormatError:
        return path.name.lower().endswith(_SUFFIXES)


def read(path: Path, python_functions: bool = False) -> Trace:
    """Read a recording; of one that ends early, what is there, and a note.

    Args:
        path: the file.
        python_functions: keep python_function events (with_stack=True) as ranges of that domain.

    Raises:
        FormatError: no JSON, without events, damaged, or a gzip bomb.
    """
    tables = Tables(python_functions)
    read = 0
    with open_events(path) as events:
        for event in events:
            tables.add(event)
            read += 1
    if events.truncated and not read:
        raise FormatError(f"{path}: is truncated before its first event")
    notes = [f"{count} {what} are left out" for what, count in tables.left_out.items()]
    if events.truncated:
        notes.insert(0, f"the file is truncated: only the {read} events before its end were read")
    frames = tables.frames()
    if devices := _devices(events.metadata.get("deviceProperties")):
        frames["devices"] = devices
    trace = Trace.from_columns(_metadata(events.metadata), **frames)
    trace.notes = notes
    return trace


def _metadata(given: dict[str, Any]) -> dict[str, Any]:
    source = "PyTorch profiler" if "schemaVersion" in given else "Chrome JSON"
    return {"source": source} | {ours: given[theirs] for theirs, ours in _METADATA.items() if theirs in given}


def _devices(given: Any) -> Columns | None:
    rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    if not rows:
        return None

    def numbers(name: str) -> list[int]:
        return [row[name] if type(row.get(name)) is int and 0 <= row[name] < 2**63 else MISSING for row in rows]

    return {
        "device": numbers("id"),
        "name": [str(row.get("name", "")) for row in rows],
        "sm_count": numbers("numSms"),
        "total_memory": numbers("totalGlobalMem"),
    }


register(Format("Chrome or Kineto JSON", ".json", sniff, read, write, aliases=(".json.gz",), lossless=False))
