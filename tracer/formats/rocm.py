"""What rocprofv3 records of AMD's GPUs -> the tables of a trace, whichever file it comes from.

Source of the meaning: rocprofiler-sdk (its writers of CSV and rocpd, as of 2026), and HSA's dispatch packets, which
count a grid in threads. `rocprof_csv` and `rocpd` give the rows.

- A correlation numbers the calls of one process. What ran on the device has that of the innermost recorded call, which
  is HSA's if those are recorded, too: it gets that of the HIP call around it.
- A stream is that of HIP where the recording names it, else the hardware queue.
- There is a file, or several, for each process. rocprofv3 puts those of each host into a folder of its own
  (`OUTPUT/HOST/`); a folder with nothing but a single one stands for it.
- GPUs are numbered from 0 as HIP does; the host's agents (NUMA nodes) are not devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from tracer.model.intervals import Ints
from tracer.model.schema import MEMCPY_KINDS, MEMORY_KINDS, MISSING, MOST_NS
from tracer.model.trace import Trace, categorical

SOURCE: Final = "rocprofv3"
"""`metadata["source"]` of these recordings."""

_SPAN: Final = ("start", "end", "process")
_SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
COLUMNS: Final = {
    "kernels": (*_SPAN, "device", "stream", "queue", "correlation", "name", *_SIZES, "registers", "dynamic_shared"),
    "copies": (*_SPAN, "stream", "correlation", "direction", "source", "destination", "bytes"),
    "calls": (*_SPAN, "thread", "correlation", "domain", "name", "is_process"),
    "devices": ("device", "name", "sm_count"),
    "threads": ("process", "thread", "name"),
    "processes": ("process", "name"),
}
"""Table -> its columns. Grids count threads. `source` and `destination` are devices, whatever they are of the host.
Calls are of any library; the name of a range or mark of roctx is its message; `is_process` is 1 for a range of the
process, which may end on another thread."""

TEXTS: Final = frozenset({"name", "direction", "domain"})
"""The columns of texts; all others are int64, MISSING where unknown."""

_DIRECTION: Final = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)$")
_HIP: Final = re.compile(r"(?i:(rocm_)?HIP_)\w+")
_HSA: Final = re.compile(r"(?i:(rocm_)?HSA_)\w+")
MARKERS: Final = re.compile(r"(?i:(rocm_)?MARKER_)\w+")
"""The domains of roctx."""

_CONTROL: Final = re.compile(r"MARKER_(CONTROL|NAME)_API\w*")
_NO_RANGES: Final = frozenset({"roctxGetThreadId", "roctxRangePop", "roctxRangeStop"})


class Rows:
    """The rows of all processes of a recording, by table, in the order in which they are added."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}

    def add(self, table: str, rows: pd.DataFrame) -> None:
        """Add rows; columns that they lack are MISSING, or empty texts."""
        if len(rows):
            self._parts[table].append(rows)

    def joined(self, table: str) -> pd.DataFrame:
        """All rows of a table, with the columns of `COLUMNS`."""
        parts = self._parts[table]
        return pd.DataFrame({
            name: _union([_texts(part, name) for part in parts])
            if name in TEXTS else np.concatenate([np.zeros(0, np.int64), *(_numbers(part, name) for part in parts)])
            for name in COLUMNS[table]
        })  # fmt: skip


def _union(parts: list[Any]) -> Any:
    return union_categoricals(parts) if parts else categorical(np.zeros(0, np.int64), [])


def _texts(rows: pd.DataFrame, name: str) -> Any:
    if name not in rows:
        return categorical(np.zeros(len(rows), np.int64), [""])
    values = rows[name]
    return values.array if values.dtype == "category" else categorical(np.arange(len(values)), values.to_numpy(object))


def _numbers(rows: pd.DataFrame, name: str) -> Ints:
    return rows[name].to_numpy(np.int64) if name in rows else np.full(len(rows), MISSING)


