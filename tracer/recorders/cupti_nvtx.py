"""NVTX ranges: those that CUPTI delivers as MARKER records, and those that `tracer.annotate` records directly.

The Python package `nvtx` asks NVTX whether a domain is enabled, and opens no ranges if it is not. Under CUPTI the
default domain is reported as disabled, while named domains are enabled. So the default domain gets a name while CUPTI
records; the trace removes it again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pandas as pd
from nvtx import nvtx as package

from tracer.model.schema import MISSING, NVTX_KINDS
from tracer.recorders import cupti_activity as activity
from tracer.recorders.cupti_activity import Records, ints
from tracer.recorders.cupti_names import Sources, named, renamed

_INSTANT, _START, _END = 1, 2, 4  # CUPTI_ACTIVITY_FLAG_MARKER_*
_NO_COLOR: Final = 1  # CUPTI_ACTIVITY_FLAG_MARKER_COLOR_NONE
_DOUBLE, _UINT64, _INT64 = 0, 1, 4  # CUpti_MetricValueKind
_PROCESS: Final = 1  # CUPTI_ACTIVITY_OBJECT_PROCESS: the owner of start/end ranges

_COLUMNS: Final = ("start", "end", "thread", "text", "domain", "color", "payload")
STAND_IN: Final = "intertoken.default"
"""The name of the default domain while recording."""

_LOOKUP: Final = "_get_domain_cached"


class OwnRanges:
    """The ranges of `annotate`, on CUPTI's clock."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._threads = _Threads()

    def push(self, text: str, payload: float | None, domain: str, color: int, recording: bool) -> None:
        """Open a range on the calling thread; it leaves a row if it opens and closes while recording."""
        self._threads.open.append((time.time_ns() if recording else None, text, domain, color, payload))

    def pop(self, recording: bool) -> None:
        """Close the calling thread's innermost range."""
        end = time.time_ns()
        start, text, domain, color, payload = self._threads.open.pop()
        if start is not None and recording:
            number = math.nan if payload is None else float(payload)
            self.rows.append((start, end, self._threads.id, text, domain, color, number))


class _Threads(threading.local):
    """Per thread: its open ranges and its id."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, ...]] = []
        self.id = threading.get_native_id()


def nvtx_table(records: Records, own: OwnRanges, sources: Sources, last: int, notes: list[str]) -> pd.DataFrame:
    """The nvtx table.

    Args:
        records: kind -> records.
        own: the ranges of `annotate`.
        sources: origin, process and names.
        last: the end of the recording, in CUPTI's clock; open ranges end there.
        notes: receives a note with the number of open ranges.
    """
    noted = pd.DataFrame(own.rows, columns=list(_COLUMNS)).assign(kind="push/pop", process=os.getpid())
    markers = _markers(records, sources, last, notes)
    ranges = pd.concat([frame for frame in (noted, markers) if len(frame)] or [noted], ignore_index=True)
    ranges[["start", "end"]] -= sources.origin
    ranges["category"] = ranges["category"].fillna(MISSING).astype(np.int64) if "category" in ranges else MISSING
    ranges["kind"] = pd.Categorical(ranges["kind"], categories=list(NVTX_KINDS))
    return ranges


def _markers(records: Records, sources: Sources, last: int, notes: list[str]) -> pd.DataFrame:
    rows = records.get(activity.MARKER)
    if rows is None or not len(rows):
        return pd.DataFrame()
    opened = rows[rows["flags"] & (_START | _INSTANT) != 0]
    ends = rows[rows["flags"] & _END != 0]
    end_of = pd.Series(ends["timestamp"].astype(np.int64), index=ends["id"]).groupby(level=0).first()
    end = end_of.reindex(opened["id"]).to_numpy(np.float64, na_value=np.nan)
    instant = opened["flags"] & _INSTANT != 0
    start = opened["timestamp"].astype(np.int64)
    still_open = np.isnan(end) & ~instant
    if count := int(still_open.sum()):
        notes.append(f"{count} NVTX ranges were still open at the end; they end with the recording")
    exact = end_of.reindex(opened["id"], fill_value=last).to_numpy(np.int64)
    frame = pd.DataFrame(
        {
            "start": start,
            "end": np.where(instant, start, exact),
            "thread": ints(opened["thread"]),
            "process": ints(opened["process"]),
            "text": named(opened["name"], sources.text),
            "domain": renamed(named(opened["domain"], sources.text), lambda name: "" if name == STAND_IN else name),
            "kind": np.where(instant, "mark", np.where(opened["object_kind"] == _PROCESS, "start/end", "push/pop")),
        }
    )
    return frame.assign(**_data(records, opened["id"]))


def _data(records: Records, ids: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Payload, colour and category of the markers with those ids."""
    rows = records.get(activity.MARKER_DATA)
    if rows is None or not len(rows):
        return {"payload": np.nan, "color": MISSING, "category": MISSING}
    bits = np.ascontiguousarray(rows["payload"])
    kind = rows["payload_kind"]
    payload = np.where(kind == _DOUBLE, bits.view(np.float64), bits.view(np.int64).astype(np.float64))
    payload = np.where(kind == _UINT64, bits.astype(np.float64), payload)
    none = (kind == _UINT64) & (bits == 0)  # how CUPTI represents a missing payload
    known = np.isin(kind, (_DOUBLE, _UINT64, _INT64)) & ~none
    data = pd.DataFrame(
        {
            "payload": np.where(known, payload, np.nan),
            "color": np.where(rows["flags"] & _NO_COLOR != 0, MISSING, rows["color"].astype(np.int64)),
            "category": np.where(rows["category"] == 0, MISSING, rows["category"].astype(np.int64)),
        },
        index=rows["id"],
    )
    data = data[~data.index.duplicated()].reindex(ids)
    return {
        "payload": data["payload"].to_numpy(),
        **{name: data[name].fillna(MISSING).to_numpy(np.int64) for name in ("color", "category")},
    }


class NamedDefault:
    """Between `install` and `remove`, ranges that `nvtx` opens without a domain are opened in `STAND_IN`.

    Existing `nvtx.annotate` objects keep their domain. With a version of the package that looks up domains differently,
    nothing happens.
    """

    def __init__(self) -> None:
        self._original: Callable[[str | None], Any] | None = None

    def install(self) -> None:
        """Redirect the default domain; repeated calls do nothing."""
        original = getattr(package, _LOOKUP, None)
        if self._original is not None or original is None:
            return
        self._original = original
        setattr(package, _LOOKUP, lambda name: original(STAND_IN if name is None else name))

    def remove(self) -> None:
        """Restore the default domain."""
        if self._original is not None:
            setattr(package, _LOOKUP, self._original)
            self._original = None
