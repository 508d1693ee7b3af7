"""Trace events as Kineto (PyTorch's profiler) writes them -> tables.

Source of the categories and of the names in `args`: Kineto's own writers (libkineto, `CuptiActivity.cpp` and
`output_json.cpp`, as of 2026), and traces of PyTorch 2.15. Older names of categories are understood too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.schema import API_LAYERS, MEMCPY_KINDS, MEMORY_KINDS, MISSING, MOST_NS, NVTX_KINDS, SYNC_TYPES
from tracer.trace import Columns

Ints = NDArray[np.int64]
Event = Mapping[str, Any]

_SPAN: Final = ("start", "end")
_ON_STREAM: Final = ("device", "context", "stream", "correlation")
_ON_THREAD: Final = ("process", "thread")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "kernels": (*_SPAN, *_ON_STREAM, "name", *_SIZES, "registers", "dynamic_shared", "graph_node", "graph"),
    "memcpys": (*_SPAN, *_ON_STREAM, "name", "bytes", "src_device", "dst_device", "graph_node"),
    "memsets": (*_SPAN, *_ON_STREAM, "name", "bytes", "graph_node"),
    "api": (*_SPAN, *_ON_THREAD, "correlation", "name", "layer"),
    "syncs": (*_SPAN, *_ON_STREAM, "type", "event"),
    "cuda_events": (*_ON_STREAM, "event"),
    "nvtx": (*_SPAN, *_ON_THREAD, "text", "domain", "kind"),
    "threads": (*_ON_THREAD, "name"),
    "processes": ("process", "name"),
    "flow_starts": ("id", "start", "process", "thread"),
    "flow_ends": ("id", "start", "device", "stream"),
}
"""What is collected for each table; the flows (arrows from a launch to what it launched) are no table of a trace."""

_TEXTS: Final = {"name", "text", "domain", "type"}
_TABLE_OF: Final = {
    "kernel": "kernels", "gpu_memcpy": "memcpys", "memcpy": "memcpys", "gpu_memset": "memsets", "memset": "memsets",
    "cuda_runtime": "api", "runtime": "api", "cuda_driver": "api", "cuda_sync": "syncs", "cuda_event": "cuda_events",
}  # fmt: skip
_ANNOTATIONS: Final = ("user_annotation", "")
_SYNC_KINDS: Final = {
    "Event Sync": "event", "Stream Wait Event": "stream wait", "Stream Sync": "stream", "Context Sync": "context",
}  # fmt: skip
_COPY: Final = re.compile(r"Memcpy (\w+)(?: \((.+) -> (.+)\))?")
_FILL: Final = re.compile(r"Memset \((.+)\)")
_CHUNK: Final = 1 << 16
_LIMIT: Final = 2**63
PYTHON: Final = "python_function"
_ON_DEVICE: Final = "gpu_user_annotation"


class Tables:
    """Takes events and keeps of each only integers, in chunks of NumPy arrays; texts are numbered.

    Attributes:
        left_out: how many events were left out, by what they are.
    """

    def __init__(self, python_functions: bool = False) -> None:
        self.left_out: Counter[str] = Counter()
        self._python = python_functions
        self._rows: dict[str, list[tuple[int, ...]]] = {name: [] for name in COLUMNS}
        self._chunks: dict[str, list[Ints]] = {name: [] for name in COLUMNS}
        self._codes: dict[str, int] = {}

    def add(self, event: Any) -> None:
        """Take one event; one that cannot be used is counted in `left_out`."""
        if not isinstance(event, dict):
            self.left_out["entries that are no events"] += 1
            return
        phase = event.get("ph")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if phase == "M":
            self._describe(event, args)
            return
        category = event.get("cat")
        category = category.lower() if isinstance(category, str) else ""
        start = _ns(event.get("ts"))
        if phase in ("s", "f", "t") and start is not None:
            if category == "ac2g" and phase != "t":
                table = "flow_starts" if phase == "s" else "flow_ends"
                self._append(table, (_int(event.get("id")), start, _int(event.get("pid")), _int(event.get("tid"))))
            return
        duration = _ns(event.get("dur")) if phase == "X" else 0
        if phase not in ("X", "i", "I"):
            self.left_out[f"events of phase {str(phase)[:20]!r}"] += 1
        elif category == _ON_DEVICE or (category == PYTHON and not self._python):
            self.left_out[f"{category} events"] += 1
        elif start is None or duration is None or not isinstance(event.get("name"), str):
            self.left_out["events without a usable time or name"] += 1
        elif duration < 0 or start + duration >= MOST_NS:
            self.left_out["events with a negative or impossible duration"] += 1
        else:
            self._take(_TABLE_OF.get(category, "nvtx"), category, event, args, (start, start + duration))

    def _take(self, table: str, category: str, event: Event, args: Event, span: tuple[int, int]) -> None:
        if table == "nvtx":
            domain = "" if category in _ANNOTATIONS else category
            kind = NVTX_KINDS["push/pop" if event["ph"] == "X" else "mark"]
            self._append(table, (*span, *_thread(event), self._code(event["name"]), self._code(domain), kind))
        elif table == "api":
            layer = API_LAYERS["driver" if category == "cuda_driver" else "runtime"]
            name, correlation = self._code(event["name"]), _int(args.get("correlation"))
            self._append(table, (*span, *_thread(event), correlation, name, layer))
        else:
            where = (
                _int(args.get("device", args.get("inDevice", event.get("pid")))),
                _int(args.get("context", args.get("inContext"))),
                _int(args.get("stream", event.get("tid"))),
                _int(args.get("correlation")),
            )
            self._append(table, self._activity(table, event, args, span, where))

    def _activity(
        self, table: str, event: Event, args: Event, span: tuple[int, int], where: tuple[int, ...]
    ) -> tuple[int, ...]:
        if table == "cuda_events":
            return (*where, _int(args.get("event_id")))
        if table == "syncs":
            kind = args.get("cuda_sync_kind", event["name"])
            return (*span, *where, self._code(str(kind)), _int(args.get("wait_on_cuda_event_id")))
        name, node = self._code(event["name"]), _id(args.get("graph node id"))
        if table == "kernels":
            sizes = (*_three(args.get("grid")), *_three(args.get("block")))
            used = (_int(args.get("registers per thread")), _int(args.get("shared memory")))
            return (*span, *where, name, *sizes, *used, node, _id(args.get("graph id")))
        size = _int(args.get("bytes"))
        if table == "memsets":
            return (*span, *where, name, size, node)
        return (*span, *where, name, size, _int(args.get("fromDevice")), _int(args.get("toDevice")), node)

    def _describe(self, event: Event, args: Event) -> None:
        name = args.get("name")
        process, thread = _thread(event)
        if not isinstance(name, str) or process == MISSING:
            return
        if event.get("name") == "process_name":
            self._append("processes", (process, self._code(name)))
        elif event.get("name") == "thread_name":
            self._append("threads", (process, thread, self._code(name)))

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def _append(self, table: str, row: tuple[int, ...]) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) == _CHUNK:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows[table]
        self._chunks[table].append(np.array(rows, np.int64).reshape(len(rows), len(COLUMNS[table])))
        rows.clear()

    def frames(self) -> dict[str, Columns]:
        """The trace's tables that have rows, as columns."""
        found = {name: self._frame(name) for name in COLUMNS}
        _link(found)
        hosts = _host_processes(found)
        calls = found["api"].loc[found["api"]["correlation"] != MISSING, ["correlation", "process"]]
        process_of = calls.drop_duplicates("correlation").set_index("correlation")["process"]
        only = int(hosts[0]) if len(hosts) == 1 else MISSING  # for activities of calls that the file lacks
        for name in ("kernels", "memcpys", "memsets", "syncs", "cuda_events"):
            by_call = process_of.reindex(found[name]["correlation"])
            found[name]["process"] = by_call.fillna(only).to_numpy(np.int64)
        for name, keys in (("threads", list(_ON_THREAD)), ("processes", ["process"])):
            described = found[name][found[name]["process"].isin(hosts)]  # Kineto describes GPUs and streams so, too
            found[name] = described.drop_duplicates(keys, keep="last")
        tables = {name: frame for name, frame in found.items() if len(frame) and not name.startswith("flow")}
        return {name: self._named(name, frame) for name, frame in tables.items()}

    def _frame(self, table: str) -> pd.DataFrame:
        self._flush(table)
        return pd.DataFrame(np.concatenate(self._chunks.pop(table)), columns=list(COLUMNS[table]))

    def _named(self, table: str, frame: pd.DataFrame) -> Columns:
        columns: dict[str, Any] = {str(name): frame[name].to_numpy() for name in frame}
        for name in _TEXTS & columns.keys():
            columns[name] = self._texts(columns[name])
        if table == "nvtx":
            columns["kind"] = _words(columns["kind"], NVTX_KINDS)
        elif table == "api":
            columns["layer"] = _words(columns["layer"], API_LAYERS)
        elif table == "syncs":
            columns["type"] = _map(columns["type"], lambda text: _SYNC_KINDS.get(text, "unknown"), SYNC_TYPES)
        elif table == "memsets":
            columns["mem_kind"] = _map(columns.pop("name"), lambda text: _memory(_FILL, text, 1), MEMORY_KINDS)
        elif table == "memcpys":
            names = columns.pop("name")
            columns["kind"] = _map(names, _copy_kind, MEMCPY_KINDS)
            columns["src_kind"] = _map(names, lambda text: _memory(_COPY, text, 2), MEMORY_KINDS)
            columns["dst_kind"] = _map(names, lambda text: _memory(_COPY, text, 3), MEMORY_KINDS)
        return columns

    def _texts(self, codes: Ints) -> pd.Categorical:
        used, at = np.unique(codes, return_inverse=True)
        texts = list(self._codes)
        return pd.Categorical.from_codes(at, pd.Index([texts[code] for code in used], dtype="str"))


