"""The tables of a trace: columns, dtypes, units, enum values, and their names in Nsight Systems.

This is the only place that defines them. All times are int64 nanoseconds on the trace's one clock. An unknown id or
number is `MISSING` (-1), never null, so every column keeps its dtype. Source of the nsys names: the schema of the
SQLite exports, versions 3.20 and 3.25; what nsys has beyond these tables (id packing, helper tables, enum labels) is in
`tracer.formats.nsys_schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

MISSING: Final = -1

# Enum values: short word -> nsys id, in the order of nsys.
MEMCPY_KINDS: Final = {
    "unknown": 0, "HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7, "DtoD": 8,
    "HtoH": 9, "PtoP": 10, "UVM HtoD": 11, "UVM DtoH": 12, "UVM DtoD": 13,
}  # fmt: skip
MEMORY_KINDS: Final = {
    "pageable": 0, "pinned": 1, "device": 2, "array": 3, "managed": 4, "device static": 5,
    "managed static": 6, "unknown": 7,
}  # fmt: skip
SYNC_TYPES: Final = {"unknown": 0, "event": 1, "stream wait": 2, "stream": 3, "context": 4}
API_LAYERS: Final = {"runtime": 0, "driver": 1}
NVTX_KINDS: Final = {"mark": 34, "push/pop": 59, "start/end": 60}

NAME: Final = "name"  # a categorical column of free strings, which nsys stores in StringIds
TEXT: Final = "text"  # the same, but nsys stores the strings in the rows

CARRIED: Final = "nsys."
"""Prefix of columns beyond the schema: nsys columns that no analysis uses, kept unchanged to be written again
(`tracer.formats.nsys`)."""

MOST_NS: Final = 2**62
"""Largest absolute time (146 years), so that differences of times fit into int64."""

NO_ID: Final = 2**32 - 1  # what CUPTI, and so nsys, stores for "no event" and "no stream"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its kind, its nsys column, and its meaning.

    `kind` is "int64", "float64", `NAME` or `TEXT` (categoricals of free strings) or an enum (word -> id).
    `nsys` is None if the value is derived from other nsys columns (ids packed into `globalTid`, for example).
    `missing` is what nsys stores for MISSING; None stands for NULL.
    """

    name: str
    kind: str | dict[str, int] = "int64"
    nsys: str | None = None
    doc: str = ""
    missing: int | None = None

    @property
    def is_name(self) -> bool:
        """Whether the column holds free strings."""
        return self.kind in (NAME, TEXT)

    @property
    def enum(self) -> dict[str, int] | None:
        """The enum's words and nsys ids, or None."""
        return self.kind if isinstance(self.kind, dict) else None

    def empty(self) -> Any:
        """No values, of this column's dtype."""
        import numpy as np

        if self.enum is not None:
            return _no_words(tuple(self.enum))
        return _no_words(()) if self.is_name else np.empty(0, str(self.kind))

    @property
    def default(self) -> int | float | str:
        """The value of this column if the source does not have it."""
        if self.enum is not None:
            return "unknown" if "unknown" in self.enum else next(iter(self.enum))
        if self.is_name:
            return ""
        return float("nan") if self.kind == "float64" else MISSING


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One table: its name, its nsys table, and its columns in order."""

    name: str
    nsys: str
    columns: tuple[Column, ...]
    doc: str

    def column(self, name: str) -> Column:
        """The column with this name."""
        return next(c for c in self.columns if c.name == name)

    @property
    def column_names(self) -> list[str]:
        """The names of all columns, in order."""
        return [c.name for c in self.columns]

    def empty(self) -> pd.DataFrame:
        """An empty frame with all columns and their dtypes."""
        return _empty(self).copy(deep=False)  # pandas copies on write


@cache
def _no_words(words: tuple[str, ...]) -> pd.Categorical:
    import pandas as pd

    return pd.Categorical([], categories=pd.Index(words, dtype="str") if not words else list(words))


@cache
def _empty(table: Table) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame({c.name: c.empty() for c in table.columns})
    frame.columns = frame.columns.astype(object)  # as `trace.conform` does
    return frame


_SPAN = (Column("start", nsys="start", doc="ns"), Column("end", nsys="end", doc="ns"))
_ON_STREAM = (
    Column("device", nsys="deviceId"),
    Column("context", nsys="contextId"),
    Column("stream", nsys="streamId", missing=NO_ID),
    Column("correlation", nsys="correlationId", doc="joins a device activity with the API call that caused it"),
    Column("process", doc="operating-system process id"),
)
_ON_THREAD = (Column("process", doc="process id"), Column("thread", doc="operating-system thread id"))
_ON_STACK = (
    Column("depth", nsys="stackDepth", doc="0 for the innermost function"),
    Column("symbol", NAME, "symbol", "the function; FILE(LINE): FUNCTION of Python"),
    Column("module", NAME, "module", "the file that contains it; empty for Python"),
)
_GRAPH_NODE = Column("graph_node", nsys="graphNodeId", doc="node of its CUDA graph, or MISSING")

TABLES: Final[dict[str, Table]] = {
    t.name: t
    for t in (
        Table("kernels", "CUPTI_ACTIVITY_KIND_KERNEL", (
            *_SPAN, *_ON_STREAM,
            Column("name", NAME, "demangledName", "full demangled name"),
            Column("short_name", NAME, "shortName", "without arguments and template parameters"),
            Column("grid_x", nsys="gridX"), Column("grid_y", nsys="gridY"), Column("grid_z", nsys="gridZ"),
            Column("block_x", nsys="blockX"), Column("block_y", nsys="blockY"),
            Column("block_z", nsys="blockZ"),
            Column("registers", nsys="registersPerThread", doc="per thread"),
            Column("static_shared", nsys="staticSharedMemory", doc="bytes"),
            Column("dynamic_shared", nsys="dynamicSharedMemory", doc="bytes"),
            _GRAPH_NODE,
            Column("graph", nsys="graphId", doc="its CUDA graph, or MISSING"),
        ), "kernel executions"),
        Table("memcpys", "CUPTI_ACTIVITY_KIND_MEMCPY", (
            *_SPAN, *_ON_STREAM,
            Column("kind", MEMCPY_KINDS, "copyKind"),
            Column("bytes", nsys="bytes"),
            Column("src_kind", MEMORY_KINDS, "srcKind"), Column("dst_kind", MEMORY_KINDS, "dstKind"),
            Column("src_device", nsys="srcDeviceId"), Column("dst_device", nsys="dstDeviceId"),
            _GRAPH_NODE,
        ), "memory copies on the device"),
        Table("memsets", "CUPTI_ACTIVITY_KIND_MEMSET", (
            *_SPAN, *_ON_STREAM,
            Column("value", nsys="value"), Column("bytes", nsys="bytes"),
            Column("mem_kind", MEMORY_KINDS, "memKind"),
            _GRAPH_NODE,
        ), "memsets on the device"),
        Table("api", "CUPTI_ACTIVITY_KIND_RUNTIME", (
            *_SPAN, *_ON_THREAD,
            Column("correlation", nsys="correlationId"),
            Column("name", NAME, "nameId", "with CUPTI's version suffix"),
            Column("return_value", nsys="returnValue", missing=MISSING),
            Column("layer", API_LAYERS, "eventClass"),
            Column("callchain", nsys="callchainId", doc="in callchains, or MISSING"),
            Column("count", nsys="callCount", doc="of equal queries in a row, which are one row; else MISSING"),
        ), "CUDA runtime and driver calls on host threads"),
        Table("syncs", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (
            *_SPAN, Column("type", SYNC_TYPES, "syncType"), *_ON_STREAM,
            Column("event", nsys="eventId", missing=NO_ID),
        ), "synchronisations: what an API call waited for"),
        Table("cuda_events", "CUPTI_ACTIVITY_KIND_CUDA_EVENT", (
            *_ON_STREAM, Column("event", nsys="eventId", missing=NO_ID),
            Column("event_sync", nsys="eventSyncId", doc="which record of the event", missing=NO_ID),
        ), "event records"),
        Table("graph_launches", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (
            *_SPAN, *_ON_STREAM, Column("graph", nsys="graphId"), Column("graph_exec", nsys="graphExecId"),
        ), "whole-graph executions (graph-level tracing)"),
        Table("nvtx", "NVTX_EVENTS", (
            *_SPAN, *_ON_THREAD,
            Column("text", TEXT, "text"), Column("kind", NVTX_KINDS, "eventType"),
            Column("domain", TEXT),
            Column("category", nsys="category"), Column("color", nsys="color", doc="ARGB"),
            Column("range_id", nsys="rangeId"),
            Column("payload", "float64", "doubleValue", "NaN if there is none; integers exact up to 2**53"),
        ), "NVTX ranges and marks; a mark ends where it starts"),
        Table("streams", "TARGET_INFO_CUDA_STREAM", (
            Column("process", nsys="processId"), Column("context", nsys="contextId"),
            Column("stream", nsys="streamId"),
            Column("priority", nsys="priority", missing=MISSING), Column("flag", nsys="flag"),
        ), "streams of each context"),
        Table("devices", "TARGET_INFO_GPU", (
            Column("device", nsys="id"), Column("name", TEXT, "name"),
            Column("sm_count", nsys="smCount"), Column("total_memory", nsys="totalMemory", doc="bytes"),
            Column("memory_bandwidth", nsys="memoryBandwidth", doc="bytes/s as reported by the device"),
            Column("clock_rate", nsys="clockRate", doc="Hz"),
        ), "devices"),
        Table("callchains", "CUDA_CALLCHAINS", (
            Column("chain", nsys="id", doc="as in api"), *_ON_STACK,
        ), "the functions on the stack of calls, each stack once"),
        Table("samples", "COMPOSITE_EVENTS", (
            Column("chain", nsys="id", doc="in sample_chains; of this sample alone"),
            Column("time", nsys="start", doc="ns"),
            *_ON_THREAD,
        ), "samples of threads that run on a CPU"),
        Table("sample_chains", "SAMPLING_CALLCHAINS", (
            Column("chain", nsys="id", doc="as in samples"), *_ON_STACK,
            Column("unresolved", nsys="unresolved", doc="1 if the function has no symbol, 0 or MISSING if it has"),
        ), "the functions on the stack of samples"),
        Table("threads", "ThreadNames", (*_ON_THREAD, Column("name", NAME, "nameId")), "host threads"),
        Table("processes", "PROCESSES", (
            Column("process", nsys="pid"), Column("name", TEXT, "name"),
        ), "processes"),
    )
}  # fmt: skip

DEVICE_TABLES: Final = ("kernels", "memcpys", "memsets", "graph_launches")
"""Tables whose rows occupy a device; all have start, end, device, context, stream, correlation, process."""

DEVICE_DOMAINS: Final = frozenset({"gpu_user_annotation", "cuda_profiler_range"})
"""Domains of `nvtx` with ranges of devices, not hosts: PyTorch's profiler repeats annotations in device time."""

