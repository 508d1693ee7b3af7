"""Databases of AMD's rocprofv3 (rocpd, its default since ROCm 7), and of rocprof-sys, which writes the same tables.

Each process has a database, or its own tables in a merged one: the names of a process's tables end alike. Ids of
strings, threads, agents and events are joined here; the views of the file, which join them, too, are not used (see
`sqlite_tables`). Schema 3 has times in the rows, schema 4 the ids of tracks and timestamps. Source: rocprofiler-sdk's
`rocpd_tables.sql` of both, and `generateRocpd.cpp`, as of 2026.

- `stack_id` of an event is the number that the CSV calls correlation; `correlation_id` is the program's own.
- The text of a range or mark of roctx is in the event's `extdata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from tracer.errors import FormatError
from tracer.formats import Format
from tracer.formats import sqlite_tables as sqlite
from tracer.formats.nsys_schema import Versioned
from tracer.formats.rocm import MARKERS, Rows, files_in, recorded_in, trace_of
from tracer.model.intervals import Ints
from tracer.model.schema import MISSING
from tracer.model.trace import Trace, categorical

_SUFFIX: Final = ".db"
_HEAD: Final = 1 << 20  # bytes; the schema is written first
_KERNELS: Final = "rocpd_kernel_dispatch"
_ON_TRACK: Final = ("track_id", "start_id", "end_id")  # of schema 4
_WHERE: Final = ("pid", "tid", "start", "end", "timestamp", "stream_id", "queue_id")
_SIZES: Final = {f"{theirs}_{axis}": f"{ours}_{axis}" for theirs, ours in (("grid_size", "grid"),
                 ("workgroup_size", "block")) for axis in "xyz"}  # fmt: skip
_TABLES: Final = {
    _KERNELS: (*_WHERE, *_ON_TRACK, "event_id", "agent_id", "kernel_id", "group_segment_size", *_SIZES),
    "rocpd_memory_copy": (*_WHERE, *_ON_TRACK, "event_id", "name_id", "size", "src_agent_id", "dst_agent_id"),
    "rocpd_region": (*_WHERE, *_ON_TRACK, "event_id", "name_id"),
    "rocpd_sample": (*_WHERE, "track_id", "timestamp_id", "event_id", "name_id"),
    "rocpd_event": ("id", "category_id", "stack_id", "extdata"),
    "rocpd_string": ("id", "string"),
    "rocpd_info_category": ("id", "name"),
    "rocpd_info_kernel_symbol": ("id", "display_name", "kernel_name", "arch_vgpr_count"),
    "rocpd_info_agent": ("id", "type", "type_index", "absolute_index", "product_name", "model_name", "name", "extdata"),
    "rocpd_info_process": ("id", "pid", "command"),
    "rocpd_info_thread": ("id", "pid", "tid", "name"),
    "rocpd_info_node": ("id", "machine_id"),
    "rocpd_timestamp": ("id", "value"),
    "rocpd_track": ("id", "pid", "tid", "agent_id", "stream_id", "queue_id"),
}
"""The tables and columns that are read, where the file has them."""

_NAME: Final = re.compile(rf"({'|'.join(_TABLES)})(\w{{0,99}})", re.ASCII)
_TEXTS: Final = frozenset({"extdata", "string", "name", "display_name", "kernel_name", "type", "product_name",
                           "model_name", "command", "machine_id"})  # fmt: skip
_OF_PROCESS: Final = ("roctxProcessRangeA", "roctxRangeStartA")


def sniff(path: Path) -> bool:
    """Whether the file is such a database, or the folder has one."""
    if path.is_dir():
        return any(map(_is_rocpd, recorded_in(path, _SUFFIX)))
    return path.is_file() and _is_rocpd(path)


def _is_rocpd(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head.startswith(sqlite.MAGIC) or _KERNELS.encode() not in head:
        return False
    from adbc_driver_manager import dbapi

    try:
        with sqlite.connect(path) as connection:
            return any(name.startswith(_KERNELS) for name in sqlite.real_tables(connection))
    except (dbapi.Error, pa.ArrowException, FormatError, UnicodeDecodeError):
        return False


def read(path: Path) -> Trace:
    """Read a database, or the databases of all processes in a folder.

    Raises:
        FormatError: damaged, or of several machines.
    """
    files = [path] if path.is_file() else [*filter(_is_rocpd, recorded_in(path, _SUFFIX))]
    rows, machines = Rows(), set[str]()
    for file in files:
        sqlite.check_size(file)
        try:
            for tables in _processes(file):
                _add(rows, tables)
                machines |= set(tables.texts("rocpd_info_node", "machine_id"))
        except FormatError as error:
            raise FormatError(f"{file}: {error}") from error
    if len(machines) > 1:
        raise FormatError(f"{path}: holds recordings of {len(machines)} machines, whose clocks differ: name one")
    return trace_of(rows)


class _Stored:
    """The tables of a process, by their names without its suffix."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables = tables

    def __len__(self) -> int:
        return len(self._tables)

    def length(self, table: str) -> int:
        """The number of rows; 0 if there is no such table."""
        return len(self._tables[table]) if table in self._tables else 0

    def has(self, table: str, column: str) -> bool:
        """Whether the table has this column."""
        return table in self._tables and column in self._tables[table].column_names

    def numbers(self, table: str, column: str) -> Ints:
        """A column of numbers; MISSING for NULL, and throughout if there is none. Raises FormatError."""
        if not self.has(table, column):
            return np.full(self.length(table), MISSING)
        values = self._tables[table][column]
        if values.null_count == len(values):
            return np.full(len(values), MISSING)
        if not pa.types.is_integer(values.type):
            raise FormatError(f"table {table}, column {column} holds {values.type}, not numbers")
        return np.asarray(values.cast(pa.int64()).fill_null(MISSING).to_numpy(), np.int64)

    def texts(self, table: str, column: str, rows: Ints | None = None) -> list[str]:
        """A column of texts, or that of some rows; "" for NULL, and throughout if there is none."""
        if not self.has(table, column):
            return [""] * (self.length(table) if rows is None else len(rows))
        stored = self._tables[table][column]
        values = (stored if rows is None else stored.take(pa.array(rows))).to_pylist()
        return [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each or "") for each in values]

    def at(self, ids: Ints, table: str, column: str) -> Ints:
        """The numbers of a column for these ids; MISSING where there is no such row."""
        return _look_up(ids, self.numbers(table, "id"), self.numbers(table, column))

    def named(self, ids: Ints, table: str, *columns: str) -> Any:
        """The texts of the first of these columns that has one, for these ids; "" where there is no such row."""
        at = _look_up(ids, self.numbers(table, "id"), np.arange(self.length(table)))
        rows, codes = np.unique(at, return_inverse=True)
        first, *others = (self.texts(table, column, rows[rows != MISSING]) for column in columns)
        texts = [next(filter(None, each), "") for each in zip(first, *others, strict=True)]
        return categorical(codes, [""] * int((rows == MISSING).sum()) + texts)


