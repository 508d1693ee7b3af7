"""Corrections for HIP's rows in a Kineto file, whose meaning differs from CUDA's.

Source: HIP's `hip_runtime_api.h` (hipMemcpyKind) and `hip_ext.h` (global work sizes), libkineto's writers for ROCm
(roctracer and rocprofiler-sdk, 2026), which copy grid and kind from the call's arguments; recordings of MI300.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.schema import MISSING

REQUESTED_KINDS: Final = ("HtoH", "HtoD", "DtoH", "DtoD")
"""The requested kind of a copy, by hipMemcpyKind; 4 lets HIP decide."""

_IN_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Launches whose grid counts threads, not blocks."""


def correct(tables: dict[str, pd.DataFrame], texts: Sequence[str], *, grids: bool) -> None:
    """Convert grids to blocks, and add to the copies a column `requested`, the kind that their call requested.

    For the profiler a copy that a kernel performs in pinned host memory is a copy within the device; for its caller it
    is not.

    Args:
        tables: the collected rows, which are modified.
        texts: the texts that the numbers in text columns refer to.
        grids: whether grids are as HIP gives them; files that we wrote already count blocks.
    """
    requested = tables["api"].pop("kind").to_numpy()
    call = _calls(tables, "memcpys", requested != MISSING)
    tables["memcpys"]["requested"] = np.append(requested, MISSING)[call]
    in_threads = [code for code, text in enumerate(texts) if text in _IN_THREADS]
    if grids and in_threads:
        rows = _calls(tables, "kernels", tables["api"]["name"].isin(in_threads).to_numpy()) >= 0
        for axis in "xyz":
            grid, block = (tables["kernels"][f"{size}_{axis}"] for size in ("grid", "block"))
            known = rows & (grid > 0) & (block > 0)
            tables["kernels"][f"grid_{axis}"] = np.where(known, -(-grid // block.where(known, 1)), grid)


def _calls(tables: dict[str, pd.DataFrame], table: str, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each row of a table, the position of the chosen call that launched it, or -1."""
    from tracer.analysis.calls import match_rows

    if not chosen.any():
        return np.full(len(tables[table]), -1, np.int64)
    rows = np.append(np.flatnonzero(chosen), -1)
    return rows[match_rows(tables["api"][chosen], tables[table])]