def trace_of(rows: Rows) -> Trace:
    """The trace of a recording."""
    notes: list[str] = []
    kernels = _possible(rows.joined("kernels"), "kernels", notes)
    copies = _possible(rows.joined("copies"), "copies", notes)
    calls = _possible(rows.joined("calls"), "calls and ranges", notes)
    is_hip, is_hsa = (_named(calls["domain"], pattern) for pattern in (_HIP, _HSA))
    of_api = is_hip | is_hsa
    api = calls[of_api].assign(layer=np.where(is_hip, "runtime", "driver")[of_api])
    for launched in (kernels, copies):
        launched["correlation"] = _of_hip(api, launched)
    if len(kernels) and not _has_streams(kernels):
        kernels, copies = kernels.assign(stream=kernels["queue"]), copies.assign(stream=MISSING)
        notes.append("streams are hardware queues: the recording does not name those of HIP")
    if len(copies) and (copies["bytes"] == MISSING).all():
        notes.append("copies have no sizes: the recording does not tell them")
    tables = {
        "kernels": _kernels(kernels), "memcpys": _copies(copies),
        "api": api[[*_SPAN, "thread", "correlation", "name", "layer"]],
        "nvtx": _ranges(calls[~of_api & ~_left_out(calls)]),
        "streams": _streams(kernels, copies),
        "devices": rows.joined("devices").drop_duplicates("device"),
        "threads": rows.joined("threads").drop_duplicates(["process", "thread"]),
        "processes": rows.joined("processes").drop_duplicates("process"),
    }  # fmt: skip
    trace = Trace.from_columns({"source": SOURCE}, **{name: _columns(f) for name, f in tables.items() if len(f)})
    trace.notes += notes
    return trace


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {str(name): _unused_dropped(frame[name]) for name in frame}


def _unused_dropped(values: pd.Series) -> Any:
    return values.cat.remove_unused_categories().array if values.dtype == "category" else values.to_numpy()


def _has_streams(kernels: pd.DataFrame) -> bool:
    """Whether a recording names HIP's streams: without them, all are 0 however many queues a device has."""
    if (kernels["stream"] > 0).any():
        return True
    queues = kernels[["process", "device", "queue"]].drop_duplicates()
    return bool((kernels["stream"] == 0).all() and not queues.duplicated(["process", "device"]).any())


def _streams(*launched: pd.DataFrame) -> pd.DataFrame:
    seen = pd.concat([rows[["process", "stream"]] for rows in launched]).drop_duplicates()
    return seen[seen["stream"] != MISSING].sort_values(["process", "stream"])


_AGENT: Final = re.compile(r"(?:(Agent|GPU|CPU)\D{0,3})?(\d{1,9})\]?")


def device_of(agent: str, numbers: Mapping[tuple[str, int], int] | None = None) -> int:
    """The device of an agent's name, such as "Agent 4", "GPU-0" or "7"; MISSING for one of the host.

    Args:
        numbers: kind ("Agent" or "") and number of an agent -> its device; the agent's own number where it is unknown.
    """
    match = _AGENT.fullmatch(agent.strip())
    if match is None or match[1] == "CPU":
        return MISSING
    kind, number = match[1] or "", int(match[2])
    return number if kind == "GPU" else (numbers or {}).get((kind, number), number)


MOST_FILES: Final = 2_000
"""Files of a folder that are looked at."""


def files_in(folder: Path, suffix: str) -> list[Path]:
    """The files of a folder with this suffix, sorted; none if it cannot be read."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() == suffix and file.is_file())
    except OSError:
        return []
    return files[:MOST_FILES]


def recorded_in(path: Path, suffix: str) -> list[Path]:
    """The files with this suffix in a folder, or in the only entry of one; none in any other."""
    if files := files_in(path, suffix):
        return files
    try:
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return files_in(entries[0], suffix) if len(entries) == 1 and entries[0].is_dir() else []


def _possible(rows: pd.DataFrame, what: str, notes: list[str]) -> pd.DataFrame:
    """The rows with possible times; `notes` counts the others."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    good = (start > 0) & (end >= start) & (end < MOST_NS)
    if lacking := int((~good).sum()):
        notes.append(f"{lacking} {what} have no times, or end before they start; they are left out")
    return rows[good].reset_index(drop=True)