def _look_up(ids: Ints, known: Ints, values: Ints) -> Ints:
    """The value of each id, of equal ones the first; MISSING for an unknown one."""
    if not len(known):
        return np.full(len(ids), MISSING)
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
    row = order[place]
    return np.where((known[row] == ids) & (ids != MISSING), values[row], MISSING)


def _processes(path: Path) -> list[_Stored]:
    """The tables of each process of a database. Raises FormatError without the name of the file."""
    with sqlite.said_briefly():
        with sqlite.connect(path) as connection:
            stored = _stored(connection, path.stat().st_size)
        tables = sqlite.read_all(path, stored)
    by_suffix: dict[str, dict[str, pa.Table]] = {}
    for name, table in tables.items():
        match = _NAME.fullmatch(name)
        assert match is not None
        by_suffix.setdefault(match[2], {})[match[1]] = table
    return [_Stored(own) for own in by_suffix.values()]


def _stored(connection: Any, size: int) -> list[sqlite.StoredTable]:
    roots = sqlite.real_tables(connection)
    rows, values, tables = sqlite.rows_of_tables(connection, size), 0, []
    for name in sorted(roots):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        columns, integers = sqlite.columns_of(connection, name, _TABLES[match[1]])
        wanted = [column for column in columns if column in _TABLES[match[1]]]
        values += rows[name] * len(wanted)
        if values > size:  # even NULL takes a byte
            raise FormatError(f"damaged: table {name} claims {rows[name]} rows, more than fit into the file")
        if wanted:
            table = sqlite.StoredTable(name, Versioned(name), roots[name], columns, integers, wanted, rows[name])
            tables.append(sqlite.with_rowids(connection, table))
    return tables


