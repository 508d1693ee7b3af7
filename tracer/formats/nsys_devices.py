"""Maps the device numbers of each process to GPUs, by the table TARGET_INFO_CUDA_DEVICE (see `tracer.devices`)."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa

from tracer.devices import by_gpu, numbers_differ
from tracer.formats.nsys_strings import ints
from tracer.schema import MISSING


def with_gpus(frames: dict[str, pd.DataFrame], cuda: pa.Table, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables with one device number per GPU; the table of devices lists those visible to a CUDA process.

    Args:
        frames: the tables of a trace, with each process's own device numbers, and GPUs by their gpuId.
        cuda: TARGET_INFO_CUDA_DEVICE.
        notes: receives a note if devices are renumbered.
    """
    names = {"gpu": "gpuId", "cuda": "cudaId"} | ({"process": "pid"} if "pid" in cuda.column_names else {})
    seen = pd.DataFrame({ours: ints(cuda[theirs]) for ours, theirs in names.items()})
    seen = seen[seen["gpu"] != MISSING]
    pairs = seen[["gpu", "cuda"]].drop_duplicates()
    if "process" not in seen or not numbers_differ(seen):
        return frames | _devices(frames, pairs.drop_duplicates("cuda"))
    found = by_gpu(frames, seen.drop_duplicates(["process", "cuda"]), notes)
    return found | _devices(frames, pd.DataFrame({"gpu": pairs["gpu"].unique(), "cuda": pairs["gpu"].unique()}))


def _devices(frames: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of devices, renumbered from `gpu` to `cuda`."""
    if "devices" not in frames:
        return {}
    joined = frames["devices"].merge(pairs, left_on="device", right_on="gpu")
    return {"devices": joined.assign(device=joined["cuda"]).drop(columns=["gpu", "cuda"])}
