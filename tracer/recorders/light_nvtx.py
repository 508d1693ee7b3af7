"""The program's own ranges and marks (NVTX), as the light recorder's library writes them to the ring."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.schema import MISSING, NVTX_KINDS
from tracer.recorders.light_ring import Ring, RingTexts

_UINT64, _INT64, _DOUBLE, _UINT32, _INT32, _FLOAT = range(1, 7)  # nvtxPayloadType_t
_TYPES: Final = {
    _UINT64: np.uint64, _INT64: np.int64, _DOUBLE: np.float64, _UINT32: np.uint32, _INT32: np.int32, _FLOAT: np.float32,
}  # fmt: skip
_NO_TEXT: Final = ""


def nvtx_table(ring: Ring, notes: list[str], last: int = 0) -> pd.DataFrame:
    """Build the nvtx table.

    Args:
        ring: of the process.
        notes: receives the numbers of ranges still open at the end and of ranges without text.
        last: the end of what else was recorded of the process, in ns of CLOCK_MONOTONIC.
    """
    events, names = ring.ranges, np.array(ring.calls or [""])
    if ring.texts is None or not len(events):
        return pd.DataFrame()
    what = names[events["call"]]
    opened, closed = _nested(events, what == "nvtx_push", what == "nvtx_pop")
    started, ended = _numbered(events, what == "nvtx_start", what == "nvtx_end")
    marks = np.flatnonzero(what == "nvtx_mark")
    rows = np.concatenate([opened, started, marks])
    ends = np.concatenate([closed, ended, marks])
    last = max([last, *(int(part["end"].max()) for part in (ring.records, events) if len(part))])
    is_open = ends == MISSING
    kinds = np.repeat(["push/pop", "start/end", "mark"], [len(opened), len(started), len(marks)])
    chosen = events[rows]
    text, is_gone = _decoded(ring.texts, chosen)
    for count, words in ((is_open.sum(), "were still open at the end; they end with the recording"),
                         (is_gone.sum(), "are left out, because later ones overwrote their texts")):  # fmt: skip
        if count:
            notes.append(f"process {ring.process} ({ring.program}): {count} NVTX ranges {words}")
    has_color, category = chosen["stream"] >> 32 & 1, (chosen["stream"] >> 33).astype(np.int64)
    return pd.DataFrame({
        "start": chosen["begin"], "end": np.where(is_open, last, events["begin"][ends]), "process": ring.process,
        "thread": chosen["thread"].astype(np.int64), "text": text,
        "kind": pd.Categorical(kinds, categories=list(NVTX_KINDS)),
        "domain": np.array(ring.texts.domains)[chosen["context"] % len(ring.texts.domains)],
        "category": np.where(category == 0, MISSING, category),
        "color": np.where(has_color == 1, (chosen["stream"] & 0xFFFFFFFF).astype(np.int64), MISSING),
        "payload": _payloads(chosen),
    })[~is_gone]  # fmt: skip


def _nested(
    events: NDArray[Any], is_push: NDArray[np.bool_], is_pop: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of pushes and of their pops; MISSING for a missing pop.

    Both have the same thread, domain, recording period and nesting level. A pop whose push was overwritten is ignored.
    """
    rows = np.flatnonzero(is_push | is_pop)
    frame = pd.DataFrame({"row": rows, "rise": np.where(is_push[rows], 1, -1)})
    frame = frame.assign(**{name: events[name][rows] for name in ("thread", "context", "graph")})
    level = frame.groupby(["thread", "context", "graph"], sort=False)["rise"].cumsum()
    frame["level"] = level + (frame["rise"] < 0)
    following = frame.groupby(["thread", "context", "graph", "level"], sort=False)[["row", "rise"]].shift(-1)
    pushes, pops = frame[frame["rise"] > 0], following["row"].where(following["rise"] < 0)
    return pushes["row"].to_numpy(np.int64), pops[pushes.index].fillna(MISSING).to_numpy(np.int64)


def _numbered(
    events: NDArray[Any], is_start: NDArray[np.bool_], is_end: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of start/end ranges, which any thread may end, and of their ends, by number."""
    rows, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    end_of = pd.Series(ends, events["number"][ends])
    found = end_of[~end_of.index.duplicated()].reindex(events["number"][rows])
    return rows.astype(np.int64), found.fillna(MISSING).to_numpy(np.int64)


def _decoded(texts: RingTexts, events: NDArray[Any]) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    """The texts, and which of them were overwritten; each distinct text is decoded once."""
    found = np.full(len(events), _NO_TEXT, object)
    at, length, size = events["object"], events["result"], len(texts.content)
    is_gone = texts.end > at + np.uint64(size)
    for count in np.unique(length[~is_gone & (length > 0)]).tolist():
        rows = np.flatnonzero(~is_gone & (length == count))
        places = (at[rows, None] + np.arange(count, dtype=np.uint64)) % np.uint64(size)
        different, which = np.unique(texts.content[places], axis=0, return_inverse=True)
        decoded = np.array([line.tobytes().decode(errors="replace") for line in different], object)
        found[rows] = decoded[which.ravel()]
    return found, np.asarray(is_gone)


def _payloads(events: NDArray[Any]) -> NDArray[np.float64]:
    """The payloads as numbers; NaN without one."""
    bits = np.ascontiguousarray(events["bytes"])
    found = np.full(len(events), np.nan)
    for number, kind in _TYPES.items():
        rows = events["copy_kind"] == number
        found[rows] = bits.view(kind)[:: bits.itemsize // np.dtype(kind).itemsize][rows]
    return found