def _add(rows: Rows, stored: _Stored) -> None:
    """Add the rows of a process."""
    device_of = _devices(rows, stored)
    kernels, copies, regions, samples = (
        _placed(stored, table) for table in (_KERNELS, "rocpd_memory_copy", "rocpd_region", "rocpd_sample")
    )
    agents = kernels.pop("agent").to_numpy() if "agent" in kernels else stored.numbers(_KERNELS, "agent_id")
    kernel = stored.numbers(_KERNELS, "kernel_id")
    rows.add("kernels", kernels.assign(
        device=_look_up(agents, *device_of), name=stored.named(kernel, "rocpd_info_kernel_symbol", "display_name",
                                                               "kernel_name"),
        registers=stored.at(kernel, "rocpd_info_kernel_symbol", "arch_vgpr_count"),
        dynamic_shared=stored.numbers(_KERNELS, "group_segment_size"),
        **{ours: stored.numbers(_KERNELS, theirs) for theirs, ours in _SIZES.items()},
    ))  # fmt: skip
    rows.add("copies", copies.assign(
        direction=stored.named(stored.numbers("rocpd_memory_copy", "name_id"), "rocpd_string", "string"),
        source=_look_up(stored.numbers("rocpd_memory_copy", "src_agent_id"), *device_of),
        destination=_look_up(stored.numbers("rocpd_memory_copy", "dst_agent_id"), *device_of),
        bytes=stored.numbers("rocpd_memory_copy", "size"),
    ))  # fmt: skip
    for table, frame in (("rocpd_region", regions), ("rocpd_sample", samples)):
        calls = _calls(stored, table, frame)
        # Other samples are of counters.
        rows.add("calls", calls if table == "rocpd_region" else calls[calls["is_marker"]])
    pid = stored.at(stored.numbers("rocpd_info_thread", "pid"), "rocpd_info_process", "pid")
    threads = {"process": pid, "thread": stored.numbers("rocpd_info_thread", "tid"),
               "name": stored.texts("rocpd_info_thread", "name")}  # fmt: skip
    named = pd.DataFrame(threads)
    rows.add("threads", named[named["name"] != ""])
    commands = [command.split(maxsplit=1) for command in stored.texts("rocpd_info_process", "command")]
    names = [words[0].rpartition("/")[2] if words else "" for words in commands]
    processes = pd.DataFrame({"process": stored.numbers("rocpd_info_process", "pid"), "name": names})
    rows.add("processes", processes[processes["name"] != ""])


