"""Maps the device numbers of each process to GPUs.

CUDA numbers the devices separately in every process (CUDA_VISIBLE_DEVICES), and the rows of an export hold these
numbers. The table TARGET_INFO_CUDA_DEVICE gives the GPU (gpuId) of each. If a number means different GPUs, or one GPU
has several numbers, the devices of a trace are the gpuIds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from tracer.formats.nsys_strings import ints
from tracer.rows import numbered
from tracer.schema import MISSING, TABLES

_MOST_SHOWN: Final = 8
_NUMBERED: Final[dict[str, list[str]]] = {
    table.name: [c for c in ("device", "src_device", "dst_device") if c in table.column_names]
    for table in TABLES.values()
    if table.name != "devices" and "device" in table.column_names
}
"""Table -> its columns of devices, numbered by the row's process."""


def with_gpus(frames: dict[str, pd.DataFrame], cuda: pa.Table, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables with one device number per GPU; the table of devices lists those visible to a CUDA process.

    Args:
        frames: the tables of a trace, with each process's own device numbers, and GPUs by their gpuId.
        cuda: TARGET_INFO_CUDA_DEVICE.
        notes: receives a note if devices are renumbered.
    """
    names = {"gpu": "gpuId", "cuda": "cudaId"} | ({"process": "pid"} if "pid" in cuda.column_names else {})
    seen = pd.DataFrame({ours: ints(cuda[theirs]) for ours, theirs in names.items()})
    pairs = seen[["gpu", "cuda"]][seen["gpu"] != MISSING].drop_duplicates()
    if "process" not in seen or not (pairs["cuda"].duplicated().any() or pairs["gpu"].duplicated().any()):
        return frames | _devices(frames, pairs.drop_duplicates("cuda"))
    seen = seen[seen["gpu"] != MISSING].drop_duplicates(["process", "cuda"])
    note = _note(seen)
    if note not in notes:  # a file that we wrote has the note
        notes.append(note)
    found = {name: _renumbered(frames[name], columns, seen) for name, columns in _NUMBERED.items() if name in frames}
    return (
        frames | found | _devices(frames, pd.DataFrame({"gpu": pairs["gpu"].unique(), "cuda": pairs["gpu"].unique()}))
    )


def _devices(frames: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of devices, renumbered from `gpu` to `cuda`."""
    if "devices" not in frames:
        return {}
    joined = frames["devices"].merge(pairs, left_on="device", right_on="gpu")
    return {"devices": joined.assign(device=joined["cuda"]).drop(columns=["gpu", "cuda"])}


def _renumbered(frame: pd.DataFrame, columns: list[str], seen: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(**{c: _gpus(frame["process"], frame[c], seen) for c in columns if c in frame})


def _gpus(process: pd.Series, device: pd.Series, seen: pd.DataFrame) -> NDArray[np.int64]:
    """The GPU of each (process, device): from the table, else the only GPU with that number, else a new number."""
    codes, distinct = numbered(process, device)
    known = {(row.process, row.cuda): row.gpu for row in seen.itertuples()}
    by_number = seen.groupby("cuda")["gpu"].unique()
    only = {number: gpus[0] for number, gpus in by_number.items() if len(gpus) == 1}
    beyond = int(seen["gpu"].max()) + 1

    def gpu(process: int, device: int) -> int:
        if device == MISSING:
            return MISSING
        return int(known.get((process, device), only.get(device, beyond + device)))

    return np.array([gpu(int(p), int(d)) for p, d in distinct], np.int64)[codes]


def _note(seen: pd.DataFrame) -> str:
    rows = seen.sort_values(["gpu", "process", "cuda"])
    named = [f"{row.gpu} is device {row.cuda} of process {row.process}" for row in rows.itertuples()]
    more = ", ..." if len(named) > _MOST_SHOWN else ""
    shown = ", ".join(named[:_MOST_SHOWN]) + more
    return f"processes number the devices differently, so the GPUs' own numbers are used: {shown}"
