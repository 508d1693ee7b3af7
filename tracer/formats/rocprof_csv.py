"""CSV of AMD's rocprofv3: a folder with a file per table and process, or one of its files.

The files of a process begin alike (`4242_kernel_trace.csv`, `4242_hip_api_trace.csv`, `4242_agent_info.csv`): of a
folder all processes are read, with one of its files those of the same process. What a file holds is told by its header.
Source: rocprofiler-sdk's `generateCSV.cpp`, 2024 to 2026, and the files that its manual shows; rocpd's own CSV has the
same columns and a `Guid` per process.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.errors import FormatError, printable
from tracer.files.bounded import opened
from tracer.formats import Format
from tracer.formats.rocm import MARKERS, Rows, device_of, files_in, recorded_in, trace_of
from tracer.model.schema import MISSING
from tracer.model.trace import Trace, categorical
from tracer.progress import tell

_SUFFIX: Final = ".csv"
_HEAD: Final = 1 << 12  # bytes in which the header must end
_TIMES: Final = {"Start_Timestamp", "End_Timestamp"}
_TABLES: Final = {
    "kernels": {"Kernel_Name", "Dispatch_Id", "Correlation_Id"} | _TIMES,
    "copies": {"Direction", "Source_Agent_Id", "Destination_Agent_Id"} | _TIMES,
    "calls": {"Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id"} | _TIMES,
    "agents": {"Node_Id", "Agent_Type"},
}
"""Table -> columns that only its files have. Not read: allocations, and counters, which repeat each kernel."""

_COMMON: Final = {"Start_Timestamp": "start", "End_Timestamp": "end", "Correlation_Id": "correlation", "Guid": "guid"}
_COLUMNS: Final = {
    "kernels": {
        **_COMMON, "Kernel_Name": "name", "Agent_Id": "agent", "Queue_Id": "queue", "Stream_Id": "stream",
        **{f"Grid_Size_{axis}": f"grid_{axis.lower()}" for axis in "XYZ"},
        **{f"Workgroup_Size_{axis}": f"block_{axis.lower()}" for axis in "XYZ"},
        "VGPR_Count": "registers", "LDS_Block_Size": "dynamic_shared", "Group_Segment_Size": "dynamic_shared",
    },
    "copies": {
        **_COMMON, "Direction": "direction", "Stream_Id": "stream", "Source_Agent_Id": "source",
        "Destination_Agent_Id": "destination",
    },
    "calls": {**_COMMON, "Domain": "domain", "Function": "name", "Process_Id": "process", "Thread_Id": "thread"},
    "agents": {
        "Node_Id": "node", "Logical_Node_Id": "logical", "Agent_Type": "type", "Cu_Count": "units",
        "Product_Name": "product", "Model_Name": "model", "Name": "agent_name",
    },
}  # fmt: skip
"""Table -> a file's column -> its name here."""

_NAME: Final = re.compile(
    r"(.*?)_?(kernel_trace|memory_copy_trace|agent_info|(hip|hsa|marker|rccl|rocdecode|rocjpeg)\w*_trace)\.csv"
)
_NUMBER: Final = re.compile(r"\d{1,18}")
_TEXTS: Final = frozenset({
    "name", "direction", "domain", "agent", "source", "destination", "type", "product", "model", "agent_name", "guid",
})  # fmt: skip


@dataclass(frozen=True)
class _File:
    path: Path
    table: str
    columns: tuple[str, ...]
    group: str


def sniff(path: Path) -> bool:
    """Whether the file, or a file in the folder, has the header of one of rocprofv3's traces."""
    if path.is_dir():
        return any(map(_is_trace, recorded_in(path, _SUFFIX)))
    return path.is_file() and _is_trace(path)


def _is_trace(path: Path) -> bool:
    return _table(_header(path)) in ("kernels", "copies", "calls")


def read(path: Path) -> Trace:
    """Read a folder, or a file and those of the same process beside it.

    Raises:
        FormatError: a file is damaged.
    """
    files, rows, notes = list(_files_of(path)), Rows(), list[str]()
    total = sum(file.path.stat().st_size for file in files)
    done = 0
    for group in dict.fromkeys(file.group for file in files):
        tables: dict[str, list[pd.DataFrame]] = {}
        for file in (file for file in files if file.group == group):
            tables.setdefault(file.table, []).append(_rows(file, notes))
            done += file.path.stat().st_size
            tell(done, total)
        _add(rows, group, tables)
    trace = trace_of(rows)
    if path.is_file() and len(files) > 1:
        others = ", ".join(sorted(printable(file.path.name) for file in files if file.path != path))
        notes.insert(0, f"read with the files of the same process: {others}")
    trace.notes[:0] = notes
    return trace


def _header(path: Path) -> tuple[str, ...]:
    """The columns that the first line names; none if it names none."""
    with opened(path) as file:
        line, newline, _ = file.read(_HEAD).partition(b"\n")
    try:
        return tuple(next(csv.reader([line.decode("utf-8-sig").strip()]), ())) if newline else ()
    except (UnicodeDecodeError, csv.Error):
        return ()


def _table(columns: Sequence[str]) -> str | None:
    if "Counter_Name" in columns:
        return None
    return next((name for name, needed in _TABLES.items() if needed <= {*columns}), None)


