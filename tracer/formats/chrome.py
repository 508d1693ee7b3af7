"""Chrome JSON (.json, .json.gz) as PyTorch's profiler, Kineto, and others write it, read as a stream.

Events that have no table become ranges in `nvtx`: annotations without a domain, all others (cpu_op, overhead)
with their category as the domain. gpu_user_annotation, which repeats the host's annotations over device time, has no
thread. Asynchronous ranges are start/end ranges. python_function events are left out unless requested, and the notes
count them. Times are the file's own `ts`, in whole ns, counted from `metadata["base_time_ns"]` if the file gives it.
Kineto gives only the sum of static and dynamic shared memory, which is stored in `dynamic_shared`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.errors import FormatError
from tracer.formats import Format
from tracer.model.schema import MISSING, OTHER_DOMAINS
from tracer.model.trace import Given, Trace
from tracer.progress import tell

if TYPE_CHECKING:
    from tracer.formats.chrome_ranks import Pids

PYTORCH: Final = "PyTorch profiler"
"""The prefix of `metadata["source"]` in PyTorch's recordings."""

_ASCEND: Final = "Ascend Hardware"
"""The process under which torch_npu writes the device's rows, which have no category."""

_TELL_AFTER: Final = 1 << 14  # events
_SUFFIXES: Final = (".json", ".json.gz")
_METADATA: Final = {
    "schemaVersion": "schema_version", "baseTimeNanoseconds": "base_time_ns", "distributedInfo": "distributed",
    "displayTimeUnit": "display_time_unit", "cuda_runtime_version": "cuda_runtime_version",
    "cuda_driver_version": "cuda_driver_version",
}  # fmt: skip
"""The metadata that is kept; not the host's name or the path of the file."""


def sniff(path: Path) -> bool:
    """Whether the file begins as a list of trace events, or has the suffix but is damaged."""
    if not path.is_file():
        return False
    from tracer.formats.chrome_stream import open_events

    try:
        with open_events(path) as events:
            return events.looks_right
    except FormatError:
        return path.name.lower().endswith(_SUFFIXES)


def read(path: Path, python_functions: bool = False) -> Trace:
    """Read a recording. From a truncated one, read the events before its end and add a note.

    If a file holds several ranks, each keeps its own processes and devices, and a note lists them.

    Args:
        path: the file.
        python_functions: keep python_function events (with_stack=True) as ranges of that domain.

    Raises:
        FormatError: not JSON, without a list of events, damaged, or a gzip bomb.
    """
    from tracer.formats import chrome_rpd
    from tracer.formats.chrome_frames import frames
    from tracer.formats.chrome_ranks import Pids
    from tracer.formats.chrome_stream import open_events
    from tracer.formats.chrome_tables import NO_EVENT, Tables
    from tracer.formats.chrome_write import OURS

    tables = Tables(python_functions)
    read, size = 0, path.stat().st_size
    with open_events(path) as events:
        for event in events:
            tables.add(event)
            read += 1
            if read % _TELL_AFTER == 0:
                tell(events.bytes_read, size)
    if events.truncated and not read:
        raise FormatError(f"{path}: truncated before its first event")
    if read and tables.left_out[NO_EVENT] == read:
        raise FormatError(f"{path}: holds a list of {read} entries, none of which is an event")
    collected = tables.collected()
    if tables.rpd:
        chrome_rpd.link(collected)
    pids = Pids(collected, list(tables.pids))
    columns = frames(collected, pids, list(tables.codes), ours=OURS in events.metadata)
    if devices := _devices(events.metadata.get("deviceProperties"), pids):
        columns["devices"] = devices
    trace = Trace.from_columns(_metadata(events.metadata, len(pids.ranks)), **columns)
    if tables.rpd:
        trace.metadata["source"] = chrome_rpd.SOURCE
        trace.notes += chrome_rpd.notes(True in tables.rpd)
    if events.truncated:
        trace.notes.append(f"the file is truncated: only the {read} events before its end were read")
    trace.notes += pids.notes()
    trace.notes += _not_understood(trace)
    if tables.unclosed:
        trace.notes.append(f"{tables.unclosed} ranges were never closed; they end with the recording")
    trace.notes += [f"{count} {what} are left out" for what, count in tables.left_out.items()]
    return trace


def write(trace: Trace, path: Path) -> list[str]:
    """Write a trace, see `chrome_write.write`."""
    from tracer.formats import chrome_write

    return chrome_write.write(trace, path)


def _not_understood(trace: Trace) -> list[str]:
    """A note that counts the rows of accelerators other than CUDA's and HIP's."""
    domains = trace["nvtx"]["domain"].value_counts()
    found = {str(name): int(count) for name, count in domains.items() if name in OTHER_DOMAINS and count}
    ascend = trace["processes"].loc[trace["processes"]["name"] == _ASCEND, "process"]
    if rows := int(trace["nvtx"]["process"].isin(ascend).sum()):
        found[_ASCEND] = rows
    if not found:
        return []
    rows_of = ", ".join(f"{count} {name}" for name, count in found.items())
    return [f"rows of an unsupported accelerator are kept as plain ranges ({rows_of}): its work is not analysed"]


def _metadata(given: dict[str, Any], ranks: int) -> dict[str, Any]:
    from tracer.formats.chrome_write import OURS, SOURCE, own_members

    kept = {ours: given[theirs] for theirs, ours in _METADATA.items() if theirs in given}
    own = given.get(OURS)
    if isinstance(own, dict) and isinstance(own.get(SOURCE), str) and own[SOURCE]:
        return {"source": own[SOURCE]} | kept | own_members(own)
    source = PYTORCH if "schemaVersion" in given else "Chrome JSON"
    distributed = given.get("distributedInfo")
    numbers = [distributed.get(key) for key in ("rank", "world_size")] if isinstance(distributed, dict) else [None]
    if ranks == 1 and all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        source += f", rank {numbers[0]} of {numbers[1]}"
    return {"source": source} | kept


def _devices(given: Any, pids: Pids) -> Given | None:
    """The devices that the file describes, renumbered if ranks use the same numbers for different devices."""
    rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    described = {row["id"]: row for row in rows if type(row.get("id")) is int and 0 <= row["id"] < 2**63}
    counted = {ours: theirs for ours, (_, theirs) in pids.devices.items()}
    if len(pids.ranks) == 1:
        counted = {id: id for id in described}
    rows = [described[theirs] for theirs in counted.values() if theirs in described]
    if not rows:
        return None

    def numbers(name: str) -> list[int]:
        return [row[name] if type(row.get(name)) is int and 0 <= row[name] < 2**63 else MISSING for row in rows]

    return {
        "device": [ours for ours, theirs in counted.items() if theirs in described],
        "name": [str(row.get("name", "")) for row in rows],
        "sm_count": numbers("numSms"),
        "total_memory": numbers("totalGlobalMem"),
    }


FORMAT: Final = Format(
"Chrome or Kineto JSON", ".json", sniff, read, write,
aliases=(".json.gz",), options=frozenset({"python_functions"}), lossless=False,
)  # fmt: skip
