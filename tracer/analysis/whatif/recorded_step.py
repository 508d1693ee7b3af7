"""The kernels of a typical step in a recording of one stream that contains every kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.fits import Fits, Multiprocessor, fits_for
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.errors import UsageError
from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace

_WARP: Final = 32  # threads
_FIRST_KERNEL: Final = re.compile(r"^cast_f16$")
_SECOND_KERNEL: Final = re.compile(r"splitk_?reduce", re.IGNORECASE)
"""In the names of matrix-product kernels, the parts before and after the product: together they are one node of the
graph.
"""


@dataclass(frozen=True)
class RecordedStep:
    """A typical step.

    Attributes:
        rows: its rows of trace["kernels"], by start.
        times: one row for each of them: time (from the end of the preceding kernel to its own end, ns), gap (from the
            end of the preceding kernel to its start, negative if it begins earlier), both medians over the steps,
            blocks, resident (blocks / the maximum number resident on the device, 0 if unknown), and kernel (position
            among the step's kernels: one that only prepares a product, or completes one that cuBLAS splits, counts with
            it).
        multiprocessors, bandwidth: those of the device, and its memory bandwidth as it reports it (bytes/s); `MISSING`
            if unknown.
        fits: the constants for the device.
    """

    rows: pd.DataFrame
    times: pd.DataFrame
    multiprocessors: int
    bandwidth: int
    fits: Fits

    @classmethod
    def of(cls, node: Trace, steps: Steps) -> RecordedStep:
        """Take the median over the steps with the most common number of kernels.

        Kernels may begin before their predecessor has ended, so durations do not add up.

        Raises:
            UsageError: there are no kernels.
        """
        kernels = node["kernels"][TABLES["kernels"].column_names]
        at = activity_steps(node, steps, kernels)
        kernels = kernels.assign(at=at)[at >= 0].sort_values(["at", "start"], kind="stable")
        sizes = kernels.groupby("at").size()
        if not len(sizes):
            raise UsageError(
                "the recording has no kernels, only whole graphs: predicting streams needs a recording at node level"
            )
        usual = sizes[sizes == sizes.mode().iloc[0]].index
        kernels = kernels[kernels["at"].isin(usual)]
        start, end = (kernels[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
        reached = np.maximum.accumulate(end, axis=1)
        rows = kernels.iloc[: start.shape[1]].drop(columns="at").reset_index(drop=True)
        blocks = kernels[["grid_x", "grid_y", "grid_z"]].prod(axis=1).abs().to_numpy().reshape(start.shape)
        name = rows["name"].astype("str")
        first, second = (name.str.contains(kernel).to_numpy() for kernel in (_FIRST_KERNEL, _SECOND_KERNEL))
        goes_on = second | np.append(False, first[:-1])
        devices = node["devices"]
        sms, bandwidth = (int(devices[c].max()) if len(devices) else MISSING for c in ("sm_count", "memory_bandwidth"))
        fits = fits_for(node)
        times = pd.DataFrame({
            "time": np.median(np.diff(np.concatenate((start[:, :1], reached), axis=1), axis=1), axis=0),
            "gap": np.append(0.0, np.median(start[:, 1:] - reached[:, :-1], axis=0)),
            "blocks": blocks.max(axis=0),
            "resident": blocks.max(axis=0) / (held_blocks(rows, fits.multiprocessor) * sms) if sms > 0 else 0.0,
            "kernel": np.maximum(np.cumsum(~goes_on) - 1, 0),
        })  # fmt: skip
        return cls(rows, times, sms, bandwidth, fits)

    def kernels(self) -> pd.DataFrame:
        """Columns time, gap, blocks and resident, one row per kernel of the step."""
        return self.times.groupby("kernel").agg({"time": "sum", "gap": "first", "blocks": "max", "resident": "max"})

    def parts(self) -> tuple[pd.Series, pd.Series]:
        """For each of `rows`, the part of its kernel's time in which it runs, as shares."""
        time = self.times.groupby("kernel")["time"]
        whole = time.transform("sum").clip(lower=1)
        to = time.cumsum() / whole
        return to - self.times["time"] / whole, to


def held_blocks(kernels: pd.DataFrame, limits: Multiprocessor) -> NDArray[np.float64]:
    """The maximum number of resident blocks per multiprocessor for each kernel, from their threads, registers and
    shared memory.
    """
    columns = ("block_x", "block_y", "block_z", "registers", "static_shared", "dynamic_shared")
    x, y, z, registers, *shared = (kernels[c].to_numpy(dtype=np.float64).clip(min=0) for c in columns)
    warps = np.maximum(np.ceil(x * y * z / _WARP), 1)
    of_warp = np.maximum(np.ceil(registers * _WARP / limits.register_unit), 1) * limits.register_unit
    by_registers = np.floor(limits.registers / limits.partitions / of_warp) * limits.partitions // warps
    by_shared = limits.shared // np.maximum(sum(shared) + limits.shared_of_system, 1)
    return np.asarray(
        np.minimum.reduce([by_registers, by_shared, limits.warps // warps, np.full(len(x), limits.blocks)]).clip(min=1)
    )