def _files_of(path: Path) -> Iterator[_File]:
    files = files_in(path.parent, _SUFFIX) if path.is_file() else recorded_in(path, _SUFFIX)
    own = _group(path)
    for file in files or [path]:
        columns = _header(file)
        table, group = _table(columns), _group(file)
        if table is not None and (file == path or group == own or path.is_dir()):
            yield _File(file, table, columns, group)


def _group(path: Path) -> str:
    """What the files of a process have in common."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else ""


def _rows(file: _File, notes: list[str]) -> pd.DataFrame:
    """The columns of a file that are known here: texts as categoricals, numbers as int64. `notes` counts cut rows."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    cut: list[Any] = []

    def leave_out(row: Any) -> str:
        cut.append(row)
        return "skip"

    names = {theirs: ours for theirs, ours in _COLUMNS[file.table].items() if theirs in file.columns}
    types = {theirs: pa.string() if ours in _TEXTS else pa.int64() for theirs, ours in names.items()}
    try:
        with opened(file.path) as raw:
            table = arrow.read_csv(
                raw,
                arrow.ReadOptions(encoding="latin-1"),  # in which any bytes are a text; `_column` decodes them
                parse_options=arrow.ParseOptions(invalid_row_handler=leave_out),
                convert_options=arrow.ConvertOptions(column_types=types, include_columns=[*names]),
            )
    except pa.ArrowException as error:
        raise FormatError(f"{file.path}: {printable(str(error).splitlines()[0], 150)}") from error
    if cut:
        notes.append(f"{printable(file.path.name)}: {len(cut)} rows are incomplete and left out")
    return pd.DataFrame({ours: _column(table[theirs], ours) for theirs, ours in names.items()}, copy=False)


def _column(values: Any, name: str) -> Any:
    if name not in _TEXTS:
        return values.fill_null(MISSING).to_numpy()
    encoded = values.fill_null("").combine_chunks().dictionary_encode()
    texts = [text.encode("latin-1").decode("utf-8", "replace") for text in encoded.dictionary.to_pylist()]
    return categorical(encoded.indices.to_numpy(), texts)


def _add(rows: Rows, group: str, tables: Mapping[str, list[pd.DataFrame]]) -> None:
    """Add the rows of the files of a process."""
    agents = _Agents(tables.get("agents", ()))
    calls = tables.get("calls", ())
    pids = {pid for frame in calls for pid in frame["process"].unique().tolist()}
    of_guid = {guid: pid for frame in calls if "guid" in frame
               for guid, pid in frame[["guid", "process"]].drop_duplicates().itertuples(index=False)}  # fmt: skip
    numbers = _NUMBER.findall(group)
    alone = next(iter(pids)) if len(pids) == 1 else int(numbers[-1]) if numbers else MISSING
    for table in ("kernels", "copies"):
        for frame in tables.get(table, ()):
            frame["process"] = frame["guid"].map(of_guid).fillna(alone).astype(np.int64) if "guid" in frame else alone
    for frame in tables.get("kernels", ()):
        frame["device"] = agents.devices(frame["agent"])
    for frame in tables.get("copies", ()):
        for end in ("source", "destination"):
            frame[end] = agents.devices(frame[end])
    for frame in calls:  # a range of the process has no thread
        is_mark = frame["domain"].isin([text for text in frame["domain"].cat.categories if MARKERS.fullmatch(text)])
        frame["is_process"] = (is_mark & (frame["thread"] == 0)).astype(np.int64)
    for table in ("kernels", "copies", "calls"):
        for frame in tables.get(table, ()):
            rows.add(table, frame)
    rows.add("devices", agents.table)


class _Agents:
    """The devices that the files name: by the numbers of their nodes, of those in use, or of their kind.

    A GPU's number is its place among the GPUs that agent_info lists; the nodes' own if there is no such file.
    """

    def __init__(self, listed: Sequence[pd.DataFrame]) -> None:
        self.table = pd.DataFrame()
        self._number: dict[tuple[str, int], int] = {}
        if not listed:
            return
        agents = listed[0].sort_values("node").reset_index(drop=True)
        gpus = agents[(agents["type"] == "GPU").to_numpy()].reset_index(drop=True)
        logical = "logical" if "logical" in gpus else "node"
        for column, word in (("node", ""), ("node", "Agent"), (logical, "Agent")):
            for id in agents[column].tolist():
                self._number[word, id] = MISSING
            self._number |= {(word, id): at for at, id in enumerate(gpus[column].tolist())}
        named = [gpus[name].astype(str) for name in ("product", "model", "agent_name") if name in gpus]
        names = named[0].where(named[0] != "", named[-1]) if named else ""
        self.table = pd.DataFrame(
            {"device": np.arange(len(gpus)), "name": names, "sm_count": gpus.get("units", MISSING)}
        )

    def devices(self, agents: pd.Series) -> NDArray[np.int64]:
        """The device of each row's agent; MISSING for one that is not a GPU."""
        device = np.array([device_of(str(text), self._number) for text in agents.cat.categories] or [MISSING], np.int64)
        return device[agents.cat.codes.to_numpy()]


def _is_part(path: Path) -> bool:
    """Whether an entry of the folder is one of rocprofv3's, or the folder of a host."""
    return path.suffix.lower() == _SUFFIX or (path.is_dir() and bool(files_in(path, _SUFFIX)))


FORMAT: Final = Format("rocprofv3 CSV", _SUFFIX, sniff, read, lossless=False, is_part=_is_part)
