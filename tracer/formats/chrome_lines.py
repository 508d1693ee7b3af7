"""Rows of a trace's tables -> lines of Chrome JSON as Kineto writes them, built column by column in Arrow.

Source of the categories, names and `args`: Kineto's own writers (libkineto, `CuptiActivity.cpp` and
`output_json.cpp`, as of 2026).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats.tracks import SYNC_NAMES
from tracer.model.calls import plain
from tracer.model.intervals import Ints
from tracer.model.schema import MISSING, PROFILER_DOMAINS

Texts: TypeAlias = "pa.Array | str"
"""One text per row, or one for all rows."""

_THOUSAND: Final = pa.array([f"{i:03}" for i in range(1000)])


def events(table: str, rows: pd.DataFrame, pids: Ints, tids: Ints, *, domains_are_categories: bool = False) -> pa.Array:
    """One line per row of a table, each with the comma before it.

    Args:
        table: the table's name.
        rows: some of its rows, as returned by `tracks.spans`.
        pids: the process of each row's track; for devices Kineto uses the device's number.
        tids: the thread of each row's track; for devices Kineto uses the stream's number.
        domains_are_categories: whether the ranges were read from such a file, where the domain is the category.
    """
    if table == "nvtx":
        category, name, args = _range(rows, domains_are_categories)
    else:
        category, name, args = _DESCRIBE[table](rows)
    start = rows["start"].to_numpy()
    length = _join(', "dur": ', _us(rows["end"].to_numpy() - start))
    phase: Texts = "X"
    if table == "nvtx" and (is_mark := _is(rows["kind"], "mark")).true_count:
        phase, length = pc.if_else(is_mark, "i", "X"), pc.if_else(is_mark, ', "s": "t"', length)
    where = _track(pids, tids, start)
    return _join(
        ',\n{"ph": "', phase, '", "cat": ', category, ', "name": ', name, where, length, ', "args": {', args, "}}"
    )


def flows(phase: str, ids: Ints, pids: Ints, tids: Ints, times: Ints) -> pa.Array:
    """The ends of arrows (ac2g, from a call to what it launched): phase "s" at the call, "f" at the activity."""
    binding = ', "bp": "e"' if phase == "f" else ""
    begin = f',\n{{"ph": "{phase}", "cat": "ac2g", "name": "ac2g", "id": '
    return _join(begin, _numbers(ids), _track(pids, tids, times), binding + "}")


def _track(pids: Ints, tids: Ints, times: Ints) -> pa.Array:
    return _join(', "pid": ', _numbers(pids), ', "tid": ', _numbers(tids), ', "ts": ', _us(times))


WHOLE_GRAPH: Final = "whole graph"
"""The member of a kernel's `args` that marks the execution of a whole graph."""
PROCESS: Final = "process"
"""The member of a device activity's `args` that gives its process; Kineto records only one process."""
DOMAIN: Final = "domain"
"""The member of an annotation's `args` that gives its NVTX domain, if that is not a category of Kineto's."""

_CATEGORY_OF: Final = {"": "user_annotation", "trace": "Trace"}

Described = tuple[Texts, Texts, Texts]
"""Category and name in quotes, and the members of `args`."""


def _kernel(rows: pd.DataFrame) -> Described:
    full, short = _texts(rows["name"]), _texts(rows["short_name"])
    shared = rows[["static_shared", "dynamic_shared"]]
    total = shared.clip(lower=0).sum(axis=1).where((shared != MISSING).any(axis=1), MISSING)
    args = _join(
        _on_stream(rows),
        _optional("registers per thread", rows["registers"]),
        _optional("shared memory", total),
        _three("grid", rows),
        _three("block", rows),
        _optional("graph id", rows["graph"]),
        _optional("graph node id", rows["graph_node"]),
    )
    return '"kernel"', pc.if_else(pc.equal(full, '""'), short, full), args


def _graph_launch(rows: pd.DataFrame) -> Described:
    graph = _optional("graph id", rows["graph"])
    args = _join(_on_stream(rows), graph, _optional("graph exec id", rows["graph_exec"]), f', "{WHOLE_GRAPH}": 1')
    name = pc.if_else(_known(rows["graph"]), _join('"graph ', _numbers(rows["graph"].to_numpy()), '"'), '"graph"')
    return '"kernel"', name, args


def _copy(rows: pd.DataFrame) -> Described:
    ends = [_texts(rows[column], str.title, quoted=False) for column in ("src_kind", "dst_kind")]
    kind = _texts(rows["kind"], lambda word: "Unknown" if word == "unknown" else word, quoted=False)
    peers = [_optional("fromDevice", rows["src_device"]), _optional("toDevice", rows["dst_device"])]
    name = _join('"Memcpy ', kind, " (", ends[0], " -> ", ends[1], ')"')
    return '"gpu_memcpy"', name, _join(_on_stream(rows), *peers, _bytes(rows), _graph_node(rows))


def _fill(rows: pd.DataFrame) -> Described:
    name = _join('"Memset (', _texts(rows["mem_kind"], str.title, quoted=False), ')"')
    return '"gpu_memset"', name, _join(_on_stream(rows), _bytes(rows), _graph_node(rows))


