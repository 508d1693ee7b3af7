"""What the rows mean in the Chrome JSON of AMD's rocmProfileData (`rpd2tracing`), which have no categories.

Source: `rpd2tracing.py`, `RoctracerDataSource.cpp` and `RocprofDataSource.cpp` of rocmProfileData (2026), and HIP's
names of commands. An operation states its type as `args.desc`, on a row of its device (pid) and hardware queue (tid).
An arrow to it begins 2 µs before the call ends, or where the operation starts, if that is earlier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from tracer.model.schema import MISSING

SOURCE: Final = "rocmProfileData"
"""`metadata["source"]` of these recordings."""

ARROW: Final = "api_op"
"""The category of the arrows from calls to operations."""

NO_DEVICE: Final = "copies whose device rocmProfileData does not know"

_OPERATIONS: Final = {
    "KernelExecution": ("kernel", ""), "FillBuffer": ("gpu_memset", "Memset"),
    "CopyHostToDevice": ("gpu_memcpy", "Memcpy HtoD"), "CopyHostToDevice2D": ("gpu_memcpy", "Memcpy HtoD"),
    "CopyDeviceToHost": ("gpu_memcpy", "Memcpy DtoH"), "CopyDeviceToHost2D": ("gpu_memcpy", "Memcpy DtoH"),
    "CopyDeviceToDevice": ("gpu_memcpy", "Memcpy DtoD"), "CopyDeviceToDevice2D": ("gpu_memcpy", "Memcpy DtoD"),
}  # fmt: skip
"""Type of an operation -> Kineto's category and name of it ("" for its own)."""

ON_DEVICE: Final = frozenset(category for category, _ in _OPERATIONS.values())

_ON_DEVICE_0: Final = re.compile(r"(MEMORY_COPY_)?(HOST|DEVICE)_TO_(HOST|DEVICE)")
"""Types of copies by rocprofiler-sdk, all of which are written as of device 0."""
_CALL: Final = re.compile(r"hip[A-Z]\w*")
_REPEATED: Final = re.compile(r"UserMarker frame: \d+ ops")
_OF_GRAPH: Final = {"kernels"}
"""The `args` of a row that spans the kernels of a graph, which have rows of their own."""
_END_NS: Final = 2000  # from an arrow's begin to the end of its call
_ROUNDING_NS: Final = 1000  # of times that are whole µs


def kineto(event: Mapping[str, Any], args: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The category and the event as Kineto would write them; None if it is not one of rocmProfileData's.

    Args:
        event: a complete event without a category.
        args: its `args`.
    """
    kind, name = args.get("desc"), event.get("name")
    if args.keys() == _OF_GRAPH:
        return "gpu_user_annotation", event
    if not isinstance(kind, str) or not isinstance(name, str):
        return None
    if kind in _OPERATIONS:
        category, plain = _OPERATIONS[kind]
        return category, {**event, "name": plain or name}
    if _ON_DEVICE_0.fullmatch(kind):
        return NO_DEVICE, event
    if _REPEATED.fullmatch(kind):
        return "gpu_user_annotation", event
    return ("cuda_runtime", event) if _CALL.fullmatch(name) else None


def link(found: dict[str, pd.DataFrame]) -> None:
    """Number the calls, and let each arrow begin where its call does: the last that began before the end that the arrow
    gives, if it had not ended. Others lead from no call. Calls with numbers are of another profiler and keep them."""
    api, arrows = found["api"], found["flow_starts"]
    if (api["correlation"] != MISSING).any():
        return
    api["correlation"] = np.arange(1, len(api) + 1)
    keys = ["process", "thread"]
    calls = api.assign(begin=api["start"])[[*keys, "start", "begin", "end"]].sort_values("start", kind="stable")
    ends = arrows.assign(at=arrows["start"] + _END_NS).reset_index()[["index", *keys, "at"]].sort_values("at")
    of = pd.merge_asof(ends, calls, left_on="at", right_on="start", by=keys, allow_exact_matches=False)
    begin = of["begin"].where(of["end"] >= of["at"] - _ROUNDING_NS, MISSING)
    found["flow_starts"] = arrows.assign(start=begin.set_axis(of["index"]).reindex(arrows.index).astype(np.int64))


def notes(are_fractional: bool) -> list[str]:
    """What these recordings lack. `are_fractional`: whether their times have fractions of a µs."""
    lacking = [f"streams are hardware queues: {SOURCE}'s JSON does not name those of HIP"]
    if not are_fractional:
        lacking.append(
            "times are whole µs, rounded down, as old versions of rpd2tracing write them: idle time after a kernel "
            "seems 0.5 µs longer (1 shorter to 2 longer); convert the .rpd with a newer rpd2tracing"
        )
    return lacking