def _link(found: dict[str, pd.DataFrame]) -> None:
    """Correlations for activities that have none, by the arrow that ends where they start."""
    starts, ends, api = found["flow_starts"], found["flow_ends"], found["api"]
    lacking = [n for n in ("kernels", "memcpys", "memsets") if (found[n]["correlation"] == MISSING).any()]
    if not lacking or not len(starts) or not len(ends):
        return
    keys, where = ["start", *_ON_THREAD], ["start", "device", "stream"]
    calls = api.reset_index().drop_duplicates(keys).set_index(keys)["index"]
    starts = starts.drop_duplicates("id")
    rows = calls.reindex(pd.MultiIndex.from_frame(starts[keys])).fillna(-1).to_numpy(np.int64)
    starts, rows = starts[rows >= 0], rows[rows >= 0]
    own = api["correlation"].to_numpy()[rows]
    linked = np.where(own == MISSING, starts["id"], own)
    api.loc[rows, "correlation"] = linked
    of_flow = pd.Series(linked, index=starts["id"].to_numpy())
    flow_at = ends.drop_duplicates(where).set_index(where)["id"]
    for name in lacking:
        frame = found[name]
        ids = flow_at.reindex(pd.MultiIndex.from_frame(frame[where]))
        new = of_flow.reindex(ids.to_numpy()).fillna(MISSING).to_numpy(np.int64)
        frame["correlation"] = np.where(frame["correlation"] == MISSING, new, frame["correlation"])