def _call(rows: pd.DataFrame) -> Described:
    category = pc.if_else(_is(rows["layer"], "driver"), '"cuda_driver"', '"cuda_runtime"')
    name = _texts(rows["name"], plain)
    return category, name, _join('"correlation": ', _numbers(rows["correlation"].to_numpy()))


def _sync(rows: pd.DataFrame) -> Described:
    name = _texts(rows["type"], SYNC_NAMES.__getitem__)
    event = _optional("wait_on_cuda_event_id", rows["event"])
    return '"cuda_sync"', name, _join('"cuda_sync_kind": ', name, ", ", _on_stream(rows), event)


def _event_record(rows: pd.DataFrame) -> Described:
    return '"cuda_event"', '"cudaEvent"', _join(_on_stream(rows), _optional("event_id", rows["event"]))


def _range(rows: pd.DataFrame, domains_are_categories: bool) -> Described:
    domain, payload = _texts(rows["domain"]), rows["payload"].to_numpy()
    category = _texts(rows["domain"], lambda each: _CATEGORY_OF.get(each, each))
    is_category = pc.is_in(domain, pa.array([json.dumps(each) for each in ("", *PROFILER_DOMAINS)]))
    if domains_are_categories:
        return category, _texts(rows["text"]), ""
    value = _join('"payload": ', pa.array(payload).cast(pa.string()))
    value = pc.if_else(pa.array(np.isfinite(payload)), value, "")
    comma = pc.if_else(pc.or_(is_category, pc.equal(value, "")), "", ", ")
    named = pc.if_else(is_category, "", _join(f'"{DOMAIN}": ', domain))
    return pc.if_else(is_category, category, '"user_annotation"'), _texts(rows["text"]), _join(named, comma, value)


_DESCRIBE: Final[dict[str, Callable[[pd.DataFrame], Described]]] = {
    "kernels": _kernel, "graph_launches": _graph_launch, "memcpys": _copy, "memsets": _fill, "api": _call,
    "syncs": _sync, "cuda_events": _event_record,
}  # fmt: skip


def _on_stream(rows: pd.DataFrame) -> pa.Array:
    columns = ("device", "context", "stream", "correlation")
    numbers = (part for c in columns for part in (f'{", " * (c != columns[0])}"{c}": ', _numbers(rows[c].to_numpy())))
    return _join(*numbers, _optional(PROCESS, rows["process"]))


def _three(label: str, rows: pd.DataFrame) -> Texts:
    sizes = [rows[f"{label}_{axis}"].to_numpy() for axis in "xyz"]
    x, y, z = (_numbers(size) for size in sizes)
    known = pa.array((np.array(sizes) != MISSING).any(axis=0))
    return pc.if_else(known, _join(f', "{label}": [', x, ", ", y, ", ", z, "]"), "")


def _bytes(rows: pd.DataFrame) -> Texts:
    size, length = rows["bytes"].to_numpy(), (rows["end"] - rows["start"]).to_numpy()
    rate = pa.array(size / np.maximum(length, 1)).cast(pa.string())  # bytes per ns are GB/s
    text = pc.if_else(pa.array(length > 0), rate, '"N/A"')
    speed = pc.if_else(_known(rows["bytes"]), _join(', "memory bandwidth (GB/s)": ', text), "")
    return _join(_optional("bytes", rows["bytes"]), speed)


def _graph_node(rows: pd.DataFrame) -> Texts:
    return _optional("graph node id", rows["graph_node"])


def _optional(label: str, values: pd.Series) -> Texts:
    if not (known := _known(values)).true_count:
        return ""
    return pc.if_else(known, _join(f', "{label}": ', _numbers(values.to_numpy())), "")


def _known(values: pd.Series) -> pa.BooleanArray:
    return pa.array(values.to_numpy() != MISSING)


def _is(words: pd.Series, word: str) -> pa.BooleanArray:
    return pa.array((words == word).to_numpy())


def _texts(values: pd.Series, change: Callable[[str], str] = str, *, quoted: bool = True) -> pa.Array:
    """A categorical's texts. Each distinct text is changed, and encoded as JSON if `quoted`, only once."""
    codes, used = pd.factorize(values.cat.codes.to_numpy())
    changed = [change(str(word)) for word in values.cat.categories[np.asarray(used)]]
    return pa.array([json.dumps(text) if quoted else text for text in changed], pa.string()).take(pa.array(codes))


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _us(ns: Ints) -> pa.Array:
    """Nanoseconds as microseconds with three decimals, exactly."""
    us, rest = np.divmod(np.abs(ns), 1000)
    sign = pc.if_else(pa.array(ns < 0), "-", "") if (ns < 0).any() else ""
    return _join(sign, _numbers(us), ".", _THOUSAND.take(pa.array(rest)))


def _join(*parts: Texts) -> Any:
    """The concatenated texts of each row; a single text if all parts are single texts."""
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return pc.binary_join_element_wise(*parts, "")