def _named(texts: pd.Series, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which rows' text is of this form; each distinct text is looked at once."""
    matches = np.array([pattern.fullmatch(str(text)) is not None for text in texts.cat.categories] or [False])
    return np.asarray(matches[texts.cat.codes.to_numpy()], np.bool_)


def _left_out(calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls of roctx that are neither a range nor a mark."""
    return np.asarray(_named(calls["domain"], _CONTROL) | calls["name"].isin(_NO_RANGES).to_numpy(), np.bool_)


def _of_hip(api: pd.DataFrame, launched: pd.DataFrame) -> Ints:
    """The correlation of each activity: where its call is one of HSA, that of the HIP call around it."""
    own = launched["correlation"].to_numpy()
    keys, place = ["process", "correlation"], ["process", "thread"]
    is_hip = (api["layer"] == "runtime").to_numpy()
    inner = api[~is_hip].drop_duplicates(keys).sort_values("start")
    if not len(inner) or not len(launched):
        return own
    outer = api[is_hip].assign(begin=api["start"], hip=api["correlation"]).sort_values("start")
    around = pd.merge_asof(inner[[*place, "start", "correlation"]], outer[[*place, "begin", "end", "hip"]],
                           left_on="start", right_on="begin", by=place)  # fmt: skip
    hip = around[around["end"] >= around["start"]].set_index(keys)["hip"]  # NaN where there is none
    of_hip = hip.reindex(pd.MultiIndex.from_frame(launched[keys])).fillna(MISSING).to_numpy(np.int64)
    return np.where(of_hip == MISSING, own, of_hip)


def _kernels(rows: pd.DataFrame) -> pd.DataFrame:
    kernels = rows.drop(columns="queue")
    for axis in "xyz":
        grid, block = rows[f"grid_{axis}"].to_numpy(), rows[f"block_{axis}"].to_numpy()
        known = (grid > 0) & (block > 0)
        kernels[f"grid_{axis}"] = np.where(known, -(-grid // np.where(known, block, 1)), MISSING)
    return kernels


def _copies(rows: pd.DataFrame) -> pd.DataFrame:
    matches = [_DIRECTION.search(str(text)) for text in rows["direction"].cat.categories]
    ends = [(match[1], match[2]) if match else ("", "") for match in matches] or [("", "")]
    from_host, to_host = (
        np.array([end[side] != "DEVICE" for end in ends])[rows["direction"].cat.codes] for side in (0, 1)
    )
    source = np.where(from_host, MISSING, rows["source"])
    destination = np.where(to_host, MISSING, rows["destination"])
    peers = (source != MISSING) & (destination != MISSING) & (source != destination)
    words = [f"{a[0]}to{b[0]}" if a else "unknown" for a, b in ends]
    kind = np.where(peers, "PtoP", np.array(words)[rows["direction"].cat.codes])
    return rows[[*_SPAN, "stream", "correlation", "bytes"]].assign(
        device=np.where(from_host, destination, source), src_device=source, dst_device=destination,
        kind=pd.Categorical(kind, categories=list(MEMCPY_KINDS)),
        src_kind=_memory(from_host), dst_kind=_memory(to_host),
    )  # fmt: skip


def _memory(is_host: NDArray[np.bool_]) -> Any:
    return pd.Categorical(np.where(is_host, "unknown", "device"), categories=list(MEMORY_KINDS))


def _ranges(rows: pd.DataFrame) -> pd.DataFrame:
    """Ranges of roctx, without a domain; calls of other libraries, with theirs."""
    of_process = (rows["is_process"] == 1).to_numpy()
    is_mark = (rows["start"] == rows["end"]).to_numpy() & _named(rows["domain"], MARKERS)
    domains = {name: "" if MARKERS.fullmatch(str(name)) else str(name) for name in rows["domain"].cat.categories}
    return pd.DataFrame({
        "start": rows["start"], "end": rows["end"], "process": rows["process"],
        "thread": np.where(of_process, MISSING, rows["thread"]),
        "text": rows["name"], "domain": rows["domain"].map(domains).astype("category"),
        "kind": np.where(is_mark, "mark", np.where(of_process, "start/end", "push/pop")),
    })  # fmt: skip