def _host_processes(found: dict[str, pd.DataFrame]) -> Ints:
    ids = np.concatenate([found[name]["process"].to_numpy() for name in ("api", "nvtx")])
    return np.unique(ids[ids != MISSING])


def _words(ids: Ints, enum: dict[str, int]) -> pd.Categorical:
    at = {id: code for code, id in enumerate(enum.values())}
    return pd.Categorical.from_codes([at[id] for id in ids.tolist()], pd.Index(list(enum), dtype="str"))


def _map(texts: pd.Categorical, word: Any, enum: dict[str, int]) -> pd.Categorical:
    """Each distinct text as a word of an enum."""
    words = list(enum)
    codes = np.array([words.index(word(text)) for text in texts.categories], np.int64)
    return pd.Categorical.from_codes(codes[texts.codes], pd.Index(words, dtype="str"))


def _copy_kind(text: str) -> str:
    match = _COPY.fullmatch(text)
    return match[1] if match and match[1] in MEMCPY_KINDS else "unknown"


def _memory(pattern: re.Pattern[str], text: str, group: int) -> str:
    match = pattern.fullmatch(text)
    word = (match[group] or "").lower() if match else ""
    return word if word in MEMORY_KINDS else "unknown"


def _ns(us: Any) -> int | None:
    """Microseconds as whole nanoseconds, exactly; None for what is no number or fits no int64."""
    if type(us) is int:
        ns = us * 1000
    elif isinstance(us, Decimal):
        ns = round(us.scaleb(3)) if us.is_finite() and us.adjusted() < 20 else _LIMIT
    else:
        return None
    return ns if abs(ns) < MOST_NS else None


def _int(value: Any) -> int:
    if type(value) is int and -_LIMIT <= value < _LIMIT:
        return value
    return _int(int(value)) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else MISSING


def _id(value: Any) -> int:
    """A graph's or node's id, which is 0 for none."""
    return _int(value) or MISSING


def _three(sizes: Any) -> tuple[int, int, int]:
    if not isinstance(sizes, list) or len(sizes) != 3:
        return MISSING, MISSING, MISSING
    return _int(sizes[0]), _int(sizes[1]), _int(sizes[2])


def _thread(event: Event) -> tuple[int, int]:
    """Process and thread; MISSING for a track that is none (such as "Spans")."""
    return _int(event.get("pid")), _int(event.get("tid"))