PYTHON_FUNCTION: Final = "python_function"
"""The domain of `nvtx` with calls of Python functions, `FILE(LINE): FUNCTION`."""

OTHER_DOMAINS: Final = frozenset({
    "mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters", "glow_runtime", "hpu_op", "xpu_runtime",
    "xpu_driver", "xpu_scope_profiler", "xpu_sync", "privateuse1_runtime", "privateuse1_driver",
})  # fmt: skip
"""Domains of `nvtx` for unsupported accelerators; Kineto's ActivityType lists them all."""

OPERATORS: Final = "cpu_op"
"""The domain of `nvtx` with PyTorch's operators on the host."""

PROFILER_DOMAINS: Final = (
    DEVICE_DOMAINS | OTHER_DOMAINS | {OPERATORS, "cpu_instant_event", PYTHON_FUNCTION, "overhead", "trace"}
)
"""Domains of `nvtx` with ranges that PyTorch's profiler creates; their names say nothing about token steps."""

HOST_COMPUTE: Final = "host compute"
"""The domain of `nvtx` with the computations of intertoken's executor on the host, treated as a device: a range is a
kernel, its text the kernel's name, its payload the bytes of weights that it reads, if known."""

COMPUTE_TABLES: Final = ("kernels", "graph_launches")
"""Tables whose rows are compute as in the definition of the gap: without copies and memsets, and without the kernels
that `tracer.model.collectives` recognises."""


NO_TABLES: Final = ("view", "virtual table")
"""What may stand in place of one of nsys's tables in an SQLite file; reading it would run SQL or code from the file."""


def unread_note(nsys: str, kind: str) -> str:
    """The note on a name of an nsys table that is that of one of `NO_TABLES`.

    Example:
        >>> unread_note("NVTX_EVENTS", "view")
        'NVTX_EVENTS is a view instead of a stored table; it is not read'
    """
    return f"{nsys} is a {kind} instead of a stored table; it is not read"
