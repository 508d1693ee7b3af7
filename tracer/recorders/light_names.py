"""The names of kernels that the preloaded library wrote next to a ring (`native/names.c`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.recorders.cupti_names import demangled
from tracer.recorders.light_ring import lines_beside

_PARTS: Final = 3
_NUMBER: Final = re.compile("[0-9]{1,18}")
_HANDLE: Final = re.compile("[0-9a-f]{1,16}")
_SAME: Final = "="
"""Before the handle of a kernel, whose function a handle is."""


def kernel_names(ring: Path, launches: NDArray[Any]) -> pd.Categorical:
    """The demangled name of each launch's kernel; "kernel N" for the Nth kernel of which the library saw no name.

    A handle may stand for different kernels in turn: it is the one that was named last before the launch, or first.

    Args:
        ring: its file.
        launches: records.
    """
    number, distinct = pd.factorize(launches["object"])
    launched = pd.DataFrame({"handle": launches["object"], "at": launches["sequence"], "row": range(len(launches))})
    said = _said(ring)
    last = pd.merge_asof(launched.sort_values("at"), said, on="at", by="handle", allow_exact_matches=False)
    first = said.drop_duplicates("handle").set_index("handle")["name"]
    found = last.sort_values("row")["name"].astype(object).to_numpy()
    for other in (
        launched["handle"].map(first),
        pd.Series([f"kernel {each + 1}" for each in range(len(distinct))], dtype=object).reindex(number),
    ):
        found = np.where(pd.isna(found), other.astype(object).to_numpy(), found)
    return pd.Categorical(found)


def _said(ring: Path) -> pd.DataFrame:
    """What was said of each handle, in order: at (the number of records before), handle, name."""
    lines = lines_beside(ring, ".names")
    rows = [(int(parts[0]), int(parts[1], 16), parts[2]) for parts in lines if _is_whole(parts)]
    said = pd.DataFrame(rows, columns=["at", "handle", "name"]).astype({"at": "uint64", "handle": "uint64"})
    known = dict(zip(said["handle"], said["name"], strict=True))
    alike = [known.get(int(name[1:], 16), "") if name.startswith(_SAME) else name for name in said["name"]]
    said["name"] = pd.Series(alike, dtype=object).map({name: demangled(name) for name in set(alike)})
    return said[said["name"] != ""].sort_values("at", kind="stable")


def _is_whole(parts: list[str]) -> bool:
    """Whether a line is one of the library's."""
    if len(parts) != _PARTS or not parts[2]:
        return False
    handles = [parts[1], parts[2][1:]] if parts[2].startswith(_SAME) else [parts[1]]
    return _NUMBER.fullmatch(parts[0]) is not None and all(map(_HANDLE.fullmatch, handles))