def _placed(stored: _Stored, table: str) -> pd.DataFrame:
    """When and where the rows of a table are: start, end, process, thread, stream, queue, correlation."""
    given = {column: stored.numbers(table, column) for column in _WHERE}
    if stored.has(table, "track_id"):
        track = stored.numbers(table, "track_id")
        given |= {column: stored.at(track, "rocpd_track", column) for column in ("pid", "tid", "stream_id", "queue_id")}
    if table == _KERNELS and stored.has(table, "track_id"):
        given["agent"] = stored.at(track, "rocpd_track", "agent_id")
    for ids, column in (("start_id", "start"), ("end_id", "end"), ("timestamp_id", "timestamp")):
        if stored.has(table, ids):
            given[column] = stored.at(stored.numbers(table, ids), "rocpd_timestamp", "value")
    if table == "rocpd_sample":
        given["start"] = given["end"] = given["timestamp"]
    event = stored.numbers(table, "event_id")
    columns = {
        "start": given["start"], "end": given["end"],
        "process": stored.at(given["pid"], "rocpd_info_process", "pid"),
        "thread": stored.at(given["tid"], "rocpd_info_thread", "tid"),
        "stream": given["stream_id"], "queue": given["queue_id"],
        "correlation": stored.at(event, "rocpd_event", "stack_id"),
    }  # fmt: skip
    return pd.DataFrame(columns | ({"agent": given["agent"]} if "agent" in given else {}))


class _Message(msgspec.Struct):
    message: str = ""


def _calls(stored: _Stored, table: str, placed: pd.DataFrame) -> pd.DataFrame:
    """The calls of a table with their domain and name; of roctx the name is the message."""
    event = stored.numbers(table, "event_id")
    category = stored.at(event, "rocpd_event", "category_id")
    has_categories = stored.has("rocpd_info_category", "name")
    domain = stored.named(category, "rocpd_info_category", "name") if has_categories else stored.named(
        category, "rocpd_string", "string")  # fmt: skip
    function = stored.named(stored.numbers(table, "name_id"), "rocpd_string", "string")
    is_marker = _at_codes(domain, lambda text: MARKERS.fullmatch(text) is not None)
    is_process = is_marker & _at_codes(function, lambda text: text in _OF_PROCESS)
    name = function
    if is_marker.any():
        names = np.asarray(function, object)
        extra = stored.named(event[is_marker], "rocpd_event", "extdata")
        messages = np.array([_message(str(text)) for text in extra.categories], object)[extra.codes]
        names[is_marker] = np.where(messages == "", names[is_marker], messages)
        name = categorical(np.arange(len(names)), names)
    return placed.assign(domain=domain, name=name,
                         is_process=is_process.astype(np.int64), is_marker=is_marker)  # fmt: skip


def _at_codes(texts: Any, holds: Any) -> NDArray[np.bool_]:
    held = np.array([holds(str(text)) for text in texts.categories] or [False])
    return np.asarray(held[texts.codes], np.bool_)


def _message(extdata: str) -> str:
    try:
        return msgspec.json.decode(extdata, type=_Message).message
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


class _Agent(msgspec.Struct):
    cu_count: int = MISSING


def _devices(rows: Rows, stored: _Stored) -> tuple[Ints, Ints]:
    """The ids of the agents that are GPUs, and the number of the device of each."""
    table = "rocpd_info_agent"
    is_gpu = np.array([kind == "GPU" for kind in stored.texts(table, "type")], bool)
    ids, number = stored.numbers(table, "id")[is_gpu], stored.numbers(table, "type_index")[is_gpu]
    if len(set(number.tolist()) - {MISSING}) < len(number):  # not told
        number = np.argsort(np.argsort(stored.numbers(table, "absolute_index")[is_gpu], kind="stable"))
    names = np.asarray(stored.named(ids, table, "product_name", "model_name", "name"), object)
    units = []
    for text, counts in zip(stored.texts(table, "extdata"), is_gpu, strict=True):
        if counts:
            try:
                units.append(msgspec.json.decode(text, type=_Agent).cu_count)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                units.append(MISSING)
    rows.add("devices", pd.DataFrame({"device": number, "name": names, "sm_count": units}))
    return ids, number


def _is_part(path: Path) -> bool:
    """Whether an entry of the folder is a database, or the folder of a host."""
    return path.suffix.lower() == _SUFFIX or (path.is_dir() and bool(files_in(path, _SUFFIX)))


FORMAT: Final = Format("rocpd database", _SUFFIX, sniff, read, lossless=False, is_part=_is_part)
