"""One number per GPU in a recording of several processes.

CUDA numbers the devices separately in every process (CUDA_VISIBLE_DEVICES), and its records hold these numbers. If a
number means different GPUs in different processes, or one GPU has several numbers, a trace uses the GPUs' own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.columns import numbered
from tracer.model.schema import MISSING, TABLES

_MOST_SHOWN: Final = 8
_NUMBERED: Final[dict[str, list[str]]] = {
    table.name: [c for c in ("device", "src_device", "dst_device") if c in table.column_names]
    for table in TABLES.values()
    if table.name != "devices" and "device" in table.column_names
}
"""Table -> its columns of devices, numbered by the row's process."""


def numbers_differ(seen: pd.DataFrame) -> bool:
    """Whether a number means several GPUs, or a GPU has several numbers.

    Args:
        seen: columns process, cuda (the number of a device in that process) and gpu (which GPU that is).
    """
    pairs = seen[["gpu", "cuda"]].drop_duplicates()
    return bool(pairs["cuda"].duplicated().any() or pairs["gpu"].duplicated().any())


def by_gpu(frames: Mapping[str, pd.DataFrame], seen: pd.DataFrame, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables with the GPUs' numbers instead of each process's own; the table of devices is unchanged.

    Args:
        frames: the tables of a trace.
        seen: as for `numbers_differ`; one row per process and device.
        notes: receives a note that lists the numbers.
    """
    note = _note(seen)
    if note not in notes:  # a file that we wrote has the note
        notes.append(note)
    return {
        name: _renumbered(frame, _NUMBERED[name], seen) if name in _NUMBERED else frame
        for name, frame in frames.items()
    }


def numbered_by_gpu(
    frames: Mapping[str, pd.DataFrame], seen: pd.DataFrame, notes: list[str]
) -> dict[str, pd.DataFrame]:
    """The tables, by the GPUs' numbers if the processes' numbers differ, and each device once in its table.

    Args:
        frames: the tables; that of devices has a row for each row of `seen`, with the process's own number.
        seen: columns process, cuda, and uuid (which identifies the GPU; 0 if unknown).
        notes: receives a note if devices are renumbered.
    """
    rows = seen.assign(gpu=pd.factorize(seen["uuid"])[0]).reset_index(drop=True)
    devices = frames["devices"].reset_index(drop=True)
    if (rows["uuid"] == 0).any() or not numbers_differ(rows):
        return {**frames, "devices": devices.drop_duplicates("device")}
    renumbered = by_gpu(frames, rows.drop_duplicates(["process", "cuda"]), notes)
    return {**renumbered, "devices": devices.assign(device=rows["gpu"]).drop_duplicates("device")}


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
